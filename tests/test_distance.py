"""Neighbours within a threshold, and what the result looks like."""

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology import TopologyError, build, components, connecting_threshold, diameter, is_connected, neighbours
from topology import distance as distance_module
from topology.graphs import Net


def net_of(graph, positions=None, family="file:test"):
    count = len(graph)
    names = tuple(f"peer-{i}" for i in range(count))
    return Net(graph, names, False, None if positions is None else np.array(positions, float), None, family)


def pairs(graph):
    return {(u, v): d for u, v, d in graph.edges(data="distance")}


def refused(key, *words, net, metric="hops", threshold=1.0):
    with pytest.raises(TopologyError) as caught:
        neighbours(net, metric, threshold)
    assert caught.value.key == key
    for word in words:
        assert word in str(caught.value)


def test_one_hop_is_the_graph_itself():
    net = build("ring", 5)
    assert pairs(neighbours(net, "hops", 1)) == {(0, 1): 1, (0, 4): 1, (1, 2): 1, (2, 3): 1, (3, 4): 1}
    assert pairs(neighbours(net, "hops", 1.9)).keys() == set(net.graph.edges)
    assert pairs(neighbours(net, "hops", 0.5)) == {}
    assert pairs(neighbours(net, "hops", 0)) == {}


def test_more_hops():
    path = build("path", 5)
    assert pairs(neighbours(path, "hops", 2)) == {
        (0, 1): 1, (1, 2): 1, (2, 3): 1, (3, 4): 1, (0, 2): 2, (1, 3): 2, (2, 4): 2,
    }  # fmt: skip
    assert pairs(neighbours(path, "hops", math.inf))[0, 4] == 4
    split = net_of(nx.Graph([(0, 1), (2, 3)]))
    assert pairs(neighbours(split, "hops", math.inf)).keys() == {(0, 1), (2, 3)}


def test_direction_is_kept():
    ring = nx.DiGraph([(1, 0), (2, 1), (3, 2), (0, 3)])  # i hears i + 1
    near = neighbours(net_of(ring), "hops", 2)
    assert near.is_directed()
    assert sorted(near.predecessors(0)) == [1, 2]
    assert near[2][0]["distance"] == 2
    exponential = build("exponential", 8)
    assert set(neighbours(exponential, "hops", 1).edges) == set(exponential.graph.edges)


def test_weights_add_up_along_the_shortest_path():
    graph = nx.Graph()
    graph.add_weighted_edges_from([(0, 1, 0.1), (1, 2, 0.2), (0, 2, 5.0), (2, 3, 0.0), (3, 4, 1.0)])
    near = pairs(neighbours(net_of(graph), "weight", 0.3))  # 0.1 + 0.2 > 0.3 in floating point
    assert near.keys() == {(0, 1), (1, 2), (0, 2), (2, 3), (1, 3), (0, 3)}
    assert near[2, 3] == 0.0
    assert near[0, 3] == pytest.approx(0.3)
    assert pairs(neighbours(net_of(graph), "weight", 0.0)) == {(2, 3): 0.0}
    assert len(pairs(neighbours(net_of(graph), "weight", math.inf))) == 10


def test_position_does_not_look_at_edges():
    net = build("star", None, positions=[[0, 0], [3, 4], [0, 1], [0, 1]])
    assert pairs(neighbours(net, "position", 5)) == pytest.approx(
        {(0, 1): 5, (0, 2): 1, (0, 3): 1, (1, 2): math.sqrt(18), (1, 3): math.sqrt(18), (2, 3): 0}
    )
    assert pairs(neighbours(net, "position", 4.999)).keys() == {(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
    assert pairs(neighbours(net, "position", 0)) == {(2, 3): 0.0}
    assert not neighbours(build("exponential", None, positions=[[0, 0], [1, 0]]), "position", 1).is_directed()


def test_a_pair_exactly_at_the_threshold_is_within():
    places = [[0.1 * i, 0.0] for i in range(10)]  # 0.4 - 0.3 > 0.1 in floating point
    assert len(pairs(neighbours(build("geometric", None, positions=places), "position", 0.1))) == 9


def test_grid_neighbours_by_position_are_its_edges():
    net = build("grid", None, shape=[3, 4])
    assert set(neighbours(net, "position", 1).edges) == set(net.graph.edges)


def test_geometric_stands_for_the_complete_graph():
    net = build("geometric", 12, seed=5)
    places = net.positions
    expected = {
        (i, j): float(np.linalg.norm(places[i] - places[j]))
        for i in range(12)
        for j in range(i + 1, 12)
        if np.linalg.norm(places[i] - places[j]) <= 0.5
    }
    assert pairs(neighbours(net, "position", 0.5)) == pytest.approx(expected)
    assert pairs(neighbours(net, "weight", 0.5)) == pytest.approx(expected)
    assert len(pairs(neighbours(net, "hops", 1))) == 66
    assert len(pairs(neighbours(net, "hops", 0))) == 0
    assert len(pairs(neighbours(net, "position", math.inf))) == 66
    assert len(neighbours(build("geometric", 1), "position", 1)) == 1


def test_refusals():
    refused("metric", "'rtt'", "hops weight position", net=build("ring", 4), metric="rtt")
    refused("metric", "[[peers]] position", net=build("star", 4), metric="position")
    refused("threshold", "-1", net=build("ring", 4), threshold=-1)
    refused("threshold", "nan", net=build("ring", 4), threshold=math.nan)
    graph = nx.Graph()
    graph.add_weighted_edges_from([(0, 1, 2.0), (1, 2, -3.0)])
    refused("family", "peer-1 peer-2", "-3", net=net_of(graph), metric="weight")


@given(
    st.sampled_from(["ring", "path", "star", "grid", "exponential", "erdos_renyi"]),
    st.integers(1, 14),
    st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.7, 8.0]),
    st.integers(0, 99),
)
@settings(deadline=None)
def test_weight_with_unit_edges_is_hops_however_it_is_found(family, peers, threshold, seed):
    net = build(family, peers, seed=seed, **({"p": 0.2} if family == "erdos_renyi" else {}))
    by_hops = pairs(neighbours(net, "hops", threshold))
    assert by_hops == pairs(neighbours(net, "weight", threshold))
    lengths = dict(nx.all_pairs_shortest_path_length(net.graph, cutoff=int(threshold)))
    directed = net.graph.is_directed()
    expected = {(u, v): d for u in lengths for v, d in lengths[u].items() if (u != v if directed else u < v)}
    assert by_hops == expected


@pytest.mark.parametrize("metric", ["hops", "weight"])
def test_large_nets_are_searched_from_each_source(metric, monkeypatch):
    net = net_of(nx.relabel_nodes(nx.gnp_random_graph(40, 0.1, seed=2), {}))
    for u, v, data in net.graph.edges(data=True):
        data["weight"] = 0.25 * (1 + (u + v) % 3)
    by_rows = pairs(neighbours(net, metric, 2))
    monkeypatch.setattr(distance_module, "_ROWS_UP_TO", 0)
    assert pairs(neighbours(net, metric, 2)) == pytest.approx(by_rows)


def test_rows_are_searched_in_blocks(monkeypatch):
    net = build("torus", 30)
    whole, width = pairs(neighbours(net, "hops", 3)), diameter(net.graph)
    monkeypatch.setattr(distance_module, "_BLOCK", 70)
    assert pairs(neighbours(net, "hops", 3)) == whole
    assert diameter(net.graph) == width == 5


# --- what the result looks like


def test_components_and_connection():
    split = nx.Graph([(3, 1), (0, 2)])
    assert components(split) == [[0, 2], [1, 3]]
    assert not is_connected(split)
    one_way = nx.DiGraph([(0, 1), (1, 2)])
    assert components(one_way) == [[0, 1, 2]]
    assert not is_connected(one_way)
    assert is_connected(nx.DiGraph([(0, 1), (1, 0)]))
    assert is_connected(build("ring", 1).graph)


@pytest.mark.parametrize(
    ("family", "peers", "expected"),
    [("ring", 9, 4), ("path", 5, 4), ("complete", 6, 1), ("star", 6, 2), ("hypercube", 32, 5), ("exponential", 8, 3),
     ("ring", 1, 0), ("ring", 2, 1)],
)  # fmt: skip
def test_diameters(family, peers, expected):
    assert diameter(build(family, peers).graph) == expected


def test_the_diameter_of_what_is_not_connected_is_unknown():
    assert diameter(nx.empty_graph(3)) is None
    assert diameter(nx.DiGraph([(0, 1)])) is None


@settings(deadline=None)
@given(st.integers(1, 12), st.sampled_from([0.2, 0.4, 0.9]), st.booleans(), st.integers(0, 10**6))
def test_a_dense_graph_has_the_diameter_that_a_search_finds(n, p, directed, seed):
    graph = nx.gnp_random_graph(n, p, seed=seed, directed=directed)
    searched = diameter(graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distance_module, "_DENSE_FROM", -1)
        patch.setattr(distance_module, "_DENSE", 10**9)
        assert diameter(graph) == searched


def test_a_diameter_follows_arcs():
    assert diameter(nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0)])) == 3


@given(st.integers(2, 30), st.integers(0, 999))
@settings(deadline=None)
def test_the_connecting_threshold_connects_and_nothing_less_does(peers, seed):
    net = build("geometric", peers, seed=seed)
    threshold = connecting_threshold(net, "position")
    assert is_connected(neighbours(net, "position", threshold))
    assert not is_connected(neighbours(net, "position", threshold * (1 - 1e-6)))
    assert connecting_threshold(net, "weight") == threshold


def test_the_connecting_threshold_of_weights():
    graph = nx.Graph()
    graph.add_weighted_edges_from([(0, 1, 1.0), (1, 2, 4.0), (0, 2, 9.0), (2, 3, 2.0)])
    net = net_of(graph)
    assert connecting_threshold(net, "weight") == 4.0
    assert is_connected(neighbours(net, "weight", 4.0))
    assert not is_connected(neighbours(net, "weight", 3.9))


def test_the_connecting_threshold_where_there_is_none_or_a_trivial_one():
    assert connecting_threshold(build("ring", 8), "hops") == 1.0
    assert connecting_threshold(build("ring", 1), "hops") == 0.0
    assert connecting_threshold(build("geometric", 5), "hops") == 1.0
    assert connecting_threshold(net_of(nx.Graph([(0, 1), (2, 3)])), "hops") is None
    assert connecting_threshold(build("exponential", 8), "hops") is None
    assert connecting_threshold(build("star", 8), "position") is None
    assert connecting_threshold(build("geometric", 4000), "position") is None
    assert connecting_threshold(build("geometric", None, positions=[[1, 1], [1, 1]]), "position") == 0.0
