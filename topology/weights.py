"""From a graph to the mixing matrix W. W[i, j] is the weight that i gives to what it hears from j.

W is (n, n), float64, CSR with sorted indices, and its diagonal is always stored, so that "self at its own
place" is an entry like any other. Rows sum to 1; under the rule push columns do.
"""

from itertools import chain
from math import fsum
from typing import Literal

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topology.net import TopologyError

RULES = ("metropolis", "uniform", "lazy", "push")

Stochasticity = Literal["doubly", "row", "column", "none"]

_TOLERANCE = 1e-9

_Ints = NDArray[np.int64]


def mixing_matrix(
    graph: nx.Graph | nx.DiGraph,
    rule: str = "auto",
    *,
    family: str = "",
    matrix: sparse.csr_array | None = None,
) -> sparse.csr_array:
    """Return W of a graph with nodes 0..n-1 under a rule.

    - metropolis: 1 / (1 + max(deg_i, deg_j)), the rest to self (Xiao, Boyd and Kim 2007, "Distributed average
      consensus with least-mean-square deviation"). Symmetric, so doubly stochastic.
    - lazy: (I + metropolis) / 2; no negative eigenvalues.
    - uniform: 1 / (degree + 1) for self and each one heard. Row-stochastic; doubly if everyone hears
      equally many and is heard by as many.
    - push: each peer shares itself out in equal parts, 1 / (1 + listeners) to each that hears it and to itself, so
      columns sum to 1: the weights of push-sum (Kempe, Dobra and Gehrke 2003, "Gossip-based computation of
      aggregate information"; Assran et al. 2019, "Stochastic gradient push").
    - auto: `matrix`, where the file gave W (the caller sees to it that the graph is still the file's);
      metropolis on an undirected graph; uniform on a directed one, which is the family exponential's own.

    Raises TopologyError("weights") for an unknown rule, and for metropolis and lazy on a directed graph.
    """
    check_rule(rule)
    if rule == "auto" and matrix is not None:
        return canonical(matrix)
    if rule == "auto":
        rule = "uniform" if graph.is_directed() else "metropolis"
    if rule in ("metropolis", "lazy") and graph.is_directed():
        which = f"the family {family} is" if family else "this graph is"
        text = f"weights = {rule!r} needs an undirected graph, and {which} directed"
        raise TopologyError("weights", f'{text}: write weights = "uniform" or "auto"')
    return weighted(len(graph), *_heard(graph), rule)


def check_rule(rule: str) -> None:
    """Raise TopologyError("weights") for what is neither a rule nor "auto"."""
    if rule not in ("auto", *RULES):
        raise TopologyError("weights", f"there is no rule {rule!r}; built are auto {' '.join(RULES)}")


def _heard(graph: nx.Graph | nx.DiGraph) -> tuple[_Ints, _Ints]:
    """Return (m,) receivers and (m,) senders: one entry for each pair in which the first hears the second."""
    ends = np.fromiter(chain.from_iterable(graph.edges()), dtype=np.int64).reshape(-1, 2)
    if not graph.is_directed():
        ends = np.concatenate([ends, ends[:, ::-1]])
    return ends[:, 1], ends[:, 0]


def weighted(count: int, receivers: _Ints, senders: _Ints, rule: str) -> sparse.csr_array:
    """Return W of (m,) receivers and the (m,) senders they hear, each pair once, under a rule other than auto.

    For metropolis and lazy the pairs have to go both ways.
    """
    if rule == "push":
        listeners = np.bincount(senders, minlength=count)
        by_sender = completed(count, senders, receivers, _shares(listeners[senders]))
        return sparse.csr_array(by_sender.T)  # sorts the indices
    degree = np.bincount(receivers, minlength=count)
    larger = degree[receivers] if rule == "uniform" else np.maximum(degree[receivers], degree[senders])
    values = _shares(larger)
    return completed(count, receivers, senders, values / 2.0 if rule == "lazy" else values)


def _shares(others: _Ints) -> NDArray[np.float64]:
    return (1.0 / (1.0 + others)).astype(np.float64)


def completed(count: int, receivers: _Ints, senders: _Ints, values: NDArray[np.float64]) -> sparse.csr_array:
    """Return W from its off-diagonal entries; self gets what each row lacks, rounded once."""
    others = sparse.csr_array((values, (receivers, senders)), shape=(count, count))
    starts = others.indptr.tolist()
    taken = (-others.data).tolist()
    own = np.array([fsum([1.0, *taken[starts[i] : starts[i + 1]]]) for i in range(count)])
    return _joined(others, own)


def canonical(matrix: sparse.csr_array) -> sparse.csr_array:
    """Return a matrix as this package keeps W: no zeros off the diagonal, all of it on the diagonal."""
    own = matrix.diagonal()
    others = sparse.coo_array(matrix)
    apart = (others.row != others.col) & (others.data != 0.0)
    entries = (others.data[apart], (others.row[apart], others.col[apart]))
    return _joined(sparse.csr_array(entries, shape=matrix.shape), own)


def _joined(others: sparse.csr_array, own: NDArray[np.float64]) -> sparse.csr_array:
    count = len(own)
    off = sparse.coo_array(others)
    each = np.arange(count)
    rows, columns = np.concatenate([off.row, each]), np.concatenate([off.col, each])
    values = np.concatenate([off.data, own]).astype(np.float64)
    W = sparse.csr_array((values, (rows, columns)), shape=(count, count))  # keeps zeros on the diagonal
    W.sort_indices()
    return W


def stochasticity(W: sparse.csr_array) -> Stochasticity:
    """Return which sums of W are 1, to within 1e-9: of rows and columns ("doubly"), of one kind, or none."""
    rows = bool(abs(W.sum(axis=1) - 1.0).max() <= _TOLERANCE)
    columns = bool(abs(W.sum(axis=0) - 1.0).max() <= _TOLERANCE)
    if rows and columns:
        return "doubly"
    if rows:
        return "row"
    return "column" if columns else "none"
