"""A topology as data: the graph, who its nodes are, where they stand; and the one error of this package."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse


class TopologyError(ValueError):
    """The topology that was asked for cannot be.

    `key` is the key of the [topology] table that is to blame ("degree", "shape", "threshold", ...); the
    text is one line that names what is wrong and the mend, in the words of the experiment file.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key
        self.problem = problem


@dataclass(frozen=True, eq=False)
class Net:
    """Peers and the ground they stand on. Nothing in it is to be changed.

    An arc u -> v of a directed graph means that v hears u. The graph of a `geometric` net has no edges: it
    stands for the complete graph whose weights are the distances, and `neighbours` reads the positions.
    """

    graph: nx.Graph | nx.DiGraph  # nodes 0..n-1 in order, no self-loops, a float "weight" on every edge
    names: tuple[str, ...]
    named: bool  # the names come from the file
    positions: NDArray[np.float64] | None  # (n, 2)
    matrix: sparse.csr_array | None  # (n, n): W itself, where the file gave W
    family: str


def numbered(graph: nx.Graph | nx.DiGraph, order: Iterable[Hashable]) -> nx.Graph | nx.DiGraph:
    """Return a simple copy: nodes 0..n-1 in the given order, a float "weight" (1.0 where none) on each edge.

    Self-loops go: a peer counts itself once. Of parallel edges the lightest stays: it is the one a path
    would use.
    """
    index = {node: i for i, node in enumerate(order)}
    edges = [
        (index[u], index[v], _weight(u, v, weight))
        for u, v, weight in graph.edges(data="weight", default=1.0)
        if u != v
    ]
    if graph.is_multigraph():
        edges.sort(key=lambda edge: -edge[2])
    simple = nx.DiGraph() if graph.is_directed() else nx.Graph()
    simple.add_nodes_from(range(len(index)))
    simple.add_weighted_edges_from(edges)
    return simple


def _weight(u: Hashable, v: Hashable, weight: object) -> float:
    try:
        number = float(weight)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise TopologyError("family", f"the edge {u} {v} has the weight {weight!r}: a finite number is needed")
    return number


def node_positions(graph: nx.Graph | nx.DiGraph, order: Sequence[Hashable]) -> NDArray[np.float64] | None:
    """Return the (n, 2) positions in the attributes x and y, or pos, of the nodes; None where none has one."""
    points = [_point(node, graph.nodes[node]) for node in order]
    if all(point is None for point in points):
        return None
    for node, point in zip(order, points, strict=True):
        if point is None:
            raise TopologyError("family", f"the node {node} has no position (x and y, or pos), and others have")
    return np.array(points, dtype=np.float64)


def _point(node: Hashable, attributes: dict[str, object]) -> tuple[float, float] | None:
    if "x" in attributes and "y" in attributes:
        given: object = (attributes["x"], attributes["y"])
    elif "pos" in attributes:
        given = attributes["pos"]
    else:
        return None
    parts = given.strip(" ()[]").replace(",", " ").split() if isinstance(given, str) else given
    try:
        x, y = (float(part) for part in parts)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        x = y = math.nan
    if not (math.isfinite(x) and math.isfinite(y)):
        raise TopologyError("family", f"the node {node} has the position {given!r}: two finite numbers are needed")
    return x, y


def checked_positions(positions: ArrayLike, peers: int | None) -> NDArray[np.float64]:
    """Return positions as a read-only (n, 2) float64 array; `peers` is the n to match, if known."""
    try:
        array = np.array(positions, dtype=np.float64)
    except (TypeError, ValueError):
        raise TopologyError("peers", "a position in [[peers]] is two numbers, e.g. position = [0.0, 1.5]") from None
    if array.ndim != 2 or array.shape[1] != 2:
        raise TopologyError("peers", "a position in [[peers]] is two numbers, e.g. position = [0.0, 1.5]")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise TopologyError("peers", f"the position of peer {row} is {array[row].tolist()}: not finite")
    if peers is not None and len(array) != peers:
        raise TopologyError("peers", f"{len(array)} positions for {peers} peers: give each one a [[peers]] position")
    array.flags.writeable = False
    return array
