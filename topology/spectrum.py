"""How fast W brings peers together: the second largest modulus of its eigenvalues.

Xiao and Boyd 2004, "Fast linear iterations for distributed averaging": for a symmetric, doubly stochastic W,
||W^t x - mean|| <= slem^t ||x - mean||.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse import csgraph
from scipy.sparse import linalg as sparse_linalg

from topology.weights import stochasticity

_NOTHING = 1e-12  # below this, and within it of 1, a modulus is 0 or 1 plus rounding
_DENSE_UP_TO = 1500  # peers
_DENSE_IF_NEED_BE = 4000
_LANCZOS = {"ncv": 40, "maxiter": 200, "tol": 1e-10, "return_eigenvectors": False}
_ARNOLDI = {"ncv": 80, "maxiter": 200, "return_eigenvectors": False}
_GAVE_UP = (sparse_linalg.ArpackError, RuntimeError, MemoryError)  # not converged, singular, too much fill-in

_Vector = NDArray[np.float64]


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
    form = _symmetric_form(W)
    if form is None:
        return _dense(W, linalg.eigvals) if count <= _DENSE_UP_TO else _large_directed(W)
    return _dense(form[0], linalg.eigvalsh) if count <= _DENSE_UP_TO else _large_symmetric(*form)


def spectral_gap(W: sparse.csr_array) -> float:
    """Return 1 - slem."""
    return 1.0 - slem(W)


def lambda_min(W: sparse.csr_array) -> float | None:
    """Return the smallest eigenvalue of a symmetric W; None where W is not symmetric.

    Exact to rounding for circulant matrices of any size, and for all up to 1500 peers; above, to what Lanczos
    iterations reach. Where those give up on more than 4000 peers it is the bound that Gershgorin's discs give,
    which is never above the eigenvalue.
    """
    if abs(W - W.T).max() > _NOTHING:
        return None
    row = _circulant_row(W)
    if row is not None:
        return _tidy(float(np.fft.fft(row).real.min()))
    return _tidy(_lowest_dense(W) if W.shape[0] <= _DENSE_UP_TO else _lowest_large(W))


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


def _tidy(eigenvalue: float) -> float:
    return math.copysign(_cleaned(abs(eigenvalue)), eigenvalue) + 0.0  # not -0.0


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


def _symmetric_form(W: sparse.csr_array) -> tuple[sparse.csr_array, _Vector] | None:
    """Return a symmetric matrix with the eigenvalues of W and its unit eigenvector for 1; None if none is known.

    Metropolis weights are symmetric. Uniform ones on an undirected graph are reversible: W_ij / W_ii is symmetric,
    and so is D^-1/2 W D^1/2, where D is the diagonal of W.
    """
    if abs(W - W.T).max() <= _NOTHING:
        return W, _unit(np.ones(W.shape[0]))
    own = W.diagonal()
    if own.min() <= 0.0:
        return None
    balanced = sparse.diags_array(1.0 / own) @ W
    if abs(balanced - balanced.T).max() > _NOTHING:
        return None
    S = sparse.diags_array(own**-0.5) @ W @ sparse.diags_array(own**0.5)
    return sparse.csr_array(S), _unit(own**-0.5)


def _unit(x: _Vector) -> _Vector:
    return x / math.sqrt(float(x @ x))


def _dense(W: sparse.csr_array, eigenvalues: Callable[[_Vector], _Vector]) -> float:
    return _second(eigenvalues(W.toarray()))


# --- large matrices: Lanczos and Arnoldi iterations, and what to do where they do not converge


def _large_symmetric(S: sparse.csr_array, agreed: _Vector) -> float:
    start = _start(len(agreed))
    try:
        rest = _without(S, agreed)
        found = sparse_linalg.eigsh(rest, k=1, v0=start, **_LANCZOS)
        return _cleaned(float(np.abs(found).max()))
    except _GAVE_UP:
        pass
    try:
        return _inverted(S, start)
    except _GAVE_UP:
        return _dense(S, linalg.eigvalsh) if len(agreed) <= _DENSE_IF_NEED_BE else _estimated(S, agreed)


def _large_directed(W: sparse.csr_array) -> float:
    agreed = _unit(np.ones(W.shape[0]))
    start = _start(len(agreed))
    try:
        if stochasticity(W) != "doubly":
            return _second(sparse_linalg.eigs(W, k=4, v0=start, **_ARNOLDI))
        # The mean is an eigenvector on both sides: without it the next one leads.
        rest = _without(W, agreed)
        return _cleaned(float(np.abs(sparse_linalg.eigs(rest, k=1, v0=start, **_ARNOLDI)).max()))
    except _GAVE_UP:
        return _dense(W, linalg.eigvals) if len(agreed) <= _DENSE_IF_NEED_BE else _estimated(W, agreed)


def _start(count: int) -> _Vector:
    return np.random.Generator(np.random.Philox(0)).standard_normal(count)  # the same answer every time


def _without(W: sparse.csr_array, agreed: _Vector) -> sparse_linalg.LinearOperator:
    """Return W on the complement of agreement, the eigenvector of 1: the next eigenvalue leads there."""

    def apply(x: _Vector) -> _Vector:
        mixed: _Vector = W @ (x - agreed * (agreed @ x))
        return mixed - agreed * (agreed @ mixed)

    return sparse_linalg.LinearOperator(W.shape, matvec=apply, dtype=np.float64)


def _inverted(S: sparse.csr_array, start: _Vector) -> float:
    """Shift to just beyond an end of the spectrum and invert (paths and grids: a tiny gap, but little fill-in)."""
    top = float(sparse_linalg.eigsh(S, k=2, sigma=1.0 + 1e-9, v0=start, return_eigenvectors=False).min())
    lowest = _gershgorin(S)
    if abs(top) >= -lowest:
        return _cleaned(abs(top))
    bottom = sparse_linalg.eigsh(S, k=1, sigma=lowest - 1e-9, v0=start, return_eigenvectors=False)
    return _cleaned(max(abs(top), abs(float(bottom[0]))))


def _lowest_dense(W: sparse.csr_array) -> float:
    return float(linalg.eigvalsh(W.toarray(), subset_by_index=[0, 0])[0])


def _lowest_large(W: sparse.csr_array) -> float:
    start = _start(W.shape[0])
    try:
        return float(sparse_linalg.eigsh(W, k=1, which="SA", v0=start, **_LANCZOS)[0])
    except _GAVE_UP:
        pass
    bound = _gershgorin(W)
    try:
        return float(sparse_linalg.eigsh(W, k=1, sigma=bound - 1e-9, v0=start, return_eigenvectors=False)[0])
    except _GAVE_UP:
        return _lowest_dense(W) if W.shape[0] <= _DENSE_IF_NEED_BE else bound


def _gershgorin(S: sparse.csr_array) -> float:
    """Return a bound below all eigenvalues of a symmetric matrix: each lies in a disc around a diagonal entry."""
    own = S.diagonal()
    return float((own - (abs(S).sum(axis=1) - abs(own))).min())


def _estimated(W: sparse.csr_array, agreed: _Vector, rounds: int = 1000) -> float:
    """Return how much a round shrinks the disagreement after many of them."""
    rest = _without(W, agreed)
    x = _unit(_start(len(agreed)))
    logarithms = []
    for _ in range(rounds):
        x = rest.matvec(x)
        size = math.sqrt(float(x @ x))
        if size == 0.0:
            return 0.0
        logarithms.append(math.log(size))
        x = x / size
    late = logarithms[rounds // 2 :]
    return _cleaned(min(1.0, math.exp(math.fsum(late) / len(late))))
