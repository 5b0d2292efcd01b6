"""W for each round: topologies that change as the rounds go by.

A schedule is a function of the round: any round may be asked for, in any order and as often as one likes, and the same
arguments give the same rounds everywhere.
"""

import difflib
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from topology.base_k import base_k
from topology.mobile import SPEED, Mobile
from topology.net import TopologyError
from topology.random_rounds import VARIANTS, epidemic, random_matching
from topology.weights import check_rule, weighted

_KEPT = 8  # rounds


class Schedule(Protocol):
    """The mixing matrix of each round."""

    @property
    def peers(self) -> int:
        """How many peers there are: n."""

    @property
    def period(self) -> int | None:
        """After how many rounds it repeats (1: every round is the same); None: never."""

    @property
    def directed(self) -> bool:
        """Whether, in some round, one may hear another without being heard by it."""

    def matrix(self, round: int) -> sparse.csr_array:
        """Return W of the round (0, 1, ...): (n, n), as weights.py makes it. It is not to be changed."""


@dataclass(frozen=True, eq=False)
class Cycle:
    """A schedule of given matrices in turn, at least one; a static topology is a cycle of one."""

    matrices: tuple[sparse.csr_array, ...]

    @property
    def peers(self) -> int:
        return int(self.matrices[0].shape[0])

    @property
    def period(self) -> int | None:
        return len(self.matrices)

    @cached_property
    def directed(self) -> bool:
        return any(_one_way(W) for W in self.matrices)

    def matrix(self, round: int) -> sparse.csr_array:
        return self.matrices[round % len(self.matrices)]


class Drawn:
    """A schedule made of a function from the round to W. The last few rounds are kept."""

    def __init__(self, peers: int, draw: Callable[[int], sparse.csr_array], *, directed: bool) -> None:
        self._peers = peers
        self._directed = directed
        self._draw = lru_cache(_KEPT)(draw)

    @property
    def peers(self) -> int:
        return self._peers

    @property
    def period(self) -> int | None:
        return None

    @property
    def directed(self) -> bool:
        return self._directed

    def matrix(self, round: int) -> sparse.csr_array:
        return self._draw(round)


# --- the families


_TAKES: dict[str, tuple[str, ...]] = {
    "one_peer_exponential": (),
    "base_k": ("k",),
    "random_matching": ("pairs", "among"),
    "epidemic": ("fanout", "variant"),
    "mobile": ("speed", "margin"),
}
SCHEDULES: tuple[str, ...] = tuple(_TAKES)


def schedule(
    family: str,
    peers: int,
    *,
    weights: str = "auto",
    threshold: float = 1.0,
    k: int | None = None,
    fanout: int | None = None,
    variant: str | None = None,
    pairs: int | None = None,
    among: nx.Graph | None = None,
    speed: float | None = None,
    margin: float | None = None,
    seed: int = 0,
    positions: ArrayLike | None = None,
) -> Schedule:
    """Return the schedule of a family. One peer gives [[1.0]] in every round.

    - one_peer_exponential: in round t, i hears i + 2^(t mod L) mod n, half and half, where L = ceil(log2 n) is the
      period (Assran et al. 2019; Ying et al. 2021, "Exponential graph is provably efficient for decentralized deep
      training"). Exact consensus after a period if n is a power of two.
    - base_k: exact consensus after a period for every n, with at most `k` (1) neighbours a round; see base_k.py.
    - random_matching: disjoint pairs average, at most `pairs` (as many as possible) a round, along the edges of `among`
      (any two peers); see random_rounds.py.
    - epidemic: each peer sends to `fanout` (ceil(log2 n)) random others; `variant` "oracle" or "local"; see
      random_rounds.py.
    - mobile: peers that walk `speed` a round and hear each other within `threshold`, with hysteresis by `margin`;
      `positions` (n, 2) are where they start; see mobile.py.

    `threshold` and `positions` concern mobile alone. Its `weights` is a rule of weights.py, applied to the graph of the
    round. The other families bring their own, "auto"; "push" gives them the weights of push-sum on the same graphs.

    Raises TopologyError, whose `key` is the key to blame; a parameter that the family does not take is refused.
    """
    given: dict[str, object] = {"k": k, "fanout": fanout, "variant": variant, "pairs": pairs, "among": among}
    given |= {"speed": speed, "margin": margin}
    _check(family, peers, seed, {key for key, value in given.items() if value is not None})
    if family == "mobile":
        pace = SPEED if speed is None else speed
        return Mobile(
            peers, threshold=threshold, speed=pace, margin=margin, rule=weights, seed=seed, positions=positions
        )
    _check_own_weights(family, weights)
    made = _made(family, peers, k=k, fanout=fanout, variant=variant, pairs=pairs, among=among, seed=seed)
    if peers == 1:
        return Cycle((sparse.csr_array(np.ones((1, 1))),))
    return _pushed(made) if weights == "push" else made


def _check(family: str, peers: int, seed: int, given: Set[str]) -> None:
    if family not in _TAKES:
        near = difflib.get_close_matches(family, SCHEDULES, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise TopologyError("family", f"there is no schedule {family!r}{hint}; built are {' '.join(SCHEDULES)}")
    if peers < 1:
        raise TopologyError("peers", f"peers = {peers}: at least 1 is needed")
    if seed < 0:
        raise TopologyError("seed", f"seed = {seed}: it cannot be negative")
    for key in sorted(given):
        if key not in _TAKES[family]:
            takes = " and ".join(_TAKES[family]) or "no parameters of its own"
            raise TopologyError(key, f"the family {family} does not take {key}; it takes {takes}")


def _check_own_weights(family: str, weights: str) -> None:
    check_rule(weights)
    if weights not in ("auto", "push"):
        text = f"weights = {weights!r}: the family {family} brings its own"
        raise TopologyError("weights", f'{text}; leave topology.weights out, or write weights = "push"')


def _made(
    family: str,
    peers: int,
    *,
    k: int | None,
    fanout: int | None,
    variant: str | None,
    pairs: int | None,
    among: nx.Graph | None,
    seed: int,
) -> Schedule:
    match family:
        case "one_peer_exponential":
            return Cycle(_one_peer_exponential(peers))
        case "base_k":
            return Cycle(base_k(peers, 1 if k is None else k))
        case "random_matching":
            return Drawn(peers, random_matching(peers, pairs, among, seed), directed=False)
    size = _checked_fanout(peers, fanout)
    kind = VARIANTS[0] if variant is None else variant
    if kind not in VARIANTS:
        raise TopologyError("variant", f"there is no variant {kind!r} of epidemic; built are {' '.join(VARIANTS)}")
    return Drawn(peers, epidemic(peers, size, kind, seed), directed=size < peers - 1)


def _checked_fanout(peers: int, fanout: int | None) -> int:
    most = max(1, peers - 1)
    if fanout is None:
        return max(1, (peers - 1).bit_length())  # ceil(log2 n)
    if not 1 <= fanout <= most:
        text = f"fanout = {fanout} with peers = {peers}: each sends to so many of the others"
        raise TopologyError("fanout", f"{text}, so fanout is at least 1 and at most {most}")
    return fanout


def _one_peer_exponential(peers: int) -> tuple[sparse.csr_array, ...]:
    receivers = np.arange(peers)
    offsets = [1 << bit for bit in range((peers - 1).bit_length())]
    return tuple(weighted(peers, receivers, (receivers + offset) % peers, "uniform") for offset in offsets)


def _pushed(own: Schedule) -> Schedule:
    """Return the schedule with the same graphs and the weights of push-sum."""

    def push(W: sparse.csr_array) -> sparse.csr_array:
        return weighted(own.peers, *_heard(W), "push")

    if isinstance(own, Cycle):
        return Cycle(tuple(push(W) for W in own.matrices))
    return Drawn(own.peers, lambda round: push(own.matrix(round)), directed=own.directed)


# --- who hears whom


def _heard(W: sparse.csr_array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (m,) receivers and (m,) senders: where W is not 0, off its diagonal."""
    entries = sparse.coo_array(W)
    apart = (entries.data != 0.0) & (entries.row != entries.col)
    return entries.row[apart].astype(np.int64), entries.col[apart].astype(np.int64)


def _one_way(W: sparse.csr_array) -> bool:
    receivers, senders = _heard(W)
    count = W.shape[0]
    return not np.array_equal(np.sort(receivers * count + senders), np.sort(senders * count + receivers))


def graph_of(matrix: sparse.csr_array, directed: bool) -> nx.Graph | nx.DiGraph:
    """Return who hears whom: nodes 0..n-1, an arc u -> v where W[v, u] is not 0 (v hears u), u being another than v.

    Not directed: an edge where either hears the other.
    """
    graph = nx.DiGraph() if directed else nx.Graph()
    graph.add_nodes_from(range(matrix.shape[0]))
    receivers, senders = _heard(matrix)
    graph.add_edges_from(zip(senders.tolist(), receivers.tolist(), strict=True))
    return graph


def union_graph(schedule: Schedule, rounds: int) -> nx.Graph | nx.DiGraph:
    """Return who ever hears whom: over the period, or, where there is none, over the first `rounds` rounds."""
    ever = sparse.csr_array((schedule.peers, schedule.peers), dtype=np.float64)
    for round in range(rounds if schedule.period is None else schedule.period):
        ever = ever + abs(schedule.matrix(round))
    return graph_of(ever, schedule.directed)
