"""How fast W brings peers together: the second largest modulus of its eigenvalues.

Xiao and Boyd 2004, "Fast linear iterations for distributed averaging": for a symmetric, doubly stochastic W,
||W^t x - mean|| <= slem^t ||x - mean||.
"""

import math
import warnings

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse import csgraph
from scipy.sparse import linalg as sparse_linalg

from topology.weights import stochasticity

_NOTHING = 1e-12  # below this, and within it of 1, a modulus is 0 or 1 plus rounding
_DENSE_UP_TO = 1500  # peers
_DENSE_IF_NEED_BE = 4000
_RESTARTS = 2000


def slem(W: sparse.csr_array) -> float:
    """Return the second largest modulus of a stochastic W's eigenvalues; 1 counts once per multiplicity.

    0.0 for one peer; 1.0 where the graph falls apart. Exact to rounding for circulant matrices of any size,
    and for all up to 1500 peers; above, to what Lanczos or Arnoldi iterations reach, and above 4000 peers
    with a very small gap possibly an estimate.
    """
    count = W.shape[0]
    if count == 1:
        return 0.0
    if csgraph.connected_components(W, directed=False, return_labels=False) > 1:
        return 1.0
    row = _circulant_row(W)
    if row is not None:
        return _second(np.fft.fft(row))
    symmetric = abs(W - W.T).max() <= _NOTHING
    if count <= _DENSE_UP_TO:
        return _dense(W, symmetric)
    return _large(W, symmetric)


def spectral_gap(W: sparse.csr_array) -> float:
    """Return 1 - slem."""
    return 1.0 - slem(W)


def rounds_to_consensus(slem: float, tolerance: float = 1e-6) -> int | None:
    """Return the number of rounds after which slem^t <= tolerance: 1 for slem 0, None for slem 1."""
    if slem >= 1.0 - _NOTHING:
        return None
    if slem <= 0.0 or tolerance >= 1.0:
        return 1
    rounds = math.log(tolerance) / math.log(slem)
    return max(1, math.ceil(rounds - 1e-9))  # 0.1^6 is 1e-6, whatever the rounding says


def _cleaned(modulus: float) -> float:
    if modulus < _NOTHING:
        return 0.0
    return 1.0 if abs(modulus - 1.0) < _NOTHING else modulus


def _second(eigenvalues: NDArray[np.float64] | NDArray[np.complex128]) -> float:
    return _cleaned(float(np.sort(np.abs(eigenvalues))[-2]))


def _circulant_row(W: sparse.csr_array) -> NDArray[np.float64] | None:
    """Return row 0 if each row is the one above moved on by one; the FFT of that row is then the spectrum."""
    count = W.shape[0]
    entries = sparse.coo_array(W)
    if entries.nnz % count or (np.diff(W.indptr) != entries.nnz // count).any():
        return None
    offsets = (entries.col.astype(np.int64) - entries.row) % count
    order = np.lexsort((offsets, entries.row))
    offsets, values = offsets[order].reshape(count, -1), entries.data[order].reshape(count, -1)
    if (offsets != offsets[0]).any() or (abs(values - values[0]) > 1e-15).any():
        return None
    row = np.zeros(count)
    row[offsets[0]] = values[0]
    return row


def _dense(W: sparse.csr_array, symmetric: bool) -> float:
    full = W.toarray()
    return _second(linalg.eigvalsh(full) if symmetric else linalg.eigvals(full))


def _large(W: sparse.csr_array, symmetric: bool) -> float:
    """Iterate; where that does not converge, try shift and invert, then the dense way, then an estimate."""
    start = np.random.Generator(np.random.Philox(0)).standard_normal(W.shape[0])  # the same answer every time
    try:
        return _iterated(W, symmetric, start)
    except (sparse_linalg.ArpackError, RuntimeError):  # not converged
        pass
    if symmetric:
        try:
            return _inverted(W, start)
        except (sparse_linalg.ArpackError, RuntimeError, MemoryError):
            pass
    return _dense(W, symmetric) if W.shape[0] <= _DENSE_IF_NEED_BE else _estimated(W, start)


def _iterated(W: sparse.csr_array, symmetric: bool, start: NDArray[np.float64]) -> float:
    find = sparse_linalg.eigsh if symmetric else sparse_linalg.eigs
    if stochasticity(W) == "doubly":  # the mean is an eigenvector on both sides: take it away and the next one leads
        found = find(_without_mean(W), k=1, which="LM", v0=start, maxiter=_RESTARTS, return_eigenvectors=False)
        return _cleaned(float(np.abs(found).max()))
    found = find(W, k=4, which="LM", v0=start, maxiter=_RESTARTS, return_eigenvectors=False)
    return _second(found)


def _without_mean(W: sparse.csr_array) -> sparse_linalg.LinearOperator:
    def apply(x: NDArray[np.float64]) -> NDArray[np.float64]:
        mixed = W @ (x - x.mean())
        centred: NDArray[np.float64] = mixed - mixed.mean()
        return centred

    return sparse_linalg.LinearOperator(W.shape, matvec=apply, rmatvec=apply, dtype=np.float64)


def _inverted(W: sparse.csr_array, start: NDArray[np.float64]) -> float:
    """Return the larger of the moduli next to 1 and -1 (paths and grids: a tiny gap, but little fill-in)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sparse_linalg.MatrixRankWarning)
        top = sparse_linalg.eigsh(W, k=2, sigma=1.0 + 1e-9, v0=start, return_eigenvectors=False)
        bottom = sparse_linalg.eigsh(W, k=1, sigma=-1.0 - 1e-9, v0=start, return_eigenvectors=False)
    return _cleaned(max(abs(float(top.min())), abs(float(bottom[0]))))


def _estimated(W: sparse.csr_array, start: NDArray[np.float64], rounds: int = 1000) -> float:
    """Return how much a round shrinks the disagreement after many of them."""
    x = start
    sizes = []
    for _ in range(rounds):
        x = W @ (x - x.mean())
        sizes.append(float(np.ptp(x)))
        if sizes[-1] == 0.0:
            return 0.0
        x = x / sizes[-1]
    return _cleaned(min(1.0, math.exp(math.fsum(map(math.log, sizes[rounds // 2 :])) / (rounds - rounds // 2))))
