"""The gossip core: stories of one peer as they should go, and beds of many in any order."""

from copy import deepcopy
from math import fsum
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from peer.protocol.gossip import LEAD_ROUNDS, Gossip
from peer.protocol.messages import (
    Bye,
    Command,
    Data,
    Degree,
    Done,
    Echo,
    Event,
    Heartbeat,
    Measured,
    Message,
    Mix,
    Mixed,
    Neighbourhood,
    PeerJoined,
    PeerLost,
    Probe,
    Received,
    Skip,
    Term,
    Tick,
    Trained,
)
from tests.fake_link import Bed, Matrix, dense
from tests.story import check, parse_event

# ---- Stories


def peer_of(
    me: int, weights: dict[int, float], listeners: dict[int, float], rounds: int = 2, exchanges: int = 1
) -> Gossip:
    return Gossip(me, rounds, lambda _: Neighbourhood(weights, listeners), exchanges=exchanges)


def in_a_ring_of_three(rounds: int = 2, exchanges: int = 1) -> Gossip:
    return peer_of(1, {0: 0.25, 1: 0.5, 2: 0.25}, {0: 0.25, 2: 0.25}, rounds, exchanges)


def test_two_rounds_in_a_ring_of_three() -> None:
    check(
        in_a_ring_of_three(),
        """
        > 1 starts
        > joined 0
        > 0 data 0.0  (0 has begun already)
        > joined 2
            train 0
        > trained
            to 0: data 0.0
            to 2: data 0.0
        > 2 data 0.0
            mix 0.0: 0.25 x 0's + 0.5 x 1's + 0.25 x 2's
        > 0 data 1.0  (of the next round: kept)
        > mixed
            train 1
        > 2 data 1.0
        > trained
            to 0: data 1.0
            to 2: data 1.0
            mix 1.0: 0.25 x 0's + 0.5 x 1's + 0.25 x 2's
        > 2 bye 2
        > mixed
            to 0: bye 2
            to 2: bye 2
        > 0 heartbeat 2
        > 0 bye 2
            finish: finished
        """,
    )


def test_two_exchanges_in_a_round() -> None:
    check(
        in_a_ring_of_three(rounds=1, exchanges=2),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > trained
            to 0: data 0.0
            to 2: data 0.0
        > 0 data 0.0
        > 2 data 0.0
            mix 0.0: 0.25 x 0's + 0.5 x 1's + 0.25 x 2's
        > 0 data 0.1  (0 was faster)
        > mixed
            to 0: data 0.1
            to 2: data 0.1
        > 2 data 0.1
            mix 0.1: 0.25 x 0's + 0.5 x 1's next + 0.25 x 2's
        > mixed
            to 0: bye 1
            to 2: bye 1
        > 2 bye 1
        > 0 bye 1
            finish: finished
        """,
    )


def test_who_speaks_on_a_one_way_edge_is_at_most_one_round_ahead() -> None:
    check(
        peer_of(0, {0: 1.0}, {1: 0.5}, rounds=4),
        """
        > 0 starts
        > joined 1
            train 0
        > trained
            to 1: data 0.0
            mix 0.0: 1 x 0's
        > mixed
            train 1
        > trained
            to 1: data 1.0
            mix 1.0: 1 x 0's
        > mixed
            train 2
        > trained
            mix 2.0: 1 x 0's
        > mixed  (1 has not mixed round 0: round 2 has to wait)
        > 1 heartbeat 0
        > 1 done 0
            to 1: data 2.0
            train 3
        > trained
            mix 3.0: 1 x 0's
        > mixed  (nor does the goodbye overtake what has to wait)
        > 1 heartbeat 2
            to 1: data 3.0
            to 1: bye 4
        > 1 done 1
        > 1 done 2
        > 1 done 3
        > 1 bye 4
            finish: finished
        """,
    )


def test_nobody_waits_for_a_listener_that_is_dead() -> None:
    core = peer_of(0, {0: 1.0}, {1: 0.5}, rounds=3)
    check(
        core,
        """
        > 0 starts
        > joined 1
            train 0
        > trained
            to 1: data 0.0
            mix 0.0: 1 x 0's
        > mixed
            train 1
        > trained
            to 1: data 1.0
            mix 1.0: 1 x 0's
        > mixed
            train 2
        > trained
            mix 2.0: 1 x 0's
        > mixed
        > lost 1 silent for 5.0 s
            alert, 1: is lost (silent for 5.0 s)
            finish: finished
        """,
    )
    assert core.waits_for() == set()


def test_nobody_speaks_to_a_listener_that_wants_nothing_more() -> None:
    """Though it should: no right peer is done before it has heard all."""
    check(
        peer_of(0, {0: 1.0}, {1: 0.5}, rounds=2),
        """
        > 0 starts
        > joined 1
            train 0
        > 1 bye 2
        > trained
            mix 0.0: 1 x 0's
        > mixed
            train 1
        > trained
            mix 1.0: 1 x 0's
        > mixed
            to 1: bye 2
            finish: finished
        """,
    )


def test_who_hears_on_a_one_way_edge_says_when_it_has_mixed() -> None:
    """Until the speaker has nothing more to say."""
    check(
        peer_of(1, {0: 0.5, 1: 0.5}, {}, rounds=4),
        """
        > 1 starts
        > joined 0
            train 0
        > 0 data 0.0
        > 0 data 1.0
        > trained
            mix 0.0: 0.5 x 0's + 0.5 x 1's
        > mixed
            to 0: done 0
            train 1
        > 0 data 2.0
        > trained
            mix 1.0: 0.5 x 0's + 0.5 x 1's
        > mixed
            to 0: done 1
            train 2
        > 0 data 3.0
        > 0 bye 4  (with all that it had to say)
        > trained
            mix 2.0: 0.5 x 0's + 0.5 x 1's
        > mixed
            train 3
        > trained
            mix 3.0: 0.5 x 0's + 0.5 x 1's
        > mixed
            to 0: bye 4
            finish: finished
        """,
    )


def test_a_death_in_the_middle_of_a_round() -> None:
    check(
        in_a_ring_of_three(),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > trained
            to 0: data 0.0
            to 2: data 0.0
        > 2 data 0.0
        > lost 0 silent for 5.0 s
            alert, 0: is lost (silent for 5.0 s)
            mix 0.0: 0.75 x 1's + 0.25 x 2's
        > 0 data 0.0  (too late: the dead stay dead)
        > lost 0 once more
        > mixed
            train 1
        > trained
            to 2: data 1.0
        > 2 data 1.0
            mix 1.0: 0.75 x 1's + 0.25 x 2's
        > 2 bye 2
        > mixed
            to 2: bye 2
            finish: finished
        """,
    )


def test_what_the_dead_have_said_still_counts() -> None:
    core = in_a_ring_of_three()
    check(
        core,
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > 0 data 0.0
        > 0 data 1.0
        > lost 0 its connection broke
            alert, 0: is lost (its connection broke)
        > 2 data 0.0
        > trained
            to 2: data 0.0
            mix 0.0: 0.25 x 0's + 0.5 x 1's + 0.25 x 2's
        > mixed
            train 1
        > trained
            to 2: data 1.0
        > lost 2 its connection broke
            alert, 2: is lost (its connection broke)
            mix 1.0: 0.25 x 0's + 0.75 x 1's
        > mixed
            finish: finished
        """,
    )
    assert core.short_rounds == 1


def test_a_message_that_is_not_finite() -> None:
    core = in_a_ring_of_three(rounds=1)
    check(
        core,
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > trained
            to 0: data 0.0
            to 2: data 0.0
        > 0 data 0.0
        > 2 data 0.0
            mix 0.0: 0.25 x 0's + 0.5 x 1's + 0.25 x 2's
        > mixed without 2
            alert, 2: sent numbers that are not finite in round 0; they were not mixed
            to 0: bye 1
            to 2: bye 1
        > 0 bye 1
        > 2 bye 1
            finish: finished
        """,
    )
    assert core.short_rounds == 1
    assert core.lost == {}


def test_a_neighbour_that_never_comes() -> None:
    check(
        in_a_ring_of_three(),
        """
        > 1 starts
        > joined 2
        > lost 0 never heard within 60 s
            alert, 0: is lost (never heard within 60 s)
            train 0
        > trained
            to 2: data 0.0
        """,
    )


def test_a_stop_in_the_middle() -> None:
    core = in_a_ring_of_three()
    check(
        core,
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > stop
            to 0: bye 0
            to 2: bye 0
            finish: interrupted
        > trained  (the local step at hand still ends)
        > mixed
        > 0 data 0.0
        > 0 data 9.0
        > 2 bye 0
        > lost 0 gone
        > stop
        """,
    )
    assert core.lost == {}


def test_a_stop_after_the_own_last_round_makes_it_no_less_finished() -> None:
    check(
        in_a_ring_of_three(rounds=1),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > trained
            to 0: data 0.0
            to 2: data 0.0
        > 0 data 0.0
        > 2 data 0.0
            mix 0.0: 0.25 x 0's + 0.5 x 1's + 0.25 x 2's
        > mixed
            to 0: bye 1
            to 2: bye 1
        > stop
            finish: finished
        """,
    )


def test_a_stop_is_told_to_those_that_are_done_and_only_wait_for_the_goodbye() -> None:
    check(
        in_a_ring_of_three(rounds=1),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > trained
            to 0: data 0.0
            to 2: data 0.0
        > 0 data 0.0
        > 0 bye 1
        > stop
            to 0: bye 0
            to 2: bye 0
            finish: interrupted
        """,
    )


def test_a_neighbour_that_was_stopped_leaves_early() -> None:
    check(
        in_a_ring_of_three(),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > 0 data 0.0
        > 0 bye 0
            alert, 0: is lost (left after round 0)
        > trained
            to 2: data 0.0
        > 2 data 0.0
            mix 0.0: 0.25 x 0's + 0.5 x 1's + 0.25 x 2's
        """,
    )


def test_without_a_last_round_every_goodbye_is_early() -> None:
    check(
        in_a_ring_of_three(rounds=0),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > 0 bye 7
            alert, 0: is lost (left after round 7)
        > stop
            to 2: bye 0
            finish: interrupted
        """,
    )


@pytest.mark.parametrize("first", [0, 2])
def test_goodbyes_in_either_order(first: int) -> None:
    last = 2 - first
    check(
        in_a_ring_of_three(rounds=1),
        f"""
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > {first} data 0.0
        > {last} data 0.0
        > trained
            to 0: data 0.0
            to 2: data 0.0
            mix 0.0: 0.25 x 0's + 0.5 x 1's + 0.25 x 2's
        > {first} bye 1  (before the own round is mixed)
        > lost {first} its address refuses new connections  (it has gone home: no loss)
        > mixed
            to 0: bye 1
            to 2: bye 1
        > {last} bye 1
            finish: finished
        """,
    )


def test_a_peer_without_neighbours_trains_alone() -> None:
    check(
        peer_of(0, {0: 1.0}, {}, rounds=1),
        """
        > 0 starts
            train 0
        > trained
            mix 0.0: 1 x 0's
        > mixed
            finish: finished
        """,
    )


# ---- Neighbours that break the rules


def test_too_far_ahead_is_no_right_peer() -> None:
    check(
        in_a_ring_of_three(rounds=9),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > 0 data 1.0
        > 0 data 2.0
            alert, 0: is lost (sent a message of round 2 while this is round 0)
        > 0 data 4611686018427387904.0
        > 2 heartbeat 4611686018427387904
        > 2 done 4611686018427387904
        > 2 data 9.0
            alert, 2: is lost (sent a message of round 9 while this is round 0)
        > 3 data 0.0  (no neighbour)
        """,
    )


def test_there_is_no_round_after_the_last() -> None:
    check(
        in_a_ring_of_three(rounds=1),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > 0 data 0.0
        > 0 data 1.0
            alert, 0: is lost (sent a message of round 1 while this is round 0)
        > 2 data 0.0
        > trained
            to 2: data 0.0
            mix 0.0: 0.25 x 0's + 0.5 x 1's + 0.25 x 2's
        """,
    )


@pytest.mark.parametrize("how", [{"look_again": 1}, {"exchanges": 2}, {"conserves": "columns"}])
def test_where_nobody_skips_nobody_may(how: dict[str, Any]) -> None:
    around = Neighbourhood({0: 0.25, 1: 0.5, 2: 0.25}, {})
    check(
        Gossip(1, 9, lambda _: around, **{"look_again": 3, **how}),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > 2 skip 0
            alert, 2: is lost (skipped round 0, as nobody may here)
        """,
    )


WAITS = {
    "joined 0": ("waiting", {2}),
    "joined 2": ("training", set()),
    "trained": ("gathering", {0, 2}),
    "0 data 0.0": ("gathering", {2}),
    "2 data 0.0": ("mixing", set()),
    "mixed": ("closing", {0, 2}),
    "0 bye 1": ("closing", {2}),
    "2 bye 1": ("done", set()),
}


def test_for_whom_a_peer_waits() -> None:
    core = in_a_ring_of_three(rounds=1)
    for line, (phase, peers) in WAITS.items():
        core.handle(parse_event(line, core), 0.0)
        assert (core.phase, core.waits_for()) == (phase, peers)


def test_a_goodbye_without_the_messages_before_it_does_not_stall_the_round() -> None:
    check(
        in_a_ring_of_three(rounds=2),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > trained
            to 0: data 0.0
            to 2: data 0.0
        > 2 data 0.0
        > 0 data 1.0
        > 0 bye 2
            alert, 0: is lost (said goodbye with messages missing, in round 0)
            mix 0.0: 0.75 x 1's + 0.25 x 2's
        """,
    )


@pytest.mark.parametrize("told", ["0 data 0.0", "0 data 0.7", "1 data 0.0", "5 data 0.0"])
def test_what_is_not_wanted_is_not_kept(told: str) -> None:
    """Repeated while it is mixed, of an exchange that there is not, from itself, from one that is not heard."""
    core = peer_of(1, {0: 0.5, 1: 0.5}, {0: 0.5, 5: 0.5})
    for line in ["joined 0", "joined 5", "trained", "0 data 0.0"]:
        core.handle(parse_event(line, core), 0.0)
    assert core.phase == "mixing"
    assert core.handle(parse_event(told, core), 0.0) == []
    assert core._inbox == {}


@pytest.mark.parametrize("sounding", [Probe(1), Echo(1), Measured(1), Degree(1)])
def test_soundings_belong_to_the_time_before(sounding: Message) -> None:
    core = in_a_ring_of_three()
    for line in ["joined 0", "joined 2", "trained"]:
        core.handle(parse_event(line, core), 0.0)
    before = deepcopy(vars(core))
    assert core.handle(Received(0, sounding), 0.0) == []
    assert vars(core) == before


# ---- Any order of events


@st.composite
def matrices(draw: st.DrawFn, directed: bool | None = None) -> Matrix:
    """Row-stochastic matrices of connected graphs and of strongly connected digraphs."""
    n = draw(st.integers(2, 6), label="peers")
    arcs = {(i, draw(st.integers(0, i - 1))) for i in range(1, n)}  # a tree
    extra = draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=6))
    if draw(st.booleans()) if directed is None else directed:
        arcs = {(i, (i + 1) % n) for i in range(n)} | extra
    else:
        arcs |= extra | {(j, i) for i, j in arcs | extra}
    matrix = [[0.0] * n for _ in range(n)]
    for i in range(n):
        heard = {i} | {j for a, j in arcs if a == i}
        parts = {j: draw(st.integers(0 if j == i else 1, 5)) for j in sorted(heard)}
        for j, part in parts.items():
            matrix[i][j] = part / sum(parts.values())
    return matrix


orders = st.builds(Random, st.integers(0, 2**32 - 1))
beds = settings(deadline=None, max_examples=100, print_blob=True)


@beds
@given(matrix=matrices(), rounds=st.integers(1, 4), exchanges=st.integers(1, 3), random=orders)
def test_the_result_is_the_matrix_product_whatever_the_order(
    matrix: Matrix, rounds: int, exchanges: int, random: Random
) -> None:
    bed = Bed([matrix], rounds, exchanges)
    bed.join_all()
    bed.run(random)
    assert bed.finished == dict.fromkeys(range(len(matrix)), "finished")
    assert bed.history() == dense([matrix], rounds, exchanges)
    assert bed.alerts == []
    assert all(core.lost == {} and core.short_rounds == 0 and core._inbox == {} for core in bed.cores)
    assert len(bed.weights) == len(matrix) * rounds * exchanges


def test_and_the_dense_product_is_the_right_one() -> None:
    ring = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]
    x = np.arange(3.0)
    for round in range(5):
        x = np.linalg.matrix_power(ring, 2) @ (x + (np.arange(3) + 1) / (round + 3))
        assert dense([ring], round + 1, 2)[-1] == pytest.approx(x.tolist(), rel=1e-12)


@beds
@given(matrix=matrices(), rounds=st.integers(1, 3), random=orders)
def test_heartbeats_change_nothing(matrix: Matrix, rounds: int, random: Random) -> None:
    bed = Bed([matrix], rounds)
    bed.join_all()
    bed.run(random, beats=0.2)
    assert bed.finished == dict.fromkeys(range(len(matrix)), "finished")
    assert bed.history() == dense([matrix], rounds)


@beds
@given(matrix=matrices(directed=False), random=orders)
def test_where_all_hear_each_other_data_says_it_all(matrix: Matrix, random: Random) -> None:
    bed = Bed([matrix], rounds=5)
    bed.join_all()
    bed.run(random)
    assert bed.finished == dict.fromkeys(range(len(matrix)), "finished")
    assert {type(message) for _, _, message in bed.sent} == {Data, Bye}


@beds
@given(matrix=matrices(directed=True), random=orders)
def test_nobody_runs_away_on_one_way_edges(matrix: Matrix, random: Random) -> None:
    """One link stands still as long as anything else moves: the others get no farther than the bound allows."""
    bed = Bed([matrix], rounds=20)
    bed.join_all()
    still = random.choice(sorted(bed.links))
    while steps := [pair for pair in bed.possible() if pair != still]:
        bed.do(*random.choice(steps))
    speaker, listener = (bed.cores[peer] for peer in still)
    assert len(bed.links[still]) <= LEAD_ROUNDS + 2  # the messages of so many rounds, or as many Done
    assert speaker.round - listener.round <= LEAD_ROUNDS + 2
    bed.run(random)
    assert bed.history() == dense([matrix], 20)


@beds
@given(
    matrix=matrices(),
    rounds=st.integers(1, 4),
    exchanges=st.integers(1, 2),
    deaths=st.lists(st.integers(0, 60), max_size=4),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    random=orders,
)
@example(matrix=[[0.5, 0.5], [0.5, 0.5]], rounds=1, exchanges=1, deaths=[0], cuts=[], random=Random(0))
def test_survivors_always_finish(
    matrix: Matrix, rounds: int, exchanges: int, deaths: list[int], cuts: list[int], random: Random
) -> None:
    """Deaths and false deaths at any step, learnt of at any time after; the weights still sum to 1, see the bed."""
    bed = Bed([matrix], rounds, exchanges)
    bed.join_all()
    bed.run_through([*((step, "kill") for step in deaths), *((step, "cut") for step in cuts)], random)
    assert bed.finished.keys() >= bed.alive
    assert all(bed.finished[peer] == "finished" for peer in bed.alive)
    for weights in bed.weights.values():
        assert abs(fsum(weights.values()) - 1.0) < 1e-12


@beds
@given(matrix=matrices(), random=orders, data=st.data())
def test_nothing_matters_after_the_end(matrix: Matrix, random: Random, data: st.DataObject) -> None:
    bed = Bed([matrix], rounds=1)
    bed.join_all()
    bed.run(random)
    core = bed.cores[0]
    before = deepcopy(vars(core))
    peers = st.sampled_from(sorted(core.neighbours))
    numbers = st.integers(0, 9)
    messages: st.SearchStrategy[Message] = st.builds(Data, numbers, numbers, numbers) | st.sampled_from(
        [Done(1), Skip(0), Heartbeat(9), Bye(0), Bye(1)]
    )
    events: st.SearchStrategy[Event] = (
        st.builds(Received, peers, messages)
        | st.builds(PeerLost, peers, st.just("gone"))
        | st.sampled_from([Command("stop"), Tick(), Trained(1, 0.0), Mixed(0, 0, None)])
    )
    for event in data.draw(st.lists(events, min_size=1, max_size=5)):
        assert core.handle(event, 0.0) == []
    assert vars(core) == before


def test_the_mean_of_all_is_the_mean_of_those_that_are_left() -> None:
    """Where everybody hears everybody with equal weight, the weight of the dead is shared by all, not kept by each."""
    third = 1 / 3
    here = Neighbourhood({0: third, 1: third, 2: third}, {1: third, 2: third})
    core = Gossip(0, 5, lambda _: here, conserves="mean")
    core.start(0.0)
    for peer in (1, 2):
        core.handle(PeerJoined(peer), 0.0)
    core.handle(Trained(0, 10.0), 0.0)
    core.handle(Received(1, Data(0, 0, 20.0)), 0.0)
    (mix,) = [e for e in core.handle(PeerLost(2, "gone"), 0.0) if isinstance(e, Mix)]
    assert mix.terms == (Term(0.5, 0, 10.0), Term(0.5, 1, 20.0))
