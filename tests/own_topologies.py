"""Topologies and an algorithm as a user would write them, for tests."""

from dataclasses import dataclass

import networkx as nx

from peer.algorithms.algorithm import Heard, State
from peer.algorithms.dpsgd import AdaptThenCombine


def one_way_streets() -> nx.DiGraph:
    """Five peers in a circle of arcs, with two short cuts: nobody is heard by as many as it hears."""
    return nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3)])


def there_and_back(peers: int) -> list[nx.Graph]:
    """Pairs that change: (0, 1), (2, 3), ... and (1, 2), (3, 4), ... in turn."""
    rounds = []
    for first in (0, 1):
        graph = nx.empty_graph(peers)
        graph.add_edges_from((i, i + 1) for i in range(first, peers - 1, 2))
        rounds.append(graph)
    return rounds


@dataclass(frozen=True)
class HalfWay(AdaptThenCombine):
    """x <- (x + W (x - lr g)) / 2: goes only half the way to what D-PSGD would do."""

    def update(self, state: State, k: int, heard: Heard) -> State:
        return {"x": (state["x"] + heard.sum()["x"]) / 2}


def half_way() -> HalfWay:
    return HalfWay()
