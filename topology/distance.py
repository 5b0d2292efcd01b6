"""Who is within earshot: the peers at a distance of at most the threshold, and what the result looks like.

Distances follow the arcs, as sound does: v hears u if the way from u to v is short enough.
"""

from collections.abc import Iterator
from itertools import chain

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.cluster.hierarchy import linkage
from scipy.sparse import csgraph
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist

from topology.net import Net, TopologyError

METRICS = ("hops", "weight", "position")

ROUNDING = 1e-9  # a pair counts as at the threshold if only rounding puts it beyond: 0.1 + 0.2 is within 0.3
_ROWS_UP_TO = 8192  # peers up to which all n x n distances are looked at; above, only what is near
_BLOCK = 1 << 22  # distances held at once
_DENSE_FROM, _DENSE = 10_000, 16  # dense: more edges than so many, and than a sixteenth of the square of the peers
_PAIRS_UP_TO = 3000  # peers up to which all pairs of positions are compared

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]
_Pairs = tuple[_Ints, _Ints, _Floats]  # (m,) senders, (m,) receivers, (m,) distances


def neighbours(net: Net, metric: str, threshold: float) -> nx.Graph | nx.DiGraph:
    """Return who hears whom: nodes 0..n-1, an edge or arc with its "distance" per pair within the threshold.

    "hops" counts edges; "weight" sums edge weights along the shortest path; "position" is the Euclidean
    distance, whatever the edges, and gives an undirected graph. A pair exactly at the threshold is within
    it; inf is everyone that can be reached. On a geometric net, whose graph stands for the complete one,
    "weight" equals "position".

    Raises TopologyError for "metric" (unknown, or no positions), "threshold" (negative, NaN) and "family"
    (weights below 0).
    """
    _check(net, metric, threshold)
    limit = threshold * (1.0 + ROUNDING)
    directed = net.graph.is_directed()
    if metric == "position" or (metric == "weight" and net.family == "geometric"):
        directed = False
        pairs = _near(_positions(net), limit)
    elif metric == "hops" and net.family == "geometric":
        pairs = _everyone(len(net.graph) if limit >= 1.0 else 0)
    elif metric == "hops" and limit < 2.0:
        pairs = _own_edges(net.graph, limit)
    else:
        pairs = _along_paths(net.graph, "weight" if metric == "weight" else None, limit)
    return _graph(len(net.graph), pairs, directed)


def _check(net: Net, metric: str, threshold: float) -> None:
    if metric not in METRICS:
        raise TopologyError("metric", f"there is no metric {metric!r}; built are {' '.join(METRICS)}")
    if not threshold >= 0.0:  # also NaN
        raise TopologyError("threshold", f"threshold = {threshold}: a distance is 0 or more")
    if metric == "weight":
        lightest = min(net.graph.edges(data="weight"), key=lambda edge: edge[2], default=(0, 0, 0.0))
        if lightest[2] < 0.0:
            u, v = (net.names[node] for node in lightest[:2])
            text = f"the edge {u} {v} weighs {lightest[2]:g}, and a path cannot get shorter by going on"
            raise TopologyError("family", f'{text}; metric = "hops" does not look at weights')


def _positions(net: Net) -> _Floats:
    if net.positions is None:
        text = f'the family {net.family} has no positions: give [[peers]] position, or metric = "hops"'
        raise TopologyError("metric", text)
    return net.positions


def _graph(count: int, pairs: _Pairs, directed: bool) -> nx.Graph | nx.DiGraph:
    graph = nx.DiGraph() if directed else nx.Graph()
    graph.add_nodes_from(range(count))
    senders, receivers, distances = (column.tolist() for column in pairs)
    graph.add_weighted_edges_from(zip(senders, receivers, distances, strict=True), weight="distance")
    return graph


def _own_edges(graph: nx.Graph | nx.DiGraph, limit: float) -> _Pairs:
    ends = np.fromiter(chain.from_iterable(graph.edges()), dtype=np.int64).reshape(-1, 2)
    ends = ends if limit >= 1.0 else ends[:0]
    return ends[:, 0], ends[:, 1], np.ones(len(ends))


def _everyone(count: int) -> _Pairs:
    i, j = np.triu_indices(count, k=1)
    return i, j, np.ones(len(i))


def _near(positions: _Floats, limit: float) -> _Pairs:
    ends = cKDTree(positions).query_pairs(limit, output_type="ndarray")
    i, j = ends.min(axis=1), ends.max(axis=1)
    order = np.lexsort((j, i))
    i, j = i[order], j[order]
    return i, j, np.linalg.norm(positions[i] - positions[j], axis=1)


def _along_paths(graph: nx.Graph | nx.DiGraph, weight: str | None, limit: float) -> _Pairs:
    """Return the pairs whose shortest path (Dijkstra) is at most `limit` long."""
    search = _by_rows if len(graph) <= _ROWS_UP_TO else _by_source
    parts = list(search(graph, weight, limit))
    senders, receivers, distances = (np.concatenate(column) for column in zip(*parts, strict=True))
    kept = senders != receivers if graph.is_directed() else senders < receivers
    return senders[kept], receivers[kept], distances[kept]


def _by_rows(graph: nx.Graph | nx.DiGraph, weight: str | None, limit: float) -> Iterator[_Pairs]:
    steps = _steps(graph, weight)
    count = len(graph)
    block = max(1, _BLOCK // count)
    for first in range(0, count, block):
        sources = np.arange(first, min(first + block, count))
        lengths = csgraph.dijkstra(steps, indices=sources, limit=limit)
        row, receivers = np.nonzero(np.isfinite(lengths))
        yield sources[row], receivers, lengths[row, receivers]


def _by_source(graph: nx.Graph | nx.DiGraph, weight: str | None, limit: float) -> Iterator[_Pairs]:
    hops = min(limit, len(graph)) // 1  # whole: networkx takes the step that crosses a fraction
    for source in graph:
        if weight is None:
            lengths = nx.single_source_shortest_path_length(graph, source, cutoff=hops)
        else:
            lengths = nx.single_source_dijkstra_path_length(graph, source, cutoff=limit, weight=weight)
        receivers = np.fromiter(lengths.keys(), dtype=np.int64)
        yield np.full(len(receivers), source), receivers, np.fromiter(lengths.values(), dtype=np.float64)


def _steps(graph: nx.Graph | nx.DiGraph, weight: str | None) -> sparse.csr_array:
    """Return the (n, n) matrix of steps; a step of weight 0 is stored, and scipy takes it for an edge."""
    return nx.to_scipy_sparse_array(graph, nodelist=range(len(graph)), weight=weight, dtype=np.float64, format="csr")


# --- what the result looks like


def components(graph: nx.Graph | nx.DiGraph) -> list[list[int]]:
    """Return the parts that no edge joins (of a directed graph the weak ones), by their smallest node."""
    parts = nx.weakly_connected_components(graph) if graph.is_directed() else nx.connected_components(graph)
    return sorted(sorted(part) for part in parts)


def is_connected(graph: nx.Graph | nx.DiGraph) -> bool:
    """Return whether what each peer says reaches every other (strongly, where arcs have a direction)."""
    return bool(nx.is_strongly_connected(graph) if graph.is_directed() else nx.is_connected(graph))


def diameter(graph: nx.Graph | nx.DiGraph) -> int | None:
    """Return the longest of the shortest paths in hops, None if someone cannot be reached.

    One breadth-first search per node: 4000 peers of degree 4 take about two seconds, and the time is
    quadratic. Where many are neighbours, and paths are short, one product of matrices per hop.
    """
    if not is_connected(graph):
        return None
    count = len(graph)
    if graph.number_of_edges() > max(_DENSE_FROM, count * count // _DENSE):
        return _diameter_of_dense(graph)
    steps = _steps(graph, None)
    block = max(1, _BLOCK // count)
    longest = 0.0
    for first in range(0, count, block):
        sources = np.arange(first, min(first + block, count))
        longest = max(longest, float(csgraph.dijkstra(steps, indices=sources, unweighted=True).max()))
    return int(longest)


def _diameter_of_dense(graph: nx.Graph | nx.DiGraph) -> int:
    count = len(graph)
    ends = np.fromiter(chain.from_iterable(graph.edges()), dtype=np.int64).reshape(-1, 2)
    steps = np.eye(count, dtype=np.float32)
    steps[ends[:, 0], ends[:, 1]] = 1.0
    if not graph.is_directed():
        steps[ends[:, 1], ends[:, 0]] = 1.0
    reached, hops = steps, 1
    while not reached.all():
        reached, hops = np.minimum(reached @ steps, 1.0), hops + 1
    return hops


def connecting_threshold(net: Net, metric: str) -> float | None:
    """Return the smallest threshold that connects: the longest edge of a minimum spanning tree.

    None where no threshold connects, where the graph is directed, or where finding it would not be cheap.
    """
    if len(net.graph) == 1:
        return 0.0
    if metric == "position" or (metric == "weight" and net.family == "geometric"):
        return _longest_gap(net.positions)
    if metric == "hops" and net.family == "geometric":
        return 1.0
    if net.graph.is_directed() or not nx.is_connected(net.graph):
        return None
    if metric == "hops":
        return 1.0
    # A threshold on path lengths connects exactly when it does on edges: of the paths across a cut, none is
    # shorter than the lightest edge across it.
    tree = nx.minimum_spanning_edges(net.graph, weight="weight", data=True)
    return float(max(edge["weight"] for _, _, edge in tree))


def _longest_gap(positions: _Floats | None) -> float | None:
    if positions is None or len(positions) > _PAIRS_UP_TO:
        return None
    merges = linkage(pdist(positions), method="single")  # single linkage is Kruskal's algorithm
    return float(merges[-1, 2])
