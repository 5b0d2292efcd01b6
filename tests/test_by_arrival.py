"""A coordinator without rounds: stories as they should go, and numbers."""

import re

import pytest

from peer.protocol.by_arrival import ByArrival
from peer.protocol.coordinator import Present
from tests.coordinator_numbers import Class, slope
from tests.coordinator_story import HUB, W0, Told, asynchronous, told_of_three, told_of_two
from tests.four_peers import DIGITS, START, TRACES

# ---- Stories


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
            to 0: global w3 heard 2
            to 0: bye 3
            to 1: global w3 heard 1  (it is at work)
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
            apply to w0: 0.5 x 1's 1, 0.5 x 1's 2
        > applied
            to 1: global w1 heard 2
        > 0 push 1 from w0
            to 0: global w1 heard 1
        > lost 0 silent
            alert, 0: is lost (silent)
        > 1 push 3 from w1
            apply to w1: 0.5 x 0's 1 stale by 1, 0.5 x 1's 3
        """
    )


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(AssertionError):
        ByArrival(HUB, range(2), 0, W0, size=2, max_staleness=1)
    with pytest.raises(AssertionError):
        ByArrival(HUB, range(2), 0, W0, arrival="round_robin", max_staleness=1)
    with pytest.raises(AssertionError):
        ByArrival(HUB, range(2), 0, W0, delay=1)


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
    bed = Class(ByArrival(HUB, range(4), 5, Present(START), size=2), 0.1, START, slope)
    for peer in trace["arrivals"]:
        bed.train(peer)
    assert bed.w == pytest.approx(trace["w_no_scaling"], rel=DIGITS)
    assert [[who, stale] for who, stale, _ in bed.terms] == trace["client_staleness_pairs"]


def test_equally_fast_workers_are_stale_by_one_less_than_they_are() -> None:
    bed = Class(asynchronous(5, rounds=100, present=Present(START)), 0.001, START, lambda _, w: w)
    while bed.training:
        bed.train(next(iter(bed.training)))
    assert [stale for _, stale, _ in bed.terms[5:]] == [4] * 95
