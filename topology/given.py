"""A topology that a user's own program made: a graph, W itself, several of either taken in turn, or a function.

Whatever is wrong with it ends in one line that says what was found where: in which item of a list, in which round.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topology.files import summing_to_one
from topology.graphs import net_of
from topology.net import Net, TopologyError, node_positions, numbered
from topology.schedule import Cycle, Drawn, Schedule, graph_of
from topology.weights import canonical, mixing_matrix

LOOKED_AT_ROUNDS = 16
"""How many rounds of a function are looked at in advance."""

KINDS = (
    "a networkx graph, a mixing matrix, a list of either that are taken in turn, or a function that returns one of "
    "either for a round"
)


@dataclass(frozen=True, eq=False)
class Rounds:
    """A schedule of the user's own. `names` come from its graphs' nodes, None where these are numbers or there are
    matrices alone; `brings_weights` says whether the first round is a matrix."""

    schedule: Schedule
    names: tuple[str, ...] | None
    brings_weights: bool


def given(value: object, family: str, weights: str = "auto", *, pushes: bool = False, rounds: int = 0) -> Net | Rounds:
    """Return what a user's factory made as a Net, where it is one graph or one matrix, or as a schedule.

    Graphs of a schedule get their matrices by the rule `weights`; "auto" is push on a directed graph if `pushes`. A
    matrix stands as it is unless there is a rule. A function is asked for the rounds 0 .. rounds - 1 alone, and of the
    later ones each is like the last; rounds = 0 is without end. Its first rounds are looked at here: what is wrong with
    one of them is known before anything runs.

    Raises TopologyError, and the schedule of a function does too, for "family" and "weights"; its `__cause__` is what
    the user's function raised, with a traceback that begins there.
    """
    try:
        return _made(value, family, _Reading(weights, pushes), rounds)
    except TopologyError as error:
        raise TopologyError(error.key, f"{family}: {error.problem}") from error.__cause__


def _made(value: object, family: str, reading: "_Reading", rounds: int) -> Net | Rounds:
    if isinstance(value, nx.Graph):
        return _graph_net(value, family)
    if _is_matrix(value):
        matrix = _checked(value)
        return net_of(family, _pattern(matrix), None, matrix=matrix)
    if callable(value):
        return _function(value, family, reading, rounds)
    items = _items(value)
    first, reading = reading.first(items[0], "item 0")
    later = (reading.matrix(item, f"item {i}") for i, item in enumerate(items[1:], start=1))
    return Rounds(Cycle((first, *later)), reading.names, _is_matrix(items[0]))


# ---- One graph, and several


def _graph_net(graph: nx.Graph, family: str) -> Net:
    nodes = _nodes(graph)
    return net_of(family, numbered(graph, nodes), node_positions(graph, nodes), _names(nodes))


def _items(value: Any) -> Sequence[object]:
    """Return what is taken in turn: the items of a list, the matrices of an array (rounds, n, n)."""
    if isinstance(value, list | tuple) or _axes(value) == 3:
        if len(value):
            return list(value)
        raise TopologyError("family", f"it returned an empty {type(value).__name__}; a topology is {KINDS}")
    if _is_array(value):
        _checked(value)  # which says what is wrong with its shape
    hint = "; make it a list" if isinstance(value, Iterator) else ""
    raise TopologyError("family", f"it returned {_kind_of(value)}{hint}; a topology is {KINDS}")


@dataclass(frozen=True)
class _Reading:
    """How the rounds of a schedule are read. All are of the same peers: `nodes` are those of the first graph, in
    order, None before there is one; `count` is how many there are, 0 before the first round."""

    weights: str
    pushes: bool
    count: int = 0
    nodes: tuple[Hashable, ...] | None = None
    begins: str = ""

    @property
    def names(self) -> tuple[str, ...] | None:
        return None if self.nodes is None else _names(self.nodes)

    def first(self, value: object, where: str) -> tuple[sparse.csr_array, "_Reading"]:
        """Return W of the first round, and how the others are to be read."""
        try:
            nodes = _nodes(value) if isinstance(value, nx.Graph) else None
        except TopologyError as error:
            raise TopologyError(error.key, f"{where}: {error.problem}") from None
        matrix = self.matrix(value, where)
        return matrix, replace(self, count=matrix.shape[0], nodes=nodes, begins=where)

    def matrix(self, value: object, where: str) -> sparse.csr_array:
        """Return W of a graph or a matrix. Raises TopologyError that says where it stood."""
        try:
            matrix = self._matrix(value)
        except TopologyError as error:
            raise TopologyError(error.key, f"{where}: {error.problem}") from None
        if self.count and matrix.shape[0] != self.count:
            text = f"{where} is for {_peers(matrix.shape[0])} and {self.begins} for {self.count}"
            raise TopologyError("family", f"{text}; all rounds are of the same peers")
        return matrix

    def _matrix(self, value: object) -> sparse.csr_array:
        if isinstance(value, nx.Graph):
            return mixing_matrix(numbered(value, self._known(value)), self._rule(value))
        if not _is_matrix(value):
            raise TopologyError("family", f"{_kind_of(value)} is neither a graph nor a matrix")
        matrix = _checked(value)
        return matrix if self.weights == "auto" else mixing_matrix(_pattern(matrix), self.weights)

    def _rule(self, graph: nx.Graph) -> str:
        return "push" if self.pushes and self.weights == "auto" and graph.is_directed() else self.weights

    def _known(self, graph: nx.Graph) -> Sequence[Hashable]:
        if self.nodes is None:
            return _nodes(graph)
        strangers, missing = set(graph) - set(self.nodes), set(self.nodes) - set(graph)
        if strangers:
            raise TopologyError("family", f"the node {_first(strangers)} is not one of those of {self.begins}")
        if missing:
            text = f"the node {_first(missing)} of {self.begins} is missing"
            raise TopologyError("family", f"{text}; add_node puts one in that hears nobody")
        return self.nodes


# ---- A function of the round


def _function(function: Callable[[int], object], family: str, reading: _Reading, rounds: int) -> Rounds:
    made = _ask(function, 0)
    first, known = reading.first(made, "round 0")
    again, _ = reading.first(_ask(function, 0), "round 0")
    if first.shape != again.shape or (first != again).nnz:
        text = "round 0 was another one when it was asked for again: a function of the round gives the same every time"
        raise TopologyError("family", f"{text}, as from numpy.random.default_rng([seed, round])")
    draw = partial(_drawn, function, known, rounds)
    looked_at = [draw(round) for round in range(LOOKED_AT_ROUNDS)]
    directed = not all(map(_goes_both_ways, looked_at))
    return Rounds(Drawn(known.count, partial(_blamed, family, draw), directed=directed), known.names, _is_matrix(made))


def _drawn(function: Callable[[int], object], reading: _Reading, rounds: int, round: int) -> sparse.csr_array:
    # Others look ahead, for checks and digests; a function that was made for so many rounds need not know more.
    asked = min(round, rounds - 1) if rounds else round
    return reading.matrix(_ask(function, asked), f"round {asked}")


def _blamed(family: str, draw: Callable[[int], sparse.csr_array], round: int) -> sparse.csr_array:
    try:
        return draw(round)
    except TopologyError as error:
        raise TopologyError(error.key, f"{family}: {error.problem}") from error.__cause__


def _ask(function: Callable[[int], object], round: int) -> object:
    try:
        return function(round)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next  # begins in their code
        first, *_ = str(error).splitlines() or [""]
        text = f"round {round} raised {type(error).__name__}{f': {first}' if first else ''}"
        raise TopologyError("family", text) from error


# ---- Nodes and names


def _nodes(graph: nx.Graph) -> tuple[Hashable, ...]:
    """Return the nodes in the order of the peers. Numbers are the peers' own; others are taken as they stand."""
    if not len(graph):
        raise TopologyError("family", "the graph has no nodes")
    if all(isinstance(node, Integral) for node in graph):
        missing = next((i for i in range(len(graph)) if i not in graph), None)
        if missing is not None:
            text = f"the node {missing} is missing: nodes that are numbers are 0, 1, 2, ... without a gap"
            raise TopologyError("family", f"{text}; networkx.convert_node_labels_to_integers makes them so")
        return tuple(range(len(graph)))
    nodes = tuple(graph)
    seen: set[str] = set()
    for name in map(str, nodes):
        if name in seen:
            raise TopologyError("family", f"two nodes of the graph have the name {name}")
        seen.add(name)
    return nodes


def _names(nodes: Sequence[Hashable]) -> tuple[str, ...] | None:
    return None if isinstance(nodes[0], int) and nodes == tuple(range(len(nodes))) else tuple(map(str, nodes))


def _first(nodes: set[Hashable]) -> str:
    return min(map(str, nodes))


# ---- Matrices


def _is_matrix(value: object) -> bool:
    if sparse.issparse(value):
        return True
    if _is_array(value):
        return _axes(value) == 2
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_row, value))


def _is_row(value: object) -> bool:
    if isinstance(value, list | tuple):
        return not any(isinstance(entry, list | tuple) or _axes(entry) for entry in value)
    return _axes(value) == 1


def _is_array(value: object) -> bool:
    """Say whether it is an array of numpy's, or of a library that numpy understands, such as torch."""
    return hasattr(value, "__array__") and not isinstance(value, type)


def _axes(value: Any) -> int:
    """Return how many axes an array has, 0 for what is none."""
    return int(np.ndim(value)) if _is_array(value) else 0


def _checked(value: object) -> sparse.csr_array:
    """Return W, (n, n), as this package keeps it; what rounding took from its sums goes to the diagonal."""
    matrix = _numbers(value)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.shape[0]:
        raise TopologyError("family", f"W is a square matrix, and this has the shape {matrix.shape}")
    matrix = sparse.csr_array(matrix)
    if not np.isfinite(matrix.data).all():
        row = int(np.searchsorted(matrix.indptr, np.flatnonzero(~np.isfinite(matrix.data))[0], side="right")) - 1
        raise TopologyError("family", f"row {row} of W holds a number that is not finite")
    return canonical(summing_to_one(matrix))


def _numbers(value: object) -> sparse.coo_array | NDArray[np.float64]:
    try:
        array = sparse.coo_array(value) if sparse.issparse(value) else np.asarray(value)
        if array.dtype.kind not in "biufO":
            raise TypeError(f"its entries are of type {array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        first, *_ = str(error).splitlines() or [""]
        raise TopologyError("family", f"this is not a matrix of real numbers: {first}") from None


def _pattern(matrix: sparse.csr_array) -> nx.Graph | nx.DiGraph:
    """Return who hears whom, by edges where all go both ways."""
    graph = graph_of(matrix, directed=not _goes_both_ways(matrix))
    nx.set_edge_attributes(graph, 1.0, "weight")
    return graph


def _goes_both_ways(matrix: sparse.csr_array) -> bool:
    heard = matrix.astype(bool)
    return bool((heard != heard.T).nnz == 0)


# ---- Words


def _kind_of(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _peers(count: int) -> str:
    return f"{count} peer{'' if count == 1 else 's'}"
