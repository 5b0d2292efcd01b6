"""Membership on a clock that the tests move: each row of a story is a time, what happens then, and what follows."""

from itertools import pairwise
from math import inf, nextafter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.protocol.membership import Membership, Patience
from peer.protocol.messages import (
    Alert,
    Bye,
    Data,
    Done,
    Effect,
    Event,
    Finish,
    Greeted,
    Heard,
    Heartbeat,
    PeerJoined,
    PeerLost,
    Received,
    Severed,
    Tell,
    Tick,
)

TICK = Tick()


def beat(peer: int) -> Event:
    return Received(peer, Heartbeat(0))


def bye(peer: int) -> Event:
    return Received(peer, Bye(5))


def refused(peer: int) -> Event:
    return Severed(peer, "refused")


def show(effect: Effect) -> str:
    match effect:
        case Tell(PeerJoined(peer)):
            return f"joined {peer}"
        case Tell(PeerLost(peer, reason)):
            return f"lost {peer}: {reason}"
        case Alert(text, peer):
            return f"alert {peer}: {text}"
        case Finish(outcome):
            return f"finish: {outcome}"
    raise AssertionError(effect)


Row = tuple[float, Event, str, str, float]
"""When, what, the effects, the statuses of all neighbours in order, and when the next judgement is due."""

STORIES: dict[str, list[Row]] = {
    "late for work and alive all the same": [
        (1.0, Greeted(1), "joined 1", "alive", 4.0),
        (3.5, beat(1), "", "alive", 6.5),
        (6.0, beat(1), "", "alive", 9.0),
        (8.5, Received(1, Done(0)), "", "alive", 11.5),
        (9.0, TICK, "", "alive", 11.5),
        (11.0, Received(1, Data(1, 0, "x")), "", "alive", 14.0),
    ],
    "a large message on a slow line: every part of it is a sign of life": [
        (1.0, Greeted(1), "joined 1", "alive", 4.0),
        (3.9, Heard(1), "", "alive", 6.9),
        (6.8, Heard(1), "", "alive", 9.8),
        (9.7, Received(1, Data(1, 0, "x")), "", "alive", 12.7),
    ],
    "suspect, then alive again": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (2.9, TICK, "", "alive", 3.0),
        (3.0, TICK, "alert 1: has been silent for 3.0 s", "suspect", 5.0),
        (3.5, TICK, "", "suspect", 5.0),
        (4.9, beat(1), "", "alive", 7.9),
        (7.9, TICK, "alert 1: has been silent for 3.0 s", "suspect", 9.9),
    ],
    "dead by silence": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (3.0, TICK, "alert 1: has been silent for 3.0 s", "suspect", 5.0),
        (5.0, TICK, "lost 1: silent for 5.0 s", "dead", inf),
        (5.1, beat(1), "", "dead", inf),
        (5.2, Greeted(1), "", "dead", inf),
        (5.3, bye(1), "", "dead", inf),
        (5.4, refused(1), "", "dead", inf),
        (99.0, TICK, "", "dead", inf),
    ],
    "looked at too late to be suspected first": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (8.0, TICK, "lost 1: silent for 8.0 s", "dead", inf),
    ],
    "after a pause what has come meanwhile counts": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (20.0, beat(1), "", "alive", 23.0),
        (20.0, TICK, "", "alive", 23.0),
    ],
    "severed": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (1.0, refused(1), "lost 1: refused", "dead", inf),
        (1.1, refused(1), "", "dead", inf),
    ],
    "severed while suspect": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (3.0, TICK, "alert 1: has been silent for 3.0 s", "suspect", 5.0),
        (4.0, refused(1), "lost 1: refused", "dead", inf),
    ],
    "not severed before it was ever heard": [
        (1.0, refused(1), "", "awaited", 60.0),
        (2.0, Greeted(1), "joined 1", "alive", 5.0),
    ],
    "who left is never dead": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (1.0, bye(1), "", "left", inf),
        (1.5, beat(1), "", "left", inf),
        (2.0, refused(1), "", "left", inf),
        (2.5, Greeted(1), "", "left", inf),
        (99.0, TICK, "", "left", inf),
    ],
    "who was suspect may still leave": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (3.0, TICK, "alert 1: has been silent for 3.0 s", "suspect", 5.0),
        (4.0, bye(1), "", "left", inf),
    ],
    "greeted again after a broken connection": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (2.0, Greeted(1), "", "alive", 5.0),
    ],
    "a message is as good as a greeting": [
        (1.0, beat(1), "joined 1", "alive awaited", 4.0),
        (2.0, bye(2), "joined 2", "alive left", 4.0),
    ],
    "nobody ever came": [
        (59.9, TICK, "", "awaited", 60.0),
        (60.0, TICK, "finish: alone, lost 1: never heard within 60 s", "dead", inf),
        (61.0, TICK, "", "dead", inf),
    ],
    "none of two ever came": [
        (
            60.0,
            TICK,
            "lost 1: never heard within 60 s, finish: alone, lost 2: never heard within 60 s",
            "dead dead",
            inf,
        ),
    ],
    "one of two never came": [
        (1.0, Greeted(2), "joined 2", "awaited alive", 4.0),
        (59.0, beat(2), "", "awaited alive", 60.0),
        (60.0, TICK, "lost 1: never heard within 60 s", "dead alive", 62.0),
        (61.0, refused(2), "lost 2: refused", "dead dead", inf),
    ],
    "the last to be awaited never came, and the one that did is dead": [
        (1.0, Greeted(2), "joined 2", "awaited alive", 4.0),
        (2.0, refused(2), "lost 2: refused", "awaited dead", 60.0),
        (60.0, TICK, "lost 1: never heard within 60 s", "dead dead", inf),
    ],
    "dead, and back in a new life": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (1.0, refused(1), "lost 1: refused", "dead", inf),
        (1.5, Greeted(1, 0), "", "dead", inf),
        (2.0, Greeted(1, 1), "joined 1", "alive", 5.0),
        (2.5, Greeted(1, 0), "", "alive", 5.0),
        (3.0, Greeted(1, 1), "", "alive", 6.0),
        (6.0, TICK, "alert 1: has been silent for 3.0 s", "suspect", 8.0),
        (8.0, TICK, "lost 1: silent for 5.0 s", "dead", inf),
        (8.5, Greeted(1, 1), "", "dead", inf),
        (8.6, beat(1), "", "dead", inf),
        (9.0, Greeted(1, 4), "joined 1", "alive", 12.0),
    ],
    "a new life before the old one was known to be over": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (1.0, Greeted(1, 1), "lost 1: came back in a new life, joined 1", "alive", 4.0),
        (4.0, TICK, "alert 1: has been silent for 3.0 s", "suspect", 6.0),
        (5.0, Greeted(1, 0), "", "suspect", 6.0),
        (5.0, Greeted(1, 3), "lost 1: came back in a new life, joined 1", "alive", 8.0),
    ],
    "who left comes back in a new life and not before": [
        (0.0, Greeted(1), "joined 1", "alive", 3.0),
        (1.0, bye(1), "", "left", inf),
        (1.5, Greeted(1, 0), "", "left", inf),
        (2.0, Greeted(1, 1), "joined 1", "alive", 5.0),
        (3.0, bye(1), "", "left", inf),
        (4.0, Greeted(1, 1), "", "left", inf),
    ],
    "who came too late is welcome in the next life": [
        (1.0, Greeted(2), "joined 2", "awaited alive", 4.0),
        (59.0, beat(2), "", "awaited alive", 60.0),
        (60.0, TICK, "lost 1: never heard within 60 s", "dead alive", 62.0),
        (61.0, beat(2), "", "dead alive", 64.0),
        (61.5, Greeted(1, 1), "joined 1", "alive alive", 64.0),
    ],
    "first met in a later life": [
        (1.0, Greeted(1, 3), "joined 1", "alive", 4.0),
        (2.0, Greeted(1, 2), "", "alive", 4.0),
        (3.0, refused(1), "lost 1: refused", "dead", inf),
        (3.5, Greeted(1, 3), "", "dead", inf),
    ],
    "back from the dead is not alone": [
        (1.0, Greeted(2), "joined 2", "awaited alive", 4.0),
        (2.0, refused(2), "lost 2: refused", "awaited dead", 60.0),
        (3.0, Greeted(2, 1), "joined 2", "awaited alive", 6.0),
        (4.0, refused(2), "lost 2: refused", "awaited dead", 60.0),
        (60.0, TICK, "lost 1: never heard within 60 s", "dead dead", inf),
    ],
    "strangers": [
        (1.0, Greeted(9), "", "awaited", 60.0),
        (1.0, Greeted(9, 2), "", "awaited", 60.0),
        (1.0, beat(9), "", "awaited", 60.0),
        (1.0, bye(9), "", "awaited", 60.0),
        (1.0, refused(9), "", "awaited", 60.0),
    ],
}


@pytest.mark.parametrize("name", STORIES)
def test_story(name: str) -> None:
    story = STORIES[name]
    peers = range(1, 1 + len(story[0][3].split()))
    membership = Membership(peers, Patience(suspect_s=3.0, dead_s=5.0, join_s=60.0))
    assert membership.start(0.0) == []
    assert membership.deadline_s == 60.0
    for at_s, event, effects, statuses, deadline_s in story:
        told = ", ".join(show(effect) for effect in membership.handle(event, at_s))
        seen = " ".join(membership.status(peer) for peer in peers)
        assert (at_s, told, seen, membership.deadline_s) == (at_s, effects, statuses, pytest.approx(deadline_s))


def test_the_clock_of_joining_begins_with_the_start() -> None:
    membership = Membership([1], Patience(join_s=60.0))
    membership.start(1000.0)
    assert membership.deadline_s == 1060.0
    assert membership.since_s(1) == 1000.0
    assert membership.awaited() == [1]


def test_since_when() -> None:
    membership = Membership([1], Patience())
    membership.start(0.0)
    membership.handle(Greeted(1), 2.0)
    membership.handle(beat(1), 3.0)
    assert membership.since_s(1) == 2.0
    membership.handle(TICK, 6.0)
    assert membership.since_s(1) == 6.0
    assert membership.awaited() == []


def test_without_neighbours_there_is_nothing_to_judge() -> None:
    membership = Membership([], Patience())
    assert membership.start(0.0) == []
    assert membership.deadline_s == inf
    assert membership.handle(TICK, 1e9) == []


def test_a_stranger_has_no_status() -> None:
    with pytest.raises(KeyError):
        Membership([1], Patience()).status(2)
    with pytest.raises(KeyError):
        Membership([1], Patience()).incarnation(2)


def test_the_known_incarnation() -> None:
    membership = Membership([1], Patience())
    membership.start(0.0)
    known = []
    for event in (beat(1), Greeted(1, 2), Greeted(1, 1), refused(1), Greeted(1, 2), Greeted(1, 5)):
        membership.handle(event, 1.0)
        known.append(membership.incarnation(1))
    assert known == [0, 2, 2, 2, 2, 5]


# ---- Any sequence of events

patiences = st.builds(
    Patience, suspect_s=st.floats(0.01, 10.0), dead_s=st.floats(0.01, 10.0), join_s=st.floats(0.01, 100.0)
)
peers = st.integers(1, 4)
events = (
    st.builds(Greeted, peers, st.integers(0, 5))
    | st.builds(beat, peers)
    | st.builds(bye, peers)
    | st.builds(refused, peers)
    | st.just(TICK)
)


@settings(deadline=None, print_blob=True)
@given(
    patience=patiences,
    start_s=st.floats(0, 1e6),
    steps=st.lists(st.tuples(st.floats(0, 5.0), events), max_size=40),
    count=st.integers(1, 3),
)
def test_what_holds_whatever_happens(
    patience: Patience, start_s: float, steps: list[tuple[float, Event]], count: int
) -> None:
    """Nothing is judged before the deadline, everything due is at the deadline, and joins and losses take turns."""
    membership = Membership(range(1, count + 1), patience)
    now_s = start_s
    told = [show(effect) for effect in membership.start(now_s)]
    heard: set[int] = set()
    left: list[tuple[int, int]] = []  # who, and how much had been told by then
    for wait_s, event in steps:
        until_s = now_s + wait_s
        while membership.deadline_s <= until_s:  # as a shell does; it must come to an end
            due_s = membership.deadline_s
            if nextafter(due_s, -inf) >= now_s:
                assert membership.handle(TICK, nextafter(due_s, -inf)) == []
            effects = membership.handle(TICK, due_s)
            assert effects
            assert membership.deadline_s > due_s
            told += map(show, effects)
        now_s = until_s
        known = {peer: membership.incarnation(peer) for peer in range(1, count + 1)}
        told += map(show, membership.handle(event, now_s))
        assert membership.deadline_s > now_s or event != TICK
        heard |= {peer for peer in known if membership.status(peer) in ("alive", "left")}
        left += [(peer, len(told)) for peer in known if membership.status(peer) == "left"]
        assert all(membership.incarnation(peer) >= known[peer] for peer in known)
    for peer in range(1, count + 1):
        at = [i for i, text in enumerate(told) if text.split(":")[0] in (f"joined {peer}", f"lost {peer}")]
        for i, j in pairwise(at):
            was_there, is_there = told[i].startswith("joined"), told[j].startswith("joined")
            has_left = any(who == peer and i < so_far <= j for who, so_far in left)
            assert was_there != is_there or (was_there and has_left)
    assert heard == {peer for peer in range(1, count + 1) if f"joined {peer}" in told}
    everyone_is_lost = all(membership.status(peer) == "dead" for peer in range(1, count + 1))
    assert told.count("finish: alone") <= 1
    assert "finish: alone" in told or not (everyone_is_lost and not heard)
    assert "finish: alone" not in told or not any(
        text.startswith("joined") for text in told[: told.index("finish: alone")]
    )
