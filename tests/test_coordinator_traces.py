"""The traces of truth/traces.json that need a coordinator, from whole experiments: in both engines, and from daemons.

The rounds engine has what is in step. Daemons have what leaves no order of arrival to chance.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.experiment import Experiment, from_dict
from peer.scripting import Document, simulate
from peer.ways import Engine, Options
from peer.ways import simulate as run
from tests.commands import inline
from tests.daemon_pool import DaemonPool
from tests.four_peers import DIGITS, SHARDS, TRACES, numbers
from tests.served_peers import BY_SAMPLES, Shards, centre, centres, served

TRUTH: dict[str, Any] = json.loads((Path(__file__).parent / "truth" / "truth.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pool() -> Iterator[DaemonPool]:
    pool = DaemonPool()
    yield pool
    pool.close()


# ---- One number at the coordinator, version by version


@dataclass(frozen=True)
class Trace:
    """What the coordinator holds after each version, and the tables that make it; `up`: also in daemons."""

    truth: Sequence[float]
    coordinator: Mapping[str, Any]
    task: Mapping[str, Any] = field(default_factory=dict)
    shards: Shards = field(default_factory=lambda: SHARDS)
    up: bool = False

    def experiment(self) -> Experiment:
        return served(len(self.truth) - 1, self.coordinator, self.task, shards=self.shards)


SYNC, MODELS = {"mode": "sync"}, {"mode": "sync", "aggregate": "models"}
IN_TURN = {"mode": "async", "arrival": "round_robin"}
FED_OPT = MODELS | {"server_lr": 0.1}


def traces() -> dict[str, Trace]:
    mean = numbers(TRACES["sync_mean_gradient_lr0.1"]["exact"])
    found = {
        "mean gradient": Trace(mean, SYNC, up=True),
        "mean gradient, by an equal weight": Trace(mean, SYNC | {"weighting": "equal"}, shards=BY_SAMPLES),
        "mean gradient, of one step models": Trace(mean, MODELS),
    }
    fedavg = TRACES["local_SGD_FedAvg_lr0.1"]["traces"]
    for steps in (1, 2, 4, 8):
        local = {"local_steps": steps}
        found[f"fedavg {steps} equal"] = Trace(fedavg[f"H={steps},weights=equal"]["w"], MODELS, local)
        by_rows = fedavg[f"H={steps},weights=10/20/30/40"]["w"]
        found[f"fedavg {steps} samples"] = Trace(by_rows, MODELS, local, BY_SAMPLES)
    for name, mu in (("mu=1.0", 1.0), ("mu=0.1", 0.1), ("mu=0 (FedAvg)", 0.0)):
        proximal = {"lr": 0.05, "local_steps": 4, "proximal_mu": mu}
        found[f"fedprox {mu}"] = Trace(TRACES["FedProx_lr0.05_H4"]["traces"][name]["w"], MODELS, proximal, BY_SAMPLES)
    for name, truth in TRACES["FedOpt"]["traces"].items():
        rule = next(rule for rule in ("adam", "yogi", "adagrad") if rule in name)
        variant = "paper" if name.startswith("paper") else "flower" if name.startswith("flower") else "zero_start"
        table = FED_OPT | {"server_optimizer": rule, "variant": variant}
        is_up = (rule, variant) == ("adam", "paper")
        found[f"fedopt {rule} {variant}"] = Trace(truth, table, {"local_steps": 2}, BY_SAMPLES, is_up)
    for rule in ("yogi", "adagrad"):  # Flower corrects the bias of its FedAdam alone
        truth, table = TRACES["FedOpt"]["traces"][f"v0=0_{rule}"], FED_OPT | {"server_optimizer": rule}
        found[f"fedopt {rule} flower"] = Trace(truth, table | {"variant": "flower"}, {"local_steps": 2}, BY_SAMPLES)
    for name, trace in TRACES["constant_delay_traces"].items():
        if name == "problem":
            continue
        delay, lr = (float(part.split("=")[1]) for part in name.split(","))
        table, shard = IN_TURN | {"delay": int(delay)}, SHARDS[2]
        found[f"delay {name}, one worker"] = Trace(trace["w_0_to_8"], table, {"lr": lr}, [shard], delay == 2)
        found[f"delay {name}, four workers"] = Trace(trace["w_0_to_8"], table, {"lr": lr}, [shard] * 4)
    for name, lr in (("lr0_1", 0.1), ("lr0_05", 0.05)):
        found[f"in turn {lr}"] = Trace(TRACES["async_PS_round_robin_4"][name], IN_TURN, {"lr": lr}, up=True)
    return found


ALL = traces()


def test_no_variant_is_left_out() -> None:
    assert len([name for name in ALL if name.startswith("fedopt")]) == 3 * 3
    assert len([name for name in ALL if name.startswith("delay")]) == 2 * 6


@pytest.mark.parametrize("name", ALL)
def test_a_trace_from_the_events_engine(name: str) -> None:
    summary = simulate(ALL[name].experiment(), engine="events")
    assert centre(summary) == pytest.approx(ALL[name].truth, rel=DIGITS)
    assert summary.coordinator == summary.history[-1].coordinator
    assert [[w for (w,) in entry.params] for entry in summary.history] == [
        [w] * len(ALL[name].shards) for w in centre(summary)
    ], "there is one model: peers stand for the coordinator's"


@pytest.mark.parametrize("name", [name for name, trace in ALL.items() if trace.coordinator["mode"] == "sync"])
def test_a_trace_from_the_rounds_engine(name: str) -> None:
    summary = simulate(ALL[name].experiment(), engine="rounds")
    assert centre(summary) == pytest.approx(ALL[name].truth, rel=DIGITS)
    assert summary.coordinator == summary.history[-1].coordinator


@pytest.mark.parametrize("name", [name for name, trace in ALL.items() if trace.up])
def test_a_trace_from_daemons(pool: DaemonPool, name: str) -> None:
    real = pool.up(ALL[name].experiment())
    assert centre(real) == pytest.approx(ALL[name].truth, rel=DIGITS)
    assert real.params == [real.coordinator] * len(ALL[name].shards)
    assert centre(real) == centre(simulate(ALL[name].experiment(), engine="events")), "bit for bit"


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
@pytest.mark.parametrize(("weights", "shards"), [("equal", SHARDS), ("10/20/30/40", BY_SAMPLES)])
def test_fedavg_ends_where_the_closed_form_says(steps: int, weights: str, shards: Shards) -> None:
    truth = TRACES["local_SGD_FedAvg_lr0.1"]["traces"][f"H={steps},weights={weights}"]["fixed_point"]
    e = served(60, MODELS, {"local_steps": steps}, shards=shards, eval_every=60)
    assert centre(simulate(e, engine="rounds"))[-1] == pytest.approx(truth, rel=DIGITS)


# ---- FedBuff: the order of arrival comes out of the clock


def steps_until(arrivals: Sequence[int]) -> str:
    """Return a trace of local steps with which the k-th push, of worker `arrivals[k]`, comes at k + 1 seconds."""
    lines, last_s = ["peer,step_s"], dict.fromkeys(arrivals, 0)
    for now_s, worker in enumerate(arrivals, start=1):
        lines.append(f"peer-{worker},{now_s - last_s[worker]}")
        last_s[worker] = now_s
    return "\n".join([*lines, *(f"peer-{worker},1000" for worker in sorted(last_s))])


@pytest.mark.parametrize(
    ("name", "rule"), [("w_sqrt_scaling", "inverse_sqrt"), ("w_no_scaling", "constant")], ids=["scaled", "not scaled"]
)
@pytest.mark.parametrize("aggregate", ["models", "gradients"])
def test_fedbuff(tmp_path: Path, name: str, rule: str, aggregate: str) -> None:
    truth = TRACES["FedBuff_K2"]
    (tmp_path / "steps.csv").write_text(steps_until(truth["arrivals"]), encoding="utf-8")
    table = {"mode": "buffered", "buffer": 2, "staleness": rule, "aggregate": aggregate}
    e = served(5, table, speed={"file": str(tmp_path / "steps.csv")})
    summary = simulate(e, engine="events", out=tmp_path / "run")
    assert centre(summary) == pytest.approx(truth[name], rel=DIGITS)
    assert [[peer, staleness] for peer, staleness, _ in updates(tmp_path / "run")] == truth["client_staleness_pairs"]
    assert [entry.simulated_seconds for entry in summary.history] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def updates(folder: Path) -> list[tuple[int, int, float]]:
    """Return what a run noted of each push that was applied: of whom, how stale, and how far away."""
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    made = [line for line in lines if line["event"] == "update"]
    return [(int(line["peer"].removeprefix("peer-")), line["staleness"], line["distance"]) for line in made]


# ---- EASGD: workers and centre


def everybody(summary: Document) -> list[list[float]]:
    """Return the workers' parameters and the centre's after each version."""
    return [[*(w for (w,) in entry.params), *entry.coordinator] for entry in summary.history]


def elastic(rounds: int, coordinator: Mapping[str, Any], **tables: Any) -> Experiment:
    settings = {"algorithm": {"name": "easgd", "alpha": TRACES["EASGD_sync"]["alpha"]}, **tables}
    return served(rounds, coordinator, {"lr": TRACES["EASGD_sync"]["lr"]}, **settings)


def check_rows(found: Sequence[Sequence[float]], truth: Sequence[Sequence[float]]) -> None:
    for ours, theirs in zip(found, truth, strict=True):
        assert ours == pytest.approx(theirs, rel=DIGITS)


@pytest.mark.parametrize("engine", ["rounds", "events"])
def test_easgd_in_step(engine: Engine) -> None:
    truth = TRACES["EASGD_sync"]
    check_rows(everybody(simulate(elastic(5, SYNC), engine=engine)), truth["w0_w1_w2_w3_center"])


def test_easgd_ends_at_its_fixed_point() -> None:
    last = everybody(simulate(elastic(800, SYNC, eval_every=800), engine="rounds"))[-1]
    assert last == pytest.approx(TRACES["EASGD_sync"]["fixed_point"], rel=DIGITS)


EASGD_IN_TURN = TRACES["EASGD_async_round_robin"]["events_0_to_8"]


def test_easgd_in_turn() -> None:
    check_rows(everybody(simulate(elastic(8, IN_TURN), engine="events")), EASGD_IN_TURN)


@pytest.mark.parametrize(("coordinator", "rounds"), [(SYNC, 5), (IN_TURN, 8)], ids=["in step", "in turn"])
def test_easgd_from_daemons(pool: DaemonPool, coordinator: Mapping[str, Any], rounds: int) -> None:
    e = elastic(rounds, coordinator)
    real, virtual = pool.up(e), simulate(e, engine="events")
    params = [[entry.params for entry in summary.history] for summary in (real, virtual)]
    assert params[0] == params[1], "bit for bit"
    assert [e.coordinator for e in real.history] == [e.coordinator for e in virtual.history]
    truth = TRACES["EASGD_sync"]["w0_w1_w2_w3_center"] if coordinator == SYNC else EASGD_IN_TURN
    check_rows([[w for (w,) in row] for row in params[0]], [row[:-1] for row in truth])
    check_rows([real.coordinator], [truth[-1][-1:]])


# ---- Flower's own test vectors: one step of rate 1 takes each client to its vector


def clients(vectors: Sequence[Sequence[float]], counts: Sequence[int], **coordinator: Any) -> Experiment:
    """Return one round from zero. The gradient of 0.5 (w.x - 1)^2 at zero is -x: a local model is its shard's x."""
    shards = [[[list(map(float, x)), 1.0]] * count for x, count in zip(vectors, counts, strict=True)]
    return served(1, MODELS | coordinator, {"lr": 1.0}, shards=shards, init=[0.0] * len(vectors[0]))


@pytest.mark.parametrize("engine", ["rounds", "events"])
def test_the_weighted_means_that_flower_expects(engine: Engine) -> None:
    weighted, scalar = (TRACES["flower_public_expectations"][f"fedavg_{name}"] for name in ("weighted", "scalar"))
    found = centres(simulate(clients(weighted["clients"], weighted["weights"]), engine=engine))
    assert found == [[0.0] * 6, pytest.approx(weighted["expected"], rel=DIGITS)]
    found = centres(simulate(clients([[v] for v in scalar["values"]], scalar["weights"]), engine=engine))
    assert found[1] == pytest.approx([float(Fraction(scalar["expected"]))], rel=1e-15)


@pytest.mark.parametrize("engine", ["rounds", "events"])
@pytest.mark.parametrize("variant", ["zero_start", "flower"])
def test_the_adagrad_step_that_flower_expects(engine: Engine, variant: str) -> None:
    truth = TRACES["FedOpt"]["flower_adagrad_test"]
    optimiser = {"server_optimizer": "adagrad", "server_lr": truth["eta"], "server_tau": truth["tau"]}
    shards = [[[[1.0], w]] * count for w, count in zip(truth["clients"], truth["weights"], strict=True)]
    table = MODELS | optimiser | {"variant": variant}
    e = served(1, table, {"lr": 1.0}, shards=shards, init=[truth["prev"]])
    assert centre(simulate(e, engine=engine))[1] == pytest.approx(truth["expected"], rel=1e-12)


# ---- The lecture's chain


def test_the_chain_of_the_lecture(tmp_path: Path) -> None:
    """Three workers fetched w = 2, and their gradients -2, -6 and -10 are applied one after the other."""
    chain = TRACES["lecture"]["async_chain"]
    shards = [[[[1.0], chain["w"][0] - g]] for g in chain["gradients"]]
    speed = {"factors": [1.0, 1.5, 1.75]}
    e = served(3, {"mode": "async"}, {"lr": chain["lr"]}, shards=shards, init=chain["w"][:1], speed=speed)
    summary = simulate(e, engine="events", out=tmp_path / "run")
    assert centre(summary) == pytest.approx(chain["w"], rel=1e-15)
    assert updates(tmp_path / "run") == [
        (0, 0, 0.0),
        (1, 1, pytest.approx(0.2, rel=1e-12)),
        (2, 2, pytest.approx(0.8, rel=1e-12)),
    ]
    assert summary.staleness.max == 2
    assert summary.staleness.max_distance == pytest.approx(0.80, rel=1e-12)
    assert summary.staleness.histogram == [1, 1, 1]
    assert summary.staleness.mean == 1.0


def test_the_chain_of_the_lecture_from_daemons(pool: DaemonPool) -> None:
    chain = TRACES["lecture"]["async_chain"]
    shards = [[[[1.0], chain["w"][0] - g]] for g in chain["gradients"]]
    real = pool.up(served(3, IN_TURN, {"lr": chain["lr"]}, shards=shards, init=chain["w"][:1]))
    assert centre(real) == pytest.approx(chain["w"], rel=1e-15)
    assert (real.staleness.max, real.staleness.histogram) == (2, [1, 1, 1])
    assert real.staleness.max_distance == pytest.approx(0.80, rel=1e-12)


# ---- Where it converges and where it does not: on either side of the limit, by a fiftieth of it

# Started from 0 with the optimum far away: a run has diverged when its parameters are beyond 1e8, which is 10 times as
# far as the optimum. So a few hundred updates show it where the truth speaks of 20,000: those are in
# bench/experiments/delays.py.
FAR = 1e7
SHORT_OF, BEYOND = 0.98, 1.02


def delayed(delay: int, lr: float, updates: int) -> Experiment:
    """Return one worker with curvature 1 whose gradients are that old."""
    e = inline([[[[1.0], FAR]]], [0.0], lr=lr)
    table = {"mode": "async", "arrival": "round_robin", "delay": delay}
    common = {"rounds": updates, "eval_every": updates, "record": {"params": "final"}}
    return from_dict({**common, **e, "coordinator": table})


def errors_of_a_fixed_delay(delay: int, lr: float, updates: int) -> list[float]:
    """Return w_t - w* for w_{t+1} = w_t - lr (w_{t-delay} - w*), all that was before the start being as the start."""
    errors = [-FAR] * (delay + 1)
    for _ in range(updates):
        errors.append(errors[-1] - lr * errors[-1 - delay])
    return errors[delay:]


def rho_of_a_fixed_delay(delay: int, lr: float) -> float:
    """Return the spectral radius: the largest root of z^(delay+1) - z^delay + lr."""
    return float(np.abs(np.roots([1.0, -1.0, *[0.0] * (delay - 1), lr] if delay else [1.0, lr - 1.0])).max())


DELAYS = range(6)


def limit_of(delay: int) -> float:
    return float(TRUTH["constant_delay_stability"]["values"][f"tau={delay}"]["lr_times_curvature_limit"])


@pytest.mark.parametrize("delay", DELAYS)
def test_the_radii_of_the_truth(delay: int) -> None:
    truth = TRUTH["constant_delay_stability"]["values"][f"tau={delay}"]
    for share, name in ((0.9, "rho_at_0_9_limit"), (1.1, "rho_at_1_1_limit")):
        assert rho_of_a_fixed_delay(delay, share * limit_of(delay)) == pytest.approx(truth[name], rel=DIGITS)
    assert rho_of_a_fixed_delay(delay, limit_of(delay)) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("delay", DELAYS)
def test_a_fixed_delay_converges_below_its_limit(delay: int) -> None:
    lr = SHORT_OF * limit_of(delay)
    count = int(1.2 * np.log(100) / -np.log(rho_of_a_fixed_delay(delay, lr)))
    result = run(delayed(delay, lr, count), "events", Options(writes=False))
    error = result.summary["coordinator"][0] - FAR
    assert result.exit_code == 0
    assert abs(error) < 1e-2 * FAR
    assert error == pytest.approx(errors_of_a_fixed_delay(delay, lr, count)[-1], rel=1e-9, abs=1e-12 * FAR)
    assert result.summary["staleness"]["max"] == delay


@pytest.mark.parametrize("delay", DELAYS)
def test_a_fixed_delay_diverges_above_its_limit(delay: int) -> None:
    lr = BEYOND * limit_of(delay)
    result = run(delayed(delay, lr, 20_000), "events", Options(writes=False))
    parameters = [error + FAR for error in errors_of_a_fixed_delay(delay, lr, 20_000)]
    first = next(t for t, w in enumerate(parameters) if abs(w) > 1e8)
    assert (result.exit_code, result.summary["outcome"]) == (3, "diverged")
    assert result.summary["diverged"] == {"round": first, "peer": "coordinator"}


def elastic_alone(lr: float, alpha: float, rounds: int, coordinator: Mapping[str, Any]) -> Experiment:
    """Return one worker with curvature 1, and its centre."""
    common = {"rounds": rounds, "eval_every": rounds, "record": {"params": "final"}, "coordinator": dict(coordinator)}
    return from_dict(
        {**common, **inline([[[[1.0], FAR]]], [0.0], lr=lr), "algorithm": {"name": "easgd", "alpha": alpha}}
    )


ELASTIC_WAYS: list[tuple[Engine, Mapping[str, Any]]] = [("rounds", SYNC), ("events", SYNC), ("events", IN_TURN)]


@pytest.mark.parametrize(("engine", "coordinator"), ELASTIC_WAYS, ids=["rounds", "events", "in turn"])
@pytest.mark.parametrize("lr", [0.5, 1.0, 1.5])
def test_easgd_is_stable_as_far_as_its_limit_and_no_further(
    engine: Engine, coordinator: Mapping[str, Any], lr: float
) -> None:
    """alpha <= (4 - 2 lr) / (4 - lr), which is exact for one worker."""
    limit = (4 - 2 * lr) / (4 - lr)
    for share, is_stable in ((SHORT_OF, True), (BEYOND, False)):
        alpha = share * limit
        pulled = np.array([[1 - lr - alpha, alpha], [alpha, 1 - alpha]])
        rho = float(np.abs(np.linalg.eigvals(pulled)).max())
        assert (rho < 1) == is_stable
        count = int(1.2 * np.log(100) / -np.log(rho)) if is_stable else 20_000
        e = elastic_alone(lr, alpha, count, coordinator)
        result = run(e, engine, Options(writes=False))
        assert result.exit_code == (0 if is_stable else 3)
        if is_stable:
            assert abs(result.summary["coordinator"][0] - FAR) < 1e-2 * FAR
            assert abs(result.summary["params"][0][0] - FAR) < 1e-2 * FAR
        else:
            assert result.summary["outcome"] == "diverged"
            assert result.summary["diverged"]["round"] < 20_000
