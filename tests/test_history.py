"""The history of a run: entries of whoever is there, and where it leaves all bounds."""

import numpy as np
import pytest

from peer.history import Figures, History, earliest
from peer.record import Divergence, PeerScore

NAMES = ("a", "b", "c")


def figures(loss: float, params: list[float]) -> Figures:
    return Figures(PeerScore(loss, 0.5, 10), np.array(params))


def test_an_entry_has_the_figures_of_the_peers_that_are_there() -> None:
    told = []
    history = History(NAMES, keeps_params=True, on_entry=told.append)
    assert history.add(0, {2: figures(3.0, [4.0, 0.0]), 0: figures(1.0, [0.0, 0.0])}) is None
    (entry,) = history.entries
    assert told == [entry]
    assert entry["round"] == 0
    assert entry["loss"] == {"mean": 2.0, "min": 1.0, "max": 3.0}
    assert entry["consensus_distance"] == 4.0  # both are 2 away from their mean
    assert entry["params"] == [[0.0, 0.0], [4.0, 0.0]]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 2.1e8])
def test_a_loss_beyond_bounds_names_its_peer(loss: float) -> None:
    history = History(NAMES)
    assert history.add(0, {i: figures(2.0, [0.0]) for i in range(3)}) is None
    found = history.add(10, {0: figures(1.9e8, [0.0]), 1: figures(loss, [0.0]), 2: figures(1.0, [0.0])})
    assert found == Divergence(10, "b")
    assert "NaN" not in str(history.entries[-1])


def test_peers_that_drift_apart_name_the_farthest() -> None:
    history = History(NAMES)
    assert history.add(0, {i: figures(2.0, [0.0]) for i in range(3)}) is None
    found = history.add(10, {0: figures(1.0, [0.0]), 1: figures(1.0, [1e3]), 2: figures(1.0, [1e5])})
    assert found == Divergence(10, "c")


def test_the_earliest_divergence_is_that_of_the_first_round_and_peer() -> None:
    late, early, other = Divergence(9, "a"), Divergence(8, "c"), Divergence(8, "b")
    assert earliest(None, late, NAMES) == late
    assert earliest(late, early, NAMES) == early
    assert earliest(early, other, NAMES) == other
    assert earliest(other, late, NAMES) == other
