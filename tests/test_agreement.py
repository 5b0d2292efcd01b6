"""The promise: the same parameters from the simulator and from real daemons.

Events engine and daemons agree bit for bit; the rounds engine, which sums in another order, to rounding.
"""

from collections.abc import Iterator
from typing import Any

import networkx as nx
import numpy as np
import pytest

from peer.experiment import Experiment, from_dict
from peer.scripting import simulate
from tests.daemon_pool import DaemonPool

ROUNDS = 20
TOPOLOGIES = {
    "ring": {"family": "ring", "peers": 5},
    "star": {"family": "star", "peers": 5},
    "geometric": {"family": "geometric", "peers": 6, "threshold": 0.85},
}


@pytest.fixture(scope="module")
def pool() -> Iterator[DaemonPool]:
    pool = DaemonPool()
    yield pool
    pool.close()


def experiment(topology: str, model: str, order: str, rounds: int = ROUNDS, dtype: str = "float32") -> Experiment:
    return from_dict(
        {
            "seed": 3,
            "rounds": rounds,
            "eval_every": rounds,
            "task": {"model": model, "partition": "dirichlet", "alpha": 0.5, "lr": 0.1, "dtype": dtype},
            "topology": TOPOLOGIES[topology],
            "algorithm": {"order": order},
            "record": {"params": "final"},
        }
    )


@pytest.mark.parametrize("order", ["atc", "cta"])
@pytest.mark.parametrize("model", ["cnn", "softmax"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_events_engine_and_daemons_are_bit_identical(pool: DaemonPool, topology: str, model: str, order: str) -> None:
    e = experiment(topology, model, order)
    real, virtual = pool.up(e), simulate(e, engine="events")
    assert real.outcome == virtual.outcome == "finished"
    assert real.params == virtual.params
    assert [h.loss.as_dict() for h in real.history] == [h.loss.as_dict() for h in virtual.history]
    assert real.consensus_distance == virtual.consensus_distance
    assert real.payload_bytes_sent == virtual.payload_bytes_sent
    assert real.gradients == virtual.gradients == e.rounds * real.peers


def disagreement(e: Experiment) -> float:
    """Return the largest difference between the engines, relative to the largest parameter."""
    a, b = (np.array(simulate(e, engine=engine).params) for engine in ("rounds", "events"))
    return float(np.abs(a - b).max() / np.abs(b).max())


@pytest.mark.parametrize("order", ["atc", "cta"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_rounds_engine_agrees_in_float64(topology: str, order: str) -> None:
    assert disagreement(experiment(topology, "softmax", order, rounds=10, dtype="float64")) <= 1e-9


@pytest.mark.parametrize("order", ["atc", "cta"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_rounds_engine_agrees_in_float32(topology: str, order: str) -> None:
    assert disagreement(experiment(topology, "softmax", order, rounds=5)) <= 1e-5


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_rounds_engine_agrees_where_relu_and_max_pool_have_near_ties(topology: str) -> None:
    assert disagreement(experiment(topology, "cnn", "atc", rounds=2)) <= 1e-4


def test_a_directed_graph_agrees_too(pool: DaemonPool) -> None:
    """On a one-way edge nothing comes back, and the listener's pace is kept by word of what it has mixed."""
    e = from_dict(
        {
            "rounds": 12,
            "eval_every": 12,
            "task": {"model": "softmax", "momentum": 0.5, "local_steps": 2},
            "topology": {"family": "exponential", "peers": 7},
            "record": {"params": "final"},
        }
    )
    assert pool.up(e).params == simulate(e, engine="events").params
    assert disagreement(e) <= 1e-5


# One of each algorithm, schedule and metric, as tables over `varied`'s defaults.
VARIED: dict[str, dict[str, dict[str, Any]]] = {
    "gradient tracking, atc": {"algorithm": {"name": "gradient_tracking"}},
    "gradient tracking, diging": {"algorithm": {"name": "gradient_tracking", "order": "diging"}},
    "gradient tracking, one-peer exponential": {
        "algorithm": {"name": "gradient_tracking"},
        "topology": {"family": "one_peer_exponential", "peers": 5},
    },
    "d2": {"algorithm": {"name": "d2"}, "topology": {"family": "ring", "peers": 5, "weights": "lazy"}},
    "push-sum on a directed graph": {
        "algorithm": {"name": "push_sum"},
        "topology": {"family": "tests.own_topologies:one_way_streets"},
    },
    "push-sum, epidemic": {
        "algorithm": {"name": "push_sum"},
        "topology": {"family": "epidemic", "peers": 6, "fanout": 2, "variant": "local"},
    },
    "diloco over all": {"algorithm": {"name": "diloco"}, "task": {"local_steps": 3, "momentum": 0.5}},
    "diloco over neighbours": {
        "algorithm": {"name": "diloco", "among": "neighbours", "outer_momentum": 0.5, "nesterov": False},
        "task": {"local_steps": 3},
    },
    "one-peer exponential": {"topology": {"family": "one_peer_exponential", "peers": 6}},
    "base-(k+1)": {"topology": {"family": "base_k", "peers": 7, "k": 2}},
    "random matching": {"topology": {"family": "random_matching", "peers": 7}},
    "pairs in a ring": {"topology": {"family": "random_matching", "peers": 6, "among": "ring", "pairs": 1}},
    "epidemic, oracle": {"topology": {"family": "epidemic", "peers": 6, "fanout": 2}},
    "epidemic, local": {"topology": {"family": "epidemic", "peers": 6, "fanout": 2, "variant": "local"}},
    "mobile": {"topology": {"family": "mobile", "peers": 6, "threshold": 0.4, "speed": 0.1}},
    "only those whose models are near": {
        "topology": {"family": "ring", "peers": 6, "metric": "model", "threshold": 0.35, "look_again": 3}
    },
    "part of the model": {"algorithm": {"share": ["*.weight"]}},
    "a round deadline that is never reached": {"transport": {"round_deadline_s": 1000.0}},
    "an algorithm and a schedule of one's own": {
        "algorithm": {"name": "tests.own_topologies:half_way"},
        "topology": {"family": "tests.own_topologies:there_and_back", "peers": 5},
    },
}


def varied(which: str, **tables: Any) -> Experiment:
    chosen: dict[str, dict[str, Any]] = VARIED[which]
    task = {"model": "softmax", "partition": "dirichlet", "alpha": 0.5, "lr": 0.1}
    return from_dict(
        {
            "seed": 3,
            "rounds": 12,
            "eval_every": 6,
            "task": task | chosen.get("task", {}) | tables.get("task", {}),
            "topology": chosen.get("topology", {"family": "ring", "peers": 5}),
            "algorithm": chosen.get("algorithm", {}),
            "transport": chosen.get("transport", {}),
            "record": {"params": "final"},
        }
        | {key: value for key, value in tables.items() if key != "task"}
    )


@pytest.mark.parametrize("which", VARIED)
def test_every_algorithm_and_schedule_is_bit_identical_in_daemons(pool: DaemonPool, which: str) -> None:
    e = varied(which)
    real, virtual = pool.up(e), simulate(e, engine="events")
    assert real.outcome == virtual.outcome == "finished", real.why
    assert real.params == virtual.params
    assert [h.loss.as_dict() for h in real.history] == [h.loss.as_dict() for h in virtual.history]
    assert real.consensus_distance == virtual.consensus_distance
    assert real.payload_bytes_sent == virtual.payload_bytes_sent
    assert real.short_rounds == virtual.short_rounds == 0


@pytest.mark.parametrize("which", VARIED)
def test_every_algorithm_and_schedule_agrees_in_the_rounds_engine(which: str) -> None:
    assert disagreement(varied(which, rounds=10, task={"dtype": "float64"})) <= 1e-9
    assert disagreement(varied(which, rounds=5)) <= 1e-5


@pytest.mark.parametrize("which", VARIED)
def test_engines_count_the_same_bytes(which: str) -> None:
    a, b = (simulate(varied(which), engine=engine) for engine in ("rounds", "events"))
    assert a.payload_bytes_sent == b.payload_bytes_sent > 0


def test_the_mean_of_all_agrees_too(pool: DaemonPool) -> None:
    e = experiment("ring", "softmax", "atc", rounds=5)
    exact = from_dict({**e.model_dump(exclude_none=True, exclude_defaults=True), "algorithm": {"name": "exact"}})
    real, virtual = pool.up(exact), simulate(exact, engine="events")
    assert real.params == virtual.params
    assert real.consensus_distance == 0.0
    assert all(row == real.params[0] for row in real.params)
    assert disagreement(exact) <= 1e-5


def test_pure_gossip_contracts_as_the_matrix_says(pool: DaemonPool) -> None:
    """x <- W^t x, in all three ways to run."""
    start = [[float(i), 1.0 - i] for i in range(6)]
    e = from_dict(
        {
            "rounds": 7,
            "eval_every": 7,
            "task": {"data": "none", "init": start, "dtype": "float64"},
            "topology": {"family": "path"},
            "record": {"params": "final"},
        }
    )
    degree = dict(nx.path_graph(6).degree)
    w = np.zeros((6, 6))
    for i, j in nx.path_graph(6).edges:
        w[i, j] = w[j, i] = 1 / (1 + max(degree[i], degree[j]))
    w += np.diag(1 - w.sum(axis=1))
    expected = np.linalg.matrix_power(w, 7) @ np.array(start)
    for summary in (simulate(e), simulate(e, engine="events"), pool.up(e)):
        np.testing.assert_allclose(summary.params, expected, rtol=1e-13)


def test_without_a_topology_the_order_still_counts(pool: DaemonPool) -> None:
    """x <- mean(x) - lr g is another walk than x <- mean(x - lr g)."""
    e = experiment("ring", "softmax", "cta", rounds=5)
    exact = from_dict(
        {**e.model_dump(exclude_none=True, exclude_defaults=True), "algorithm": {"name": "exact", "order": "cta"}}
    )
    real, virtual = pool.up(exact), simulate(exact, engine="events")
    assert real.params == virtual.params
    assert real.consensus_distance > 0


def test_a_deadline_that_is_never_reached_changes_no_bit(pool: DaemonPool) -> None:
    schedule = {"family": "one_peer_exponential", "peers": 6}
    plain = varied("gradient tracking, atc", topology=schedule)
    with_deadline = varied("gradient tracking, atc", topology=schedule, transport={"round_deadline_s": 1000.0})
    assert pool.up(with_deadline).params == pool.up(plain).params == simulate(with_deadline, engine="events").params


def test_a_figure_ends_a_schedule_in_the_same_round_everywhere(pool: DaemonPool) -> None:
    e = varied("base-(k+1)", stop_when="accuracy.mean >= 0.4", rounds=0, eval_every=4)
    real, virtual, rounds = pool.up(e), simulate(e, engine="events"), simulate(e, engine="rounds")
    assert real.rounds == virtual.rounds == rounds.rounds > 0
    assert real.params == virtual.params
    assert [h.round for h in real.history] == [h.round for h in virtual.history]


# ---- Coordinators and rings

NORMED = {
    "model": "tests.model_kinds:normed",
    "data": "inline",
    "batch_size": 0,
    "shards": [[[[0.3 * i, 1.0 - r, 0.5 * r * i], r - 0.2 * i] for r in range(3 + i % 2)] for i in range(4)],
}
VECTORS = [[(7 * i + 3 * k) % 11 / 7 - 0.5 for k in range(13)] for i in range(7)]
SAME_VECTORS = {"data": "none", "init": VECTORS}

# One of each discipline in which no arrival order is left to chance, as tables over `coordinated`'s defaults.
COORDINATED: dict[str, dict[str, dict[str, Any]]] = {
    "gradients": {"coordinator": {"mode": "sync"}},
    "models": {
        "coordinator": {"mode": "sync", "aggregate": "models", "weighting": "equal"},
        "task": {"local_steps": 3, "momentum": 0.5},
    },
    "server momentum": {"coordinator": {"mode": "sync", "server_optimizer": "momentum"}},
    "server adam": {"coordinator": {"mode": "sync", "server_optimizer": "adam", "server_lr": 0.02}},
    "a fraction": {"coordinator": {"mode": "sync", "fraction": 0.5}},
    "three servers": {"coordinator": {"mode": "sync", "servers": 3}},
    "fp16": {"coordinator": {"mode": "sync"}, "compression": {"name": "fp16"}},
    "bf16": {"coordinator": {"mode": "sync", "servers": 2}, "compression": {"name": "bf16"}},
    "a peer that is the coordinator, too": {"coordinator": {"mode": "sync", "name": "peer-2"}},
    "easgd": {"coordinator": {"mode": "sync"}, "algorithm": {"name": "easgd"}},
    "easgd at a peer": {"coordinator": {"mode": "sync", "name": "peer-0"}, "algorithm": {"name": "easgd"}},
    "batch norm": {"coordinator": {"mode": "sync"}, "task": NORMED, "topology": {}},
    "batch norm, statistics kept": {
        "coordinator": {"mode": "sync"},
        "task": NORMED,
        "topology": {},
        "algorithm": {"buffers": "keep"},
    },
    "one peer": {"coordinator": {"mode": "sync"}, "topology": {"peers": 1}},
    "a ring": {"coordinator": {"mode": "ring"}},
    "a ring of one": {"coordinator": {"mode": "ring"}, "topology": {"peers": 1}},
    "a ring of two": {"coordinator": {"mode": "ring"}, "topology": {"peers": 2}, "task": {"local_steps": 2}},
    "a ring of three": {"coordinator": {"mode": "ring", "weighting": "equal"}, "topology": {"peers": 3}},
    "a ring of four vectors": {
        "coordinator": {"mode": "ring"},
        "task": {**SAME_VECTORS, "init": VECTORS[:4]},
        "topology": {},
    },
    "a ring of seven vectors": {"coordinator": {"mode": "ring"}, "task": SAME_VECTORS, "topology": {}},
}
COSTS = ("seconds", "simulated_seconds")


def coordinated(which: str, **tables: Any) -> Experiment:
    chosen = COORDINATED[which]
    task = {"model": "softmax", "partition": "dirichlet", "alpha": 0.5, "lr": 0.1}
    own = chosen.get("task", {})
    return from_dict(
        {"seed": 3, "rounds": 8, "eval_every": 4, "topology": {"peers": 5}, "record": {"params": "every"}}
        | chosen
        | {"task": (own if "data" in own else task | own) | tables.pop("task", {})}
        | tables
    )


def without_seconds(summary: Any) -> list[dict[str, Any]]:
    """Return the history but for when it was: figures, bytes, and the parameters of each and of the coordinator."""
    history = summary.as_dict()["history"]
    return [{name: value for name, value in entry.items() if name not in COSTS} for entry in history]


@pytest.mark.parametrize("which", COORDINATED)
def test_coordinators_and_rings_are_bit_identical_in_daemons(pool: DaemonPool, which: str) -> None:
    e = coordinated(which)
    real, virtual = pool.up(e), simulate(e, engine="events")
    assert real.outcome == virtual.outcome == "finished"
    assert real.params == virtual.params
    assert without_seconds(real) == without_seconds(virtual)
    assert [entry.round for entry in real.history] == [0, 4, 8]
    keys = ("rounds", "peers", "lost", "short_rounds", "gradients", "payload_bytes_sent", "consensus_distance")
    assert {key: real.as_dict()[key] for key in keys} == {key: virtual.as_dict()[key] for key in keys}
    if not e.is_ring:
        assert real.coordinator == virtual.coordinator != None  # noqa: E711 - of both
        assert real.history[-1].coordinator == real.coordinator


@pytest.mark.parametrize("which", [which for which in COORDINATED if which not in ("fp16", "bf16")])
def test_coordinators_and_rings_agree_in_the_rounds_engine(which: str) -> None:
    e = coordinated(which, task={"dtype": "float64"})
    a, b = (simulate(e, engine=engine) for engine in ("rounds", "events"))
    np.testing.assert_allclose(a.params, b.params, rtol=0, atol=1e-9 * np.abs(b.params).max())
    assert a.payload_bytes_sent == b.payload_bytes_sent
    assert a.gradients == b.gradients


def test_asynchronous_versions_agree_where_workers_take_turns(pool: DaemonPool) -> None:
    """Which gradient makes which version is fixed; how many more are under way at the end is not."""
    e = from_dict(
        {
            "rounds": 14,
            "eval_every": 1,
            "task": {"model": "softmax", "partition": "dirichlet", "lr": 0.1},
            "topology": {"peers": 4},
            "coordinator": {"mode": "async", "arrival": "round_robin", "staleness": "inverse"},
            "record": {"params": "every"},
        }
    )
    real, virtual = pool.up(e), simulate(e, engine="events")
    assert [entry.coordinator for entry in real.history] == [entry.coordinator for entry in virtual.history]
    assert real.params == virtual.params
    assert real.staleness.histogram == virtual.staleness.histogram
    assert real.staleness.max_distance == virtual.staleness.max_distance > 0
