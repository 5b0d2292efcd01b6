"""AD-PSGD: asynchronous decentralised parallel stochastic gradient descent.

Lian et al. 2018, "Asynchronous Decentralized Parallel Stochastic Gradient Descent", algorithm 1. A peer that has done
its local steps, which began at x'_i, does not wait for anybody: it draws one neighbour j, the two average, and what was
learned lands on what has become of x_i by then:

    x_i, x_j <- (x_i + x_j) / 2
    x_i <- x_i + delta_i(x'_i)

In one averaging W is the identity but for the two of a pair, who have weights of 1/2: symmetric, and doubly stochastic.
The W of the topology is not used; its edges are those along which pairs meet, and they have to be undirected. Which of
the two lines comes first is up to the core; the lines are the functions here.
"""

from dataclasses import dataclass

from peer.algorithms.dpsgd import AdaptThenCombine


@dataclass(frozen=True)
class PairwiseAveraging(AdaptThenCombine):
    """x <- x + delta; x_i, x_j <- (x_i + x_j) / 2: both lines are those of D-PSGD, with the W of one pair."""
