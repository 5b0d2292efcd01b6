"""A coordinator in rounds: stories as they should go, and numbers."""

from math import inf

import pytest

from peer.protocol.by_rounds import ByRounds
from peer.protocol.coordinator import Present
from tests.coordinator_numbers import Class, slope
from tests.coordinator_story import HUB, W0, Told, asynchronous, sync, told_of_three, told_of_two
from tests.four_peers import DIGITS, START, TRACES

# ---- Synchronous


def test_two_rounds_of_two_workers_to_the_end() -> None:
    told_of_two(sync(rounds=2)).play(
        """
        > 1 push 1 from w0
        > 1 push 1 from w0  (again)
        > 0 push 1 from w0
            apply to w0: 0.5 x 0's 1, 0.5 x 1's 1
        > 0 push 1 from w0  (again)
        > applied
            to 1: global w1 heard 1
            to 0: global w1 heard 1
        > 1 pull  (again, late)
        > 0 push 2 from w1
        > 0 heartbeat 1
        > 1 push 2 from w1
            apply to w1: 0.5 x 0's 2, 0.5 x 1's 2
        > applied
            to 0: global w2 heard 2
            to 0: bye 2
            to 1: global w2 heard 2
            to 1: bye 2
        > 1 bye 2
        > 0 bye 2
            finish: finished
        > joined 0
        """
    )


def test_the_weights_of_those_that_have_pushed_sum_to_1() -> None:
    told_of_three(ByRounds(HUB, range(3), 0, W0, weights={0: 10, 1: 20, 2: 30})).play(
        """
        > 1 push 1 from w0
        > 2 push 1 from w0
        > lost 0 silent
            alert, 0: is lost (silent)
            apply to w0: 0.4 x 1's 1, 0.6 x 2's 1
        """
    )


def test_a_barrier_does_not_wait_for_one_that_is_lost_and_what_it_has_pushed_counts() -> None:
    told = told_of_three(sync(3)).play(
        """
        > 1 push 1 from w0
        > lost 1 cut off
            alert, 1: is lost (cut off)
        > 2 push 1 from w0
        > lost 0 cut off
            alert, 0: is lost (cut off)
            apply to w0: 0.5 x 1's 1, 0.5 x 2's 1
        > applied
            to 2: global w1 heard 1
        """
    )
    assert told.core.lost == {0: "cut off", 1: "cut off"}
    assert told.core.short_rounds == 1


def test_one_that_comes_back_is_given_the_present_version_and_is_waited_for() -> None:
    told_of_two(sync()).play(
        """
        > lost 1 cut off
            alert, 1: is lost (cut off)
        > 0 push 1 from w0
            apply to w0: 1 x 0's 1
        > joined 1  (started anew)
        > 1 pull
        > applied
            to 0: global w1 heard 1
            to 1: global w1 heard 0
        > 0 push 2 from w1
        > 1 push 1 from w1
            apply to w1: 0.5 x 0's 2, 0.5 x 1's 1
        """
    )


def test_one_that_comes_back_while_it_trains_is_waited_for_and_what_is_too_old_is_dropped() -> None:
    told = told_of_two(sync()).play(
        """
        > lost 1 cut off
            alert, 1: is lost (cut off)
        > 0 push 1 from w0
            apply to w0: 1 x 0's 1
        > applied
            to 0: global w1 heard 1
        > joined 1
        > 1 pull working at 0
        > 0 push 2 from w1
        > 1 push 1 from w0
            to 1: global w1 heard 1
        > 1 push 2 from w1
            apply to w1: 0.5 x 0's 2, 0.5 x 1's 2
        """
    )
    assert told.core.waits_for() == set()
    assert isinstance(told.core, ByRounds)
    assert told.core.dropped == 1


def test_one_that_is_started_anew_when_all_is_done_is_sent_home() -> None:
    told_of_two(sync(rounds=1)).play(
        """
        > 0 push 1 from w0
        > 1 push 1 from w0
            apply to w0: 0.5 x 0's 1, 0.5 x 1's 1
        > applied
            to 0: global w1 heard 1
            to 0: bye 1
            to 1: global w1 heard 1
            to 1: bye 1
        > 0 bye 1
        > joined 0
        > 1 bye 1
        > 0 pull
            to 0: global w1 heard 1
            to 0: bye 1
        > 0 bye 0
            finish: finished
        """
    )


def test_one_that_is_away_when_all_is_done_is_given_the_last_version_when_it_is_back() -> None:
    told_of_two(sync(rounds=1)).play(
        """
        > 1 push 1 from w0
        > lost 1 cut off
            alert, 1: is lost (cut off)
        > 0 push 1 from w0
            apply to w0: 0.5 x 0's 1, 0.5 x 1's 1
        > applied
            to 0: global w1 heard 1
            to 0: bye 1
        > joined 1
        > 0 bye 1
        > 1 push 1 from w0
            to 1: global w1 heard 1
            to 1: bye 1
        > lost 1 cut off  (again, before it has got that)
            alert, 1: is lost (cut off)
            finish: finished
        """
    )


def test_who_stops_a_coordinator_during_the_last_update_still_gives_the_last_version() -> None:
    """But to one that has not spoken since it is back it can only say goodbye."""
    told_of_two(sync(rounds=1)).play(
        """
        > 1 push 1 from w0
        > 0 push 1 from w0
            apply to w0: 0.5 x 0's 1, 0.5 x 1's 1
        > lost 1 cut off
            alert, 1: is lost (cut off)
        > joined 1
        > stop
        > applied
            to 0: global w1 heard 1
            to 0: bye 1
            to 1: bye 1
            finish: finished
        """
    )


def test_one_that_is_started_anew_does_its_part_of_the_round_again() -> None:
    told = told_of_two(sync()).play(
        """
        > 1 push 1 from w0
        > lost 1 silent
            alert, 1: is lost (silent)
        > joined 1
        > 1 pull
            to 1: global w0 heard 1
        > 0 push 1 from w0
        > 1 push 2 from w0
            apply to w0: 0.5 x 0's 1, 0.5 x 1's 2
        """
    )
    assert isinstance(told.core, ByRounds)
    assert told.core.dropped == 1


def test_what_was_heard_before_a_loss_is_not_taken_again_when_it_is_said_again() -> None:
    told_of_two(sync()).play(
        """
        > 1 push 1 from w0
        > lost 1 cut off
            alert, 1: is lost (cut off)
        > joined 1
        > 1 push 1 from w0
        > 0 push 1 from w0
            apply to w0: 0.5 x 0's 1, 0.5 x 1's 1
        > applied
            to 1: global w1 heard 1
            to 0: global w1 heard 1
        """
    )


def test_only_those_chosen_are_asked_and_waited_for() -> None:
    Told(ByRounds(HUB, range(2), 0, W0, chosen=lambda version: {version % 2})).play(
        """
        > joined 0
        > 0 pull
        > joined 1
        > 1 pull
            to 0: global w0 heard 0
        > 0 push 1 from w0
            apply to w0: 1 x 0's 1
        > applied
            to 1: global w1 heard 0
        """
    )


def test_where_none_of_those_chosen_is_there_everybody_is_asked() -> None:
    Told(ByRounds(HUB, range(3), 0, W0, chosen=lambda version: {0})).play(
        """
        > joined 0
        > 0 pull
        > joined 1
        > 1 pull
        > joined 2
        > 2 pull
            to 0: global w0 heard 0
        > lost 0 silent
            alert, 0: is lost (silent)
            to 1: global w0 heard 0
            to 2: global w0 heard 0
        """
    )


def test_when_nobody_is_left_the_run_has_failed() -> None:
    told_of_two(sync()).play(
        """
        > lost 0 silent
            alert, 0: is lost (silent)
        > lost 1 silent
            alert, 1: is lost (silent)
            finish: failed, no worker is left to go on from version 0
        """
    )


def test_the_last_update_is_completed_when_its_workers_are_gone() -> None:
    told_of_two(sync(rounds=1)).play(
        """
        > 0 push 1 from w0
        > 1 push 1 from w0
            apply to w0: 0.5 x 0's 1, 0.5 x 1's 1
        > lost 0 silent
            alert, 0: is lost (silent)
        > lost 1 silent
            alert, 1: is lost (silent)
        > applied
            finish: finished
        """
    )


def test_it_begins_without_a_worker_that_never_came() -> None:
    Told(sync()).play(
        """
        > joined 1
        > 1 pull
        > lost 0 never heard
            alert, 0: is lost (never heard)
            to 1: global w0 heard 0
        """
    )


def test_one_that_pushes_what_it_was_not_asked_for_is_counted_as_lost() -> None:
    told_of_two(sync()).play(
        """
        > 1 push 1 from w3
            alert, 1: is lost (pushed something of version 3 that it was not asked for)
        > 1 push 2 from w0
        > 0 push 1 from w0
            apply to w0: 1 x 0's 1
        """
    )


def test_numbers_that_are_not_finite_are_named_and_the_version_counts() -> None:
    told_of_two(sync()).play(
        """
        > 0 push 1 from w0
        > 1 push 1 from w0
            apply to w0: 0.5 x 0's 1, 0.5 x 1's 1
        > applied without 1
            alert, 1: pushed numbers that are not finite for version 0; they were not applied
            to 0: global w1 heard 1
            to 1: global w1 heard 1
        """
    )


def test_who_stops_a_coordinator_sends_all_home() -> None:
    told_of_two(sync()).play(
        """
        > stop
            to 0: bye 0
            to 1: bye 0
            finish: interrupted
        """
    )


def test_an_update_at_hand_is_completed_before_a_stop() -> None:
    told_of_two(asynchronous(rounds=2)).play(
        """
        > 1 push 1 from w0
            apply to w0: 1 x 1's 1
        > stop
        > applied
            to 0: bye 1
            to 1: bye 1
            finish: interrupted
        """
    )


def test_a_worker_that_is_stopped_is_waited_for_no_longer() -> None:
    told_of_two(sync()).play(
        """
        > 0 push 1 from w0
        > 1 bye 0
            alert, 1: is lost (left after 0 pushes)
            apply to w0: 1 x 0's 1
        """
    )


# ---- A coordinator that has fallen


def test_another_goes_on_from_what_was_stored_and_applies_nothing_twice() -> None:
    """Worker 0's push is in w3, worker 1's second came and went with the fall, and worker 2 trains on."""
    Told(sync(3, present=Present("w3", 3, {0: 3, 1: 1, 2: 2}))).play(
        """
        > joined 0
        > 0 push 3 from w2
        > joined 1
        > 1 push 2 from w3
        > joined 2
        > 2 pull working at 3
            to 0: global w3 heard 3
        > 0 push 4 from w3
        > 2 push 3 from w3
            apply to w3: 0.333333 x 0's 4, 0.333333 x 1's 2, 0.333333 x 2's 3
        """
    )


def test_what_was_made_of_a_version_that_is_lost_is_dropped() -> None:
    Told(sync(1, present=Present("w3", 3, {0: 3}))).play(
        """
        > joined 0
        > 0 push 5 from w4
            to 0: global w3 heard 5
        """
    )


def test_where_versions_are_lost_everybody_makes_the_round_again() -> None:
    """Worker 0's push is of w3 and would do; but beside another coordinator worker 1 may have to wait for worker 0."""
    told = Told(sync(3, present=Present("w3", 3, {0: 3, 1: 3, 2: 3}))).play(
        """
        > joined 0
        > 0 push 4 from w3
        > joined 1
        > 1 push 5 from w4
        > lost 2 never heard
            alert, 2: is lost (never heard)
            to 0: global w3 heard 4
            to 1: global w3 heard 5
        > joined 2
        > 2 push 4 from w3
            to 2: global w3 heard 4
        > 2 push 5 from w3
        > 1 push 6 from w3
        > 0 push 5 from w3
            apply to w3: 0.333333 x 0's 5, 0.333333 x 1's 6, 0.333333 x 2's 5
        > applied
            to 2: global w4 heard 5
            to 1: global w4 heard 6
            to 0: global w4 heard 5
        """
    )
    assert isinstance(told.core, ByRounds)
    assert told.core.dropped == 3


def test_one_that_fell_when_all_was_done_says_goodbye() -> None:
    Told(sync(2, rounds=3, present=Present("w3", 3, {0: 3}))).play(
        """
        > joined 0
        > 0 push 3 from w2
            to 0: global w3 heard 3
            to 0: bye 3
        > 0 bye 3
        > lost 1 never heard
            alert, 1: is lost (never heard)
            finish: finished
        """
    )


# ---- Quorum


def test_a_round_closes_on_a_count_and_what_is_late_is_dropped() -> None:
    told = told_of_three(ByRounds(HUB, range(3), 0, W0, count=2)).play(
        """
        > 2 push 1 from w0
        > 0 push 1 from w0
            apply to w0: 0.5 x 0's 1, 0.5 x 2's 1
        > 1 push 1 from w0  (while it is applied)
        > applied
            to 2: global w1 heard 1
            to 0: global w1 heard 1
            to 1: global w1 heard 1
        """
    )
    assert told.core.short_rounds == 1


def test_a_late_push_may_count_in_the_next_round() -> None:
    told_of_three(ByRounds(HUB, range(3), 0, W0, count=2, late="stale")).play(
        """
        > 2 push 1 from w0
        > 0 push 1 from w0
            apply to w0: 0.5 x 0's 1, 0.5 x 2's 1
        > applied
            to 2: global w1 heard 1
            to 0: global w1 heard 1
        > 1 push 1 from w0
        > 0 push 2 from w1
            apply to w1: 0.5 x 0's 2, 0.5 x 1's 1 stale by 1
        """
    )


def test_a_round_closes_when_no_more_can_come() -> None:
    told_of_three(ByRounds(HUB, range(3), 0, W0, count=2)).play(
        """
        > 1 push 1 from w0
        > lost 0 silent
            alert, 0: is lost (silent)
        > lost 2 silent
            alert, 2: is lost (silent)
            apply to w0: 1 x 1's 1
        """
    )


def test_a_round_closes_on_a_timer() -> None:
    told = told_of_two(ByRounds(HUB, range(2), 0, W0, timer_s=3.0))
    assert told.core.deadline_s == 4.0 + 3.0
    told.play(
        """
        > 1 push 1 from w0
        > tick  (too early)
        > tick
            apply to w0: 1 x 1's 1
        """
    )
    assert told.core.deadline_s == inf


def test_a_timer_runs_from_the_beginning_of_each_round() -> None:
    told = told_of_two(ByRounds(HUB, range(2), 0, W0, timer_s=3.0)).play(
        """
        > 1 push 1 from w0
        > 0 push 1 from w0
            apply to w0: 0.5 x 0's 1, 0.5 x 1's 1
        """
    )
    assert told.core.deadline_s == inf
    told.play(
        """
        > applied
            to 1: global w1 heard 1
            to 0: global w1 heard 1
        """
    )
    assert told.core.deadline_s == 7.0 + 3.0


def test_where_nothing_came_in_time_the_first_push_closes_the_round() -> None:
    told = told_of_two(ByRounds(HUB, range(2), 0, W0, timer_s=1.0)).play("> tick")
    assert told.core.deadline_s == inf
    told.play(
        """
        > 1 push 1 from w0
            apply to w0: 1 x 1's 1
        """
    )


# ---- Numbers


def test_a_barrier_is_the_mean_gradient() -> None:
    trace = TRACES["sync_mean_gradient_lr0.1"]["w"]
    bed = Class(ByRounds(HUB, range(4), len(trace) - 1, Present(START)), 0.1, START, slope)
    while bed.training:
        bed.train(max(bed.training))
    assert bed.w == pytest.approx(trace, rel=DIGITS)
