"""A worker beside one or several coordinators: stories as they should go."""

from math import inf

from peer.protocol.worker import Worker
from tests.coordinator_story import HUB, Told

# ---- Beside one coordinator


def worker_that_trains(rounds: int = 0, return_s: float = 0.0) -> Told:
    return Told(Worker(1, [HUB], rounds, return_s=return_s)).play(
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
        > trained
            to 9: push 2 from w1: 1's 2
        > 9 global w2 heard 2
            adopt w2 in round 2
        > 9 bye 2  (before that is done)
        > adopted
            to 9: bye 2
            finish: finished
        > 9 bye 2  (again)
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
    Told(Worker(1, [HUB], 0)).play(
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
            finish: failed, a coordinator did not come back within 2 s
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


def test_a_coordinator_that_was_never_heard_leaves_a_worker_alone() -> None:
    Told(Worker(1, [HUB], 0)).play(
        """
        > lost 9 never heard within 60 s
            alert, 9: is lost (never heard within 60 s)
            finish: alone, a coordinator was never heard
        """
    )


def test_the_last_version_makes_void_what_a_worker_is_at() -> None:
    worker_that_trains(rounds=3).play(
        """
        > 9 global w3 heard 0
            adopt w3 in round 0
        > trained  (too late)
        > 9 bye 3
        > adopted
            to 9: bye 0
            finish: finished
        """
    )


def test_the_last_version_may_come_while_another_is_adopted_and_is_adopted_next() -> None:
    Told(Worker(1, [HUB], 3)).play(
        """
        > joined 9
            to 9: pull
        > 9 global w2 heard 5
            adopt w2 in round 5
        > 9 global w3 heard 5
        > adopted
            adopt w3 in round 5
        > adopted
        > 9 bye 3
            to 9: bye 5
            finish: finished
        """
    )


def test_the_last_version_may_overtake_the_one_before() -> None:
    worker_that_trains(rounds=3).play(
        """
        > trained
            to 9: push 1 from w0: 1's 1
        > 9 global w3 heard 1
            adopt w3 in round 1
        > 9 global w2 heard 1
        > adopted
        > 9 global w2 heard 1
        > 9 global w3 heard 1  (again)
        > 9 bye 3
            to 9: bye 1
            finish: finished
        """
    )


def test_who_has_the_last_version_needs_no_goodbye_of_one_that_is_lost() -> None:
    worker_that_trains(rounds=3, return_s=10.0).play(
        """
        > 9 global w3 heard 0
            adopt w3 in round 0
        > lost 9 silent
            alert, 9: is lost (silent); it has given its last version
        > adopted
            finish: finished
        """
    )


def test_a_goodbye_without_the_last_version_ends_nothing_well() -> None:
    worker_that_trains(rounds=3).play(
        """
        > 9 bye 3
            to 9: bye 0
            finish: interrupted
        """
    )


def test_who_stops_a_worker_that_has_all_changes_nothing() -> None:
    worker_that_trains(rounds=3).play(
        """
        > 9 global w3 heard 0
            adopt w3 in round 0
        > adopted
        > stop
            to 9: bye 0
            finish: finished
        """
    )


# ---- Beside several coordinators


def worker_of_two_that_trains(rounds: int = 0, return_s: float = 0.0) -> Told:
    """Its coordinators are 8, which has come to w4, and 9, which has come to w7."""
    return Told(Worker(1, [9, 8], rounds, return_s=return_s)).play(
        """
        > joined 9
            to 9: pull
        > joined 8
            to 8: pull
        > 9 global w7 heard 0
        > 9 global w7 heard 0  (again)
        > 8 global w4 heard 0
            adopt w4 and w7 in round 0
        > adopted
            train 0
        """
    )


def test_it_trains_when_each_has_answered_and_pushes_each_its_part() -> None:
    told = worker_of_two_that_trains().play(
        """
        > trained
            to 8: push 1 from w4: 1's 1 for 8
            to 9: push 1 from w7: 1's 1 for 9
        > 9 global w8 heard 1
        > 8 global w4 heard 0  (again, late)
        > 8 global w5 heard 1
            adopt w5 and w8 in round 1
        """
    )
    worker = told.core
    assert isinstance(worker, Worker)
    assert worker.versions == {8: 5, 9: 8}
    assert worker.version == 5
    told.play(
        """
        > adopted
            train 1
        > lost 8 silent
            alert, 8: is lost (silent); this worker waits for it to come back
        > trained
            to 9: push 2 from w8: 1's 2 for 9
        > joined 8
            to 8: push 2 from w5: 1's 2 for 8
        """
    )
    assert worker.waits_for() == {8, 9}


def test_what_one_gave_before_it_was_lost_is_void_and_the_push_is_said_again() -> None:
    worker_of_two_that_trains().play(
        """
        > trained
            to 8: push 1 from w4: 1's 1 for 8
            to 9: push 1 from w7: 1's 1 for 9
        > 8 global w5 heard 1
        > lost 8 silent
            alert, 8: is lost (silent); this worker waits for it to come back
        > 9 global w8 heard 1
        > joined 8
            to 8: push 1 from w4: 1's 1 for 8
        > 8 global w6 heard 1
            adopt w6 and w8 in round 1
        """
    )


def test_one_that_is_started_anew_takes_over_the_greatest_count() -> None:
    """It fell after it had pushed its sixth to 9, and before it had pushed it to 8."""
    Told(Worker(1, [8, 9], 0)).play(
        """
        > joined 8
            to 8: pull
        > joined 9
            to 9: pull
        > 9 global w7 heard 6
        > 8 global w6 heard 5
            adopt w6 and w7 in round 6
        > adopted
            train 6
        > trained
            to 8: push 7 from w6: 1's 7 for 8
            to 9: push 7 from w7: 1's 7 for 9
        """
    )


def test_one_that_trains_says_to_each_from_which_of_its_versions() -> None:
    worker_of_two_that_trains().play(
        """
        > lost 9 silent
            alert, 9: is lost (silent); this worker waits for it to come back
        > joined 9
            to 9: pull working at 7
        > joined 8  (in another life, which nobody has noticed)
            to 8: pull working at 4
        """
    )


def test_while_others_go_on_nothing_is_pushed_to_one_that_has_given_its_last_version() -> None:
    worker_of_two_that_trains(rounds=8).play(
        """
        > 9 global w8 heard 0
        > 9 bye 8
        > trained
            to 8: push 1 from w4: 1's 1 for 8
        > 8 global w5 heard 1
            adopt w5 and w8 in round 1
        > joined 9  (it has fallen after its goodbye)
            to 9: pull
        > 9 global w8 heard 0
        > adopted
            train 1
        > 8 global w8 heard 1
            adopt w8 and w8 in round 1
        > 8 bye 8
        > adopted
        > 9 bye 8
            to 8: bye 1
            to 9: bye 1
            finish: finished
        """
    )


def test_one_that_waits_has_the_last_version_of_one_and_then_of_the_other() -> None:
    told = worker_of_two_that_trains(rounds=8).play(
        """
        > trained
            to 8: push 1 from w4: 1's 1 for 8
            to 9: push 1 from w7: 1's 1 for 9
        > 9 global w8 heard 0  (others were faster)
        > lost 9 silent
            alert, 9: is lost (silent); it has given its last version
        """
    )
    assert told.core.waits_for() == {8}
    assert told.core.deadline_s == inf
    told.play(
        """
        > joined 9
            to 9: pull
        > 8 global w8 heard 1
            adopt w8 and w8 in round 1
        > adopted
        > 8 bye 8
        > 9 global w8 heard 1
        > 9 bye 8
            to 8: bye 1
            to 9: bye 1
            finish: finished
        """
    )


def test_a_worker_leaves_all_when_one_is_stopped_or_does_not_come_back() -> None:
    worker_of_two_that_trains(rounds=9).play(
        """
        > 9 bye 7
            to 8: bye 0
            to 9: bye 0
            finish: interrupted
        """
    )
    told = worker_of_two_that_trains(return_s=2.0).play(
        """
        > lost 8 silent
            alert, 8: is lost (silent); this worker waits for it to come back
        > lost 9 silent
            alert, 9: is lost (silent); this worker waits for it to come back
        > joined 8
            to 8: pull working at 4
        """
    )
    assert told.core.deadline_s == 8.0 + 2.0
    told.play(
        """
        > tick
            alert, 9: did not come back within 2 s
            to 8: bye 0
            finish: failed, a coordinator did not come back within 2 s
        """
    )


def test_a_worker_that_never_hears_one_of_them_is_alone() -> None:
    Told(Worker(1, [8, 9], 0)).play(
        """
        > joined 8
            to 8: pull
        > 8 global w0 heard 0
        > lost 9 never heard within 60 s
            alert, 9: is lost (never heard within 60 s)
            to 8: bye 0
            finish: alone, a coordinator was never heard
        """
    )
