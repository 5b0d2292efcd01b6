"""Rounds drawn by lot: random matchings and epidemic learning. Each function returns round -> W.

A round is a function of (seed, round) alone: rounds may be asked for in any order.
"""

from collections.abc import Callable
from itertools import chain

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topology.net import TopologyError
from topology.seeds import stream
from topology.weights import weighted

VARIANTS = ("oracle", "local")

Draw = Callable[[int], sparse.csr_array]

_Ints = NDArray[np.int64]


# --- random matchings


def random_matching(peers: int, pairs: int | None, among: nx.Graph | None, seed: int) -> Draw:
    """Let disjoint pairs of peers average in each round, half and half; who is in no pair rests.

    `pairs` is how many a round; 0 and None are as many as there can be. Without `among` any two may meet, and each set
    of so many disjoint pairs is equally likely; `pairs` = 1 is randomised pairwise gossip (Boyd, Ghosh, Prabhakar and
    Shah 2006, "Randomized gossip algorithms"). With `among`, an undirected graph with nodes 0..n-1, its edges are
    taken in random order, each whose ends are both free, until there are `pairs` of them or no edge is left: with
    `pairs` = 1 a uniformly random edge, without a limit a maximal matching (not always a largest one).

    Raises TopologyError for "pairs" and "among".
    """
    most = max(1, peers // 2)
    if pairs is not None and not 0 <= pairs <= most:
        text = f"pairs = {pairs} with peers = {peers}: there are 1 to {most} disjoint pairs"
        raise TopologyError("pairs", f"{text}, and 0 is as many as possible")
    wanted = pairs or most
    edges = None if among is None else _edges_of(among, peers)

    def draw(round: int) -> sparse.csr_array:
        lot = stream(seed, "matching", round)
        met = _any_pairs(lot, peers, wanted) if edges is None else _along_edges(lot, edges, wanted)
        return weighted(peers, met.ravel(), met[:, ::-1].ravel(), "uniform")

    return draw


def _edges_of(among: nx.Graph, peers: int) -> _Ints:
    """Return (m, 2) edges, in an order that does not depend on how the graph was made."""
    if among.is_directed():
        raise TopologyError("among", "a pair averages in both directions: among has to be an undirected graph")
    if set(among) != set(range(peers)):
        raise TopologyError("among", f"among has {len(among)} nodes, and peers = {peers}: its nodes are 0..peers - 1")
    ends = np.fromiter(chain.from_iterable(among.edges()), dtype=np.int64).reshape(-1, 2)
    return np.unique(np.sort(ends[ends[:, 0] != ends[:, 1]], axis=1), axis=0)


def _any_pairs(lot: np.random.Generator, peers: int, pairs: int) -> _Ints:
    return lot.permutation(peers)[: 2 * (peers // 2)].reshape(-1, 2)[:pairs]


def _along_edges(lot: np.random.Generator, edges: _Ints, pairs: int) -> _Ints:
    taken: set[int] = set()
    met: list[tuple[int, int]] = []
    for u, v in lot.permutation(edges).tolist():
        if u not in taken and v not in taken:
            met.append((u, v))
            taken.update((u, v))
            if len(met) == pairs:
                break
    return np.array(met, dtype=np.int64).reshape(-1, 2)


# --- epidemic learning


def epidemic(peers: int, fanout: int, variant: str, seed: int, rule: str = "uniform") -> Draw:
    """Let each peer send to `fanout` others, drawn anew each round (de Vos et al. 2023, "Epidemic Learning: Boosting
    Decentralized Learning with Randomized Communication").

    - oracle: each hears exactly `fanout` others and is heard by as many. The digraph is the circulant of so many random
      distinct offsets, with its places dealt out to the peers by a random permutation; so what a peer hears is a
      uniformly random set of the others. W is doubly stochastic, each weight 1 / (fanout + 1).
    - local: each sends to a uniformly random set of others, and knows nothing of theirs. Who received r models gives
      each, and its own, 1 / (r + 1): W is row-stochastic, and the mean moves a little.

    `rule` "push" instead of "uniform" gives the weights of push-sum.
    """

    def draw(round: int) -> sparse.csr_array:
        lot = stream(seed, f"epidemic {variant}", round)
        hears = _dealt(lot, peers, fanout) if variant == "oracle" else _sent(lot, peers, fanout)
        return weighted(peers, *hears, rule)

    return draw


def _dealt(lot: np.random.Generator, peers: int, fanout: int) -> tuple[_Ints, _Ints]:
    offsets = 1 + lot.choice(peers - 1, size=fanout, replace=False)
    at = lot.permutation(peers)  # the peer at each place of the circle
    places = np.arange(peers)
    senders = at[(places[:, None] + offsets) % peers]
    return np.repeat(at, fanout), senders.ravel()


def _sent(lot: np.random.Generator, peers: int, fanout: int) -> tuple[_Ints, _Ints]:
    each = np.arange(peers)
    chosen = _subsets(lot, peers, peers - 1, fanout)
    receivers = chosen + (chosen >= each[:, None])  # the others, numbered without oneself
    return receivers.ravel(), np.repeat(each, fanout)


def _subsets(lot: np.random.Generator, rows: int, count: int, size: int) -> _Ints:
    """Return (rows, size): in each row a uniformly random subset of 0..count-1, by Floyd's algorithm.

    Bentley and Floyd 1987, "A sample of brilliance": the next of 0..last, or `last` itself if that is taken already.
    """
    chosen = np.empty((rows, size), dtype=np.int64)
    for column, last in enumerate(range(count - size, count)):
        candidate = lot.integers(0, last + 1, size=rows)
        taken = (chosen[:, :column] == candidate[:, None]).any(axis=1)
        chosen[:, column] = np.where(taken, last, candidate)
    return chosen
