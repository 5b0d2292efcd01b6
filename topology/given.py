"""A topology that a user's own program made: a graph, W itself, several of either taken in turn, or a function."""

from collections.abc import Callable, Sequence
from functools import partial

import networkx as nx
import numpy as np
from scipy import sparse

from topology.graphs import net_of
from topology.net import Net, TopologyError, node_positions, numbered
from topology.schedule import Cycle, Drawn, Schedule
from topology.weights import mixing_matrix, stochasticity

KINDS = (
    "a networkx graph, a mixing matrix, a list of either that are taken in turn, or a function that returns one of "
    "either for a round"
)


def given(value: object, family: str, weights: str) -> Net | Schedule:
    """Return what a user's factory made as a Net, where it is one graph or one matrix, or as a Schedule.

    Graphs of a schedule get their matrices by the rule `weights`. Raises TopologyError for "family".
    """
    if isinstance(value, nx.Graph):
        return _graph_net(value, family)
    if _is_matrix(value):
        matrix = _checked_matrix(value)
        return net_of(family, _heard(matrix), None, matrix=matrix)
    if callable(value):
        count = _matrix_of(value(0), weights, "round 0").shape[0]
        return Drawn(count, partial(_drawn, value, weights, count), directed=True)
    if isinstance(value, Sequence) and value and not isinstance(value, str):
        matrices = tuple(_matrix_of(item, weights, f"item {i}") for i, item in enumerate(value))
        if len({matrix.shape for matrix in matrices}) > 1:
            sizes = ", ".join(str(matrix.shape[0]) for matrix in matrices)
            raise TopologyError("family", f"the items are for different numbers of peers: {sizes}")
        return Cycle(matrices)
    raise TopologyError("family", f"a {type(value).__name__} was returned; a topology is {KINDS}")


def _graph_net(graph: nx.Graph, family: str) -> Net:
    if not len(graph):
        raise TopologyError("family", "the graph has no nodes")
    order = sorted(graph) if all(isinstance(node, int) for node in graph) else list(graph)
    names = None if all(isinstance(node, int) for node in graph) else tuple(map(str, order))
    if names is not None and len(set(names)) < len(names):
        raise TopologyError("family", "two nodes of the graph have the same name")
    return net_of(family, numbered(graph, order), node_positions(graph, order), names)


def _drawn(function: Callable[[int], object], weights: str, count: int, round: int) -> sparse.csr_array:
    matrix = _matrix_of(function(round), weights, f"round {round}")
    if matrix.shape[0] != count:
        raise TopologyError("family", f"round {round} is for {matrix.shape[0]} peers, round 0 for {count}")
    return matrix


def _matrix_of(value: object, weights: str, where: str) -> sparse.csr_array:
    if isinstance(value, nx.Graph):
        return mixing_matrix(numbered(value, sorted(value)), weights)
    if _is_matrix(value):
        return _checked_matrix(value, where)
    raise TopologyError("family", f"{where} is a {type(value).__name__}, not a graph or a matrix")


def _is_matrix(value: object) -> bool:
    if sparse.issparse(value) or isinstance(value, np.ndarray):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(row, list) for row in value)


def _checked_matrix(value: object, where: str = "the matrix") -> sparse.csr_array:
    try:
        dense_or_sparse = value if sparse.issparse(value) else np.array(value, dtype=np.float64)
        matrix = sparse.csr_array(dense_or_sparse, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TopologyError("family", f"{where} is not a matrix of numbers: {error}") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.shape[0]:
        raise TopologyError("family", f"{where} has the shape {matrix.shape}; it must be square")
    if not np.isfinite(matrix.data).all():
        raise TopologyError("family", f"{where} has entries that are not finite")
    if stochasticity(matrix) == "none":
        sums = np.asarray(matrix.sum(axis=1)).ravel()
        worst = int(np.argmax(abs(sums - 1.0)))
        raise TopologyError(
            "family", f"row {worst} of {where} sums to {sums[worst]:.6g}; rows (or columns) must sum to 1"
        )
    return mixing_matrix(_heard(matrix), "auto", matrix=matrix)


def _heard(matrix: sparse.csr_array) -> nx.Graph | nx.DiGraph:
    others = sparse.coo_array(matrix)
    pairs = [(int(j), int(i)) for i, j, w in zip(others.row, others.col, others.data, strict=True) if i != j and w]
    is_symmetric = set(pairs) == {(v, u) for u, v in pairs}
    graph: nx.Graph | nx.DiGraph = nx.Graph() if is_symmetric else nx.DiGraph()
    graph.add_nodes_from(range(matrix.shape[0]))
    graph.add_weighted_edges_from((u, v, 1.0) for u, v in pairs)
    return graph
