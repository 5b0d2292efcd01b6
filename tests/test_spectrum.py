"""slem and gap against closed forms and independently computed values, small and large."""

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from topology import build, diameter, is_connected, lambda_min, mixing_matrix, rounds_to_consensus, slem, spectral_gap
from topology import spectrum as spectrum_module

TRUTH_FOLDER = Path(__file__).parent / "truth"
TRUTH = json.loads((TRUTH_FOLDER / "truth.json").read_text(encoding="utf-8"))
TOPOLOGIES = TRUTH["topologies"]
RULE = {"ring_lazy": "lazy", "star_row_uniform": "uniform"}
FAMILY = {
    "ring_uniform_third": "ring",
    "ring_lazy": "ring",
    "complete": "complete",
    "star_MH": "star",
    "star_row_uniform": "star",
    "path_MH": "path",
    "grid_MH": "grid",
    "torus_uniform_fifth": "torus",
    "hypercube": "hypercube",
    "static_exponential": "exponential",
}
KINDS = [*FAMILY, "directed_ring_half"]
SIZES = [(kind, size) for kind in KINDS for size in TOPOLOGIES[kind]]


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def made(kind, size):
    count = TOPOLOGIES[kind][size]["n"]
    if kind == "directed_ring_half":
        return mixing_matrix(nx.DiGraph(((i + 1) % count, i) for i in range(count)))
    shape = [int(side) for side in size.split("x")] if "x" in size else None
    return mixing_matrix(build(FAMILY[kind], count, shape=shape).graph, RULE.get(kind, "auto"))


@pytest.mark.parametrize(("kind", "size"), SIZES)
def test_truth(kind, size):
    entry = TOPOLOGIES[kind][size]
    W = made(kind, size)
    close(slem(W), entry["slem"])
    close(spectral_gap(W), entry["spectral_gap"])
    if "lambda_min" in entry:
        close(lambda_min(W), entry["lambda_min"])
    if "closed_form_slem" in entry:
        close(slem(W), entry["closed_form_slem"])
    if "eigenvalues" in entry:
        theirs = [complex(*value) if isinstance(value, list) else value for value in entry["eigenvalues"]]
        ours = np.linalg.eigvals(W.toarray())
        np.testing.assert_allclose(np.sort(abs(ours)), np.sort(np.abs(theirs)), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(np.sort(ours.real), np.sort(np.real(theirs)), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["36_nodes.edges", "96_regular.edges"])
def test_graph_files(name):
    entry = TRUTH["decentralizepy_graph_files"]["files"][f"eval/{name}"]
    graph = build(f"file:{name}", None, folder=TRUTH_FOLDER / "graphs").graph
    degrees = [degree for _, degree in graph.degree]
    assert len(graph) == entry["n"]
    assert graph.number_of_edges() == entry["undirected_edges"]
    assert (min(degrees), max(degrees)) == (entry["min_degree"], entry["max_degree"])
    assert is_connected(graph) == entry["connected"]
    assert diameter(graph) == entry["diameter"]
    W = mixing_matrix(graph)
    close(slem(W), entry["MH_slem"])
    close(spectral_gap(W), entry["MH_gap"])


def test_a_regular_graph_file():
    graph = build("file:regular_16.txt", None, folder=TRUTH_FOLDER / "graphs").graph
    assert diameter(graph) == nx.diameter(graph)
    adjacency = np.linalg.eigvalsh(nx.to_numpy_array(graph))  # W = (I + A) / 4
    close(slem(mixing_matrix(graph)), np.sort(abs(1 + adjacency) / 4)[-2])


# --- edges of the definition


def test_one_peer_and_complete_graphs_agree_at_once():
    assert slem(mixing_matrix(build("ring", 1).graph)) == 0.0
    for count in (2, 3, 8, 60):
        assert slem(mixing_matrix(build("complete", count).graph)) == 0.0


def test_graphs_that_fall_apart_never_agree():
    assert slem(sparse.csr_array(np.eye(3))) == 1.0
    assert slem(mixing_matrix(nx.Graph([(0, 1), (2, 3)]))) == 1.0
    assert spectral_gap(mixing_matrix(nx.empty_graph(2))) == 0.0


def test_a_swap_never_agrees():
    assert slem(sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))) == 1.0


def test_one_way_graphs_may_still_count_1_twice():
    two_sources = nx.DiGraph([(0, 1), (2, 1)])
    assert slem(mixing_matrix(two_sources)) == 1.0


def test_rounds_to_consensus():
    assert rounds_to_consensus(0.0) == 1
    assert rounds_to_consensus(1e-7) == 1
    assert rounds_to_consensus(0.5) == 20
    assert rounds_to_consensus(0.1) == 6
    assert rounds_to_consensus(0.1, tolerance=1e-3) == 3
    assert rounds_to_consensus(0.999999) == 13_815_504
    assert rounds_to_consensus(1.0) is None
    assert rounds_to_consensus(1.5) is None


@given(st.floats(0.001, 0.9999))
def test_rounds_to_consensus_are_enough_and_not_too_many(modulus):
    rounds = rounds_to_consensus(modulus)
    assert modulus**rounds <= 1e-6 * (1 + 1e-8 * rounds)
    assert rounds == 1 or modulus ** (rounds - 1) > 1e-6 * (1 - 1e-8 * rounds)


# --- large matrices: the ways to find it agree


def test_circulant_matrices_of_any_size_are_exact():
    ring = mixing_matrix(build("ring", 30_000).graph)
    close(spectral_gap(ring), 2 / 3 * (1 - np.cos(2 * np.pi / 30_000)))
    exponential = mixing_matrix(build("exponential", 4096).graph)
    close(spectral_gap(exponential), 2 / 13)


def test_nearly_circulant_matrices_are_not_taken_for_circulant():
    graph = nx.cycle_graph(8)
    graph.remove_edges_from([(0, 1), (4, 5)])
    graph.add_edges_from([(0, 4), (1, 5)])
    W = mixing_matrix(graph)
    close(slem(W), np.sort(abs(np.linalg.eigvalsh(W.toarray())))[-2])


def test_large_tori_and_paths_have_their_closed_forms():
    torus = mixing_matrix(build("torus", None, shape=[40, 50]).graph)
    close(slem(torus), (1 + 2 + 2 * np.cos(2 * np.pi / 50)) / 5)
    path = mixing_matrix(build("path", 2500).graph)
    close(slem(path), 1 / 3 + 2 / 3 * np.cos(np.pi / 2500))


SMALL = {
    "undirected": lambda: mixing_matrix(build("barabasi_albert", 300, m=2).graph),
    "lazy": lambda: mixing_matrix(build("grid", 300).graph, "lazy"),
    "uniform": lambda: mixing_matrix(build("barabasi_albert", 300, m=2).graph, "uniform"),
    "path": lambda: mixing_matrix(build("path", 300).graph),
    "directed": lambda: mixing_matrix(nx.gnp_random_graph(300, 0.03, seed=1, directed=True)),
    "doubly, directed": lambda: mixing_matrix(
        nx.relabel_nodes(build("exponential", 300).graph, dict(enumerate(np.random.default_rng(0).permutation(300))))
    ),
}


@pytest.mark.parametrize("kind", SMALL)
def test_iterations_find_what_the_dense_way_finds(kind, monkeypatch):
    W = SMALL[kind]()
    dense = np.sort(abs(np.linalg.eigvals(W.toarray())))[-2]
    close(slem(W), dense)
    monkeypatch.setattr(spectrum_module, "_DENSE_UP_TO", 0)
    close(slem(W), dense)
    assert slem(W) == slem(W)  # the start is the same every time
    for rungs in ("_LANCZOS", "_ARNOLDI"):
        monkeypatch.setitem(getattr(spectrum_module, rungs), "maxiter", 1)
        monkeypatch.setitem(getattr(spectrum_module, rungs), "ncv", 6)
    close(slem(W), dense)  # by shift and invert, or the dense way after all


def test_the_smallest_eigenvalue():
    assert lambda_min(mixing_matrix(build("ring", 1).graph)) == 1.0
    assert lambda_min(sparse.csr_array(np.eye(3))) == 1.0
    assert lambda_min(sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))) == -1.0
    assert lambda_min(mixing_matrix(build("complete", 8).graph)) == 0.0
    close(lambda_min(mixing_matrix(build("ring", 30_000).graph)), -1 / 3)
    close(lambda_min(mixing_matrix(build("path", 2500).graph)), 1 / 3 - 2 / 3 * np.cos(np.pi / 2500))
    assert lambda_min(mixing_matrix(build("exponential", 8).graph)) is None
    assert lambda_min(mixing_matrix(build("star", 5).graph, "uniform")) is None


@pytest.mark.parametrize("kind", ["undirected", "lazy", "path"])
def test_iterations_find_the_smallest_eigenvalue(kind, monkeypatch):
    W = SMALL[kind]()
    dense = np.linalg.eigvalsh(W.toarray())[0]
    close(lambda_min(W), dense)
    monkeypatch.setattr(spectrum_module, "_DENSE_UP_TO", 0)
    close(lambda_min(W), dense)
    monkeypatch.setitem(spectrum_module._LANCZOS, "maxiter", 1)
    monkeypatch.setitem(spectrum_module._LANCZOS, "ncv", 6)
    close(lambda_min(W), dense)  # by shift and invert, or the dense way after all
    monkeypatch.setattr(spectrum_module, "_DENSE_IF_NEED_BE", 0)
    assert lambda_min(W) <= dense + 1e-9


def test_the_estimate_is_close_and_nothing_raises(monkeypatch):
    W = SMALL["directed"]()
    dense = slem(W)
    for name in ("_DENSE_UP_TO", "_DENSE_IF_NEED_BE"):
        monkeypatch.setattr(spectrum_module, name, 0)
    for rungs in ("_LANCZOS", "_ARNOLDI"):
        monkeypatch.setitem(getattr(spectrum_module, rungs), "maxiter", 1)
        monkeypatch.setitem(getattr(spectrum_module, rungs), "ncv", 6)
    assert slem(W) == pytest.approx(dense, rel=0.02)
