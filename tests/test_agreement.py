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
