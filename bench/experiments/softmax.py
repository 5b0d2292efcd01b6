"""Softmax regression in plain numpy, apart from what is measured here: its accuracy and its optimum.

Parameters are flat, as in earshot's messages: the weights (classes, features) row by row, then the biases.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Labels = NDArray[np.int64]

ENOUGH = 1e-13
"""Newton's method stops where no entry of the gradient is larger."""


def accuracy(params: Floats, x: Floats, y: Labels) -> float:
    """Return the share of the rows x, (n, f), whose largest score is that of their label."""
    features = x.shape[1]
    biases = params.size // (features + 1)
    weights = params[:-biases].reshape(biases, features)
    return float(((x @ weights.T + params[-biases:]).argmax(axis=1) == y).mean())


def optimum(x: Floats, y: Labels, row_weights: Floats, l2: float) -> tuple[Floats, float]:
    """Return where the weighted mean of the rows' losses + l2/2 |params|^2 is smallest, and its largest gradient entry.

    The rows are x, (n, f) float64. With l2 > 0 there is one minimum, and Newton's method finds it to rounding.
    """
    rows, classes = np.hstack([x, np.ones((len(x), 1))]), int(y.max()) + 1
    at = np.zeros((classes, rows.shape[1]))
    wanted = np.eye(classes)[y]
    for _ in range(50):
        likely = _probabilities(rows @ at.T)
        gradient = ((likely - wanted) * row_weights[:, None]).T @ rows + l2 * at
        if np.abs(gradient).max() <= ENOUGH:
            return np.concatenate([at[:, :-1].ravel(), at[:, -1]]), float(np.abs(gradient).max())
        step = np.linalg.solve(_hessian(rows, likely, row_weights, l2), gradient.ravel())
        at = at - step.reshape(at.shape)
    raise ArithmeticError(f"Newton's method stopped at a gradient of {np.abs(gradient).max():.1e}")


def _probabilities(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _hessian(rows: Floats, likely: Floats, row_weights: Floats, l2: float) -> Floats:
    """Return sum_r w_r (diag(p_r) - p_r p_r^T) (x) x_r x_r^T + l2 I, a block for each pair of classes."""
    classes, width = likely.shape[1], rows.shape[1]
    hessian = l2 * np.eye(classes * width)
    for a in range(classes):
        for b in range(classes):
            curvature = row_weights * likely[:, a] * ((a == b) - likely[:, b])
            block = np.s_[a * width : (a + 1) * width, b * width : (b + 1) * width]
            hessian[block] += (rows * curvature[:, None]).T @ rows
    return hessian
