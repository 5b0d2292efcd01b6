"""Families and files to graphs: `build` turns what the [topology] table says into a Net."""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from topology.files import read
from topology.generators import generated
from topology.net import Net, TopologyError, checked_positions, node_positions, numbered

__all__ = ["DEFAULT_PEERS", "FAMILIES", "Net", "TopologyError", "build"]

DEFAULT_PEERS = 8


@dataclass(frozen=True)
class _Wanted:
    """What the file asks of a family; `count` is the number of peers."""

    count: int
    shape: tuple[int, ...] = ()
    degree: int = 0
    k: int = 0
    p: float = 0.0
    m: int = 0
    seed: int = 0


def build(
    family: str,
    peers: int | None,
    *,
    shape: Sequence[int] | None = None,
    degree: int | None = None,
    k: int | None = None,
    p: float | None = None,
    m: int | None = None,
    args: Mapping[str, Any] | None = None,
    seed: int = 0,
    positions: ArrayLike | None = None,
    directed: bool = False,
    folder: Path = Path(),
) -> Net:
    """Return the Net of a family, of "file:PATH" (relative to `folder`) or of "networkx:NAME".

    `peers` None means that the file does not state it: a graph file, a shape, networkx args or the
    positions give the count, else it is 8; a count stated here that differs is refused. `positions`
    are (n, 2), in the unit of the threshold. A parameter that the family does not take is refused.
    Everything random comes from `seed`.

    Raises TopologyError, whose `key` is the key to blame.
    """
    if peers is not None and peers < 1:
        raise TopologyError("peers", f"peers = {peers}: at least 1 is needed")
    if seed < 0:
        raise TopologyError("seed", f"seed = {seed}: it cannot be negative")
    given = {"shape": shape, "degree": degree, "k": k, "p": p, "m": m, "args": args or None}
    _check_keys(family, {key: value for key, value in given.items() if value is not None}, directed)
    points = None if positions is None else checked_positions(positions, peers)
    if family.startswith("file:"):
        return _from_file(family, peers, points, directed, folder)
    if family.startswith("networkx:"):
        return _from_networkx(family, peers, points, args or {}, seed)

    sides, count = _counted(family, peers, shape, points)
    wanted = _Wanted(count, sides, degree or 0, k or 0, p or 0.0, m or 0, seed)
    graph = numbered(_FAMILIES[family](wanted), range(count))
    return net_of(family, graph, points if points is not None else _own_positions(family, wanted))


def net_of(
    family: str,
    graph: nx.Graph | nx.DiGraph,
    positions: NDArray[np.float64] | None,
    names: tuple[str, ...] | None = None,
    matrix: sparse.csr_array | None = None,
) -> Net:
    count = graph.number_of_nodes()
    return Net(
        graph=nx.freeze(graph),
        names=names or tuple(f"peer-{i}" for i in range(count)),
        named=names is not None,
        positions=None if positions is None else checked_positions(positions, count),
        matrix=matrix,
        family=family,
    )


# --- what may be written, and how many peers there are

_NEEDED: dict[str, tuple[str, ...]] = {
    "regular": ("degree",),
    "smallworld": ("k", "p"),
    "erdos_renyi": ("p",),
    "barabasi_albert": ("m",),
}
_ALLOWED: dict[str, tuple[str, ...]] = {"grid": ("shape",), "torus": ("shape",), "networkx": ("args",)}
_EXAMPLES = {"shape": "[4, 8]", "degree": "4", "k": "4", "p": "0.1", "m": "2", "args": "{ n = 8 }"}


def _check_keys(family: str, given: Mapping[str, object], directed: bool) -> None:
    kind = family.partition(":")[0]
    if family not in _FAMILIES and not family.startswith(("file:", "networkx:")):
        near = difflib.get_close_matches(family, _FAMILIES, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        built = f'{" ".join(FAMILIES)}, "file:PATH" and "networkx:NAME"'
        raise TopologyError("family", f"there is no family {family!r}{hint}; built are {built}")
    needed = _NEEDED.get(kind, ())
    for key in needed:
        if key not in given:
            raise TopologyError(key, f"the family {family} needs {key}, e.g. {key} = {_EXAMPLES[key]}")
    for key in given:
        if key not in needed and key not in _ALLOWED.get(kind, ()):
            takes = " and ".join(needed + _ALLOWED.get(kind, ())) or "no parameters of its own"
            raise TopologyError(key, f"the family {family} does not take {key}; it takes {takes}")
    if directed and kind != "file":
        raise TopologyError("directed", f"directed = true is for files; the family {family} knows its own direction")


def _counted(
    family: str,
    peers: int | None,
    shape: Sequence[int] | None,
    points: NDArray[np.float64] | None,
) -> tuple[tuple[int, ...], int]:
    """Return the sides of the lattice, () for other families, and the number of peers."""
    stated = len(points) if peers is None and points is not None else peers
    if family not in ("grid", "torus"):
        return (), DEFAULT_PEERS if stated is None else stated
    if shape is not None:
        sides = _checked_shape(family, tuple(shape))
        _check_count(family, stated, math.prod(sides), f"shape = {list(sides)}")
        return sides, math.prod(sides)
    count = DEFAULT_PEERS if stated is None else stated
    return _squarest(family, count), count


def _check_count(family: str, stated: int | None, found: int, source: str) -> None:
    if stated is not None and stated != found:
        text = f"peers = {stated}, but {source} gives {found}"
        raise TopologyError("peers", f"{text}: leave peers out, or write peers = {found}")


def _checked_shape(family: str, sides: tuple[int, ...]) -> tuple[int, ...]:
    least = 3 if family == "torus" else 1
    if not sides or min(sides) < least:
        example = "shape = [4, 8]"
        raise TopologyError(
            "shape", f"shape = {list(sides)}: each side of a {family} is at least {least}, e.g. {example}"
        )
    return sides


def _squarest(family: str, count: int) -> tuple[int, int]:
    side = _largest_divisor(count)
    if family == "torus" and side < 3:
        raise TopologyError("peers", _no_torus(count))
    return side, count // side


def _largest_divisor(count: int) -> int:
    """Return the largest divisor that is not above the square root."""
    return next(side for side in range(math.isqrt(count), 0, -1) if count % side == 0)


def _no_torus(count: int) -> str:
    def possible(n: int) -> bool:
        return n >= 9 and _largest_divisor(n) >= 3

    below = next((n for n in range(count - 1, 8, -1) if possible(n)), None)
    above = next(n for n in range(max(count + 1, 9), 2 * count + 19) if possible(n))
    near = above if below is None else below
    side = _largest_divisor(near)
    counts = f"peers = {above}" if below is None else f"peers = {below} or {above}"
    return (
        f"peers = {count} cannot be a torus, whose sides are both at least 3: write {counts}"
        f' (shape = {[side, near // side]} gives {near}), or family = "grid"'
    )


# --- the families: each returns a graph whose nodes are 0..n-1


def _ring(wanted: _Wanted) -> nx.Graph:
    return nx.cycle_graph(wanted.count)  # of 2: one edge; of 1: a self-loop, which goes


def _path(wanted: _Wanted) -> nx.Graph:
    return nx.path_graph(wanted.count)


def _star(wanted: _Wanted) -> nx.Graph:
    return nx.star_graph(wanted.count - 1)  # node 0 is the hub


def _complete(wanted: _Wanted) -> nx.Graph:
    return nx.complete_graph(wanted.count)


def _grid(wanted: _Wanted) -> nx.Graph:
    return _lattice(wanted, periodic=False)


def _torus(wanted: _Wanted) -> nx.Graph:
    return _lattice(wanted, periodic=True)


def _lattice(wanted: _Wanted, periodic: bool) -> nx.Graph:
    graph = nx.grid_graph(wanted.shape[::-1], periodic=periodic)
    return nx.convert_node_labels_to_integers(graph, ordering="sorted")  # sorted coordinates are row-major


def _hypercube(wanted: _Wanted) -> nx.Graph:
    """Join the nodes whose numbers differ in one bit."""
    n = wanted.count
    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        text = f"peers = {n}: a hypercube has a power of two of them, e.g. {below} or {2 * below}"
        raise TopologyError("peers", text)
    graph = nx.empty_graph(n)
    graph.add_edges_from((i, i ^ (1 << bit)) for bit in range(n.bit_length() - 1) for i in range(n))
    return graph


def _exponential(wanted: _Wanted) -> nx.DiGraph:
    """Let i hear i + 1, i + 2, i + 4, ... (Assran et al. 2019; Ying et al. 2021)."""
    n = wanted.count
    graph = nx.empty_graph(n, create_using=nx.DiGraph)
    for offset in (1 << bit for bit in range((n - 1).bit_length())):
        graph.add_edges_from(((i + offset) % n, i) for i in range(n))
    return graph


def _regular(wanted: _Wanted) -> nx.Graph:
    n, degree = wanted.count, wanted.degree
    if not 0 <= degree < n:
        raise TopologyError("degree", f"degree = {degree}: of {n} peers each can have 0 to {n - 1} neighbours")
    if n * degree % 2:
        text = f"degree = {degree} with peers = {n}: peers times degree has to be even"
        raise TopologyError("degree", f"{text}; write degree = {degree - 1} or peers = {n + 1}")
    if 2 * degree < n:
        return nx.random_regular_graph(degree, n, seed=wanted.seed)
    # The pairing algorithm is very slow on dense graphs; the complement of a sparse one is as random.
    return nx.complement(nx.random_regular_graph(n - 1 - degree, n, seed=wanted.seed))


def _geometric(wanted: _Wanted) -> nx.Graph:
    return nx.empty_graph(wanted.count)  # see Net: the positions are the graph


def _smallworld(wanted: _Wanted) -> nx.Graph:
    _check_probability(wanted.p)
    n, k = wanted.count, wanted.k
    if not 0 <= k <= n or k % 2:
        text = f"k = {k} with peers = {n}: each peer starts with k / 2 neighbours on either side"
        raise TopologyError("k", f"{text}, so k is even, at least 0 and at most {n - n % 2}")
    return nx.watts_strogatz_graph(n, k, wanted.p, seed=wanted.seed)


def _erdos_renyi(wanted: _Wanted) -> nx.Graph:
    _check_probability(wanted.p)
    return nx.fast_gnp_random_graph(wanted.count, wanted.p, seed=wanted.seed)


def _check_probability(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise TopologyError("p", f"p = {p}: a probability is between 0 and 1")


def _barabasi_albert(wanted: _Wanted) -> nx.Graph:
    n, m = wanted.count, wanted.m
    if not 1 <= m < n:
        text = f"m = {m} with peers = {n}: each new peer joins m others, so m is at least 1 and less than peers"
        raise TopologyError("m", text)
    return nx.barabasi_albert_graph(n, m, seed=wanted.seed)


_FAMILIES: dict[str, Callable[[_Wanted], nx.Graph | nx.DiGraph]] = {
    "ring": _ring,
    "path": _path,
    "grid": _grid,
    "torus": _torus,
    "star": _star,
    "complete": _complete,
    "hypercube": _hypercube,
    "exponential": _exponential,
    "regular": _regular,
    "geometric": _geometric,
    "smallworld": _smallworld,
    "erdos_renyi": _erdos_renyi,
    "barabasi_albert": _barabasi_albert,
}
FAMILIES: tuple[str, ...] = tuple(_FAMILIES)


def _own_positions(family: str, wanted: _Wanted) -> NDArray[np.float64] | None:
    """Return where a family's own nodes stand: (n, 2), or None where it does not say."""
    if family == "ring":
        angle = 2 * np.pi * np.arange(wanted.count) / wanted.count
        return np.column_stack([np.cos(angle), np.sin(angle)])
    if family == "geometric":
        return np.random.Generator(np.random.Philox(wanted.seed)).random((wanted.count, 2))
    if wanted.shape and len(wanted.shape) <= 2:  # x is the column, y the row; a torus is cut open
        row, column = np.divmod(np.arange(wanted.count), wanted.shape[-1])
        return np.column_stack([column, row]).astype(np.float64)
    return None


# --- graphs that come from elsewhere


def _from_file(family: str, peers: int | None, points: NDArray[np.float64] | None, directed: bool, folder: Path) -> Net:
    found = read(family, folder, directed)
    stated = len(points) if peers is None and points is not None else peers
    _check_count(family, stated, found.graph.number_of_nodes(), family)
    return net_of(family, found.graph, found.positions if points is None else points, found.names, found.matrix)


def _from_networkx(
    family: str, peers: int | None, points: NDArray[np.float64] | None, args: Mapping[str, Any], seed: int
) -> Net:
    stated = len(points) if peers is None and points is not None else peers
    graph = generated(family, stated, args, seed)
    order = list(graph)
    if set(order) == set(range(len(order))):
        order.sort()
    _check_count(family, stated, len(order), family)
    return net_of(family, numbered(graph, order), node_positions(graph, order) if points is None else points)
