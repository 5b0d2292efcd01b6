"""Mixing matrices against the independently computed values, and the theorems that they have to obey."""

import json
import math
from itertools import product
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from topology import FAMILIES, RULES, TopologyError, build, mixing_matrix, neighbours, slem, stochasticity

TRUTH_FOLDER = Path(__file__).parent / "truth"
TRUTH = json.loads((TRUTH_FOLDER / "truth.json").read_text(encoding="utf-8"))
TOPOLOGIES = TRUTH["topologies"]
OWN = {
    "regular": {"degree": 2},
    "smallworld": {"k": 2, "p": 0.3},
    "erdos_renyi": {"p": 0.4},
    "barabasi_albert": {"m": 1},
}


def directed_ring(count):
    return nx.DiGraph(((i + 1) % count, i) for i in range(count))


def sides(size):
    return [int(side) for side in size.split("x")]


def from_family(family, rule="auto"):
    return lambda size, entry: mixing_matrix(build(family, entry["n"]).graph, rule, family=family)


def from_shape(family):
    return lambda size, entry: mixing_matrix(build(family, entry["n"], shape=sides(size)).graph)


# How each entry of truth.json is made here.
MADE = {
    "ring_uniform_third": from_family("ring"),
    "ring_lazy": from_family("ring", "lazy"),
    "directed_ring_half": lambda size, entry: mixing_matrix(directed_ring(entry["n"])),
    "complete": from_family("complete"),
    "star_MH": from_family("star"),
    "star_row_uniform": from_family("star", "uniform"),
    "path_MH": from_family("path"),
    "grid_MH": from_shape("grid"),
    "torus_uniform_fifth": from_shape("torus"),
    "hypercube": from_family("hypercube"),
    "static_exponential": from_family("exponential"),
}
SIZES = [(kind, size) for kind in MADE for size in TOPOLOGIES[kind]]


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def spread_after(W, x, rounds):
    """D2 = sum_i (x_i - mean)^2 after so many rounds."""
    for _ in range(rounds):
        x = W @ x
    return float(((x - x.mean()) ** 2).sum())


@pytest.mark.parametrize(("kind", "size"), SIZES)
def test_truth(kind, size):
    entry = TOPOLOGIES[kind][size]
    W = MADE[kind](size, entry)
    count = entry["n"]
    full = W.toarray()
    assert W.shape == (count, count)
    if "row0" in entry:
        close(full[0], entry["row0"])
    if "matrix" in entry:
        close(full, entry["matrix"])
    if "weight" in entry:
        close(W.data, entry["weight"])
        assert (np.diff(W.indptr) == entry["out_degree"] + 1).all()
    if "symmetric" in entry:
        assert (full == full.T).all() == entry["symmetric"]
        both = entry["row_stochastic"] and entry["column_stochastic"]
        assert stochasticity(W) == ("doubly" if both else "row")
    ramp, impulse = np.arange(count, dtype=float), np.eye(count)[0]
    for start, key in ((ramp, "D2_ramp"), (impulse, "D2_impulse")):
        for rounds, expected in entry.get(key, {}).items():
            close(spread_after(W, start, int(rounds)), expected)


@pytest.mark.parametrize("size", TOPOLOGIES["star_row_uniform"])
def test_uniform_weights_on_a_star_agree_on_the_wrong_value(size):
    entry = TOPOLOGIES["star_row_uniform"][size]
    W = from_family("star", "uniform")(size, entry).toarray()
    limit = np.linalg.matrix_power(W, 4000)
    close(limit[0], entry["stationary_pi"])
    close((limit @ np.arange(entry["n"]))[0], entry["consensus_value_from_ramp_0_to_n_minus_1"])


@pytest.mark.parametrize("name", ["36_nodes.edges", "96_regular.edges"])
def test_graph_files(name):
    entry = TRUTH["decentralizepy_graph_files"]["files"][f"eval/{name}"]
    W = mixing_matrix(build(f"file:{name}", None, folder=TRUTH_FOLDER / "graphs").graph)
    for rounds, expected in entry["D2_ramp_MH"].items():
        close(spread_after(W, np.arange(entry["n"], dtype=float), int(rounds)), expected)


# --- literal matrices


def test_metropolis_on_a_path_of_three():
    close(
        mixing_matrix(build("path", 3).graph).toarray(), [[2 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 3, 2 / 3]]
    )


def test_lazy_and_uniform_on_a_path_of_three():
    graph = build("path", 3).graph
    lazy = [[5 / 6, 1 / 6, 0], [1 / 6, 2 / 3, 1 / 6], [0, 1 / 6, 5 / 6]]
    close(mixing_matrix(graph, "lazy").toarray(), lazy)
    close(mixing_matrix(graph, "uniform").toarray(), [[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 2, 1 / 2]])


def test_push_on_a_path_and_on_arcs():
    path = mixing_matrix(build("path", 3).graph, "push")
    close(path.toarray(), [[1 / 2, 1 / 3, 0], [1 / 2, 1 / 3, 1 / 2], [0, 1 / 3, 1 / 2]])
    arcs = mixing_matrix(nx.DiGraph([(0, 1), (0, 2), (1, 2), (2, 0)]), "push")  # 0 is heard by 1 and 2
    close(arcs.toarray(), [[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]])
    assert stochasticity(path) == stochasticity(arcs) == "column"


def test_a_row_holds_what_is_heard():
    W = mixing_matrix(nx.DiGraph([(1, 0), (2, 0), (0, 1), (1, 2)])).toarray()  # 0 hears 1 and 2
    close(W, [[1 / 3, 1 / 3, 1 / 3], [1 / 2, 1 / 2, 0], [0, 1 / 2, 1 / 2]])


@pytest.mark.parametrize("rule", ["auto", *RULES])
def test_one_peer_listens_to_itself(rule):
    assert mixing_matrix(build("ring", 1).graph, rule).toarray().tolist() == [[1.0]]
    assert mixing_matrix(nx.empty_graph(2), rule).toarray().tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_the_files_w_is_used_and_its_diagonal_stored():
    given_w = sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))
    graph = nx.Graph([(0, 1)])
    W = mixing_matrix(graph, matrix=given_w)
    assert W.toarray().tolist() == [[0, 1], [1, 0]]
    assert W.indices.tolist() == [0, 1, 0, 1]
    close(mixing_matrix(graph, "metropolis", matrix=given_w).toarray(), 0.5)


def test_refusals():
    arcs = build("exponential", 8)
    for rule in ("metropolis", "lazy"):
        with pytest.raises(TopologyError, match=f"weights = '{rule}' needs an undirected graph.*exponential") as caught:
            mixing_matrix(arcs.graph, rule, family=arcs.family)
        assert caught.value.key == "weights"
    with pytest.raises(TopologyError, match="no rule 'shove'; built are auto metropolis uniform lazy push"):
        mixing_matrix(build("ring", 4).graph, "shove")


def test_stochasticity():
    def kind(rows):
        return stochasticity(sparse.csr_array(np.array(rows)))

    assert kind([[0.5, 0.5], [0.5, 0.5]]) == "doubly"
    assert kind([[0.5, 0.5], [1.0, 0.0]]) == "row"
    assert kind([[0.5, 1.0], [0.5, 0.0]]) == "column"
    assert kind([[0.5, 0.5], [0.5, 0.4]]) == "none"
    assert kind([[0.5, 0.5 + 1e-10], [0.5, 0.5]]) == "doubly"


# --- theorems

peers_of = {"torus": [9, 12, 15], "hypercube": [1, 2, 4, 8, 16], "smallworld": range(2, 15)}
metric_and_threshold = st.one_of(
    st.tuples(st.just("hops"), st.integers(0, 4).map(float)),
    st.tuples(st.sampled_from(["weight", "position"]), st.floats(0, 3)),
)


@st.composite
def matrices(draw, rules=("auto", *RULES)):
    """A mixing matrix of any family, metric, threshold and rule that go together."""
    family = draw(st.sampled_from(FAMILIES))
    sizes = peers_of.get(family, range(3 if family in OWN else 1, 15))
    count = draw(st.sampled_from(sizes))
    places = [(draw(st.floats(0, 2)), draw(st.floats(0, 2))) for _ in range(count)]
    net = build(family, count, seed=draw(st.integers(0, 2**32 - 1)), positions=places, **OWN.get(family, {}))
    metric, threshold = draw(metric_and_threshold)
    graph = neighbours(net, metric, threshold)
    of_arcs = ("auto", "uniform", "push")
    rule = draw(st.sampled_from([rule for rule in rules if not graph.is_directed() or rule in of_arcs]))
    return graph, rule, mixing_matrix(graph, rule, family=family)


@given(matrices())
@settings(deadline=None, max_examples=150)
def test_every_row_sums_to_one_and_holds_self_and_the_heard(made):
    """Under push the sums are those of the columns."""
    graph, rule, W = made
    summed = sparse.csr_array(W.T) if rule == "push" else W
    assert W.dtype == np.float64
    assert W.has_sorted_indices
    for i in range(len(graph)):
        row = summed.data[summed.indptr[i] : summed.indptr[i + 1]]
        heard = graph.predecessors(i) if graph.is_directed() else graph.neighbors(i)
        assert W.indices[W.indptr[i] : W.indptr[i + 1]].tolist() == sorted([i, *heard])
        assert abs(math.fsum([-1.0, *row])) <= 2.0**-53
        assert (row > 0.0).all()


@given(matrices(("metropolis", "lazy", "auto")), st.integers(0, 99))
@settings(deadline=None)
def test_undirected_matrices_keep_the_mean_and_contract_by_slem(made, seed):
    graph, _, W = made
    x = np.random.default_rng(seed).standard_normal(len(graph))
    if not graph.is_directed():
        assert (W != W.T).nnz == 0
        assert stochasticity(W) == "doubly"
        before, after = x - x.mean(), W @ x - x.mean()
        assert np.linalg.norm(after) <= slem(W) * np.linalg.norm(before) + 1e-12
    if stochasticity(W) == "doubly":
        assert (W @ x).mean() == pytest.approx(x.mean(), abs=1e-12)


@pytest.mark.parametrize(("count", "rule"), list(product([1, 2, 5, 8], RULES)))
def test_regular_graphs_mix_alike_under_metropolis_and_uniform(count, rule):
    graph = build("complete", count).graph
    expected = np.full((count, count), 1 / count)
    close(mixing_matrix(graph, rule).toarray(), (expected + np.eye(count)) / 2 if rule == "lazy" else expected)


def test_a_large_ring_is_quick_and_right():
    W = mixing_matrix(build("ring", 20_000).graph)
    assert W.nnz == 60_000
    close(W.data, 1 / 3)
