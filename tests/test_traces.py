"""The traces of truth/traces.json from whole experiments, in both engines: from the tables of a file to the history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer import explain, simulate
from peer.experiment import Experiment, from_dict
from peer.scripting import Document
from peer.ways import Engine
from tests.commands import inline
from tests.four_peers import DIGITS, OPTIMUM, SAMPLES, SHARDS, START, TRACES, Matrix, numbers

BOTH_ENGINES = pytest.mark.parametrize("engine", ["rounds", "events"])

ARCS = "\n".join(f"{sender} {listener}" for sender, listener in TRACES["push_sum_directed"]["edges"])
DIRECTED = {"family": "file:graph.edges", "directed": True}
BEYOND: Matrix = np.array([[1, 2, 0, 2], [2, 1, 2, 0], [0, 2, 1, 2], [2, 0, 2, 1]]) / 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the graphs and matrices that the experiments name."""
    (tmp_path / "graph.edges").write_text(ARCS, encoding="utf-8")
    np.save(tmp_path / "samples.npy", SAMPLES)
    np.save(tmp_path / "beyond.npy", BEYOND)
    return tmp_path


def experiment(folder: Path, rounds: int, task: Mapping[str, object], **tables: object) -> Experiment:
    """The four peers, evaluated in every round."""
    common = {"rounds": rounds, "eval_every": 1, "record": {"params": "every"}}
    return from_dict({**common, **inline(SHARDS, [START], **task), **tables}, folder=folder)


def weights(summary: Document) -> list[list[float]]:
    """Return the peers' weights after each round, (rounds + 1, n)."""
    return [[w for (w,) in entry.params] for entry in summary.history]


# ---- The traces


@dataclass(frozen=True)
class Trace:
    """What the peers hold after each round, or what all of them do, and the tables that make them."""

    truth: Sequence[float] | Sequence[Sequence[float]]
    task: Mapping[str, object] = field(default_factory=dict)
    topology: Mapping[str, object] = field(default_factory=dict)
    algorithm: Mapping[str, object] = field(default_factory=dict)


def traces() -> dict[str, Trace]:
    exact, samples = {"name": "exact"}, {"family": "file:samples.npy"}
    found = {"mean of all": Trace(numbers(TRACES["sync_mean_gradient_lr0.1"]["exact"]), algorithm=exact)}
    for order, name in (("atc", "ATC"), ("cta", "CTA_Lian2017")):
        for lr in (0.1, 0.05):
            truth = [numbers(row) for row in TRACES["dpsgd_ring4"][f"{name}_lr{lr}"]["exact"]]
            found[f"dpsgd {order} {lr}"] = Trace(truth, {"lr": lr}, algorithm={"order": order})
    for order, name in (("atc", "ATC"), ("diging", "DIGing")):
        for lr in (0.1, 0.05, 0.02):
            truth = TRACES["gradient_tracking_ring4"][f"{name}_lr{lr}"]["w"]
            tracking = {"name": "gradient_tracking", "order": order}
            found[f"gradient tracking {order} {lr}"] = Trace(truth, {"lr": lr}, algorithm=tracking)
    for rule, name in (("auto", "W_third_ring"), ("lazy", "lazy_(I+W)/2")):
        for lr in (0.1, 0.05):
            truth = TRACES["D2_ring4"]["traces"][f"{name}_lr{lr}"]["w"]
            found[f"d2 {rule} {lr}"] = Trace(truth, {"lr": lr}, {"weights": rule}, {"name": "d2"})
    for lr in (0.05, 0.01):
        truth = TRACES["D2_divergence_example"]["traces"][f"lr{lr}"]["w"]
        allowed = {"name": "d2", "allow_unstable": True}
        found[f"d2 beyond {lr}"] = Trace(truth, {"lr": lr}, {"family": "file:beyond.npy"}, allowed)
    found["push-sum"] = Trace(TRACES["SGP_directed"]["z"]["0.05"], {"lr": 0.05}, DIRECTED, {"name": "push_sum"})
    for steps in (1, 2, 4, 8):
        local, fedavg = {"local_steps": steps}, TRACES["local_SGD_FedAvg_lr0.1"]["traces"]
        found[f"fedavg {steps} equal"] = Trace(fedavg[f"H={steps},weights=equal"]["w"], local, algorithm=exact)
        found[f"fedavg {steps} samples"] = Trace(fedavg[f"H={steps},weights=10/20/30/40"]["w"], local, samples)
    for name, mu in (("mu=1.0", 1.0), ("mu=0.1", 0.1), ("mu=0 (FedAvg)", 0.0)):
        proximal = {"lr": 0.05, "local_steps": 4, "proximal_mu": mu}
        found[f"fedprox {mu}"] = Trace(TRACES["FedProx_lr0.05_H4"]["traces"][name]["w"], proximal, samples)
    for steps, lr in ((2, 0.1), (4, 0.01), (8, 0.01)):
        for form in ("nesterov", "heavy_ball"):
            truth = TRACES["DiLoCo_outer"]["traces"][f"H={steps},inner_lr={lr},{form}"]
            diloco = {"name": "diloco", "nesterov": form == "nesterov"}
            found[f"diloco {steps} {form}"] = Trace(truth, {"lr": lr, "local_steps": steps}, algorithm=diloco)
    return found


ALL = traces()


@BOTH_ENGINES
@pytest.mark.parametrize("name", ALL)
def test_a_trace(folder: Path, engine: Engine, name: str) -> None:
    trace = ALL[name]
    tables = {"topology": dict(trace.topology), "algorithm": dict(trace.algorithm)}
    summary = simulate(experiment(folder, len(trace.truth) - 1, trace.task, **tables), engine=engine)
    assert summary.outcome == "finished"
    for found, expected in zip(weights(summary), trace.truth, strict=True):
        assert found == pytest.approx(expected if isinstance(expected, list) else [expected] * 4, rel=DIGITS)


@BOTH_ENGINES
def test_pure_gossip_on_a_directed_graph(folder: Path, engine: Engine) -> None:
    truth, start = TRACES["push_sum_directed"], [[1.0], [2.0], [3.0], [4.0]]
    task = {"data": "none", "init": start, "dtype": "float64"}
    tables = {"task": task, "topology": DIRECTED, "algorithm": {"name": "push_sum"}, "record": {"params": "every"}}
    e = from_dict({"rounds": 60, "eval_every": 1, **tables}, folder=folder)
    found = weights(simulate(e, engine=engine))
    for z, step in zip(found, truth["trace"], strict=False):
        assert z == pytest.approx(step["z"], rel=DIGITS)
    assert found[-1] == pytest.approx([truth["limit_z"]] * 4, rel=1e-12)


def test_the_matrix_of_push_sum_is_the_one_of_the_file(folder: Path) -> None:
    truth = TRACES["push_sum_directed"]
    found = explain(experiment(folder, 1, {}, topology=DIRECTED, algorithm={"name": "push_sum"}), matrix=True)
    assert [list(row) for row in found.matrix] == [pytest.approx(numbers(row), rel=1e-15) for row in truth["P"]]
    assert found.stochastic == "column"
    assert found.slem == pytest.approx(truth["slem_P"], rel=DIGITS)


@BOTH_ENGINES
def test_d2_below_a_third_diverges(folder: Path, engine: Engine) -> None:
    truth = TRACES["D2_divergence_example"]["traces"]["lr0.05"]
    tables: dict[str, Any] = {
        "topology": {"family": "file:beyond.npy"},
        "algorithm": {"name": "d2", "allow_unstable": True},
        "record": {"params": "final", "on_divergence": "continue"},
        "eval_every": 200,
    }
    summary = simulate(experiment(folder, 200, {"lr": 0.05}, **tables), engine=engine)
    assert summary.outcome == "diverged"
    assert [abs(w) for (w,) in summary.params] == pytest.approx(truth["abs_w_after_200_steps"], rel=DIGITS)


@BOTH_ENGINES
@pytest.mark.parametrize("name", ["gradient_tracking", "d2", "push_sum"])
def test_the_limit_is_the_optimum_of_the_mean_loss(folder: Path, engine: Engine, name: str) -> None:
    """But for push-sum, which has that of D-PSGD on a ring: near the optimum by lr times what gradients differ by."""
    summary = simulate(experiment(folder, 90, {}, algorithm={"name": name}, eval_every=90), engine=engine)
    biased = numbers(TRACES["dpsgd_ring4"]["ATC_lr0.1"]["fixed_point_exact"])
    assert weights(summary)[-1] == pytest.approx(biased if name == "push_sum" else [OPTIMUM] * 4, rel=1e-9)


# ---- The lecture


@BOTH_ENGINES
def test_the_numbers_of_the_lecture(folder: Path, engine: Engine) -> None:
    single, four = TRACES["lecture"]["single"], TRACES["lecture"]["four_workers"]
    shard = [[[[float(single["x"])], float(single["y"])]]]
    common = {"rounds": 1, "record": {"params": "every"}, "topology": {"peers": 1}}
    summary = simulate(from_dict({**common, **inline(shard, [float(single["w"])])}), engine=engine)
    assert summary.history[0].loss.mean == single["loss"]
    assert weights(summary) == [[single["w"]], [pytest.approx(single["w_new_lr_0_1"], rel=1e-15)]]

    mean_of_all = simulate(experiment(folder, 1, {}, algorithm={"name": "exact"}), engine=engine)
    assert weights(mean_of_all)[1] == pytest.approx([four["w_new"]] * 4, rel=1e-15)
    alone = simulate(experiment(folder, 1, {}, algorithm={"name": "local"}), engine=engine)
    gradients = [(START - w) / 0.1 for w in weights(alone)[1]]
    assert gradients == pytest.approx(four["gradients"], rel=1e-12)
    assert np.mean(gradients) == pytest.approx(four["mean"], rel=1e-12)


# ---- Identities of truth/truth.json


ALIKE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dpsgd atc": ({}, {}),
    "dpsgd cta": ({"order": "cta"}, {}),
    "dpsgd by rows": ({}, {"family": "star", "weights": "uniform"}),
    "dpsgd directed": ({}, {"family": "exponential"}),
    "dpsgd one peer at a time": ({}, {"family": "one_peer_exponential"}),
    "gradient tracking atc": ({"name": "gradient_tracking"}, {}),
    "gradient tracking diging": ({"name": "gradient_tracking", "order": "diging"}, {}),
    "d2": ({"name": "d2"}, {}),
    "push-sum": ({"name": "push_sum"}, {}),
    "diloco": ({"name": "diloco", "outer_lr": 1.0, "outer_momentum": 0.0}, {}),
    "diloco among neighbours": (
        {"name": "diloco", "outer_lr": 1.0, "outer_momentum": 0.0, "among": "neighbours"},
        {},
    ),
    "exact": ({"name": "exact"}, {}),
    "local": ({"name": "local"}, {}),
}


@BOTH_ENGINES
@pytest.mark.parametrize("name", ALIKE)
def test_peers_with_the_same_rows_and_start_do_what_one_does(engine: Engine, name: str) -> None:
    """w_t = 5/2 + (3/2 - 5/2) (1 - 0.1 * 4)^t, and nobody differs from anybody."""
    algorithm, topology = ALIKE[name]
    common = {"rounds": 6, "eval_every": 1, "record": {"params": "every"}, **inline([SHARDS[1]] * 4, [START])}
    summary = simulate(from_dict({**common, "algorithm": algorithm, "topology": topology}), engine=engine)
    for t, found in enumerate(weights(summary)):
        assert found == pytest.approx([2.5 - 0.6**t] * 4, rel=1e-12)
        assert summary.history[t].consensus_distance <= 1e-28


@BOTH_ENGINES
def test_on_a_complete_graph_gossip_is_the_mean_of_all(folder: Path, engine: Engine) -> None:
    """W (x - lr g) with every weight 1/n: for D-PSGD, gradient tracking, push-sum, and DiLoCo without momentum."""
    expected = numbers(TRACES["sync_mean_gradient_lr0.1"]["exact"])
    plain = {"name": "diloco", "outer_lr": 1.0, "outer_momentum": 0.0}
    for algorithm in ({}, {"name": "gradient_tracking"}, {"name": "push_sum"}, plain, {**plain, "among": "neighbours"}):
        e = experiment(folder, 5, {}, topology={"family": "complete"}, algorithm=algorithm)
        for found, w in zip(weights(simulate(e, engine=engine)), expected, strict=True):
            assert found == pytest.approx([w] * 4, rel=1e-12)


@BOTH_ENGINES
def test_alone_each_peer_goes_to_its_own_optimum(folder: Path, engine: Engine) -> None:
    """w* + (3/2 - w*) (1 - lr x^2)^t."""
    x, optima = np.arange(1, 5), np.array([3, 5 / 2, 7 / 3, 9 / 4])
    found = weights(simulate(experiment(folder, 8, {}, algorithm={"name": "local"}), engine=engine))
    for t, w in enumerate(found):
        assert w == pytest.approx((optima + (START - optima) * (1 - 0.1 * x**2) ** t).tolist(), rel=1e-12)


@BOTH_ENGINES
@pytest.mark.parametrize("name", ["dpsgd", "push_sum"])
@pytest.mark.parametrize("power", [1, 2, 3])
def test_one_peer_at_a_time_agree_exactly_after_as_many_rounds_as_there_are_powers_of_two(
    engine: Engine, name: str, power: int
) -> None:
    count = 2**power
    task = {"data": "none", "init": [[float(i * i)] for i in range(count)], "dtype": "float64"}
    tables = {"task": task, "topology": {"family": "one_peer_exponential"}, "algorithm": {"name": name}}
    summary = simulate(from_dict({"rounds": power + 2, "eval_every": 1, **tables}), engine=engine)
    distances = [entry.consensus_distance for entry in summary.history]
    assert distances[power:] == [0.0] * 3, "halves of small integers are exact"
    assert min(distances[:power]) > 0.0


# ---- What the engines have in common


POISONED: dict[str, dict[str, Any]] = {
    "dpsgd atc": {},
    "dpsgd cta": {"order": "cta"},
    "gradient tracking atc": {"name": "gradient_tracking"},
    "gradient tracking diging": {"name": "gradient_tracking", "order": "diging"},
    "d2": {"name": "d2"},
    "push-sum": {"name": "push_sum"},
    "diloco": {"name": "diloco"},
    "diloco among neighbours": {"name": "diloco", "among": "neighbours"},
    "exact": {"name": "exact"},
}


@pytest.mark.parametrize("name", POISONED)
def test_both_engines_leave_out_the_same_of_one_that_diverges(name: str) -> None:
    """Its message as a whole, whatever else in it is finite, such as a push-sum weight."""
    shards = [SHARDS[0], [[[1e200], 5.0]], SHARDS[2], SHARDS[1]]
    common = {"rounds": 6, "record": {"params": "final", "on_divergence": "continue"}}
    e = from_dict({**common, **inline(shards, [START], lr=0.02), "algorithm": POISONED[name]})
    one, other = (simulate(e, engine=engine) for engine in ("rounds", "events"))
    assert one.diverged.as_dict() == other.diverged.as_dict() == {"round": 0, "peer": "peer-1"}
    assert one.params[1] == other.params[1] == [None]
    for peer in (0, 2, 3):
        assert one.params[peer] == pytest.approx(other.params[peer], rel=1e-12)


@BOTH_ENGINES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_counters_travel_in_float64(folder: Path, engine: Engine, dtype: str) -> None:
    """Two numbers, x and w, over each of five arcs, in three rounds."""
    e = experiment(folder, 3, {"dtype": dtype}, topology=DIRECTED, algorithm={"name": "push_sum"})
    assert simulate(e, engine=engine).payload_bytes_sent == 3 * 5 * 2 * 8
