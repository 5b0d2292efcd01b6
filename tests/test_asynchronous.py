"""Asynchronous neighbour averaging: stories of one peer as they should go, and beds of many in any order."""

from random import Random

import pytest

from peer.protocol.asynchronous import Asynchronous
from peer.protocol.messages import Data, Mix, Neighbourhood, PeerJoined, Received, Term, Trained
from tests.async_bed import bed_of, run_to_the_end, troubles_of
from tests.async_story import check

BEDS, BEDS_WITH_TROUBLE, BEDS_OF_LONG_RUNS = 150, 250, 20


def in_a_ring_of_three(rounds: int = 2, max_staleness: int | None = None) -> Asynchronous:
    around = Neighbourhood({0: 0.25, 1: 0.5, 2: 0.25}, {0: 0.25, 2: 0.25})
    return Asynchronous(1, rounds, lambda _: around, max_staleness=max_staleness)


def of_two(rounds: int = 0) -> Asynchronous:
    around = Neighbourhood({0: 0.5, 1: 0.5}, {1: 0.5})
    return Asynchronous(0, rounds, lambda _: around)


# ---- Stories: rounds


def test_two_rounds_in_a_ring_of_three() -> None:
    check(
        in_a_ring_of_three(),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > 0 data 0
            to 0: done 0
        > trained
            to 0: data 0
            to 2: data 0
            mix 0: 0.25 x 0's 0 + 0.75 x 1's 0
        > 2 data 0
            to 2: done 0
        > 0 done 0
        > mixed
            train 1
        > trained  (2 has not answered yet)
            to 0: data 1
            mix 1: 0.25 x 0's 0 (stale 1) + 0.5 x 1's 1 + 0.25 x 2's 0
        > mixed
            to 0: bye 2
            to 2: bye 2
            finish: finished
        > 2 done 0
        """,
    )


def test_a_peer_without_neighbours_trains_alone() -> None:
    check(
        Asynchronous(0, 1, lambda _: Neighbourhood({0: 1.0}, {})),
        """
        > 0 starts
            train 0
        > trained
            mix 0: 1 x 0's 0
        > mixed
            finish: finished
        """,
    )


def test_a_slow_listener_gets_the_newest_message_when_it_has_answered() -> None:
    check(
        of_two(),
        """
        > 0 starts
        > joined 1
            train 0
        > trained
            to 1: data 0
            mix 0: 1 x 0's 0
        > mixed
            train 1
        > trained
            mix 1: 1 x 0's 1
        > mixed
            train 2
        > trained
            mix 2: 1 x 0's 2
        > 1 done 0
            to 1: data 2
        > 1 done 0  (again)
        > 1 done 2
        > mixed
            train 3
        """,
    )


def test_of_each_neighbour_the_newest_message_counts_whatever_comes_last() -> None:
    check(
        of_two(),
        """
        > 0 starts
        > joined 1
            train 0
        > 1 data 4
            to 1: done 4
        > 1 data 3  (it was overtaken)
            to 1: done 3
        > 1 data 4  (again)
            to 1: done 4
        > trained
            to 1: data 0
            mix 0: 0.5 x 0's 0 + 0.5 x 1's 4
        """,
    )


def test_what_is_too_stale_gives_its_weight_to_the_peer_itself() -> None:
    check(
        in_a_ring_of_three(rounds=0, max_staleness=1),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > 0 data 0
            to 0: done 0
        > trained
            to 0: data 0
            to 2: data 0
            mix 0: 0.25 x 0's 0 + 0.75 x 1's 0
        > mixed
            train 1
        > trained
            mix 1: 0.25 x 0's 0 (stale 1) + 0.75 x 1's 1
        > mixed
            train 2
        > trained
            mix 2: 1 x 1's 2
        > mixed
            train 3
        > 0 data 0  (again: it stays too old)
            to 0: done 0
        > 0 data 1
            to 0: done 1
        > trained
            mix 3: 0.25 x 0's 1 + 0.75 x 1's 3
        """,
    )


def test_staleness_is_counted_in_own_mixes_and_age_in_seconds() -> None:
    core = of_two()
    core.start(0.0)
    core.handle(PeerJoined(1), 1.0)
    core.handle(Received(1, Data(0, 0, "theirs")), 2.5)
    mix = core.handle(Trained(0, "own"), 10.0)[-1]
    assert mix == Mix(0, 0, 0, (Term(0.5, 0, "own"), Term(0.5, 1, "theirs", staleness=0, age_s=7.5)))


def test_numbers_that_are_not_finite_are_reported_once_and_not_offered_again() -> None:
    check(
        of_two(),
        """
        > 0 starts
        > joined 1
            train 0
        > 1 data 0
            to 1: done 0
        > trained
            to 1: data 0
            mix 0: 0.5 x 0's 0 + 0.5 x 1's 0
        > mixed without 1
            alert, 1: sent numbers that are not finite in round 0; they were not mixed
            train 1
        > trained
            mix 1: 1 x 0's 1
        """,
    )


# ---- Stories: neighbours come and go


def test_the_weight_of_a_lost_neighbour_goes_to_the_peer_itself() -> None:
    core = in_a_ring_of_three()
    check(
        core,
        """
        > 1 starts
        > joined 0
        > lost 2 never heard within 60 s
            alert, 2: is lost (never heard within 60 s)
            train 0
        > 0 data 0
            to 0: done 0
        > 2 data 0  (of one that is lost)
        > 7 data 0  (of a stranger)
        > lost 0 silent for 5.0 s
            alert, 0: is lost (silent for 5.0 s)
        > trained
            mix 0: 1 x 1's 0
        """,
    )
    assert core.alive == set()
    assert core.waits_for() == set()
    assert core.lost == {2: "never heard within 60 s", 0: "silent for 5.0 s"}


def test_it_waits_for_those_that_have_not_joined() -> None:
    core = in_a_ring_of_three()
    core.start(0.0)
    core.handle(PeerJoined(2), 0.0)
    assert (core.phase, core.waits_for()) == ("waiting", {0})


def test_what_a_finished_neighbour_said_last_goes_on_counting() -> None:
    core = in_a_ring_of_three()
    check(
        core,
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > 0 data 1
            to 0: done 1
        > 0 bye 2
        > 2 bye 1
            alert, 2: is lost (left after round 1)
        > trained
            mix 0: 0.25 x 0's 1 + 0.75 x 1's 0
        > mixed
            train 1
        > lost 0 gone  (it was done: no loss)
        """,
    )
    assert core.lost == {2: "left after round 1"}


def test_stop_says_goodbye() -> None:
    check(
        in_a_ring_of_three(),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > stop
            to 0: bye 0
            to 2: bye 0
            finish: interrupted
        > trained
        """,
    )


def test_a_new_life_begins_with_nothing_heard_and_nothing_unanswered() -> None:
    check(
        of_two(),
        """
        > 0 starts
        > joined 1
            train 0
        > 1 data 7
            to 1: done 7
        > trained
            to 1: data 0
            mix 0: 0.5 x 0's 0 + 0.5 x 1's 7
        > mixed
            train 1
        > lost 1 silent
            alert, 1: is lost (silent)
        > joined 1
            to 1: resume 1
        > trained
            to 1: data 1
            mix 1: 1 x 0's 1
        > 1 data 0  (it has begun anew)
            to 1: done 0
        > mixed
            train 2
        > trained
            mix 2: 0.5 x 0's 2 + 0.5 x 1's 0
        """,
    )


# ---- Stories: coming back


def test_who_lags_far_behind_takes_the_parameters_of_a_neighbour() -> None:
    check(
        in_a_ring_of_three(rounds=100),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > 0 resume 40
            to 0: fetch
        > 2 resume 41  (one is enough)
        > 2 model 41  (nobody asked for it)
        > trained
            to 0: data 0
            to 2: data 0
            mix 0: 1 x 1's 0
        > 0 model 42  (it waits for the mix)
        > 0 model 42
        > mixed
            adopt 0's, round 42
        > 0 resume 60
        > trained 1  (void)
        > adopted 42
            train 42
        > trained 1  (void)
        > trained
            mix 42: 1 x 1's 42
        """,
    )


def test_local_steps_that_have_begun_are_void_when_the_model_comes() -> None:
    check(
        of_two(rounds=100),
        """
        > 0 starts
        > joined 1
            train 0
        > 1 resume 11
            to 1: fetch
        > 1 model 12
            adopt 1's, round 12
        > trained 0
        > adopted 12
            train 12
        """,
    )


def test_nobody_goes_back_nor_says_what_was_learned_before_a_model_came() -> None:
    check(
        of_two(rounds=100),
        """
        > 0 starts
        > joined 1
            train 0
        > trained
            to 1: data 0
            mix 0: 1 x 0's 0
        > mixed
            train 1
        > trained
            mix 1: 1 x 0's 1
        > mixed
            train 2
        > 1 resume 13
            to 1: fetch
        > 1 model 1
            adopt 1's, round 2
        > 1 done 0
        > adopted 2
            train 2
        > 1 resume 12
        """,
    )


def test_who_is_not_yet_on_its_way_adopts_too_and_then_goes_on_waiting_for_the_others() -> None:
    core = in_a_ring_of_three(rounds=100)
    check(
        core,
        """
        > 1 starts
        > joined 0
        > 0 resume 40
            to 0: fetch
        > 0 model 100  (nobody who is done says so)
        > 0 resume 40
            to 0: fetch
        > 0 model 40
            adopt 0's, round 40
        > adopted 40
        """,
    )
    assert (core.phase, core.round, core.waits_for()) == ("waiting", 40, {2})
    check(
        core,
        """
        > 2 bye 100  (it was done before it was seen)
            train 40
        """,
    )


def test_who_lags_little_keeps_its_own_parameters() -> None:
    check(
        of_two(rounds=100),
        """
        > 0 starts
        > joined 1
            train 0
        > trained
            to 1: data 0
            mix 0: 1 x 0's 0
        > mixed
            train 1
        > 1 resume 11
        """,
    )


def test_who_has_completed_no_round_has_nothing_to_keep() -> None:
    check(
        of_two(rounds=100),
        """
        > 0 starts
        > joined 1
            train 0
        > 1 resume 1
            to 1: fetch
        """,
    )


def test_who_was_done_and_was_started_anew_is_told_the_round() -> None:
    check(
        of_two(rounds=3),
        """
        > 0 starts
        > joined 1
            train 0
        > 1 bye 3
        > joined 1
            to 1: resume 0
        """,
    )


def test_a_model_of_one_that_was_lost_meanwhile_is_asked_of_another() -> None:
    check(
        in_a_ring_of_three(rounds=100),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > 0 resume 40
            to 0: fetch
        > lost 0 silent
            alert, 0: is lost (silent)
        > 2 resume 40
            to 2: fetch
        > 2 model 40
            adopt 2's, round 40
        """,
    )


def test_who_is_asked_gives_a_copy_of_its_parameters() -> None:
    check(
        in_a_ring_of_three(),
        """
        > 1 starts
        > joined 0
        > joined 2
            train 0
        > lost 0 silent
            alert, 0: is lost (silent)
        > joined 0
            to 0: resume 0
        > 0 fetch
            copy for 0
        > 0 fetch  (again)
        > 2 fetch
            copy for 2
        > lost 2 silent
            alert, 2: is lost (silent)
        > copied for 2
        > copied for 0
            to 0: model 0, 1's
        > 0 fetch
            copy for 0
        > lost 0 silent
            alert, 0: is lost (silent)
        > joined 0
            to 0: resume 0
        > copied for 0  (it was asked for in an earlier life)
        """,
    )


# ---- Beds


@pytest.mark.parametrize("seed", range(BEDS))
def test_in_any_order_all_come_to_the_end(seed: int) -> None:
    bed = bed_of("asynchronous", seed)
    run_to_the_end(bed)
    assert set(bed.finished.values()) == {"finished"}
    assert all(core.round == core.rounds and not core.lost for core in bed.cores)


@pytest.mark.parametrize("seed", range(BEDS_WITH_TROUBLE))
def test_losses_and_returns_stop_nobody(seed: int) -> None:
    bed = bed_of("asynchronous", seed)
    run_to_the_end(bed, troubles_of(bed, bed.cores[0].rounds, Random(seed)) if bed.links else ())


def test_in_long_runs_some_come_back_far_behind() -> None:
    adopted = 0
    for seed in range(BEDS_OF_LONG_RUNS):
        bed = bed_of("asynchronous", seed, rounds=60)
        run_to_the_end(bed, troubles_of(bed, 60, Random(seed)) if bed.links else ())
        adopted += len(bed.adopted)
    assert adopted >= 3
