"""EASGD: elastic averaging. Each worker keeps parameters of its own, tied to a centre by a spring.

Zhang, Choromanska and LeCun 2015, "Deep learning with Elastic Averaging SGD", equations 5 and 6 (synchronous) and
algorithm 1 (asynchronous). The pull e_i is what one loses and the other gains; the gradient is taken at x_i before the
pull:

    e_i = alpha (x_i - c)                                        (both from before the update)
    x_i <- x_i - e_i - lr g_i(x_i)                               (the worker; delta_i = -lr g_i)
    c   <- c + sum_i e_i      for all at once, after a barrier   (the centre, synchronous)
    c   <- c + e_i            when worker i comes by             (the centre, asynchronous)

So both use the same e_i, a worker that has pushed x_i is given the centre as it was before it was pulled: the
centre is `Elastic`, and the worker `ElasticWorker` in beside.py. With H local steps between two exchanges delta_i is
what they found, starting from x_i. Where the peers' optima differ, neither the workers nor the centre end at that of
the mean loss.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from peer.algorithms.algorithm import State
from peer.algorithms.server import check_alike


def pull(x: Tensor, centre: Tensor, alpha: float) -> Tensor:
    """Return e = alpha (x - c) for a worker's parameters, (d,), or those of n workers, (n, d), and the centre's, (d,).

    Where both use the same e, x + c, or sum_i x_i + c, stays as it is.
    """
    assert x.dtype == centre.dtype, f"{x.dtype} and {centre.dtype}"  # torch would cast silently
    return alpha * (x - centre)


@dataclass(frozen=True)
class Elastic:
    """The centre, as an `Optimiser` of what was pushed: c <- c - alpha g, with g = sum_i (c - x_i), (..., d).

    g is a sum, not a mean: over the workers of a round, or over the one that came by. Its terms are differences to the
    centre as it is now, `params`, whichever version a worker was given last.

    Behind the first `trainable` columns, None for all, are running statistics, whose rate is `of_statistics`. With k
    pulls at once and a rate of 1 / k at most they stay between what there was, as a variance must.
    """

    alpha: float
    trainable: int | None = None
    of_statistics: float = 0.0

    def init(self, x: Tensor) -> State:
        return {"x": x, "before": x}

    def step(self, state: State, g: Tensor, factor: float = 1.0) -> State:
        """Return the state after the pull. `factor` is not used: alpha is no learning rate, and the workers' pull is
        the same."""
        before = state["x"]
        check_alike(before, g)
        x = torch.sub(before, g, alpha=self.alpha)
        if self.trainable is not None:
            later = slice(self.trainable, None)
            x[..., later] = torch.sub(before[..., later], g[..., later], alpha=self.of_statistics)
        return {"x": x, "before": before}

    def params(self, state: State) -> Tensor:
        return state["x"]

    def given(self, state: State) -> Tensor:
        return state["before"]


def alpha_limit(lr: float, curvature: float = 1.0, workers: int = 1) -> float:
    """Return the alpha below which, from 0 on, EASGD is stable on a quadratic; 0 where no alpha is.

    With a = lr times curvature, the largest of any worker, the synchronous update is stable for

        a < 2  and  alpha < (4 - 2 a) / (2 + n (2 - a))

    At the limit workers and centre take turns, eigenvalue -1 of [[1 - a - alpha, alpha], [n alpha, 1 - n alpha]], and
    the condition is exact where the curvatures are equal. For n = 1 it is Zhang et al.'s (4 - 2 a) / (4 - a), which
    they give for workers that come by one after the other: there n = 1 is right for any number of workers, and is
    sufficient, since each turn is a symmetric map whose norm is at most 1, but exact for one worker only.
    """
    a = lr * curvature
    return (4 - 2 * a) / (2 + workers * (2 - a)) if 0 <= a < 2 else 0.0
