"""A topology of the user's own: what may be returned, what is wrong with it in one line, and how it runs."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st
from scipy import sparse

from peer.assembly import Assembly, assemble, prepare_task
from peer.daemon.launch import greeting_of, user_code_of_exchange
from peer.errors import ConfigError, TrainingError
from peer.experiment import from_dict
from peer.explanation import explain
from peer.scripting import simulate
from tests.commands import Command, Write
from topology import Net, Rounds, TopologyError, given, graph_of, mixing_matrix

PATH = [[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.25, 0.75]]
CIRCLE = [[0.5, 0.0, 0.5], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]  # 1 hears 0, 2 hears 1, 0 hears 2


def net(value: object, **options: Any) -> Net:
    made = given(value, "own:make", **options)
    assert isinstance(made, Net)
    return made


def rounds(value: object, *, weights: str = "auto", pushes: bool = False, rounds: int = 0) -> Rounds:
    made = given(value, "own:make", weights, pushes=pushes, rounds=rounds)
    assert isinstance(made, Rounds)
    return made


def dense(made: Rounds, round: int) -> list[list[float]]:
    found: list[list[float]] = made.schedule.matrix(round).toarray().tolist()
    return found


def refusal(value: object, **options: Any) -> TopologyError:
    with pytest.raises(TopologyError) as caught:
        given(value, "own:make", **options)
    assert str(caught.value).startswith("own:make: ")
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


# ---- One graph, one matrix


def test_a_graph_is_a_net_like_any_other() -> None:
    made = net(nx.path_graph(3))
    assert (made.names, made.named, made.matrix) == (("peer-0", "peer-1", "peer-2"), False, None)
    assert set(made.graph.edges) == {(0, 1), (1, 2)}
    arcs = net(nx.DiGraph([(0, 1), (1, 2)]))
    assert set(arcs.graph.edges) == {(0, 1), (1, 2)}
    assert arcs.graph.is_directed()
    assert set(net(nx.MultiGraph([(0, 1), (0, 1), (1, 1)])).graph.edges) == {(0, 1)}, "self-loops and copies go"


def test_nodes_that_are_numbers_stand_in_their_order_and_others_as_they_come() -> None:
    graph = nx.Graph([(np.int64(2), np.int64(0)), (np.int64(0), np.int64(1))])
    assert set(net(graph).graph.edges) == {(0, 2), (0, 1)}
    assert not net(graph).named
    named = net(nx.Graph([("lab", "attic"), ("attic", "bus")]))
    assert (named.names, named.named) == (("lab", "attic", "bus"), True)
    assert net(nx.grid_2d_graph(1, 2)).names == ("(0, 0)", "(0, 1)")


def test_positions_and_weights_of_a_graph_are_kept() -> None:
    graph = nx.Graph()
    graph.add_node("a", pos=(0.0, 1.0))
    graph.add_node("b", pos=(2.0, 3.0))
    graph.add_edge("a", "b", weight=2.5)
    made = net(graph)
    assert made.positions is not None
    assert made.positions.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert made.graph.edges[0, 1]["weight"] == 2.5


MATRICES: list[tuple[str, Callable[[list[list[float]]], Any]]] = [
    ("nested lists", list),
    ("nested tuples", lambda rows: tuple(map(tuple, rows))),
    ("a list of arrays", lambda rows: [np.array(row) for row in rows]),
    ("numpy", np.array),
    ("numpy, float32", lambda rows: np.array(rows, dtype=np.float32)),
    ("numpy, big-endian", lambda rows: np.array(rows, dtype=">f8")),
    ("torch", torch.tensor),
    ("scipy", sparse.csr_array),
    ("scipy's older matrix", sparse.csc_matrix),
    ("scipy, coordinates", sparse.coo_array),
    ("fractions", lambda rows: [[Fraction(w) for w in row] for row in rows]),
]


@pytest.mark.parametrize(("kind", "form"), MATRICES, ids=[kind for kind, _ in MATRICES])
@pytest.mark.parametrize("rows", [PATH, CIRCLE], ids=["both ways", "one way"])
def test_a_matrix_of_any_kind(rows: list[list[float]], kind: str, form: Callable[[Any], Any]) -> None:
    made = net(form(rows))
    assert made.matrix is not None
    assert made.matrix.toarray().tolist() == rows
    assert made.matrix.dtype == np.float64
    assert made.graph.is_directed() == (rows is CIRCLE)
    assert set(made.graph.edges) == ({(0, 1), (1, 2), (2, 0)} if rows is CIRCLE else {(0, 1), (1, 2)})
    assert all(weight == 1.0 for _, _, weight in made.graph.edges(data="weight"))
    in_turn = rounds([form(rows), nx.path_graph(3)])
    assert dense(in_turn, 0) == dense(in_turn, 2) == rows


def test_what_rounding_took_goes_to_the_diagonal() -> None:
    thirds = np.full((3, 3), 1 / 3, dtype=np.float32)
    made = net(thirds).matrix
    assert made is not None
    assert abs(made.sum(axis=1) - 1).max() < 1e-15
    assert abs(made.toarray() - 1 / 3).max() < 1e-7


def test_a_matrix_by_columns_stands() -> None:
    columns = np.array([[0.5, 0.5], [0.5, 0.5]]) @ np.diag([1.0, 1.0]) + [[0.25, 0.0], [-0.25, 0.0]]
    made = net(columns).matrix
    assert made is not None
    np.testing.assert_allclose(made.sum(axis=0), 1.0)


# ---- Rounds


def test_a_list_is_taken_in_turn() -> None:
    made = rounds([nx.path_graph(3), CIRCLE, nx.complete_graph(3)])
    assert (made.schedule.period, made.schedule.peers, made.schedule.directed) == (3, 3, True)
    assert dense(made, 1) == dense(made, 4) == CIRCLE
    np.testing.assert_allclose(dense(made, 2), np.full((3, 3), 1 / 3))
    assert (dense(made, 0) == mixing_matrix(nx.path_graph(3)).toarray()).all()
    assert not made.brings_weights


def test_an_array_of_matrices_is_taken_in_turn() -> None:
    for stack in (np.array([CIRCLE, PATH]), [CIRCLE, PATH], (CIRCLE, PATH), torch.tensor([CIRCLE, PATH])):
        made = rounds(stack)
        assert (made.schedule.period, made.brings_weights) == (2, True)
        assert [dense(made, 0), dense(made, 1)] == [CIRCLE, PATH]


def test_a_list_of_one_stays() -> None:
    assert rounds([nx.path_graph(3)]).schedule.period == 1


def swap(order: int) -> Callable[[int], nx.Graph]:
    return lambda round: nx.Graph([("b", "a"), ("c", "b")] if round % order else [("a", "b"), ("b", "c"), ("c", "a")])


def test_a_function_of_the_round() -> None:
    made = rounds(swap(2))
    assert (made.schedule.period, made.schedule.peers, made.names) == (None, 3, ("a", "b", "c"))
    np.testing.assert_allclose(dense(made, 0), np.full((3, 3), 1 / 3))
    path = [[2 / 3, 1 / 3, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.0, 1 / 3, 2 / 3]]
    np.testing.assert_allclose(dense(made, 1), path, err_msg="in the order of round 0, whatever that of a later one")
    np.testing.assert_allclose(dense(made, 101), path)
    assert not made.schedule.directed


class Circles:
    """Something that can be called, with matrices of its own."""

    def __call__(self, round: int) -> object:
        return np.roll(CIRCLE, round % 3, axis=0) if round % 3 else CIRCLE


def test_a_function_may_be_any_that_can_be_called() -> None:
    made = rounds(Circles())
    assert made.brings_weights
    assert dense(made, 1) == np.roll(CIRCLE, 1, axis=0).tolist()


def test_a_function_is_directed_if_one_of_its_first_rounds_is() -> None:
    late = rounds(lambda round: CIRCLE if round == 9 else PATH)
    assert late.schedule.directed
    assert not rounds(lambda round: PATH).schedule.directed


def test_a_function_is_not_asked_beyond_the_rounds_there_are() -> None:
    asked: list[int] = []

    def function(round: int) -> nx.Graph:
        asked.append(round)
        return [nx.path_graph(3), nx.complete_graph(3)][round]

    made = rounds(function, rounds=2)
    assert dense(made, 40) == dense(made, 1)
    np.testing.assert_allclose(dense(made, 1), np.full((3, 3), 1 / 3))
    assert set(asked) == {0, 1}


def test_a_rule_replaces_given_weights_as_it_does_those_of_a_file() -> None:
    lazy = rounds([PATH, nx.path_graph(3)], weights="lazy")
    assert dense(lazy, 0) == dense(lazy, 1)
    assert (dense(lazy, 0) == mixing_matrix(nx.path_graph(3), "lazy").toarray()).all()
    assert str(refusal([PATH, CIRCLE], weights="metropolis")) == (
        "own:make: item 1: weights = 'metropolis' needs an undirected graph, and this graph is directed: write weights "
        '= "uniform" or "auto"'
    )


def test_graphs_of_arcs_get_columns_where_they_are_needed() -> None:
    arcs = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])
    for made in (rounds([arcs, nx.path_graph(3)], pushes=True), rounds(lambda _: arcs, pushes=True)):
        np.testing.assert_allclose(np.sum(dense(made, 0), axis=0), 1.0)
    assert dense(rounds([arcs, nx.path_graph(3)], pushes=True), 1) == dense(rounds([nx.path_graph(3)]), 0)
    np.testing.assert_allclose(np.sum(dense(rounds([arcs]), 0), axis=1), 1.0)
    assert dense(rounds([PATH], pushes=True), 0) == PATH, "a matrix stands as it is"


@settings(max_examples=50, deadline=None)
@examples(st.integers(1, 7), st.randoms(use_true_random=False), st.data())
def test_any_graphs_come_back_as_they_were(n: int, random: Any, data: st.DataObject) -> None:
    """In whatever order nodes and arcs were put in, round t hears what graph t says."""
    directed = data.draw(st.booleans())
    graphs = []
    for _ in range(data.draw(st.integers(1, 3))):
        graph = nx.gnp_random_graph(n, 0.5, seed=random.randrange(10**6), directed=directed)
        shuffled = graph.__class__()
        shuffled.add_nodes_from(random.sample(sorted(graph), n))
        shuffled.add_edges_from(random.sample(list(graph.edges), graph.number_of_edges()))
        graphs.append(shuffled)
    for made in (rounds(graphs), rounds(lambda round: graphs[round % len(graphs)])):
        for t, graph in enumerate(graphs):
            assert set(graph_of(made.schedule.matrix(t), directed=True).edges) == set(graph.to_directed().edges)


# ---- What is wrong with it, in one line


def generator() -> Iterator[nx.Graph]:
    yield nx.path_graph(3)


WRONG: dict[str, tuple[object, str]] = {
    "None": (None, "it returned None; a topology is a networkx graph, a mixing matrix, a list of either"),
    "a number": (3, "it returned a value of type int; a topology is"),
    "text": ("ring", "it returned a value of type str; a topology is"),
    "a table": ({0: [1]}, "it returned a value of type dict; a topology is"),
    "an iterator": (generator(), "it returned a value of type generator; make it a list; a topology is"),
    "an empty list": ([], "it returned an empty list; a topology is"),
    "a vector": (np.ones(3), "W is a square matrix, and this has the shape (3,)"),
    "one number": (np.float64(1.0), "W is a square matrix, and this has the shape ()"),
    "not square": (np.ones((2, 3)), "W is a square matrix, and this has the shape (2, 3)"),
    "no rows": (np.ones((0, 0)), "W is a square matrix, and this has the shape (0, 0)"),
    "an empty row": ([[]], "W is a square matrix, and this has the shape (1, 0)"),
    "ragged": ([[1.0], [0.5, 0.5]], "this is not a matrix of real numbers: "),
    "words": ([["a", "b"], ["c", "d"]], "this is not a matrix of real numbers: its entries are of type <U1"),
    "complex": (np.eye(2) * 1j, "this is not a matrix of real numbers: its entries are of type complex128"),
    "holes": ([[1.0, None], [0.0, 1.0]], "row 0 of W holds a number that is not finite"),
    "tables for numbers": ([[{}]], "this is not a matrix of real numbers: "),
    "not finite": (np.array([[1.0, 0.0], [np.nan, 1.0]]), "row 1 of W holds a number that is not finite"),
    "row sum": ([[0.5, 0.5, 0.0], [0.5, 0.25, 0.5], [0.0, 0.0, 1.0]], "row 1 of W sums to 1.25; the rows (or all"),
    "no nodes": (nx.Graph(), "the graph has no nodes"),
    "numbered from 1": (nx.Graph([(1, 2)]), "the node 0 is missing: nodes that are numbers are 0, 1, 2, ..."),
    "a gap": (nx.Graph([(0, 1), (1, 3)]), "the node 2 is missing: nodes that are numbers"),
    "names doubled": (nx.Graph([(1, "1")]), "two nodes of the graph have the name 1"),
    "a weight": (nx.Graph([(0, 1, {"weight": "x"})]), "the edge 0 1 has the weight 'x': a finite number is needed"),
    "an item that is none": ([nx.path_graph(2), 3], "item 1: a value of type int is neither a graph nor a matrix"),
    "a first item that is none": ([None], "item 0: None is neither a graph nor a matrix"),
    "an item's row sum": ([PATH, np.eye(3) * 0.5], "item 1: row 0 of W sums to 0.5"),
    "items of other sizes": ([PATH, nx.path_graph(4)], "item 1 is for 4 peers and item 0 for 3; all rounds are of the"),
    "an item of one": ([PATH, [[1.0]]], "item 1 is for 1 peer and item 0 for 3"),
    "a node that is new": (
        [nx.Graph([("a", "b")]), nx.Graph([("a", "b"), ("b", "c")])],
        "item 1: the node c is not one of those of item 0",
    ),
    "a node that is missing": (
        [nx.path_graph(3), nx.Graph([(0, 1)])],
        "item 1: the node 2 of item 0 is missing; add_node puts one in that hears nobody",
    ),
    "a first item without nodes": ([nx.Graph()], "item 0: the graph has no nodes"),
    "four axes": (np.ones((1, 1, 1, 1)), "W is a square matrix, and this has the shape (1, 1, 1, 1)"),
    "a round that is none": (lambda _: None, "round 0: None is neither a graph nor a matrix"),
    "a round of another size": (
        lambda round: nx.path_graph(3 + round // 5),
        "round 5: the node 3 is not one of those of round 0",
    ),
    "a round of a larger matrix": (lambda t: np.eye(2 + t // 3), "round 3 is for 3 peers and round 0 for 2"),
    "a round that takes nothing": (lambda: None, "round 0 raised TypeError: "),
    "a round that raises": (lambda round: [PATH][round], "round 1 raised IndexError: list index out of range"),
}


@pytest.mark.parametrize(("value", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_in_one_line(value: object, words: str) -> None:
    error = refusal(value)
    assert str(error).startswith(f"own:make: {words}"), str(error)
    assert error.key == "family"


def test_positions_of_some_nodes_alone_are_refused() -> None:
    graph = nx.Graph([("a", "b")])
    graph.nodes["a"]["pos"] = (0.0, 0.0)
    assert "the node b has no position" in str(refusal(graph))


def test_a_tensor_that_wants_gradients_is_refused_in_one_line() -> None:
    assert "this is not a matrix of real numbers: " in str(refusal(torch.eye(2, requires_grad=True)))


def test_a_round_that_comes_out_differently_is_refused() -> None:
    """Each daemon asks for itself: they would not agree on who hears whom."""
    shuffle = np.random.default_rng(3)

    def function(_: int) -> nx.Graph:
        order = shuffle.permutation(8).tolist()
        return nx.relabel_nodes(nx.cycle_graph(8), dict(enumerate(order)))

    assert "round 0 was another one when it was asked for again" in str(refusal(function))
    sizes = iter((3, 4))
    assert "round 0 was another one" in str(refusal(lambda _: nx.path_graph(next(sizes))))


def test_what_a_function_raises_is_kept_with_its_traceback() -> None:
    def function(round: int) -> nx.Graph:
        return nx.path_graph(3 // (12 - round))

    error = refusal(lambda round: function(round) if round == 12 else nx.path_graph(3))
    assert str(error) == "own:make: round 12 raised ZeroDivisionError: integer division or modulo by zero"
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.__cause__.__traceback__ is not None
    assert error.__cause__.__traceback__.tb_frame.f_code.co_filename == __file__, "it begins in the user's code"


def test_a_later_round_that_is_wrong_is_named_when_it_is_asked_for() -> None:
    made = rounds(lambda round: np.eye(2) * (2 if round == 50 else 1))
    assert dense(made, 49) == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(TopologyError, match=r"^own:make: round 50: row 0 of W sums to 2"):
        made.schedule.matrix(50)


# ---- In an experiment

MODULE = """
import networkx as nx
import numpy as np

CIRCLE = [[0.5, 0.0, 0.5], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]


def offered(**everything):
    print(sorted(everything.items()))
    return nx.path_graph(everything["peers"])


def circle(peers, close=True):
    return nx.cycle_graph(peers) if close else nx.path_graph(peers)


def matrix():
    return CIRCLE


def pairs(peers):
    return [nx.Graph([(0, 1), (2, 3)]), nx.Graph([(1, 2), (3, 0)])]


def streets():
    return [nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]), nx.path_graph(3)]


def apart():
    graph = nx.Graph([("a", "b"), ("c", "d")])
    return [graph, graph]


def wrong():
    return 3


def raises():
    raise RuntimeError("no map")


def shuffled(peers, seed):
    def ring(round):
        order = np.random.default_rng([seed, round]).permutation(peers).tolist()
        return nx.relabel_nodes(nx.cycle_graph(peers), dict(enumerate(order)))

    return ring


def just_so_many(rounds):
    graphs = [nx.path_graph(3)] * rounds
    return lambda round: graphs[round]


def third_fails():
    def ring(round):
        if round == 3:
            raise RuntimeError("no third")
        return nx.path_graph(3)

    return ring


def fortieth_fails():
    def ring(round):
        if round == 40:
            raise RuntimeError("no fortieth")
        return nx.path_graph(3)

    return ring


def lopsided_late():
    lopsided = np.eye(4)
    lopsided[0, :2] = 0.5
    return lambda round: nx.cycle_graph(4) if round < 250 else lopsided


def evil():
    return nx.Graph([("../../evil", "b")])
"""


@pytest.fixture
def module(write: Write) -> Path:
    return write(MODULE, "given_own.py")


def assembled(module: Path, factory: str, keys: Any = (), **tables: Any) -> Assembly:
    tables.setdefault("task", {"data": "none", "init": [1.0, 2.0], "dtype": "float64"})
    topology = {"family": f"given_own:{factory}", **dict(keys)}
    return assemble(from_dict({"topology": topology, **tables}, folder=module.parent))


def refused(module: Path, factory: str, keys: Any = (), **tables: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        assembled(module, factory, keys, **tables)
    return caught.value


def test_what_a_factory_is_offered(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assembled(module, "offered", {"args": {"lanes": 2, "peers": 4}}, seed=7, rounds=9)
    assembled(module, "offered", {"peers": 3, "seed": 1})
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "[('lanes', 2), ('peers', 4), ('rounds', 9), ('seed', 7)]",
        "[('peers', 3), ('rounds', 200), ('seed', 1)]",
    ]
    assert said.out == "", "stdout is for documents"
    three = {"data": "none", "init": [[1.0], [2.0], [3.0]]}
    assert len(assembled(module, "circle", task=three).names) == 3
    assert len(assembled(module, "circle").names) == 8
    assert not assembled(module, "circle", {"args": {"close": False}}).graph.has_edge(0, 7)


def test_an_argument_that_it_does_not_take_is_refused(module: Path) -> None:
    """It would be left out without a word."""
    error = refused(module, "circle", {"args": {"clse": False}})
    assert str(error) == "topology.args.clse: given_own:circle takes no argument clse; it takes peers, close"


def test_numbers_of_peers_that_differ_are_refused(module: Path) -> None:
    assert str(refused(module, "matrix", {"peers": 5})) == "topology.peers = 5, but given_own:matrix has 3"
    assert str(refused(module, "just_so_many", {"peers": 5})) == "topology.peers = 5, but given_own:just_so_many has 3"


def test_metric_threshold_and_weights_go_with_one_graph(module: Path) -> None:
    assert assembled(module, "circle", {"threshold": 2}).graph.degree(0) == 4
    assert assembled(module, "circle", {"weights": "lazy"}).ground.rule == "lazy"
    assert assembled(module, "matrix").ground.rule == "own"
    assert assembled(module, "matrix", {"threshold": 2}).ground.rule == "uniform"
    tables = {"peers": [{"name": name, "position": [i, 0.0]} for i, name in enumerate("abcd")]}
    by_place = assembled(module, "circle", {"metric": "position", "threshold": 1}, **tables)
    assert set(by_place.graph.edges) == {(0, 1), (1, 2), (2, 3)}


@pytest.mark.parametrize(("key", "value"), [("threshold", 2), ("metric", "weight")])
def test_a_schedule_says_itself_who_hears_whom(module: Path, key: str, value: object) -> None:
    error = refused(module, "pairs", {"peers": 4, key: value})
    assert str(error) == f"topology.{key}: given_own:pairs says itself who hears whom in which round; leave it out"


def test_the_union_of_a_list_has_to_be_connected(module: Path) -> None:
    assert assembled(module, "pairs", {"peers": 4}).period == 2
    error = refused(module, "apart")
    assert str(error).startswith("topology.family: the peers fall apart into 2 components: {a, b}; {c, d}")
    assert assembled(module, "apart", {"allow_disconnected": True}).names == ("a", "b", "c", "d")


def test_columns_for_push_sum_and_rows_for_others(module: Path) -> None:
    assert assembled(module, "pairs", {"peers": 4}).ground.rule == "metropolis"
    assert assembled(module, "matrix", algorithm={"name": "push_sum"}).ground.rule == "own"
    pushed = assembled(module, "matrix", {"threshold": 2}, algorithm={"name": "push_sum"})
    assert pushed.ground.rule == "push"
    in_turn = assembled(module, "streets", algorithm={"name": "push_sum"})
    assert in_turn.ground.rule == "push"
    np.testing.assert_allclose(in_turn.mixing(0).sum(axis=0), 1.0)
    by_rows = assembled(module, "streets")
    assert by_rows.ground.rule == "uniform"
    np.testing.assert_allclose(by_rows.mixing(0).sum(axis=1), 1.0)


def test_what_is_wrong_ends_in_one_line_with_the_users_own_traceback(
    command: Command, write: Write, module: Path
) -> None:
    lines = {
        "wrong": "topology.family: given_own:wrong: it returned a value of type int; a topology is a networkx graph, ",
        "raises": "topology.family: given_own:raises raised RuntimeError: no map",
        "third_fails": "topology.family: given_own:third_fails: round 3 raised RuntimeError: no third",
        "evil": 'topology.family: the node\'s name "../../evil" must not contain / or \\',
    }
    for factory, line in lines.items():
        write(f'[task]\ndata = "none"\ninit = [1.0]\n[topology]\nfamily = "given_own:{factory}"\n')
        for way in (["explain"], ["simulate"], ["simulate", "--engine", "events"], ["up"]):
            outcome = command(*way, "exp.toml")
            assert (outcome.code, outcome.out) == (2, "")
            *above, last = outcome.err.splitlines()
            assert last.startswith(f"earshot: {line}")
            assert bool(above) == (factory in ("raises", "third_fails"))
            if above:
                assert above[0] == "Traceback (most recent call last):"
                assert above[1].startswith('  File "')
                assert "given_own.py" in above[1]


def test_a_round_that_fails_later_ends_the_run_in_words(command: Command, write: Write, module: Path) -> None:
    write('rounds = 60\n[task]\ndata = "none"\ninit = [1.0]\n[topology]\nfamily = "given_own:fortieth_fails"\n')
    words = "topology.family: given_own:fortieth_fails: round 40 raised RuntimeError: no fortieth"
    outcome = command("explain", "exp.toml")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (2, f"earshot: {words}"), "it looks at more rounds"
    outcome = command("simulate", "exp.toml", "--json", "--no-folder", "--quiet")
    assert outcome.code == 3
    assert (outcome.document["outcome"], outcome.document["rounds"]) == ("failed", 40)
    assert outcome.document["why"] == words
    assert "given_own.py" in outcome.err
    for way in (["simulate", "--engine", "events"], ["up"]):  # which ask for all rounds before the first
        outcome = command(*way, "exp.toml", "--quiet")
        assert (outcome.code, outcome.err.splitlines()[-1]) == (2, f"earshot: {words}")
    assert not (module.parent / "runs").exists()


def test_a_round_that_does_not_do_is_refused_when_it_comes(command: Command, write: Write, module: Path) -> None:
    write(
        'rounds = 300\n[task]\ndata = "none"\ninit = [1.0]\n[topology]\nfamily = "given_own:lopsided_late"\n'
        '[algorithm]\nname = "gradient_tracking"\n'
    )
    words = "topology.family: W of round 250 is row stochastic, and gradient_tracking needs doubly"
    outcome = command("simulate", "exp.toml", "--json", "--no-folder", "--quiet")
    assert (outcome.code, outcome.document["outcome"], outcome.document["rounds"]) == (3, "failed", 250)
    assert outcome.document["why"] == words
    for way in (["simulate", "--engine", "events"], ["up"]):
        outcome = command(*way, "exp.toml", "--quiet")
        assert (outcome.code, outcome.err.splitlines()[-1]) == (2, f"earshot: {words}")


def test_a_function_made_for_so_many_rounds_runs_through(module: Path) -> None:
    for count in (1, 3, 5):
        a = assembled(module, "just_so_many", rounds=count)
        assert len(explain(a.experiment).document["neighbours"]) == 3
        assert simulate(a.experiment).rounds == simulate(a.experiment, engine="events").rounds == count


def test_the_engines_agree_on_a_schedule_of_ones_own(module: Path) -> None:
    tables = {"rounds": 6, "seed": 3, "record": {"params": "final"}}
    start = {"task": {"data": "none", "init": [[float(i)] for i in range(6)], "dtype": "float64"}}
    e = assembled(module, "shuffled", **tables, **start).experiment
    assert np.allclose(simulate(e).params, simulate(e, engine="events").params, rtol=1e-12)


def test_explain_of_a_function_looks_at_its_rounds_alone(module: Path) -> None:
    found = explain(assembled(module, "just_so_many", rounds=5).experiment, matrix=True).document
    assert found["schedule"]["rounds_seen"] == len(found["matrices"]) == 5
    assert found["rounds_to_consensus"] is None, "not within five rounds"


def test_a_later_mistake_is_a_training_error_for_whoever_asks(module: Path) -> None:
    a = assembled(module, "fortieth_fails")
    with pytest.raises(TrainingError) as caught:
        a.mixing(40)
    assert "no fortieth" in caught.value.details
    assert a.ground.schedule.peers == 3


def test_the_users_code_is_part_of_the_greeting(module: Path) -> None:
    def code(factory: str) -> str:
        a = assembled(module, factory)
        assert greeting_of(a, prepare_task(a), 0, "cpu", "plain").code == user_code_of_exchange(a.experiment)
        return user_code_of_exchange(a.experiment)

    assert user_code_of_exchange(from_dict({})) == ""
    first = code("circle")
    assert code("matrix") == first != ""
    module.write_text(MODULE + "# another thought\n")
    assert code("circle") != first
    module.write_text(MODULE.replace("\n", "\r\n"), newline="")
    assert code("circle") == first, "line ends do not count"
