"""What the rounds of a schedule are like one by one, against networkx; and rounds that are kept."""

from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from topology import Cycle, Remembered, mixing_matrix, overview, schedule


def of_graphs(graphs: list[nx.Graph]) -> Cycle:
    return Cycle(tuple(mixing_matrix(graph) for graph in graphs))


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 8), st.booleans(), st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
def test_figures_are_those_of_the_graphs(n: int, directed: bool, seeds: list[int]) -> None:
    graphs = [nx.gnp_random_graph(n, 0.4, seed=seed, directed=directed) for seed in seeds]
    made = of_graphs(graphs)
    found = overview(made, 99)
    one_way = made.directed
    edges = [g.number_of_edges() if one_way == directed else g.number_of_edges() // 2 for g in graphs]
    heard = [d for g in graphs for _, d in (g.in_degree() if directed else g.degree())]
    joined = [nx.is_strongly_connected(g) if directed else nx.is_connected(g) for g in graphs]
    assert found.rounds == len(graphs), "a period, whatever was asked for"
    assert found.connected == sum(joined)
    assert (found.edges.min, found.edges.max) == (min(edges), max(edges))
    assert found.edges.mean == pytest.approx(np.mean(edges))
    assert (found.heard.min, found.heard.max) == (min(heard), max(heard))
    assert found.heard.mean == pytest.approx(np.mean(heard))
    assert found.messages == pytest.approx(sum(heard) / len(graphs))


def test_one_round_in_which_nobody_is_joined_and_one_in_which_all_are() -> None:
    found = overview(of_graphs([nx.empty_graph(4), nx.path_graph(4)]), 0)
    assert (found.rounds, found.connected, found.messages) == (2, 1, 3.0)
    assert found.edges == (0, 3, 1.5)
    assert found.heard == (0, 2, 0.75)


def test_of_a_schedule_without_end_the_first_rounds_are_looked_at() -> None:
    pairs = schedule("random_matching", 6, pairs=2, seed=1)
    found = overview(pairs, 30)
    assert (found.rounds, found.connected, found.messages) == (30, 0, 4.0)
    assert found.edges == (2, 2, 2.0)
    assert found.heard == (0, 1, 2 / 3)


def test_arcs_that_cannot_be_gone_back_do_not_join() -> None:
    assert overview(of_graphs([nx.DiGraph([(0, 1), (1, 2)])]), 0).connected == 0
    assert overview(of_graphs([nx.DiGraph([(0, 1), (1, 2), (2, 0)])]), 0).connected == 1


def test_a_weight_of_zero_is_nobody_heard() -> None:
    W = sparse.csr_array(([0.0, 1.0, 0.5, 0.5], ([0, 0, 1, 1], [0, 1, 0, 1])))
    assert W.nnz == 4, "it is stored"
    found = overview(Cycle((W,)), 0)
    assert found.heard == (1, 1, 1.0)
    assert found.edges == (1, 1, 1.0)
    gives_all_away = sparse.csr_array(np.array([[1.0, 1.0], [0.0, 0.0]]))
    assert overview(Cycle((gives_all_away,)), 0).heard == (0, 1, 0.5)


# ---- Rounds that are kept


@dataclass
class Asked:
    """A schedule that notes which rounds it was asked for."""

    rounds: list[int] = field(default_factory=list)
    peers: int = 3
    period: None = None
    directed: bool = True

    def matrix(self, round: int) -> sparse.csr_array:
        self.rounds.append(round)
        return sparse.csr_array(np.eye(3) * (round + 1))


def remembered(entries: int) -> tuple[Remembered, Asked]:
    asked = Asked()
    return Remembered(asked, entries), asked


def test_a_round_is_asked_for_once() -> None:
    made, asked = remembered(9)
    for _ in range(3):
        for round in (0, 2, 1):
            assert made.matrix(round).diagonal().tolist() == [round + 1] * 3
    assert asked.rounds == [0, 2, 1]
    assert (made.peers, made.period, made.directed) == (3, None, True)


def test_what_does_not_fit_is_asked_for_again() -> None:
    made, asked = remembered(8)
    for _ in range(2):
        for round in (0, 1, 2):
            made.matrix(round)
    assert asked.rounds == [0, 1, 2, 2], "two of three entries each are kept"
