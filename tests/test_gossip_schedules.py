"""Gossip where who hears whom changes from round to round, by a schedule or by the metric "model"; and columns of W.

First stories of one peer, see `story.py`; then beds of many peers in any order, and with anything going wrong.
"""

from math import fsum
from random import Random
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.protocol.gossip import Gossip
from peer.protocol.messages import Data, Done, Neighbourhood, PeerId, Received, Send, Skip, Train
from tests.fake_link import Bed, Matrix, Metric, Trouble, dense, drift
from tests.story import check

ALONE = Neighbourhood({0: 1.0}, {})
WITH_1 = Neighbourhood({0: 0.5, 1: 0.5}, {1: 0.5})
SAYS_TO_1 = Neighbourhood({0: 1.0}, {1: 0.5})
HEARS_1 = Neighbourhood({0: 0.5, 1: 0.5}, {})


def peer_0(*around: Neighbourhood, rounds: int) -> Gossip:
    """Peer 0, whose surroundings are these in turn; it has to do with peer 1."""
    return Gossip(0, rounds, lambda round: around[round % len(around)], neighbours=[1])


# ---- Stories of schedules


def test_a_pair_that_meets_every_third_round() -> None:
    check(
        peer_0(WITH_1, ALONE, ALONE, rounds=6),
        """
        > 0 starts
        > joined 1
            train 0
        > trained
            to 1: data 0.0
        > 1 data 0.0
            mix 0.0: 0.5 x 0's + 0.5 x 1's
        > mixed  (the next to be heard of 1 is that of round 3, and that may come from round 2 on)
            train 1
        > trained
            mix 1.0: 1 x 0's
        > mixed
            to 1: done 1
            train 2
        > trained
            mix 2.0: 1 x 0's
        > mixed
            train 3
        > trained  (1 may still be in round 1)
        > 1 done 1
            to 1: data 3.0
        > 1 data 3.0
            mix 3.0: 0.5 x 0's + 0.5 x 1's
        > mixed
            train 4
        > trained
            mix 4.0: 1 x 0's
        > mixed  (the rounds are over before the two meet again)
            train 5
        > trained
            mix 5.0: 1 x 0's
        > mixed
            to 1: bye 6
        > 1 bye 6
            finish: finished
        """,
    )


def test_a_listener_that_only_listens_once() -> None:
    check(
        peer_0(ALONE, ALONE, ALONE, HEARS_1, ALONE, rounds=5),
        """
        > 0 starts
        > joined 1
            train 0
        > trained
            mix 0.0: 1 x 0's
        > mixed
            train 1
        > trained
            mix 1.0: 1 x 0's
        > mixed
            to 1: done 1
            train 2
        > trained
            mix 2.0: 1 x 0's
        > 1 data 3.0
        > 1 bye 5  (it has nothing more to say, and hears nobody)
        > mixed
            train 3
        > trained
            mix 3.0: 0.5 x 0's + 0.5 x 1's
        > mixed
            train 4
        > trained
            mix 4.0: 1 x 0's
        > mixed
            to 1: bye 5
            finish: finished
        """,
    )


def test_a_speaker_that_is_heard_once_waits_until_its_listener_is_near() -> None:
    core = peer_0(ALONE, ALONE, ALONE, SAYS_TO_1, ALONE, rounds=5)
    check(
        core,
        """
        > 0 starts
        > joined 1
            train 0
        > trained
            mix 0.0: 1 x 0's
        > mixed
            train 1
        > trained
            mix 1.0: 1 x 0's
        > mixed
            train 2
        > trained
            mix 2.0: 1 x 0's
        > mixed
            train 3
        > trained
            mix 3.0: 1 x 0's
        > mixed
        > 1 heartbeat 1  (it has mixed round 0)
        """,
    )
    assert (core.phase, core.waits_for()) == ("blocked", {1})
    assert core.handle(Received(1, Done(1)), 0.0) == [Send(1, Data(3, 0, "0's")), Train(4)]


def test_until_stopped() -> None:
    check(
        peer_0(WITH_1, ALONE, rounds=0),
        """
        > 0 starts
        > joined 1
            train 0
        > trained
            to 1: data 0.0
        > 1 data 0.0
            mix 0.0: 0.5 x 0's + 0.5 x 1's
        > mixed
            to 1: done 0
            train 1
        > trained
            mix 1.0: 1 x 0's
        > 1 done 0
        > mixed
            train 2
        > trained
            to 1: data 2.0
        > 1 data 2.0
            mix 2.0: 0.5 x 0's + 0.5 x 1's
        > mixed
            to 1: done 2
            train 3
        > 1 bye 3
            alert, 1: is lost (left after round 3)
        > trained
            mix 3.0: 1 x 0's
        > mixed
            train 4
        > trained
            mix 4.0: 1 x 0's
        > stop
            finish: interrupted
        """,
    )


def test_a_peer_that_is_lost_before_it_was_ever_heard() -> None:
    core = peer_0(ALONE, ALONE, ALONE, WITH_1, rounds=4)
    check(
        core,
        """
        > 0 starts
        > joined 1
            train 0
        > trained
            mix 0.0: 1 x 0's
        > mixed
            train 1
        > lost 1 silent for 5.0 s
            alert, 1: is lost (silent for 5.0 s)
        > trained
            mix 1.0: 1 x 0's
        > mixed  (there is nobody to tell)
            train 2
        > trained
            mix 2.0: 1 x 0's
        > mixed
            train 3
        > trained
            mix 3.0: 1 x 0's
        > mixed
            finish: finished
        """,
    )
    assert core.short_rounds == 1


# ---- Stories of columns


def test_what_a_dead_listener_would_have_been_given_stays_with_the_giver() -> None:
    """Peer 1 hears 0 alone, and 0 and 2 hear it."""
    around = Neighbourhood({0: 0.7, 1: 0.5}, {0: 0.25, 2: 0.25})
    check(
        Gossip(1, 4, lambda _: around, conserves="columns"),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > trained
            to 0: data 0.0, 1's for 0
            to 2: data 0.0, 1's for 2
        > 0 data 0.0
            mix 0.0: 1 x 0's + 0.5 x 1's
        > mixed
            train 1
        > lost 2 silent for 5.0 s
            alert, 2: is lost (silent for 5.0 s)
        > trained
            to 0: data 1.0, 1's for 0
        > 0 data 1.0
            mix 1.0: 1 x 0's + 0.75 x 1's
        > mixed
            train 2
        > trained
            to 0: data 2.0, 1's for 0
        > lost 0 silent for 5.0 s  (it was given its share; of what it would have given, nothing comes)
            alert, 0: is lost (silent for 5.0 s)
            mix 2.0: 0.75 x 1's
        > mixed
            train 3
        > trained
            mix 3.0: 1 x 1's
        > mixed
            finish: finished
        """,
    )


# ---- Stories of the metric "model"


def among_three(rounds: int, look_again: int = 3) -> Gossip:
    around = Neighbourhood({0: 0.25, 1: 0.5, 2: 0.25}, {0: 0.25, 2: 0.25})
    return Gossip(1, rounds, lambda _: around, look_again=look_again)


def test_apart_and_near_again() -> None:
    core = among_three(rounds=5)
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
        > mixed 2 is far
            train 1
        > 2 skip 1
        > trained
            to 0: data 1.0
            to 2: skip 1
        > 0 data 1.0
            mix 1.0: 0.25 x 0's + 0.75 x 1's
        > mixed
            train 2
        > trained
            to 0: data 2.0
            to 2: skip 2
        > 0 data 2.0  (what is skipped is waited for, too)
        > 2 skip 2
            mix 2.0: 0.25 x 0's + 0.75 x 1's
        > mixed
            train 3
        > trained  (they look again, and are still apart)
            to 0: data 3.0
            to 2: data 3.0
        > 0 data 3.0
        > 2 data 3.0
            mix 3.0: 0.25 x 0's + 0.5 x 1's + 0.25 x 2's
        > mixed 2 is far
            train 4
        > trained
            to 0: data 4.0
            to 2: skip 4
        """,
    )
    assert core.short_rounds == 0


def test_near_again_means_no_skip_any_more() -> None:
    check(
        among_three(rounds=9, look_again=2),
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
        > mixed 2 is far
            train 1
        > trained
            to 0: data 1.0
            to 2: skip 1
        > 0 data 1.0
        > 2 skip 1
            mix 1.0: 0.25 x 0's + 0.75 x 1's
        > 2 data 2.0
        > mixed
            train 2
        > trained
            to 0: data 2.0
            to 2: data 2.0
        > 0 data 2.0
            mix 2.0: 0.25 x 0's + 0.5 x 1's + 0.25 x 2's
        > mixed
            train 3
        > trained
            to 0: data 3.0
            to 2: data 3.0
        """,
    )


def test_who_finds_near_what_the_other_finds_far_is_told_by_its_skip() -> None:
    check(
        among_three(rounds=9),
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
        > mixed  (2 is just near enough, and 2 found it just too far)
            train 1
        > trained
            to 0: data 1.0
            to 2: data 1.0
        > 0 data 1.0
        > 2 skip 1
            mix 1.0: 0.25 x 0's + 0.75 x 1's
        > mixed
            train 2
        > trained
            to 0: data 2.0
            to 2: skip 2
        > 0 data 2.0
        > 2 skip 2
            mix 2.0: 0.25 x 0's + 0.75 x 1's
        > mixed
            train 3
        > trained  (both look again in the same round)
            to 0: data 3.0
            to 2: data 3.0
        """,
    )


def test_who_finds_far_what_the_other_finds_near_does_not_mix_what_still_comes() -> None:
    check(
        among_three(rounds=9),
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
        > mixed 2 is far
            train 1
        > trained
            to 0: data 1.0
            to 2: skip 1
        > 0 data 1.0
        > 2 data 1.0
            mix 1.0: 0.25 x 0's + 0.75 x 1's
        > mixed
            train 2
        > trained
            to 0: data 2.0
            to 2: skip 2
        > 0 data 2.0
        > 2 skip 2
            mix 2.0: 0.25 x 0's + 0.75 x 1's
        > mixed
            train 3
        > trained
            to 0: data 3.0
            to 2: data 3.0
        """,
    )


# ---- Any schedule in any order

Sums = Literal["rows", "columns"]


@st.composite
def arcs_of(draw: st.DrawFn, n: int, both_ways: bool) -> set[tuple[PeerId, PeerId]]:
    """(i, j): i hears j. Often there are few of them, so that some peers rest."""
    peers = st.integers(0, n - 1)
    arcs = {(i, j) for i, j in draw(st.sets(st.tuples(peers, peers), max_size=2 * n)) if i != j}
    return arcs | {(j, i) for i, j in arcs} if both_ways else arcs


def matrix_of(n: int, arcs: set[tuple[PeerId, PeerId]], sums: Sums) -> Matrix:
    """A matrix with entries of all sizes, the own one sometimes 0, whose rows or columns sum to 1."""
    parts = [[(2 + 3 * i + 5 * j) % 4 + 1.0 if (i, j) in arcs else 0.0 for j in range(n)] for i in range(n)]
    for i in range(n):
        rests = not any(i == (arc[0] if sums == "rows" else arc[1]) for arc in arcs)
        parts[i][i] = 1.0 if rests else float(i % 3)
    if sums == "rows":
        return [[part / fsum(row) for part in row] for row in parts]
    totals = [fsum(column) for column in zip(*parts, strict=True)]
    return [[part / total for part, total in zip(row, totals, strict=True)] for row in parts]


def metropolis(n: int, arcs: set[tuple[PeerId, PeerId]]) -> Matrix:
    """A symmetric matrix of an undirected graph."""
    degrees = [sum(i == a for a, _ in arcs) for i in range(n)]
    rows = [[1.0 / (1 + max(degrees[i], degrees[j])) if (i, j) in arcs else 0.0 for j in range(n)] for i in range(n)]
    return [[1.0 - fsum(row) if j == i else w for j, w in enumerate(row)] for i, row in enumerate(rows)]


@st.composite
def schedules(draw: st.DrawFn, sums: Sums | Literal["symmetric"]) -> list[Matrix]:
    """W of 1 to 5 rounds, directed or not; before some of them nobody hears anybody for a while."""
    n = draw(st.integers(1, 6), label="peers")
    both_ways = sums == "symmetric" or draw(st.booleans(), label="both ways")
    matrices: list[Matrix] = []
    for _ in range(draw(st.integers(1, 5), label="period")):
        arcs = draw(arcs_of(n, both_ways))
        matrices.append(metropolis(n, arcs) if sums == "symmetric" else matrix_of(n, arcs, sums))
    silence = draw(st.sampled_from([0, 0, 1, 4]), label="silent rounds")
    return [metropolis(n, set())] * silence + matrices


orders = st.builds(Random, st.integers(0, 2**32 - 1))
metrics = st.builds(Metric, st.sampled_from([0.3, 0.7, 1.5, 2.5]), st.integers(1, 4))
beds = settings(deadline=None, max_examples=60, print_blob=True)


def check_that_nothing_is_left(bed: Bed) -> None:
    assert bed.possible() == []
    for core in bed.cores:
        if core.me not in bed.dead and bed.finished[core.me] == "finished":
            assert core._inbox == {}
            assert core._outbox.waiting == {}
            assert core.waits_for() == set()


@pytest.mark.parametrize("sums", ["rows", "columns"])
@beds
@given(data=st.data(), rounds=st.integers(1, 12), exchanges=st.integers(1, 2), random=orders)
def test_the_result_is_the_matrix_product_whatever_the_order(
    sums: Sums, data: st.DataObject, rounds: int, exchanges: int, random: Random
) -> None:
    """Heartbeats come in between. What may be in an inbox, and that the weights sum to 1, is seen to by the bed."""
    matrices = data.draw(schedules(sums))
    bed = Bed(matrices, rounds, exchanges, sums)
    bed.join_all()
    bed.run(random, beats=0.05)
    assert bed.finished == dict.fromkeys(bed.alive, "finished")
    assert bed.history() == dense(matrices, rounds, exchanges)
    assert bed.alerts == []
    assert all(core.short_rounds == 0 for core in bed.cores)
    check_that_nothing_is_left(bed)


@beds
@given(matrices=schedules("rows"), enough=st.integers(1, 8), random=orders)
def test_until_all_are_stopped(matrices: list[Matrix], enough: int, random: Random) -> None:
    bed = Bed(matrices, rounds=0)
    bed.join_all()
    bed.run(random, until_round=enough)
    assert all(core.round >= enough for core in bed.cores)
    expected = dense(matrices, max(map(len, bed.after.values())))
    for peer, after in bed.after.items():
        assert after == [x[peer] for x in expected[: len(after)]]
    for peer in sorted(bed.alive):
        bed.stop(peer)
    bed.run(random)
    assert bed.finished == dict.fromkeys(bed.alive, "interrupted")
    assert bed.possible() == []


@beds
@given(arcs=arcs_of(5, both_ways=True), metric=metrics, rounds=st.integers(1, 12), random=orders)
def test_the_metric_in_any_order(arcs: set[tuple[PeerId, PeerId]], metric: Metric, rounds: int, random: Random) -> None:
    matrix = matrix_of(5, arcs, "rows")
    bed = Bed([matrix], rounds, metric=metric)
    bed.join_all()
    bed.run(random, beats=0.05)
    assert bed.finished == dict.fromkeys(bed.alive, "finished")
    assert bed.history() == dense([matrix], rounds, metric=metric)
    assert bed.alerts == []
    assert all(core.short_rounds == 0 for core in bed.cores)
    check_that_nothing_is_left(bed)


@beds
@given(
    arcs=arcs_of(4, both_ways=True),
    metric=metrics,
    errors=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=8),
    random=orders,
)
def test_two_that_disagree_do_so_for_one_round(
    arcs: set[tuple[PeerId, PeerId]], metric: Metric, errors: set[tuple[PeerId, PeerId, int]], random: Random
) -> None:
    """In that round the one mixes and the other does not, and in the next the one sends and the other skips."""
    metric = Metric(metric.threshold, metric.look_again, frozenset(errors))
    bed = Bed([metropolis(4, arcs)], 12, metric=metric)
    bed.join_all()
    bed.run(random)
    assert bed.finished == dict.fromkeys(bed.alive, "finished")
    said = {(a, b, m.round): type(m) for a, b, m in bed.sent if isinstance(m, Data | Skip)}
    for i, j in arcs:
        before = True
        for round in range(12):
            agree = ((i, j, round) in errors) == ((j, i, round) in errors)
            assert not before or said[i, j, round] == said[j, i, round]
            assert not agree or (j in bed.weights[round, 0, i]) == (i in bed.weights[round, 0, j])
            before = agree


# ---- Any schedule, with anything going wrong

troubles = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from(["kill", "cut", "stop", "babble"])), min_size=1, max_size=6
)


@pytest.mark.parametrize("sums", ["rows", "columns"])
@beds
@given(data=st.data(), rounds=st.integers(1, 12), exchanges=st.integers(1, 2), troubles=troubles, random=orders)
def test_whoever_lives_finishes(
    sums: Sums,
    data: st.DataObject,
    rounds: int,
    exchanges: int,
    troubles: list[tuple[int, Trouble]],
    random: Random,
) -> None:
    """Deaths, links that break, stops and nonsense at any step. The weights go on summing to 1, see the bed."""
    bed = Bed(data.draw(schedules(sums)), rounds, exchanges, sums)
    bed.join_all()
    bed.run_through(troubles, random)
    check_that_all_came_to_an_end(bed, rounds, troubles)


@beds
@given(arcs=arcs_of(5, both_ways=True), metric=metrics, rounds=st.integers(1, 12), troubles=troubles, random=orders)
def test_whoever_lives_finishes_under_the_metric(
    arcs: set[tuple[PeerId, PeerId]],
    metric: Metric,
    rounds: int,
    troubles: list[tuple[int, Trouble]],
    random: Random,
) -> None:
    bed = Bed([matrix_of(5, arcs, "rows")], rounds, metric=metric)
    bed.join_all()
    bed.run_through(troubles, random)
    check_that_all_came_to_an_end(bed, rounds, troubles)


def check_that_all_came_to_an_end(bed: Bed, rounds: int, troubles: list[tuple[int, Trouble]]) -> None:
    assert bed.finished.keys() >= bed.alive
    for peer in bed.alive:
        assert bed.finished[peer] == "finished" or "stop" in [kind for _, kind in troubles]
        assert len(bed.after[peer]) == rounds or bed.finished[peer] == "interrupted"
    check_that_nothing_is_left(bed)


# ---- A symmetric W stays symmetric among those that are left


@beds
@given(
    matrices=schedules("symmetric"),
    deaths=st.lists(st.integers(0, 120), min_size=1, max_size=4),
    exchanges=st.integers(1, 2),
    random=orders,
)
def test_whoever_dies_the_living_mix_each_other_symmetrically(
    matrices: list[Matrix], deaths: list[int], exchanges: int, random: Random
) -> None:
    """So in each round in which nothing of the dead is mixed any more, the mean of the living is kept."""
    bed = Bed(matrices, 12, exchanges)
    bed.join_all()
    bed.run_through([(step, "kill") for step in deaths], random)
    for round in range(12 if bed.alive else 0):
        mixes = [{i: bed.weights[round, exchange, i] for i in bed.alive} for exchange in range(exchanges)]
        for weights in mixes:
            matrix = matrices[round % len(matrices)]
            for i in bed.alive:
                others = {j: weights[i].get(j, 0.0) for j in bed.alive - {i}}
                assert others == {j: weights[j].get(i, 0.0) for j in bed.alive - {i}}
                assert others == {j: matrix[i][j] for j in bed.alive - {i}}
        if all(row.keys() <= bed.alive for weights in mixes for row in weights.values()):
            before = [bed.after[i][round - 1] if round else float(i) for i in bed.alive]
            trained = fsum(before) + fsum(drift(i, round) for i in bed.alive)
            assert fsum(bed.after[i][round] for i in bed.alive) == pytest.approx(trained, rel=1e-12)


@beds
@given(matrices=schedules("symmetric"), dead=st.sets(st.integers(0, 5), min_size=1), random=orders)
def test_the_mean_of_those_that_are_there_from_the_start_is_kept(
    matrices: list[Matrix], dead: set[PeerId], random: Random
) -> None:
    bed = Bed(matrices, 8)
    bed.join_all()
    for peer in sorted(dead & bed.alive):
        bed.kill(peer, random)
    bed.run(random)
    total = float(sum(bed.alive))
    for round in range(8 if bed.alive else 0):
        total += fsum(drift(i, round) for i in bed.alive)
        assert fsum(bed.after[i][round] for i in bed.alive) == pytest.approx(total, rel=1e-12)
