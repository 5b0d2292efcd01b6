"""What theory promises of every mixing matrix that the product makes, whatever the topology."""

import math
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import topology

GRAPHS = Path(__file__).parent / "truth" / "graphs"

# Each family, with what it needs beside the number of peers.
FAMILIES: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("ring", "path", "star", "complete", "grid", "torus", "exponential")},
    "hypercube": {"peers": 16},
    "regular": {"degree": 4},
    "geometric": {},
    "smallworld": {"k": 4, "p": 0.3},
    "erdos_renyi": {"p": 0.4},
    "barabasi_albert": {"m": 2},
    "networkx:petersen_graph": {"peers": None},
    f"file:{GRAPHS / '36_nodes.edges'}": {"peers": None},
}
METRICS = {"hops": (1.0, 2.0, math.inf), "weight": (1.0, 2.5), "position": (0.2, 0.5)}
RULES = ("metropolis", "lazy", "uniform", "push")


def nets() -> list[tuple[str, topology.Net]]:
    return [
        (
            family,
            topology.build(family, needs.get("peers", 12), seed=5, **{k: v for k, v in needs.items() if k != "peers"}),
        )
        for family, needs in FAMILIES.items()
    ]


def matrices() -> dict[str, csr_array]:
    """W of every family under each metric, threshold and rule that it takes."""
    made = {}
    for family, net in nets():
        for metric, thresholds in METRICS.items():
            if metric == "position" and net.positions is None:
                continue
            for threshold in thresholds:
                graph = topology.neighbours(net, metric, threshold)
                for rule in RULES:
                    if graph.is_directed() and rule in ("metropolis", "lazy"):
                        continue
                    made[f"{family}, {metric} within {threshold:g}, {rule}"] = topology.mixing_matrix(
                        graph, rule, family=family
                    )
    return made


MATRICES = matrices()
SYMMETRIC = {name: W for name, W in MATRICES.items() if name.endswith(("metropolis", "lazy"))}
SCHEDULES: dict[str, topology.Schedule] = {
    "one-peer exponential": topology.schedule("one_peer_exponential", 12),
    "base-(k+1)": topology.schedule("base_k", 11, k=2),
    "random matching": topology.schedule("random_matching", 11, seed=1),
    "pairs in a ring": topology.schedule("random_matching", 9, among=nx.cycle_graph(9), pairs=1, seed=1),
    "epidemic": topology.schedule("epidemic", 12, fanout=3, seed=1),
    "mobile": topology.schedule("mobile", 12, threshold=0.4, speed=0.1, seed=1),
    "mobile, lazy": topology.schedule("mobile", 12, threshold=0.4, speed=0.1, seed=1, weights="lazy"),
}


def random_start(peers: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(peers, 3)) * 100


def consensus_distance(x: np.ndarray) -> float:
    return float(((x - x.mean(axis=0)) ** 2).sum() / len(x))


@pytest.mark.parametrize("name", MATRICES)
def test_rows_sum_to_1_and_columns_do_under_push(name: str) -> None:
    W = MATRICES[name]
    axis = 0 if name.endswith("push") else 1
    np.testing.assert_allclose(W.sum(axis=axis), 1.0, rtol=0, atol=1e-15 * W.shape[0])
    assert W.data.min() >= 0


@pytest.mark.parametrize("name", SYMMETRIC)
def test_the_mean_stays_and_the_distance_shrinks_as_slem_says(name: str) -> None:
    W = SYMMETRIC[name]
    x, slem = random_start(W.shape[0]), topology.slem(W)
    mean, start = x.mean(axis=0), consensus_distance(x)
    for round in range(1, 9):
        x = W @ x
        np.testing.assert_allclose(x.mean(axis=0), mean, rtol=0, atol=1e-11)
        assert consensus_distance(x) <= start * slem ** (2 * round) * (1 + 1e-9) + 1e-22 * start


def test_slem_is_reached() -> None:
    """From the right start the distance shrinks by no more than slem says: the bound is no idle one."""
    W = SYMMETRIC["path, hops within 1, metropolis"]
    eigenvalues, vectors = np.linalg.eigh(W.toarray())
    slowest = vectors[:, [np.argsort(abs(eigenvalues))[-2]]]
    assert consensus_distance(W @ slowest) == pytest.approx(
        consensus_distance(slowest) * topology.slem(W) ** 2, rel=1e-9
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_keep_the_mean_in_every_round(name: str) -> None:
    schedule = SCHEDULES[name]
    x = random_start(schedule.peers)
    mean, distance = x.mean(axis=0), consensus_distance(x)
    for round in range(40):
        x = schedule.matrix(round) @ x
        np.testing.assert_allclose(x.mean(axis=0), mean, rtol=0, atol=1e-11)
        assert consensus_distance(x) <= distance * (1 + 1e-12) + 1e-20
        distance = consensus_distance(x)


@given(
    edges=st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda pair: pair[0] != pair[1]), max_size=30),
    alive=st.lists(st.sets(st.integers(0, 8), min_size=1), min_size=1, max_size=6),
    rule=st.sampled_from(RULES),
)
def test_sums_stay_1_whoever_dies_and_returns(edges: set[tuple[int, int]], alive: list[set[int]], rule: str) -> None:
    """Whatever part of the peers is there in a round: what is missing of a sum of W is taken by the peer itself."""
    graph = nx.DiGraph() if rule == "push" else nx.Graph()
    graph.add_nodes_from(range(9))
    graph.add_edges_from(edges)
    W = topology.mixing_matrix(graph, rule)
    for there in alive:
        rows = rows_of_the_living(W, there, "columns" if rule == "push" else "rows")
        sums = rows.sum(axis=0 if rule == "push" else 1)
        np.testing.assert_allclose(sums, 1.0, rtol=0, atol=1e-14)
        if rule in ("metropolis", "lazy"):
            np.testing.assert_array_equal(rows, rows.T)


def rows_of_the_living(W: csr_array, there: set[int], conserves: Any) -> np.ndarray:
    """Return W among the peers that are there, (m, m), by the rule that a daemon's core has for who is not."""
    from peer.assembly import neighbourhoods
    from peer.protocol.weights import own_weight

    order, around = sorted(there), neighbourhoods(W)
    rows = np.zeros((len(order), len(order)))
    for a, i in enumerate(order):
        for b, j in enumerate(order):
            rows[a, b] = own_weight(i, around[i], there, there, conserves) if i == j else around[i].weights.get(j, 0.0)
    return rows
