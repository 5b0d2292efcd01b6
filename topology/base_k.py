"""The Base-(k+1) graph: few neighbours a round, and exact consensus after few rounds, for any number of peers.

Takezawa, Sato, Bao, Niwa and Yamada 2023, "Beyond Exponential Graph: Communication-Efficient Topologies for
Decentralized Learning via Finite-time Convergence". The construction has three storeys:

**All at once.** If n = f_1 f_2 ... f_m with factors of at most k + 1, number the peers by digits d_1 ... d_m in these
mixed bases. In round r those that differ in digit r alone are a group of f_r, and average completely: k neighbours at
most. Once every digit has had its turn all have the mean. (The k-peer hyper-hypercube; with factors of 2 a hypercube.)

**Any number.** Write n in base k + 1: digits a_1, a_2, ..., a_L, none 0, at positions p_1 > p_2 > ... > p_L. Part l of
the peers is a_l blocks of s_l = (k + 1)^p_l.

1. Each part averages, all at once as above.
2. Part after part hands out: part l, whose peers all hold its average A, faces the smaller parts after it, who are R
   peers together, R < s_l, and N = a_l s_l + R with it. Each of the R pairs up with one peer in every block of part l,
   each of these with one of the R only, and they exchange with weight s_l / N. One of the R that held x now holds
   (R x + a_l s_l A) / N: the R together have the mean of all N. A block of part l, which gave s_l / N of itself in R
   places and got as much back, has it as well. Then the same among the R, whose parts are each still of one mind.
3. From then on each block averages on its own, all at once, and has the mean of all peers.

The last part needs no step 3: it is of one mind already. Steps 1 to 3 take at most 2 p_1 + 2 rounds, as every later
part starts one round later and is done one round sooner, at least.

**A factor first.** If n = p q where p has only factors of at most k + 1, the peers are p teams of q: each team reaches
consensus as above, then the q groups with one peer of every team do, all at once. Of all such p, 1 included, the one
with the fewest rounds is taken; it is never longer than the second storey, so at most 2 log_{k+1}(n) + 2.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topology.net import TopologyError
from topology.weights import completed

_Ints = NDArray[np.int64]


class _Links(NamedTuple):
    """Pairs of peers that exchange in a round, each pair once, with the weight they give each other."""

    one: _Ints  # (m,)
    other: _Ints  # (m,)
    weight: float


_Round = list[_Links]


def base_k(peers: int, k: int) -> tuple[sparse.csr_array, ...]:
    """Return one period of W: each symmetric and doubly stochastic with at most k neighbours; their product is J / n.

    Where k is as many as there are others or more, all average in one round. No matrices for one peer. Raises
    TopologyError("k") for k < 1.
    """
    if k < 1:
        raise TopologyError("k", f"k = {k}: a peer has at most k neighbours in a round, and 1 at least is needed")
    k = min(k, max(1, peers - 1))
    shortest = min((_teams(peers, p, k) for p in range(1, peers + 1) if _smooth(peers, p, k)), key=len)
    return tuple(_matrix(peers, links) for links in shortest)


def _matrix(peers: int, links: _Round) -> sparse.csr_array:
    one = np.concatenate([part.one for part in links])
    other = np.concatenate([part.other for part in links])
    weights = np.concatenate([np.full(len(part.one), part.weight) for part in links])
    both = (np.concatenate([one, other]), np.concatenate([other, one]))
    return completed(peers, *both, np.concatenate([weights, weights]))


# --- all at once


@lru_cache(1 << 12)
def _factors(n: int, most: int) -> tuple[int, ...] | None:
    """Return the fewest factors of n that are at most `most`, None if there are none; () for n = 1.

    Of equally few those with the smallest sum, since a group of f means f - 1 messages for each of its peers.
    """
    if n == 1:
        return ()
    divisors = [f for f in range(2, min(n, most) + 1) if n % f == 0]
    rests = ((f, _factors(n // f, most)) for f in divisors)
    found = [(f, *rest) for f, rest in rests if rest is not None]
    return min(found, key=lambda factors: (len(factors), sum(factors)), default=None)


def _all_at_once(peers: _Ints, factors: Sequence[int]) -> list[_Round]:
    """Let `peers`, as many as the product of the factors, average digit by digit."""
    rounds = []
    stride = 1
    for f in factors:
        groups = peers.reshape(-1, f, stride).swapaxes(1, 2).reshape(-1, f)
        first, second = np.triu_indices(f, k=1)
        rounds.append([_Links(groups[:, first].ravel(), groups[:, second].ravel(), 1.0 / f)])
        stride *= f
    return rounds


# --- any number


class _Part(NamedTuple):
    blocks: _Ints  # (a, s): the peers of each block
    position: int  # s = (k + 1) ** position


def _parts(peers: _Ints, base: int) -> list[_Part]:
    """Split peers by the digits of their number, the largest position first."""
    parts = []
    start = 0
    position = 0
    while base ** (position + 1) <= len(peers):
        position += 1
    for at in range(position, -1, -1):
        size = base**at
        digit = (len(peers) - start) // size
        if digit:
            end = start + digit * size
            parts.append(_Part(peers[start:end].reshape(digit, size), at))
            start = end
    return parts


def _any_number(peers: _Ints, k: int) -> list[_Round]:
    parts = _parts(peers, k + 1)
    own = [_all_at_once(part.blocks.ravel(), _own_factors(part, k)) for part in parts]
    if len(parts) == 1:
        return own[0]
    handing = len(own[0])  # the first part takes longest
    rounds: list[_Round] = [[] for _ in range(handing + 1 + parts[0].position)]
    for averaging in own:
        _put(rounds, 0, averaging)
    for turn, part in enumerate(parts[:-1]):
        rest = np.concatenate([later.blocks.ravel() for later in parts[turn + 1 :]])
        _put(rounds, handing + turn, [_handed_out(part, rest)])
        for block in part.blocks:
            _put(rounds, handing + turn + 1, _all_at_once(block, (k + 1,) * part.position))
    return rounds


def _own_factors(part: _Part, k: int) -> tuple[int, ...]:
    blocks = len(part.blocks)
    return (k + 1,) * part.position + ((blocks,) if blocks > 1 else ())


def _handed_out(part: _Part, rest: _Ints) -> _Round:
    blocks, size = part.blocks.shape
    weight = size / (blocks * size + len(rest))
    return [_Links(block[: len(rest)], rest, weight) for block in part.blocks]


def _put(rounds: list[_Round], start: int, more: list[_Round]) -> None:
    for at, links in enumerate(more, start):
        rounds[at] += links


# --- a factor first


def _smooth(n: int, p: int, k: int) -> bool:
    """Return whether p divides n and is a product of factors of at most k + 1."""
    return n % p == 0 and _factors(p, k + 1) is not None


def _teams(n: int, p: int, k: int) -> list[_Round]:
    peers = np.arange(n).reshape(p, n // p)
    rounds: list[_Round] = [[] for _ in _any_number(peers[0], k)]
    for team in peers:
        _put(rounds, 0, _any_number(team, k))
    factors = _factors(p, k + 1) or ()
    across: list[_Round] = [[] for _ in factors]
    for group in peers.T:
        _put(across, 0, _all_at_once(group, factors))
    return rounds + across
