"""Families and files: sizes, order of nodes, positions, names, and errors in the words of the file."""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.io import mmwrite

from topology import FAMILIES, TopologyError, build, components, diameter, is_connected

GRAPHS = Path(__file__).parent / "truth" / "graphs"
OWN = {
    "regular": {"degree": 2},
    "smallworld": {"k": 2, "p": 0.5},
    "erdos_renyi": {"p": 0.5},
    "barabasi_albert": {"m": 1},
}


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return f"file:{name}"


def refused(key: str, *words: str, family: str, peers: int | None = None, **options: object) -> str:
    """Check that build refuses, blames the key and says the words on one line."""
    with pytest.raises(TopologyError) as caught:
        build(family, peers, **options)
    text = str(caught.value)
    assert caught.value.key == key, text
    assert "\n" not in text
    for word in words:
        assert word in text
    return text


# --- families


@pytest.mark.parametrize("family", FAMILIES)
def test_nodes_stand_in_order_and_edges_have_weights(family):
    peers = 9 if family == "torus" else 16
    net = build(family, peers, seed=3, **OWN.get(family, {}))
    assert list(net.graph) == list(range(peers))
    assert net.names == tuple(f"peer-{i}" for i in range(peers))
    assert not net.named
    assert net.family == family
    assert net.matrix is None
    assert not any(u == v for u, v in net.graph.edges)
    assert all(weight == 1.0 for _, _, weight in net.graph.edges(data="weight"))


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"torus", "regular", "smallworld", "barabasi_albert"}))
def test_one_and_two_peers(family):
    options = {"p": 1.0} if family == "erdos_renyi" else {}
    alone = build(family, 1, **options)
    assert (len(alone.graph), alone.graph.number_of_edges()) == (1, 0)
    assert is_connected(alone.graph)
    pair = build(family, 2, **options)
    if family == "geometric":
        return
    assert set(pair.graph.to_undirected().edges) == {(0, 1)}
    assert is_connected(pair.graph)


def test_one_and_two_peers_where_a_parameter_allows_it():
    assert build("regular", 1, degree=0).graph.number_of_edges() == 0
    assert set(build("regular", 2, degree=1).graph.edges) == {(0, 1)}
    assert set(build("barabasi_albert", 2, m=1).graph.edges) == {(0, 1)}
    assert set(build("smallworld", 2, k=2, p=0.0).graph.edges) == {(0, 1)}
    assert build("smallworld", 1, k=0, p=0.0).graph.number_of_edges() == 0


def test_eight_peers_by_default():
    assert len(build("ring", None).graph) == 8
    assert build("grid", None).graph.number_of_edges() == 2 * 3 + 4  # 2 x 4


def test_row_major_order():
    grid = build("grid", None, shape=[2, 3]).graph
    assert sorted(grid.edges) == [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]
    torus = build("torus", None, shape=[3, 4]).graph
    assert sorted(torus[0]) == [1, 3, 4, 8]
    cube = build("hypercube", 8).graph
    assert sorted(cube[5]) == [1, 4, 7]
    box = build("grid", None, shape=[2, 2, 3]).graph
    assert sorted(box[0]) == [1, 3, 6]


def test_the_squarest_lattice():
    assert sorted(build("torus", 12).graph[0]) == [1, 3, 4, 8]  # 3 x 4
    assert nx.is_isomorphic(build("grid", 7).graph, nx.path_graph(7))
    assert nx.is_isomorphic(build("grid", None, shape=[5]).graph, nx.path_graph(5))
    assert nx.is_isomorphic(build("torus", None, shape=[5]).graph, nx.cycle_graph(5))


def test_exponential_hears_powers_of_two():
    graph = build("exponential", 6).graph
    assert sorted(graph.predecessors(4)) == [0, 2, 5]  # 4 + 2, 4 + 4, 4 + 1
    assert {degree for _, degree in graph.in_degree} == {3}


def test_star_has_its_hub_at_node_0():
    assert dict(build("star", 5).graph.degree) == {0: 4, 1: 1, 2: 1, 3: 1, 4: 1}


@given(st.integers(1, 24), st.integers(0, 23), st.integers(0, 2**40))
def test_regular_is_regular_or_refused(peers, degree, seed):
    if degree < peers and peers * degree % 2 == 0:
        graph = build("regular", peers, degree=degree, seed=seed).graph
        assert {d for _, d in graph.degree} == {degree}
        assert list(graph) == list(range(peers))
    else:
        refused("degree", f"degree = {degree}", family="regular", peers=peers, degree=degree)


def test_dense_regular_graphs_do_not_take_forever():
    assert {d for _, d in build("regular", 300, degree=280).graph.degree} == {280}


@pytest.mark.parametrize("family", ["regular", "geometric", "smallworld", "erdos_renyi", "barabasi_albert"])
def test_the_seed_decides(family):
    def edges_and_places(seed):
        net = build(family, 20, seed=seed, **OWN.get(family, {}))
        return sorted(net.graph.edges), None if net.positions is None else net.positions.tolist()

    assert edges_and_places(1) == edges_and_places(1)
    assert edges_and_places(1) != edges_and_places(2)


def test_positions():
    assert build("grid", None, shape=[2, 3]).positions.tolist() == [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]
    assert build("grid", None, shape=[2, 2, 2]).positions is None
    np.testing.assert_allclose(build("ring", 4).positions, [[1, 0], [0, 1], [-1, 0], [0, -1]], atol=1e-15)
    assert build("star", 4).positions is None
    places = build("geometric", 50, seed=1).positions
    expected = np.random.Generator(np.random.Philox(1)).random((50, 2))
    np.testing.assert_array_equal(places, expected)
    given_places = build("star", None, positions=[[0, 0], [3, 4], [1, 1]])
    assert given_places.positions.tolist() == [[0, 0], [3, 4], [1, 1]]
    assert len(given_places.graph) == 3
    with pytest.raises(ValueError, match="read-only"):
        places[0, 0] = 2.0


def test_the_graph_is_frozen():
    with pytest.raises(nx.NetworkXError, match="rozen"):
        build("ring", 4).graph.add_edge(0, 2)


# --- what cannot be


def test_unknown_families_name_the_nearest_and_all_that_are_built():
    text = refused("family", "did you mean 'torus'?", family="tours")
    assert all(family in text for family in FAMILIES)
    refused("family", "base_k", "built are ring", family="base_k")


def test_missing_parameters_come_with_an_example():
    refused("degree", "needs degree", "degree = 4", family="regular", peers=8)
    refused("k", "needs k", "k = 4", family="smallworld", p=0.1)
    refused("p", "needs p", "p = 0.1", family="smallworld", k=4)
    refused("p", "needs p", family="erdos_renyi")
    refused("m", "needs m", "m = 2", family="barabasi_albert")


def test_parameters_of_other_families_are_refused():
    refused("degree", "ring does not take degree", family="ring", peers=8, degree=4)
    refused("shape", "does not take shape", family="ring", shape=[2, 4])
    refused("args", "does not take args", family="ring", args={"n": 3})
    refused("directed", "files", family="ring", directed=True)


def test_impossible_sizes():
    refused("degree", "peers times degree has to be even", "peers = 6", family="regular", peers=5, degree=3)
    refused("degree", "0 to 3 neighbours", family="regular", peers=4, degree=4)
    refused("peers", "peers = 6", "4 or 8", family="hypercube", peers=6)
    refused("peers", "peers = 7 cannot be a torus", "peers = 9", "shape = [3, 3]", family="torus", peers=7)
    refused("peers", "peers = 8", "grid", family="torus", peers=8)
    refused("peers", "peers = 13", "peers = 12 or 15", "[3, 4]", family="torus", peers=13)
    refused("shape", "[2, 4]", "at least 3", family="torus", shape=[2, 4])
    refused("shape", "[0, 4]", "at least 1", family="grid", shape=[0, 4])
    refused("shape", "e.g. shape", family="grid", shape=[])
    refused("peers", "peers = 7", "gives 8", family="grid", peers=7, shape=[2, 4])
    refused("peers", "peers = 0", family="ring", peers=0)
    refused("p", "between 0 and 1", family="erdos_renyi", p=1.5)
    refused("p", "nan", family="erdos_renyi", p=float("nan"))
    refused("k", "k = 3", "even", family="smallworld", peers=8, k=3, p=0.1)
    refused("k", "at most 4", family="smallworld", peers=5, k=6, p=0.1)
    refused("m", "less than peers", family="barabasi_albert", peers=4, m=4)
    refused("seed", "seed = -1", family="ring", seed=-1)
    refused("peers", "3 positions for 4 peers", family="ring", peers=4, positions=[[0, 0]] * 3)
    refused("peers", "two numbers", family="ring", positions=[[0, 0, 0]])
    refused("peers", "not finite", family="ring", positions=[[0, 0], [0, float("inf")]])


# --- networkx generators


def test_networkx_generators():
    petersen = build("networkx:petersen_graph", None)
    assert len(petersen.graph) == 10
    assert nx.is_isomorphic(petersen.graph, nx.petersen_graph())
    assert len(build("networkx:cycle_graph", 5).graph) == 5
    assert len(build("networkx:cycle_graph", None).graph) == 8
    assert len(build("networkx:cycle_graph", None, args={"n": 6}).graph) == 6
    assert len(build("networkx:grid_2d_graph", None, args={"m": 2, "n": 3}).graph) == 6
    assert build("networkx:karate_club_graph", 34).graph[0][1]["weight"] == 4.0
    assert build("networkx:random_geometric_graph", 9, args={"radius": 0.3}).positions.shape == (9, 2)
    arcs = build("networkx:gn_graph", 6)
    assert arcs.graph.is_directed()
    collapsed = build(
        "networkx:directed_configuration_model",
        None,
        args={"in_degree_sequence": [2, 2], "out_degree_sequence": [2, 2]},
    )
    assert not collapsed.graph.is_multigraph()


def test_networkx_generators_follow_the_seed():
    def edges(**options):
        return sorted(build("networkx:random_regular_graph", None, **options).graph.edges)

    assert edges(args={"d": 3, "n": 20}, seed=1) == edges(args={"d": 3, "n": 20}, seed=1)
    assert edges(args={"d": 3, "n": 20}, seed=1) != edges(args={"d": 3, "n": 20}, seed=2)
    assert edges(args={"d": 3, "n": 20, "seed": 1}, seed=2) == edges(args={"d": 3, "n": 20}, seed=1)


def test_only_public_generators_can_be_named():
    refused("family", "did you mean petersen_graph", family="networkx:peterson_graph")
    for name in ("read_gpickle", "freeze", "os", "classic", "__builtins__", "", "read_graphml", "diameter"):
        refused("family", "no graph generator", family=f"networkx:{name}")


def test_networkx_mistakes_are_one_line():
    refused("args", "no parameter 'radius'", family="networkx:cycle_graph", args={"radius": 1})
    refused("args", "no parameter 'create_using'", family="networkx:cycle_graph", args={"create_using": "x"})
    refused("args", "needs args = { d = ..., n = ... }", family="networkx:random_regular_graph")
    refused(
        "args", "networkx:random_regular_graph", "even", family="networkx:random_regular_graph", args={"d": 3, "n": 5}
    )
    refused("args", "networkx:cycle_graph", family="networkx:cycle_graph", args={"n": 2.5})
    refused("peers", "peers = 4", "gives 10", family="networkx:petersen_graph", peers=4)
    refused("family", "does not make one graph", family="networkx:graph_atlas_g")
    refused("args", "without nodes", family="networkx:null_graph")


def test_disconnected_output_is_listed():
    net = build("networkx:caveman_graph", None, args={"l": 3, "k": 4})
    assert components(net.graph) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert not is_connected(net.graph)
    assert diameter(net.graph) is None


# --- edge lists


def test_the_form_of_decentralizepy():
    net = build("file:regular_16.txt", None, folder=GRAPHS)
    assert len(net.graph) == 16
    assert {degree for _, degree in net.graph.degree} == {3}
    assert not net.named
    assert build("file:regular_16.txt", 16, folder=GRAPHS, directed=True).graph.number_of_edges() == 48
    refused("peers", "peers = 8", "gives 16", "regular_16.txt", family="file:regular_16.txt", peers=8, folder=GRAPHS)


def test_edge_lists(tmp_path):
    reference = write(tmp_path, "a.edges", "# links\n3\n0 1 2.5  # fast\n\n1 1\n")
    net = build(reference, None, folder=tmp_path)
    assert list(net.graph.edges(data="weight")) == [(0, 1, 2.5)]  # no self-loop; node 2 is isolated
    assert components(net.graph) == [[0, 1], [2]]
    arcs = build(write(tmp_path, "b.txt", "0 1\n1 2\n"), None, folder=tmp_path, directed=True).graph
    assert list(arcs.predecessors(1)) == [0]  # 1 hears 0
    named = build(write(tmp_path, "c.edgelist", "zoe adam\nadam é\n"), None, folder=tmp_path)
    assert (named.names, named.named) == (("zoe", "adam", "é"), True)
    nx.write_edgelist(nx.path_graph(3), tmp_path / "d.edges")
    assert sorted(build("file:d.edges", None, folder=tmp_path).graph.edges) == [(0, 1), (1, 2)]
    nx.write_edgelist(nx.Graph([(0, 1, {"weight": 4})]), tmp_path / "e.edges")
    assert build("file:e.edges", None, folder=tmp_path).graph[0][1]["weight"] == 4.0
    alone = build(write(tmp_path, "f.edges", "1\n"), None, folder=tmp_path)
    assert len(alone.graph) == 1
    windows = build(write(tmp_path, "g.edges", "\ufeff0 1\r\n1 2\r\n"), None, folder=tmp_path)
    assert windows.graph.number_of_edges() == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3\n0 1\n1 3\n", ("line 3", "node 3", "line 1 says 3 nodes", "0 to 2")),
        ("0 1\n1 x y z\n", ("line 2", "4 words")),
        ("0 1\n1 2 heavy\n", ("line 2", "heavy", "not a finite number")),
        ("0 1\n1 2 nan\n", ("line 2", "nan")),
        ("0 1\n2\n", ("line 2", "'2' alone")),
        ("hello\n", ("line 1", "'hello' alone", "FROM TO")),
        ("0 1\n1 -2\n", ("line 2", "-2", "numbered from 0")),
        ("1 2\n2 3\n", ("node 0 is missing",)),
        ("0 1\n1 999999999999\n", ("node 2 is missing",)),
        ("0\n", ("line 1", "at least 1")),
        ("4\na b\nb c\n", ("line 1", "4 nodes", "name 3")),
        ("0 1 2.0\n1 0 3.0\n", ("line 2", "weighs 3 here and 2 on line 1", "directed = true")),
        ("0 1 {'weight'\n", ("line 1",)),
        ("# nothing\n", ("no edge",)),
        (" \n\n", ("empty",)),
        ("", ("empty",)),
    ],
)
def test_bad_edge_lists_name_the_line(tmp_path, text, words):
    reference = write(tmp_path, "bad.edges", text)
    refused("family", "file:bad.edges", *words, family=reference, folder=tmp_path)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "folder.edges").mkdir()
    (tmp_path / "latin.edges").write_bytes("0 1\né 2\n".encode("latin-1"))
    refused("family", "there is no file", str(tmp_path), family="file:missing.edges", folder=tmp_path)
    refused("family", "is a folder", family="file:folder.edges", folder=tmp_path)
    refused("family", "is a folder", family="file:", folder=tmp_path)
    refused("family", "line 2", "UTF-8", family="file:latin.edges", folder=tmp_path)
    refused("family", ".edges", ".graphml", ".npy", family="file:graph.pickle", folder=tmp_path)
    refused("family", "cannot read", family="file:a\0b.edges", folder=tmp_path)


def test_paths_with_spaces_and_absolute_paths(tmp_path):
    (tmp_path / "a b").mkdir()
    reference = write(tmp_path / "a b", "my graph.edges", "0 1\n")
    assert len(build(reference, None, folder=tmp_path / "a b").graph) == 2
    assert len(build(f"file:{tmp_path / 'a b' / 'my graph.edges'}", None).graph) == 2


# --- adjacency lists and tables of links


def test_adjacency_lists(tmp_path):
    nx.write_adjlist(nx.star_graph(3), tmp_path / "a.adj")
    assert sorted(build("file:a.adj", None, folder=tmp_path).graph[0]) == [1, 2, 3]
    named = build(write(tmp_path, "b.adjlist", "b a\nloner\na\n"), None, folder=tmp_path)
    assert named.names == ("b", "a", "loner")
    assert components(named.graph) == [[0, 1], [2]]
    refused("family", "line 1", "-1", family=write(tmp_path, "c.adj", "0 -1\n"), folder=tmp_path)


def test_latency_tables(tmp_path):
    text = "from,to,latency_ms,bandwidth_mbps\nparis,oslo,25.5,100\noslo,rome,40,\n# spare\nrome,rome,0,1\n"
    net = build(write(tmp_path, "links.csv", text), None, folder=tmp_path)
    assert (net.names, net.named) == (("paris", "oslo", "rome"), True)
    assert list(net.graph.edges(data="weight")) == [(0, 1, 25.5), (1, 2, 40.0)]
    one_way = "to,from,latency_ms\n1,0,5\n0,1,7\n"
    refused("family", "line 3", "directed = true", family=write(tmp_path, "two.csv", one_way), folder=tmp_path)
    arcs = build("file:two.csv", None, folder=tmp_path, directed=True)
    assert sorted(arcs.graph.edges(data="weight")) == [(0, 1, 5.0), (1, 0, 7.0)]
    assert not arcs.named


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("from,to\na,b\n", ("line 1", "latency_ms")),
        ("a,b,5\n", ("line 1", "from and to", "missing")),
        ("from,to,latency_ms\na,b,fast\n", ("line 2", "latency_ms", "fast")),
        ("from,to,latency_ms\na,b\n", ("line 2", "2 cells")),
        ("from,to,latency_ms\n,b,2\n", ("line 2", "missing")),
        ('from,to,latency_ms\na,b,"1\n', ("line",)),
        ("from,to,latency_ms\n", ("no edge",)),
    ],
)
def test_bad_tables_name_the_line(tmp_path, text, words):
    refused("family", "file:bad.csv", *words, family=write(tmp_path, "bad.csv", text), folder=tmp_path)


# --- GraphML and GML


def test_graphml_keeps_the_files_names_and_order(tmp_path):
    graph = nx.Graph([("0", "1"), ("1", "10"), ("10", "2"), ("0", "0")])
    nx.write_graphml(graph, tmp_path / "a.graphml")
    net = build("file:a.graphml", None, folder=tmp_path)
    assert (net.names, net.named) == (("0", "1", "10", "2"), True)
    assert sorted(net.graph.edges) == [(0, 1), (1, 2), (2, 3)]


def test_graphml_positions_weights_and_direction(tmp_path):
    graph = nx.DiGraph([("b", "a", {"weight": 2})])
    nx.set_node_attributes(graph, {"b": {"x": 1.0, "y": 2.0}, "a": {"x": 3.0, "y": 4.0}})
    nx.write_graphml(graph, tmp_path / "a.graphml")
    arcs = build("file:a.graphml", None, folder=tmp_path, directed=True)
    assert list(arcs.graph.edges(data="weight")) == [(0, 1, 2.0)]
    assert arcs.positions.tolist() == [[1, 2], [3, 4]]
    assert not build("file:a.graphml", None, folder=tmp_path).graph.is_directed()
    moved = build("file:a.graphml", None, folder=tmp_path, positions=[[0, 0], [0, 1]])
    assert moved.positions.tolist() == [[0, 0], [0, 1]]


def test_pos_may_be_text_or_a_list(tmp_path):
    graph = nx.Graph([("a", "b")])
    nx.set_node_attributes(graph, {"a": "(0.5, 1)", "b": "2 3"}, "pos")
    nx.write_graphml(graph, tmp_path / "a.graphml")
    assert build("file:a.graphml", None, folder=tmp_path).positions.tolist() == [[0.5, 1], [2, 3]]
    nx.set_node_attributes(graph, {"a": [0.5, 1.0], "b": [2.0, 3.0]}, "pos")
    nx.write_gml(graph, tmp_path / "a.gml")
    assert build("file:a.gml", None, folder=tmp_path).positions.tolist() == [[0.5, 1], [2, 3]]
    nx.set_node_attributes(graph, {"a": "here", "b": "2 3"}, "pos")
    nx.write_graphml(graph, tmp_path / "a.graphml")
    refused("family", "node a", "'here'", family="file:a.graphml", folder=tmp_path)
    del graph.nodes["a"]["pos"]
    nx.write_graphml(graph, tmp_path / "a.graphml")
    refused("family", "node a has no position", family="file:a.graphml", folder=tmp_path)


def test_gml(tmp_path):
    nx.write_gml(nx.Graph([("z", "a"), ("a", "m")]), tmp_path / "a.gml")
    assert build("file:a.gml", None, folder=tmp_path).names == ("z", "a", "m")
    ids = "graph [\n node [ id 7 ]\n node [ id 3 ]\n edge [ source 7 target 3 weight 2 ]\n]\n"
    net = build(write(tmp_path, "b.gml", ids), None, folder=tmp_path)
    assert net.names == ("7", "3")
    assert list(net.graph.edges(data="weight")) == [(0, 1, 2.0)]


def test_bad_xml_and_gml(tmp_path):
    def bad(name, text, *words):
        refused("family", f"file:{name}", *words, family=write(tmp_path, name, text), folder=tmp_path)

    bad("a.graphml", "<graphml>\n<node\n", "line 2", "not XML")
    bad("b.graphml", "<a></a>", "GraphML")
    bad("c.gml", "graph [\n node [ id 0 label 5\n", "line 4", "not GML", "expected ']'")
    bad("d.gml", "hello", "not GML")
    bad("e.gml", 'graph [ node [ id 0 label "a" ] edge [ source 0 target 3 ] ]', "undefined target 3")
    bad("f.gml", "graph [ ]", "no node")
    weighted = nx.Graph([("a", "b", {"weight": "heavy"})])
    nx.write_graphml(weighted, tmp_path / "g.graphml")
    refused("family", "edge a b", "heavy", family="file:g.graphml", folder=tmp_path)


# --- W itself


def test_w_files(tmp_path):
    W = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    np.save(tmp_path / "w.npy", W)
    net = build("file:w.npy", None, folder=tmp_path)
    np.testing.assert_array_equal(net.matrix.toarray(), W)
    assert sorted(net.graph.edges) == [(0, 2), (1, 0), (2, 1)]  # 0 hears 1: the arc 1 -> 0
    symmetric = np.array([[0.6, 0.4, 0.0], [0.4, 0.0, 0.6], [0.0, 0.6, 0.4]])
    mmwrite(tmp_path / "w.mtx", sparse.coo_array(symmetric))
    net = build("file:w.mtx", 3, folder=tmp_path)
    assert not net.graph.is_directed()
    assert sorted(net.graph.edges) == [(0, 1), (1, 2)]
    np.testing.assert_allclose(net.matrix.toarray(), symmetric, rtol=1e-14)
    np.save(tmp_path / "turned.npy", W.T)
    assert sorted(build("file:turned.npy", None, folder=tmp_path).graph.edges) == [(0, 1), (1, 2), (2, 0)]


def test_rounded_rows_are_completed_on_the_diagonal(tmp_path):
    np.save(tmp_path / "w.npy", np.full((3, 3), 0.3333333))
    W = build("file:w.npy", None, folder=tmp_path).matrix.toarray()
    np.testing.assert_allclose(W.sum(axis=1), 1.0, atol=1e-15)
    np.testing.assert_array_equal(W, W.T)


def test_column_stochastic_w_is_taken(tmp_path):
    W = np.array([[0.5, 0.3, 0.0], [0.5, 0.3, 1.0], [0.0, 0.4, 0.0]])
    np.save(tmp_path / "w.npy", W)
    np.testing.assert_array_equal(build("file:w.npy", None, folder=tmp_path).matrix.toarray(), W)


def test_bad_w_files(tmp_path):
    def bad(array, *words):
        np.save(tmp_path / "w.npy", array)
        refused("family", "file:w.npy", *words, family="file:w.npy", folder=tmp_path)

    bad(np.array([[0.5, 0.5], [0.5, 0.4]]), "row 1 of W sums to 0.9")
    bad(np.array([[0.5, 0.5], [np.nan, 0.4]]), "row 1", "not finite")
    bad(np.ones((2, 3)), "square", "2 x 3")
    bad(np.ones(3), "square", "(3,)")
    bad(np.array([["a"]]), "real numbers")
    bad(np.eye(2) * 1j, "real numbers")
    bad(np.zeros((0, 0)), "square")
    np.save(tmp_path / "o.npy", np.array([[{}]]), allow_pickle=True)
    refused("family", "file:o.npy", family="file:o.npy", folder=tmp_path)
    refused("family", "not a .npy", family=write(tmp_path, "t.npy", "hello"), folder=tmp_path)
    banner = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n"
    refused("family", "line 4", family=write(tmp_path, "a.mtx", banner + "1 x 1\n"), folder=tmp_path)
    refused("family", "line 1", family=write(tmp_path, "b.mtx", "hello\n"), folder=tmp_path)
    refused(
        "peers", "peers = 4", "gives 2", family=write(tmp_path, "c.mtx", banner + "2 2 1\n"), peers=4, folder=tmp_path
    )


# --- anything else


VALID = {
    ".edges": b"3\n0 1 2.5\n1 2 {'weight': 3}\n",
    ".adj": b"a b c\nb c\n",
    ".csv": b"from,to,latency_ms\na,b,1\n",
    ".graphml": "\n".join(nx.generate_graphml(nx.path_graph(2))).encode(),
    ".gml": "\n".join(nx.generate_gml(nx.path_graph(2))).encode(),
    ".mtx": b"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 1\n",
    ".npy": b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1), }" + b" " * 60 + b"\n",
}


@given(st.sampled_from(sorted(VALID)), st.binary(max_size=12), st.integers(0, 200), st.integers(0, 12))
def test_no_bytes_do_worse_than_one_clear_line(tmp_path_factory, suffix, noise, where, gone):
    data = VALID[suffix]
    where %= len(data) + 1
    path = tmp_path_factory.getbasetemp() / f"noise{suffix}"
    path.write_bytes(data[:where] + noise + data[where + gone :])
    try:
        net = build(f"file:{path}", None)
    except TopologyError as error:
        line, nodes = str(error), None
    else:
        line, nodes = "", list(net.graph)
    assert "\n" not in line
    assert nodes is None or nodes == list(range(len(net.names)))
