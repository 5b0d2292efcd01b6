"""Runs beside coordinators, and of rings, that end before their rounds are done, or nearly do: who leaves, and who is
away for longer than anybody waits. In the events engine, with the peers of `test_coordinator_faults`.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from tests.test_coordinator_faults import IN_STEP, PEERS, coordinator_of, figures, reached, ring, run

ALL = [f"peer-{i}" for i in range(PEERS)]

# ---- Who leaves


@pytest.mark.parametrize("which", ["gradients", "models", "easgd", "a peer", "async", "buffered"])
def test_who_trains_beside_a_coordinator_that_leaves_ends_with_it(which: str) -> None:
    """It leaves in the middle of a step, which is void."""
    at_s = 3.75 if which == "models" else 1.25
    clean, found = run(which), run(which, {"at_s": at_s, "leave": coordinator_of(which)})
    assert (found.code, found.summary.outcome, found.summary.lost) == (130, "interrupted", [])
    name = "coordinator@peer-1" if which == "a peer" else "coordinator"
    assert found.summary.why == f"{name} has left, and the others with it"
    assert figures(found) == figures(clean)[: len(found.rounds)]
    last = clean.summary.history[found.summary.rounds]
    assert found.rounds[-1] == last.round > 0
    assert found.summary.coordinator == last.coordinator
    if which in IN_STEP:
        assert found.summary.params == last.params
    assert None not in found.summary.params


@pytest.mark.parametrize("at_s", [2.25, 2.75, 3.15])
def test_who_leaves_a_ring_ends_it_for_all(at_s: float) -> None:
    """In the second round: while all train, while pieces go round, and at its end."""
    clean, found = ring(), ring({"at_s": at_s, "leave": "peer-2"})
    assert (found.code, found.summary.outcome, found.summary.lost) == (130, "interrupted", [])
    assert found.summary.why == "peer-2 has left, and the others with it"
    rounds = reached(found, clean)
    assert None not in found.summary.params
    assert rounds <= {1, 2}
    assert max(rounds) - min(rounds) <= 1
    assert figures(found) == figures(clean)[: len(found.rounds)]


# ---- Who comes back to what is over


@pytest.mark.parametrize("stop_after_s", [5.0, 20.0])
@pytest.mark.parametrize("away_s", [0.25, 2.0, 12.0])
def test_a_ring_stays_broken_though_its_member_comes_back(away_s: float, stop_after_s: float) -> None:
    clean = ring()
    found = ring({"at_s": 4.25, "kill": "peer-2", "for_s": away_s}, stop_after_s=stop_after_s)
    assert (found.code, found.summary.outcome) == (3, "failed")
    assert "a member of the ring is lost" in found.summary.why
    assert all(earlier < later for earlier, later in pairwise(found.rounds))
    assert figures(found) == figures(clean)[: len(found.rounds)]
    for me in (0, 1, 3):
        assert found.summary.params[me] in [entry.params[me] for entry in clean.summary.history[2:4]]


def test_a_ring_stays_broken_though_all_its_members_are_started_again() -> None:
    found = ring({"at_s": 4.25, "kill": "peer-2"}, {"at_s": 8.0, "restart": ALL})
    assert (found.code, found.summary.outcome) == (3, "failed")
    assert "a member of the ring is lost" in found.summary.why
    assert found.rounds == [0, 1, 2]


# ---- Who is away for longer than anybody waits


@pytest.mark.parametrize("which", ["gradients", "easgd", "two servers", "quorum", "round robin", "async", "buffered"])
def test_a_coordinator_that_all_count_as_lost_goes_on_where_it_stood(which: str) -> None:
    clean, still = run(which), run(which, {"at_s": 1.5, "stop": coordinator_of(which), "for_s": 30.0})
    for me in ALL:
        assert still.said(f"{me}: {coordinator_of(which)} is lost")
        assert still.said(f"{coordinator_of(which)}: {me} is lost")
    assert (still.code, still.summary.outcome, still.summary.lost) == (0, "finished", [])
    assert still.summary.params == clean.summary.params
    assert still.summary.coordinator == clean.summary.coordinator
    assert figures(still) == figures(clean)
    assert still.summary.simulated_seconds > 31.5


PATIENCE = {"dead_s": 5.0, "join_s": 20.0}
"""Workers that are killed after 1.5 s are missed after 6.5 s, and waited for until 26.5 s."""


@pytest.mark.parametrize("fall", [{}, {"for_s": 26.0}], ids=["for good", "until it is too late"])
@pytest.mark.parametrize("which", ["gradients", "easgd", "two servers", "async", "buffered"])
def test_without_workers_a_coordinator_has_failed_after_join_s(which: str, fall: Mapping[str, Any]) -> None:
    found = run(which, {"at_s": 1.5, "kill": ALL, **fall}, transport=PATIENCE)
    assert (found.code, found.summary.outcome) == (3, "failed")
    assert "no worker is left to go on from version" in found.summary.why
    assert found.summary.lost == ([] if fall else ALL)
    assert found.rounds == list(range(found.summary.rounds + 1))


@pytest.mark.parametrize("which", ["gradients", "easgd", "two servers", "async", "buffered"])
def test_within_join_s_workers_carry_on_with_the_coordinator_they_had_left_alone(which: str) -> None:
    found = run(which, {"at_s": 1.5, "kill": ALL, "for_s": 24.0}, transport=PATIENCE)
    assert (found.code, found.summary.outcome, found.summary.lost) == (0, "finished", [])
    assert found.rounds == list(range(13))


# ---- By turns

APART = {"factors": [1, 1.125, 1.25, 1.5]}
"""Pushes come one by one, so a coordinator falls in the middle of a turn of all, with nothing under way."""


@pytest.mark.parametrize(("at_s", "version"), [(1.05, 1), (1.2, 2), (1.3, 3), (2.4, 6), (2.7, 7), (3.3, 9), (3.55, 10)])
def test_after_a_fall_it_is_the_turn_of_who_was_next(at_s: float, version: int) -> None:
    clean = run("round robin", rounds=18, speed=APART)
    assert sum(entry.simulated_seconds <= at_s for entry in clean.summary.history[1:]) == version
    fallen = run("round robin", {"at_s": at_s, "kill": "coordinator", "for_s": 3.0}, rounds=18, speed=APART)
    assert (fallen.summary.outcome, fallen.summary.lost) == ("finished", [])
    assert fallen.summary.params == clean.summary.params
    assert figures(fallen) == figures(clean)
