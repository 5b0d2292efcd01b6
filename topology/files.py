"""A topology from a file: edge list, adjacency list, CSV of links, GraphML, GML, or W itself (.npy, .mtx).

Text is read as UTF-8 whatever the locale says. Nothing is unpickled. Node names keep the file's order;
integer nodes of the line formats are 0..n-1 and stand in that order. Without directed = true, arcs become
edges.
"""

import ast
import csv
import io
import math
import os
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import scipy.io
from numpy.typing import NDArray
from scipy import sparse

from topology.net import TopologyError, node_positions, numbered

SUM_TOLERANCE = 1e-6  # how far from 1 a row of a W file may sum: files hold rounded numbers


class Read(NamedTuple):
    """What a file says: a graph with nodes 0..n-1; names, (n, 2) positions and (n, n) W where it has them."""

    graph: nx.Graph | nx.DiGraph
    names: tuple[str, ...] | None = None
    positions: NDArray[np.float64] | None = None
    matrix: sparse.csr_array | None = None


def read(reference: str, folder: Path, directed: bool) -> Read:
    """Read the file of a family `file:PATH`, PATH being relative to `folder`."""
    path = folder / os.path.expanduser(reference.removeprefix("file:"))
    reader = _READERS.get(path.suffix.lower())
    if path.is_dir():
        raise TopologyError("family", f"{reference}: {path} is a folder; name the file in it")
    if reader is None:
        raise TopologyError("family", f"{reference}: the name has to end in one of {' '.join(_READERS)}")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise TopologyError("family", f"{reference}: there is no file {path.absolute()}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise TopologyError("family", f"{reference}: cannot read {path}: {reason}") from None
    if not data.strip():
        raise TopologyError("family", f"{reference}: the file is empty")
    try:
        return reader(data, directed)
    except _LineError as error:
        raise TopologyError("family", f"{reference}: {error}") from None
    except TopologyError as error:
        raise TopologyError("family", f"{reference}: {error.problem}") from None


class _LineError(Exception):
    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _LineError(data.count(b"\n", 0, error.start) + 1, "not UTF-8 text") from None


# --- lines: what the edge list, the adjacency list and the CSV have in common


class _Edge(NamedTuple):
    line: int
    source: str
    target: str
    weight: float = 1.0


@dataclass
class _Listing:
    """The edges of a file in its order, and the line on which each node first stands."""

    edges: list[_Edge] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    count: int | None = None  # the header's n, and its line
    count_line: int = 0

    def add(self, edge: _Edge) -> None:
        self.nodes.setdefault(edge.source, edge.line)
        self.nodes.setdefault(edge.target, edge.line)
        self.edges.append(edge)


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of each line that says something. `#` begins a comment."""
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.partition("#")[0].split()
        if words:
            yield number, words


def _edge_list(data: bytes, directed: bool) -> Read:
    """FROM TO [WEIGHT] per line, after an optional first line with the number of nodes."""
    listing = _Listing()
    for line, words in _lines(_text(data)):
        if len(words) == 1:
            if listing.edges or listing.count is not None or not _is_integer(words[0]):
                raise _LineError(line, f"{words[0]!r} alone: a line is FROM TO, or FROM TO WEIGHT")
            listing.count, listing.count_line = _node_count(line, words[0]), line
        else:
            source, target, *rest = words
            listing.add(_Edge(line, source, target, _edge_weight(line, rest)))
    return _assembled(listing, directed)


def _node_count(line: int, word: str) -> int:
    if int(word) < 1:
        raise _LineError(line, f"{word} nodes: at least 1 is needed")
    return int(word)


def _edge_weight(line: int, words: Sequence[str]) -> float:
    if not words:
        return 1.0
    if words[0].startswith("{"):  # as networkx writes edges: 0 1 {'weight': 2.5}
        try:
            attributes = ast.literal_eval(" ".join(words))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            attributes = None
        if isinstance(attributes, dict):
            return _number(line, "weight", attributes.get("weight", 1.0))
    if len(words) > 1:
        raise _LineError(line, f"{len(words) + 2} words: a line is FROM TO, or FROM TO WEIGHT")
    return _number(line, "weight", words[0])


def _number(line: int, what: str, word: Any) -> float:
    try:
        number = float(word)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise _LineError(line, f"the {what} {word!r} is not a finite number")
    return number


def _adjacency_list(data: bytes, directed: bool) -> Read:
    """NODE NEIGHBOUR NEIGHBOUR ... per line; a node alone on its line has no further neighbours."""
    listing = _Listing()
    for line, (source, *targets) in _lines(_text(data)):
        listing.nodes.setdefault(source, line)
        for target in targets:
            listing.add(_Edge(line, source, target))
    return _assembled(listing, directed)


def _link_table(data: bytes, directed: bool) -> Read:
    """CSV whose header has from, to and latency_ms; the latency is the edge's weight."""
    rows = csv.reader(io.StringIO(_text(data), newline=""), strict=True, skipinitialspace=True)
    listing = _Listing()
    columns: dict[str, int] = {}
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if columns:
                listing.add(_link(rows.line_num, cells, columns))
            else:
                columns = _columns(rows.line_num, cells)
    except csv.Error as error:
        raise _LineError(rows.line_num, str(error)) from None
    return _assembled(listing, directed)


def _columns(line: int, cells: list[str]) -> dict[str, int]:
    columns = {cell.lower(): i for i, cell in enumerate(cells)}
    missing = [name for name in ("from", "to", "latency_ms") if name not in columns]
    if missing:
        found = ",".join(cells)[:60]
        raise _LineError(
            line, f"the header must be from,to,latency_ms, and {' and '.join(missing)} is missing in {found}"
        )
    return columns


def _link(line: int, cells: list[str], columns: dict[str, int]) -> _Edge:
    wanted = [columns["from"], columns["to"], columns["latency_ms"]]
    if max(wanted) >= len(cells):
        raise _LineError(line, f"{len(cells)} cells where the header has {len(columns)}")
    source, target, latency = (cells[i] for i in wanted)
    if not source or not target:
        raise _LineError(line, "the name in from or to is missing")
    return _Edge(line, source, target, _number(line, "latency_ms", latency))


def _assembled(listing: _Listing, directed: bool) -> Read:
    if not listing.nodes and listing.count is None:
        raise TopologyError("family", "there is no edge in the file")
    integers = all(_is_integer(name) for name in listing.nodes)
    index = _by_number(listing) if integers else _by_name(listing)
    graph = nx.DiGraph() if directed else nx.Graph()
    graph.add_nodes_from(range(listing.count or max(index.values()) + 1))
    graph.add_weighted_edges_from(_agreed(listing.edges, index, directed))
    return Read(graph, None if integers else tuple(index))


def _is_integer(word: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,18}", word) is not None


def _by_number(listing: _Listing) -> dict[str, int]:
    index = {name: int(name) for name in listing.nodes}
    for name, number in index.items():
        if number < 0:
            raise _LineError(listing.nodes[name], f"the node {name}: nodes are numbered from 0")
        if listing.count is not None and number >= listing.count:
            last = listing.count - 1
            text = f"the node {name}, but line {listing.count_line} says {listing.count} nodes: 0 to {last}"
            raise _LineError(listing.nodes[name], text)
    if listing.count is None:
        seen = set(index.values())
        missing = next(number for number in count() if number not in seen)
        if missing < len(seen):
            text = f"the node {missing} is missing: nodes are numbered 0, 1, 2, ... without a gap"
            raise TopologyError("family", f"{text} (a first line with the number of nodes allows isolated ones)")
    return index


def _by_name(listing: _Listing) -> dict[str, int]:
    if listing.count is not None and listing.count != len(listing.nodes):
        text = f"{listing.count} nodes, but the edges name {len(listing.nodes)}"
        raise _LineError(listing.count_line, text)
    return {name: i for i, name in enumerate(listing.nodes)}


def _agreed(edges: list[_Edge], index: dict[str, int], directed: bool) -> Iterator[tuple[int, int, float]]:
    """Yield (u, v, weight) without self-loops; an edge listed twice has to weigh the same both times."""
    first: dict[tuple[int, int], _Edge] = {}
    for edge in edges:
        u, v = index[edge.source], index[edge.target]
        if u == v:
            continue
        pair = (u, v) if directed else (min(u, v), max(u, v))
        earlier = first.setdefault(pair, edge)
        if earlier.weight != edge.weight:
            weights = f"weighs {edge.weight:g} here and {earlier.weight:g} on line {earlier.line}"
            mend = "" if directed else "; directed = true keeps both directions apart"
            raise _LineError(edge.line, f"the edge {edge.source} {edge.target} {weights}{mend}")
        if earlier is edge:
            yield u, v, edge.weight


# --- GraphML and GML: networkx reads, we keep names, positions and order


def _graphml(data: bytes, directed: bool) -> Read:
    try:
        graph = nx.read_graphml(io.BytesIO(data))
    except ElementTree.ParseError as error:
        raise _LineError(error.position[0], f"not XML: {str(error).partition(': line')[0]}") from None
    except (nx.NetworkXException, AttributeError, LookupError, TypeError, ValueError) as error:
        raise TopologyError("family", f"not a GraphML file that networkx reads: {_plain(error)}") from None
    return _from_networkx(graph, directed)


def _gml(data: bytes, directed: bool) -> Read:
    lines = _text(data).split("\n")
    try:
        return _from_networkx(_parsed_gml(lines), directed)
    except (nx.NetworkXException, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, TopologyError):
            raise
        place = re.search(r" at \((\d+), \d+\)$", _plain(error))
        if place:
            raise _LineError(int(place[1]), f"not GML: {_plain(error)[: place.start()]}") from None
        raise TopologyError("family", f"not a GML file that networkx reads: {_plain(error)}") from None


def _parsed_gml(lines: list[str]) -> nx.Graph | nx.DiGraph:
    try:
        return nx.parse_gml(lines)
    except nx.NetworkXError as error:
        if "'label'" not in str(error):
            raise
    return nx.parse_gml(lines, label="id")  # nodes without labels: their ids are their names


def _plain(error: Exception) -> str:
    return " ".join(str(error.args[0] if error.args else error).split())


def _from_networkx(graph: nx.Graph | nx.DiGraph, directed: bool) -> Read:
    order: list[Hashable] = list(graph)
    if not order:
        raise TopologyError("family", "there is no node in the file")
    if directed and not graph.is_directed():
        graph = graph.to_directed()
    if graph.is_directed() and not directed:
        _check_both_ways(graph)
        graph = graph.to_undirected()
    names = tuple(str(node) for node in order)
    return Read(numbered(graph, order), names, node_positions(graph, order))


def _check_both_ways(graph: nx.DiGraph) -> None:
    for u, v, weight in graph.edges(data="weight", default=1.0):
        back = graph.get_edge_data(v, u)
        if back is not None and not graph.is_multigraph() and back.get("weight", 1.0) != weight:
            text = f"the edge {u} {v} weighs {weight} one way and {back.get('weight', 1.0)} the other"
            raise TopologyError("family", f"{text}; directed = true keeps both directions apart")


# --- W itself


def _npy(data: bytes, directed: bool) -> Read:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError, TokenError) as error:
        raise TopologyError("family", f"not a .npy array of numbers: {_plain(error)}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise TopologyError("family", "not a .npy array of real numbers")
    if array.ndim != 2:
        raise TopologyError("family", f"W is a square matrix, not an array of shape {array.shape}")
    return _mixing(sparse.coo_array(array.astype(np.float64)), directed)


def _mtx(data: bytes, directed: bool) -> Read:
    nul = data.find(b"\0")  # scipy's reader may crash on one, and on a last line that does not end
    if nul >= 0:
        raise _LineError(data.count(b"\n", 0, nul) + 1, "a NUL byte: not a Matrix Market file")
    try:
        array = scipy.io.mmread(io.BytesIO(data + b"\n"))
    except (ValueError, OverflowError) as error:
        message = _plain(error)
        raise TopologyError("family", message[:1].lower() + message[1:]) from None
    matrix = sparse.coo_array(array)
    if matrix.dtype.kind not in "biuf":
        raise TopologyError("family", "W holds real numbers, not complex ones")
    return _mixing(matrix.astype(np.float64), directed)


def _mixing(matrix: sparse.coo_array, directed: bool) -> Read:
    """Check W and take the graph from its pattern: W[i, j] != 0 means that i hears j, an arc j -> i."""
    if matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise TopologyError("family", f"W is a square matrix, not {matrix.shape[0]} x {matrix.shape[1]}")
    W = sparse.csr_array(matrix)
    W.eliminate_zeros()
    W.sort_indices()
    if not np.isfinite(W.data).all():
        row = int(np.searchsorted(W.indptr, np.flatnonzero(~np.isfinite(W.data))[0], side="right")) - 1
        raise TopologyError("family", f"row {row} of W holds a number that is not finite")
    W = summing_to_one(W)
    receivers, senders = W.nonzero()
    apart = receivers != senders
    pattern = sparse.csr_array((np.ones(apart.sum()), (senders[apart], receivers[apart])), shape=W.shape)
    both_ways = (pattern != pattern.T).nnz == 0
    kind = nx.DiGraph if directed or not both_ways else nx.Graph
    return Read(nx.from_scipy_sparse_array(pattern, create_using=kind), matrix=W)


def summing_to_one(W: sparse.csr_array) -> sparse.csr_array:
    """Return W with what rounding took from the sums given back to the diagonal, so that nothing drifts."""
    missing = 1.0 - W.sum(axis=1)
    if abs(missing).max() > SUM_TOLERANCE:
        of_columns = 1.0 - W.sum(axis=0)
        if abs(of_columns).max() > SUM_TOLERANCE:
            row = int(abs(missing).argmax())
            text = f"row {row} of W sums to {1.0 - missing[row]:.9g}; the rows (or all columns) have to sum to 1"
            raise TopologyError("family", text)
        missing = of_columns
    if abs(missing).max() <= 1e-12:
        return W
    return sparse.csr_array(W + sparse.diags_array(missing))


_READERS: dict[str, Callable[[bytes, bool], Read]] = {
    ".edges": _edge_list,
    ".edgelist": _edge_list,
    ".txt": _edge_list,
    ".adj": _adjacency_list,
    ".adjlist": _adjacency_list,
    ".csv": _link_table,
    ".graphml": _graphml,
    ".gml": _gml,
    ".npy": _npy,
    ".mtx": _mtx,
}
