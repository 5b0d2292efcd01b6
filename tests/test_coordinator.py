"""A coordinator and its workers: stories of one core as they should go, numbers, and beds of many in any order."""

import re
from collections.abc import Callable
from math import inf
from random import Random
from textwrap import dedent

import pytest

from peer.protocol.coordinator import ByArrival, ByRounds, Coordinator, Present
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Applied,
    Apply,
    Bye,
    Command,
    Effect,
    Event,
    Finish,
    Global,
    Heartbeat,
    PeerId,
    PeerJoined,
    PeerLost,
    Pull,
    Push,
    Received,
    Send,
    Tick,
    Train,
    Trained,
)
from peer.protocol.worker import Worker
from tests.coordinator_bed import Class, CoordinatorBed, Token
from tests.four_peers import CURVATURES, DIGITS, SLOPES, START, TRACES

HUB = 9  # the coordinator in stories
W0 = Present("w0")
BEDS, BEDS_WITH_TROUBLE = 80, 250  # of each discipline


# ---- Stories: what a core is told, and what it then asks for


class Told:
    """Plays a story's lines with ">", one each second; a story may go on from another one.

    What worker 1 pushes as its second is "1's 2", and the parameters of version 3 are "w3".
    """

    def __init__(self, core: Coordinator | Worker) -> None:
        self.core = core
        self.now_s = 0.0
        assert core.start(0.0) == []

    def play(self, story: str) -> "Told":
        lines = dedent(story).strip().splitlines()
        told = []
        for line in (line for line in lines if line.startswith(">")):
            self.now_s += 1.0
            effects = self.core.handle(self.event(line[1:]), self.now_s)
            told += [line, *(f"    {show(effect)}" for effect in effects)]
        assert told == lines, "\n".join(["it went otherwise:", *told])
        return self

    def event(self, line: str) -> Event:
        core = self.core
        match re.sub(r"\s*\(.*\)$", "", line).split():
            case ["joined", peer]:
                return PeerJoined(int(peer))
            case ["lost", peer, *reason]:
                return PeerLost(int(peer), " ".join(reason))
            case ["tick"]:
                return Tick()
            case ["stop"]:
                return Command("stop")
            case ["adopted"]:
                return Adopted(core.round)
            case ["trained"]:
                return Trained(core.round, f"{core.me}'s {core.round + 1}")
            case ["applied"]:
                return Applied(f"w{core.round + 1}")
            case ["applied", "without", peer]:
                return Applied(f"w{core.round + 1}", (int(peer),))
            case [sender, "bye", rounds]:
                return Received(int(sender), Bye(int(rounds)))
            case [sender, "heartbeat", round]:
                return Received(int(sender), Heartbeat(int(round)))
            case [sender, "pull"]:
                return Received(int(sender), Pull(None))
            case [sender, "pull", "working", "at", version]:
                return Received(int(sender), Pull(int(version)))
            case [sender, "push", number, "from", version]:
                return Received(int(sender), Push(int(number), int(version[1:]), f"{sender}'s {number}"))
            case [sender, "global", w, "heard", number]:
                return Received(int(sender), Global(int(w[1:]), w, int(number)))
        raise AssertionError(line)


def show(effect: Effect) -> str:
    match effect:
        case Send(to, Global(version, payload, heard)):
            assert payload == f"w{version}"
            return f"to {to}: global {payload} heard {heard}"
        case Send(to, Push(number, version, payload)):
            return f"to {to}: push {number} from w{version}: {payload}"
        case Send(to, Pull(working_at)):
            return f"to {to}: pull" + ("" if working_at is None else f" working at {working_at}")
        case Send(to, Bye(rounds)):
            return f"to {to}: bye {rounds}"
        case Apply(version, terms):
            stale = {False: "", True: " stale by {}"}
            texts = [f"{t.weight:g} x {t.payload}{stale[t.staleness > 0].format(t.staleness)}" for t in terms]
            return f"apply to w{version}: {', '.join(texts)}"
        case Adopt(round, payload):
            return f"adopt {payload} in round {round}"
        case Train(round):
            return f"train {round}"
        case Finish(outcome):
            return f"finish: {outcome}"
        case Alert(text, None):
            return f"alert: {text}"
        case Alert(text, peer):
            return f"alert, {peer}: {text}"
    raise AssertionError(effect)


def told_of_two(core: Coordinator) -> Told:
    """A coordinator that has given w0 to workers 0 and 1."""
    return Told(core).play(
        """
        > joined 0
        > 0 pull
        > joined 1
        > 1 pull
            to 0: global w0 heard 0
            to 1: global w0 heard 0
        """
    )


def told_of_three(core: Coordinator) -> Told:
    return Told(core).play(
        """
        > joined 0
        > joined 1
        > joined 2
        > 0 pull
        > 1 pull
        > 2 pull
            to 0: global w0 heard 0
            to 1: global w0 heard 0
            to 2: global w0 heard 0
        """
    )


def sync(workers: int = 2, rounds: int = 0, present: Present = W0) -> ByRounds:
    return ByRounds(HUB, range(workers), rounds, present)


def asynchronous(workers: int = 2, rounds: int = 0, present: Present = W0) -> ByArrival:
    return ByArrival(HUB, range(workers), rounds, present)


# ---- Stories: synchronous


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
            to 0: bye 2
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
            to 0: bye 1
            to 1: bye 1
        > 0 bye 1
        > joined 0
        > 1 bye 1
        > 0 pull
            to 0: bye 1
        > 0 bye 0
            finish: finished
        """
    )


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
            alert: no worker is left to go on from version 0
            finish: failed
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


# ---- Stories: a coordinator that has fallen


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


def test_one_that_fell_when_all_was_done_says_goodbye() -> None:
    Told(sync(2, rounds=3, present=Present("w3", 3, {0: 3}))).play(
        """
        > joined 0
        > 0 push 3 from w2
            to 0: bye 3
        > 0 bye 3
        > lost 1 never heard
            alert, 1: is lost (never heard)
            finish: finished
        """
    )


# ---- Stories: quorum


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


# ---- Stories: by arrival


def test_each_push_is_applied_whole_when_it_arrives_and_its_worker_goes_on_from_there() -> None:
    told_of_two(asynchronous(rounds=3)).play(
        """
        > 1 push 1 from w0
            apply to w0: 1 x 1's 1
        > 0 push 1 from w0  (while it is applied)
        > applied
            to 1: global w1 heard 1
            apply to w1: 1 x 0's 1 stale by 1
        > applied
            to 0: global w2 heard 1
        > 0 push 2 from w2
            apply to w2: 1 x 0's 2
        > applied
            to 0: bye 3
            to 1: bye 3
        > 0 bye 2
        > 1 push 2 from w1  (too late)
        > 1 bye 2
            finish: finished
        """
    )


def test_one_is_not_interrupted_and_the_others_do_not_wait_for_it() -> None:
    told_of_two(asynchronous()).play(
        """
        > 1 push 1 from w0
            apply to w0: 1 x 1's 1
        > applied
            to 1: global w1 heard 1
        > 1 push 2 from w1
            apply to w1: 1 x 1's 2
        > applied
            to 1: global w2 heard 2
        > 0 push 1 from w0
            apply to w2: 1 x 0's 1 stale by 2
        """
    )


def test_one_that_is_too_far_ahead_waits() -> None:
    """With a bound of 1 the second push of worker 1 may be the last: worker 0 can still be stale by 1."""
    told_of_two(ByArrival(HUB, range(2), 0, W0, max_staleness=1)).play(
        """
        > 1 push 1 from w0
            apply to w0: 1 x 1's 1
        > applied
        > 0 push 1 from w0
            apply to w1: 1 x 0's 1 stale by 1
        > applied
            to 1: global w2 heard 1
            to 0: global w2 heard 1
        """
    )


def test_what_one_that_was_away_brings_may_be_too_stale() -> None:
    told = told_of_two(ByArrival(HUB, range(2), 0, W0, max_staleness=1)).play(
        """
        > lost 0 cut off
            alert, 0: is lost (cut off)
        > 1 push 1 from w0
            apply to w0: 1 x 1's 1
        > applied
            to 1: global w1 heard 1
        > 1 push 2 from w1
            apply to w1: 1 x 1's 2
        > applied
            to 1: global w2 heard 2
        > joined 0
        > 0 push 1 from w0
            to 0: global w2 heard 1
        """
    )
    assert isinstance(told.core, ByArrival)
    assert told.core.dropped == 1


def test_by_turns_it_is_node_order_whatever_arrives_first() -> None:
    told_of_three(ByArrival(HUB, range(3), 0, W0, arrival="round_robin")).play(
        """
        > 2 push 1 from w0
        > 1 push 1 from w0
        > 0 push 1 from w0
            apply to w0: 1 x 0's 1
        > applied
            to 0: global w1 heard 1
            apply to w1: 1 x 1's 1 stale by 1
        > lost 2 silent
            alert, 2: is lost (silent)
        > applied
            to 1: global w2 heard 1
            apply to w2: 1 x 2's 1 stale by 2
        > applied
        > 1 push 2 from w2
        > lost 0 silent
            alert, 0: is lost (silent)
            apply to w3: 1 x 1's 2 stale by 1
        """
    )


def test_with_a_fixed_delay_each_is_given_what_its_turn_needs() -> None:
    """A delay of 1: update 2 is made from w1, so worker 2 has to wait for that, and update 3 from w2."""
    Told(ByArrival(HUB, range(3), 0, W0, arrival="round_robin", delay=1)).play(
        """
        > joined 0
        > 0 pull
        > joined 1
        > 1 pull
        > joined 2
        > 2 pull
            to 0: global w0 heard 0
            to 1: global w0 heard 0
        > 0 push 1 from w0
            apply to w0: 1 x 0's 1
        > applied
            to 2: global w1 heard 0
        > 2 push 1 from w1
        > 1 push 1 from w0
            apply to w1: 1 x 1's 1 stale by 1
        > applied
            to 0: global w2 heard 1
            apply to w2: 1 x 2's 1 stale by 1
        > applied
            to 1: global w3 heard 1
        """
    )


def test_a_buffer_of_two_is_one_update_and_who_has_pushed_goes_on_at_once() -> None:
    told_of_two(ByArrival(HUB, range(2), 0, W0, size=2)).play(
        """
        > 1 push 1 from w0
            to 1: global w0 heard 1
        > 1 push 2 from w0
            apply to w0: 1 x 1's 1, 1 x 1's 2
        > applied
            to 1: global w1 heard 2
        > 0 push 1 from w0
            to 0: global w1 heard 1
        > lost 0 silent
            alert, 0: is lost (silent)
        > 1 push 3 from w1
            apply to w1: 1 x 0's 1 stale by 1, 1 x 1's 3
        """
    )


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(AssertionError):
        ByArrival(HUB, range(2), 0, W0, size=2, max_staleness=1)
    with pytest.raises(AssertionError):
        ByArrival(HUB, range(2), 0, W0, arrival="round_robin", max_staleness=1)
    with pytest.raises(AssertionError):
        ByArrival(HUB, range(2), 0, W0, delay=1)


# ---- Stories: a worker


def worker_that_trains(rounds: int = 0, return_s: float = 0.0) -> Told:
    return Told(Worker(1, HUB, rounds, return_s=return_s)).play(
        """
        > joined 9
            to 9: pull
        > 9 global w0 heard 0
            adopt w0 in round 0
        > adopted
            train 0
        """
    )


def test_a_worker_pulls_trains_pushes_and_waits() -> None:
    worker_that_trains(rounds=2).play(
        """
        > 9 global w0 heard 0  (again)
        > trained
            to 9: push 1 from w0: 1's 1
        > 9 global w0 heard 0  (again)
        > 9 global w1 heard 1
            adopt w1 in round 1
        > adopted
            train 1
        > 9 bye 2
            to 9: bye 1
            finish: finished
        > trained
        """
    )


def test_a_worker_ends_its_steps_while_the_coordinator_is_lost_and_pushes_when_it_is_back() -> None:
    told = worker_that_trains(return_s=10.0).play(
        """
        > lost 9 silent
            alert, 9: is lost (silent); this worker waits for it to come back
        > trained
        """
    )
    assert told.core.deadline_s == 4.0 + 10.0
    told.play(
        """
        > joined 9
            to 9: push 1 from w0: 1's 1
        """
    )
    assert told.core.deadline_s == inf


def test_a_worker_says_again_what_was_not_answered() -> None:
    worker_that_trains().play(
        """
        > trained
            to 9: push 1 from w0: 1's 1
        > lost 9 silent
            alert, 9: is lost (silent); this worker waits for it to come back
        > 9 global w1 heard 1  (of an earlier life)
        > joined 9
            to 9: push 1 from w0: 1's 1
        > 9 global w1 heard 1
            adopt w1 in round 1
        """
    )


def test_a_worker_that_trains_says_so_when_the_coordinator_is_back() -> None:
    worker_that_trains().play(
        """
        > lost 9 silent
            alert, 9: is lost (silent); this worker waits for it to come back
        > joined 9
            to 9: pull working at 0
        > trained
            to 9: push 1 from w0: 1's 1
        """
    )


def test_a_worker_that_is_started_anew_takes_the_count_over() -> None:
    Told(Worker(1, HUB, 0)).play(
        """
        > joined 9
            to 9: pull
        > 9 global w7 heard 5
            adopt w7 in round 5
        > adopted
            train 5
        > trained
            to 9: push 6 from w7: 1's 6
        """
    )


def test_a_worker_whose_coordinator_does_not_come_back_has_failed() -> None:
    worker_that_trains(return_s=2.0).play(
        """
        > lost 9 silent
            alert, 9: is lost (silent); this worker waits for it to come back
        > tick  (too early)
        > tick
            alert, 9: did not come back within 2 s
            finish: failed
        """
    )


def test_a_worker_is_sent_home_early_or_stopped() -> None:
    worker_that_trains(rounds=2).play(
        """
        > 9 bye 1
            to 9: bye 0
            finish: interrupted
        """
    )
    worker_that_trains(rounds=2).play(
        """
        > stop
            to 9: bye 0
            finish: interrupted
        """
    )


# ---- Numbers


def test_the_chain_of_the_lecture() -> None:
    """Three workers fetch 2.00; their gradients -2, -6, -10 come one after the other, the last stale by 2 and 0.80."""
    gradients = [-2.0, -6.0, -10.0]
    bed = Class(asynchronous(3, rounds=3), 0.1, 2.0, lambda peer, _: gradients[peer])
    for peer in range(3):
        bed.train(peer)
    assert bed.w == pytest.approx([2.00, 2.20, 2.80, 3.80], rel=1e-12)
    assert [(who, stale) for who, stale, _ in bed.terms] == [(0, 0), (1, 1), (2, 2)]
    assert bed.terms[-1][2] == pytest.approx(0.80, rel=1e-12)


def slope(peer: PeerId, w: float) -> float:
    """The gradient of one of the four peers of the traces."""
    return float(CURVATURES[peer]) * w - float(SLOPES[peer])


@pytest.mark.parametrize("lr", ["0_1", "0_05"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_round_robin_of_four_whatever_arrives_first(lr: str, order: list[int]) -> None:
    truth = TRACES["async_PS_round_robin_4"][f"lr{lr}"]
    core = ByArrival(HUB, range(4), len(truth) - 1, Present(START), arrival="round_robin")
    bed = Class(core, float(lr.replace("_", ".")), START, slope)
    while bed.training:
        bed.train(next(peer for peer in order if peer in bed.training))
    assert bed.w == pytest.approx(truth, rel=DIGITS)
    assert [stale for _, stale, _ in bed.terms] == [min(k, 3) for k in range(len(truth) - 1)]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("case", [case for case in TRACES["constant_delay_traces"] if case.startswith("tau")])
def test_a_fixed_delay_with_any_number_of_workers(case: str, workers: int) -> None:
    tau, lr = re.findall(r"[\d.]+", case)
    truth = TRACES["constant_delay_traces"][case]["w_0_to_8"]
    core = ByArrival(HUB, range(workers), 8, Present(START), arrival="round_robin", delay=int(tau))
    bed = Class(core, float(lr), START, lambda _, w: slope(2, w))  # all have the one shard (3, 7)
    while bed.training:
        bed.train(max(bed.training))
    assert bed.w == pytest.approx(truth, rel=DIGITS)
    assert [stale for _, stale, _ in bed.terms] == [min(k, int(tau)) for k in range(8)]


def test_a_buffer_of_two_as_in_the_trace() -> None:
    """FedBuff's trace without scaling: one local step of 0.1, and the mean of two."""
    trace = TRACES["FedBuff_K2"]
    bed = Class(ByArrival(HUB, range(4), 5, Present(START), size=2), 0.1, START, slope, size=2)
    for peer in trace["arrivals"]:
        bed.train(peer)
    assert bed.w == pytest.approx(trace["w_no_scaling"], rel=DIGITS)
    assert [[who, stale] for who, stale, _ in bed.terms] == trace["client_staleness_pairs"]


def test_a_barrier_is_the_mean_gradient() -> None:
    trace = TRACES["sync_mean_gradient_lr0.1"]["w"]
    bed = Class(ByRounds(HUB, range(4), len(trace) - 1, Present(START)), 0.1, START, slope)
    while bed.training:
        bed.train(max(bed.training))
    assert bed.w == pytest.approx(trace, rel=DIGITS)


def test_equally_fast_workers_are_stale_by_one_less_than_they_are() -> None:
    bed = Class(asynchronous(5, rounds=100, present=Present(START)), 0.001, START, lambda _, w: w)
    while bed.training:
        bed.train(next(iter(bed.training)))
    assert [stale for _, stale, _ in bed.terms[5:]] == [4] * 95


# ---- Beds

Discipline = Callable[[PeerId, int, int, Present], Coordinator]

DISCIPLINES: dict[str, Discipline] = {
    "sync": lambda me, n, rounds, at: ByRounds(me, range(n), rounds, at),
    "fraction": lambda me, n, rounds, at: ByRounds(
        me, range(n), rounds, at, chosen=lambda version: {(version + k) % n for k in range((n + 1) // 2)}
    ),
    "quorum": lambda me, n, rounds, at: ByRounds(me, range(n), rounds, at, count=max(1, n - 1)),
    "quorum, stale": lambda me, n, rounds, at: ByRounds(me, range(n), rounds, at, count=max(1, n - 1), late="stale"),
    "timer": lambda me, n, rounds, at: ByRounds(me, range(n), rounds, at, timer_s=15.0, late="stale"),
    "async": lambda me, n, rounds, at: ByArrival(me, range(n), rounds, at),
    "bound": lambda me, n, rounds, at: ByArrival(me, range(n), rounds, at, max_staleness=2),
    "round robin": lambda me, n, rounds, at: ByArrival(me, range(n), rounds, at, arrival="round_robin"),
    "delay": lambda me, n, rounds, at: ByArrival(me, range(n), rounds, at, arrival="round_robin", delay=2),
    "buffered": lambda me, n, rounds, at: ByArrival(me, range(n), rounds, at, size=3),
}


def bed_of(name: str, seed: int, *, workers: int = 0, stores_every: int = 1) -> CoordinatorBed:
    random = Random(f"{name} {seed}")
    n, rounds = workers or random.choice([1, 2, 3, 5]), random.choice([1, 4, 9])
    doubles = random.choice([0.0, 0.3])
    discipline = DISCIPLINES[name]
    return CoordinatorBed(
        n,
        rounds,
        lambda me, at: discipline(me, n, rounds, at),
        random,
        doubles=doubles,
        stores_every=stores_every,
    )


def staleness(bed: CoordinatorBed) -> list[int]:
    return [version - token.version for version, update in enumerate(bed.history) for token in update]


@pytest.mark.parametrize("name", DISCIPLINES)
def test_everybody_finishes_in_any_order_of_what_happens(name: str) -> None:
    for seed in range(BEDS):
        bed = bed_of(name, seed)
        bed.run_to_the_end([])
        bed.check_history()
        assert set(bed.finished.values()) == {"finished"}
        assert len(bed.history) == bed.rounds
        assert not bed.alerts
        if name not in ("quorum", "quorum, stale", "timer"):
            assert bed.cores[bed.hub].dropped == 0  # type: ignore[attr-defined]
        if name == "sync":
            assert all({token.peer for token in update} == set(range(bed.hub)) for update in bed.history)
        if name in ("sync", "fraction", "quorum"):
            assert set(staleness(bed)) == {0}
        if name == "bound":
            assert max(staleness(bed)) <= 2
        if name == "delay":
            assert staleness(bed) == [min(k, 2) for k in range(bed.rounds)]
        if name in ("round robin", "delay"):
            assert [update[0].peer for update in bed.history] == [k % bed.hub for k in range(bed.rounds)]
        if name == "buffered":
            assert {len(update) for update in bed.history} == {3}


@pytest.mark.parametrize("name", DISCIPLINES)
def test_with_losses_returns_and_falls_nothing_is_applied_twice_and_all_come_to_an_end(name: str) -> None:
    kinds = ["cut", "mend", "renew", "kill", "restart", "restart"]
    outcomes = []
    for seed in range(BEDS_WITH_TROUBLE):
        bed = bed_of(name, seed, stores_every=1 + seed % 2 * 2)
        random = Random(f"troubles {name} {seed}")
        bed.run_to_the_end([(random.randrange(120), random.choice(kinds)) for _ in range(random.choice([1, 4, 9]))])
        bed.check_history()
        outcomes.append(bed.finished[bed.hub])
        assert (len(bed.history) == bed.rounds) == (outcomes[-1] == "finished")
        if name == "bound":
            assert max(staleness(bed), default=0) <= 2
    assert outcomes.count("finished") > len(outcomes) / 2


def test_a_coordinator_that_falls_changes_nothing_of_a_synchronous_run() -> None:
    """Each update has exactly one push of each worker, made from the version before it, as without a fall."""
    falls = 0
    for seed in range(BEDS_WITH_TROUBLE):
        bed = bed_of("sync", seed, workers=3, stores_every=1 + seed % 2 * 2)
        random = Random(f"falls {seed}")
        for _ in range(random.choice([1, 3])):
            for _ in range(random.randrange(60)):
                if moves := bed.possible():
                    bed.do(random.choice(moves))
            if bed.hub not in bed.finished and not any(peer in bed.finished for peer in range(bed.hub)):
                bed.kill(bed.hub)
                bed.restart(bed.hub)
        bed.run_to_the_end([])
        bed.check_history()
        falls += bed.falls
        assert bed.finished == dict.fromkeys(range(bed.hub + 1), "finished")
        for version, update in enumerate(bed.history):
            assert [(token.peer, token.version) for token in update] == [(peer, version) for peer in range(3)]
    assert falls > BEDS_WITH_TROUBLE / 2


def test_who_stops_in_the_middle_leaves_nobody_waiting() -> None:
    for name in DISCIPLINES:
        for seed in range(10):
            bed = bed_of(name, seed)
            bed.run_to_the_end([(Random(seed).randrange(40), "stop"), (Random(seed).randrange(80), "stop")])
            bed.check_history()


def test_the_bed_sees_a_push_that_is_applied_twice() -> None:
    bed = bed_of("async", 0)
    token = Token(0, 1, 0)
    bed.state[bed.hub] = ((token,), (token,))
    with pytest.raises(AssertionError, match="twice"):
        bed.check_history()
