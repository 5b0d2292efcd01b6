"""Averaging by pairs: stories of one peer as they should go, AD-PSGD's numbers, and beds of many in any order."""

from collections.abc import Sequence
from random import Random
from typing import Any, Literal

import pytest

from peer.protocol.messages import Neighbourhood, PeerId, Trained
from peer.protocol.pairwise import Pairwise
from tests.async_bed import PairwiseBed, arcs_of, bed_of, run_to_the_end, troubles_of
from tests.async_link import Steps, neighbourhoods
from tests.async_story import check
from tests.four_peers import CURVATURES, DIGITS, SLOPES, START, TRACES

BEDS, BEDS_WITH_TROUBLE, BEDS_OF_LONG_RUNS = 250, 350, 30


def peer_of(me: PeerId, neighbours: Sequence[PeerId], rounds: int = 0) -> Pairwise:
    """A peer that tries its neighbours in the order in which they stand here."""
    weights = dict.fromkeys(neighbours, 0.25)
    return Pairwise(me, rounds, lambda _: Neighbourhood({me: 0.5, **weights}, weights), partners=lambda _: neighbours)


def that_has_proposed(partner: PeerId, other: PeerId, rounds: int = 0) -> Pairwise:
    """Peer 1, which in local round 0 has proposed to the first of its neighbours."""
    core = peer_of(1, [partner, other], rounds)
    check(
        core,
        f"""
        > 1 starts
            learn nothing
        > learned
        > joined {partner}
        > joined {other}
            train 0
        > trained
            to {partner}: propose 1 0
        """,
    )
    return core


# ---- Stories: local rounds


def test_two_rounds_of_one_of_two() -> None:
    check(
        peer_of(1, [0], rounds=2),
        """
        > 1 starts
            learn nothing
        > learned
        > joined 0
            train 0
        > trained
            to 0: propose 1 0
        > 0 accept 1
            mix 0: 0.5 x 0's + 0.5 x 1's
        > 0 accept 1  (again)
        > mixed
            learn 0
        > learned
            train 1
        > 0 propose 1 1
            to 0: accept 1
            mix 1: 0.5 x 0's + 0.5 x 1's
        > 0 propose 1 1  (again)
        > mixed
        > 0 propose 1 1  (and again)
        > trained
            to 0: propose 2 1
        > 0 accept 2
            mix 1: 0.5 x 0's + 0.5 x 1's
        > mixed
            learn 1, stale 1
        > learned
            to 0: bye 2
            finish: finished
        > 0 propose 2 2
        """,
    )


def test_a_peer_without_neighbours_trains_alone() -> None:
    check(
        peer_of(0, [], rounds=1),
        """
        > 0 starts
            learn nothing
        > learned
            train 0
        > trained
            learn 0
        > learned
            finish: finished
        """,
    )


def test_training_goes_on_while_others_average_with_the_peer() -> None:
    check(
        peer_of(1, [0, 2]),
        """
        > 1 starts
            learn nothing
        > 0 propose 1 0  (before it knows what to say)
        > joined 2
        > learned
            to 0: accept 1
            mix 0: 0.5 x 0's + 0.5 x 1's
        > mixed
        > lost 0 never heard
            alert, 0: is lost (never heard)
            train 0
        > 2 propose 1 0
            to 2: accept 1
            mix 0: 0.5 x 1's + 0.5 x 2's
        > trained  (the mix is not done)
        > mixed
            to 2: propose 1 1
        > 2 accept 1
            mix 0: 0.5 x 1's + 0.5 x 2's
        > mixed
            learn 0, stale 1
        """,
    )


def test_what_waits_is_served_when_the_state_is_no_longer_being_changed() -> None:
    check(
        that_has_proposed(2, 0),
        """
        > 2 accept 1
            mix 0: 0.5 x 1's + 0.5 x 2's
        > 0 propose 1 0
        > mixed
            learn 0
        > 2 propose 1 1
        > learned  (first begins the training, so that nobody holds it up)
            train 1
            to 0: accept 1
            mix 1: 0.5 x 0's + 0.5 x 1's
        > mixed
            to 2: accept 1
            mix 1: 0.5 x 1's + 0.5 x 2's
        > mixed
        > trained
            to 2: propose 2 1
        """,
    )


# ---- Stories: proposals that meet


def test_while_locked_a_lower_peer_waits_and_a_higher_one_is_turned_away() -> None:
    check(
        peer_of(1, [0, 2, 3]),
        """
        > 1 starts
            learn nothing
        > learned
        > joined 0
        > joined 2
        > joined 3
            train 0
        > trained
            to 0: propose 1 0
        > 2 propose 1 0
            to 2: busy 1
        > 2 propose 1 0  (again)
        > 0 busy 1
            to 2: propose 1 1
        > 0 propose 1 1
        > 3 propose 1 0
            to 3: busy 1
        > 2 busy 1  (first those that wait, then the next partner)
            to 0: accept 1
            mix 0: 0.5 x 0's + 0.5 x 1's
        > mixed
            to 3: propose 1 1
        > 3 busy 1  (all have been tried)
            learn 0, stale 1
        > learned
            train 1
        """,
    )


def test_two_proposals_that_cross_are_one_averaging() -> None:
    check(
        peer_of(1, [2], rounds=2),
        """
        > 1 starts
            learn nothing
        > learned
        > joined 2
            train 0
        > trained
            to 2: propose 1 0
        > 2 propose 1 0  (it had not seen the other)
            mix 0: 0.5 x 1's + 0.5 x 2's
        > 2 propose 1 0  (again)
        > mixed
            learn 0
        > learned
            train 1
        > 2 propose 2 1
            to 2: accept 2
            mix 1: 0.5 x 1's + 0.5 x 2's
        > mixed
        > trained
            to 2: propose 2 2
        > 2 accept 2
            mix 1: 0.5 x 1's + 0.5 x 2's
        """,
    )


def test_a_proposal_that_overtakes_the_answer_waits_for_it() -> None:
    check(
        peer_of(1, [2]),
        """
        > 1 starts
            learn nothing
        > learned
        > joined 2
            train 0
        > trained
            to 2: propose 1 0
        > 2 propose 1 1  (it has answered: this is the next averaging)
        > 2 accept 1
            mix 0: 0.5 x 1's + 0.5 x 2's
        > mixed
            learn 0
        > learned
            train 1
            to 2: accept 1
            mix 1: 0.5 x 1's + 0.5 x 2's
        """,
    )


def test_a_proposal_that_overtakes_the_one_that_crossed_waits_too() -> None:
    check(
        peer_of(1, [2]),
        """
        > 1 starts
            learn nothing
        > learned
        > joined 2
            train 0
        > trained
            to 2: propose 1 0
        > 2 propose 2 1
        > 2 propose 1 0
            mix 0: 0.5 x 1's + 0.5 x 2's
        > mixed
            learn 0
        > learned
            train 1
            to 2: accept 2
            mix 1: 0.5 x 1's + 0.5 x 2's
        """,
    )


def test_its_own_wish_waits_in_the_same_line() -> None:
    """What came after it does not go first: a higher peer is turned away, and one that is to be asked has crossed."""
    check(
        peer_of(1, [2, 0, 3]),
        """
        > 1 starts
            learn nothing
        > learned
        > joined 0
        > joined 2
        > joined 3
            train 0
        > 0 propose 1 0
            to 0: accept 1
            mix 0: 0.5 x 0's + 0.5 x 1's
        > trained
        > 3 propose 1 0
        > 2 propose 1 0
        > mixed
            to 2: propose 1 0
            mix 0: 0.5 x 1's + 0.5 x 2's
        > mixed
            learn 0, stale 1
        > learned
            train 1
            to 3: accept 1
            mix 1: 0.5 x 1's + 0.5 x 3's
        > trained
        > 3 propose 2 0
        > mixed
            to 2: propose 2 1
            to 3: busy 2
        """,
    )


# ---- Stories: neighbours come and go


def test_when_the_partner_is_lost_or_leaves_the_next_is_tried() -> None:
    core = that_has_proposed(2, 0)
    assert core.waits_for() == {2}
    check(
        core,
        """
        > lost 2 silent
            alert, 2: is lost (silent)
            to 0: propose 1 0
        > 0 bye 7
            alert, 0: is lost (left after round 7)
            learn 0
        > 0 accept 1
        > learned
            train 1
        """,
    )
    assert core.alive == set()


def test_one_that_has_completed_its_rounds_is_asked_no_more() -> None:
    core = that_has_proposed(2, 0, rounds=5)
    check(
        core,
        """
        > 2 bye 5
            to 0: propose 1 0
        > 0 busy 1
            learn 0
        > learned
            train 1
        > trained
            to 0: propose 2 0
        > stop
            to 0: bye 1
            finish: interrupted
        """,
    )
    assert core.lost == {}


def test_in_a_new_life_both_count_from_one_again() -> None:
    check(
        that_has_proposed(2, 0),
        """
        > 2 propose 1 1  (its answer is on its way)
        > lost 2 silent
            alert, 2: is lost (silent)
            to 0: propose 1 0
        > joined 2
            to 2: resume 0
        > 0 busy 1
            learn 0
        > 2 propose 1 0
        > learned
            train 1
            to 2: accept 1
            mix 1: 0.5 x 1's + 0.5 x 2's
        > mixed
        > trained
            to 2: propose 1 1
        > joined 2  (it was renewed before anybody noticed that it was gone)
            to 0: propose 2 0
        """,
    )


def test_numbers_that_are_not_finite_are_reported() -> None:
    check(
        that_has_proposed(2, 0),
        """
        > 2 accept 1
            mix 0: 0.5 x 1's + 0.5 x 2's
        > mixed without 2
            alert, 2: sent numbers that are not finite in round 0; they were not mixed
            learn 0
        """,
    )


# ---- Stories: coming back


def test_a_model_is_adopted_when_the_lock_is_gone() -> None:
    check(
        that_has_proposed(2, 0),
        """
        > 0 resume 30
            to 0: fetch
        > 0 model 31
        > 0 propose 1 0  (this has to wait longer)
        > 2 accept 1
            mix 0: 0.5 x 1's + 0.5 x 2's
        > mixed
            learn 0
        > learned
            adopt 0's, round 31
        > adopted 31
            learn nothing
        > learned
            train 31
            to 0: accept 1
            mix 31: 0.5 x 0's + 0.5 x 1's
        """,
    )


def test_what_was_learned_is_void_when_a_model_is_adopted_between_two_partners() -> None:
    check(
        that_has_proposed(2, 0),
        """
        > 0 resume 30
            to 0: fetch
        > 0 model 31
        > 2 busy 1
            adopt 0's, round 31
        > adopted 31
            learn nothing
        > trained 0
        > learned
            train 31
        > trained 0
        > trained
            to 2: propose 2 0
        """,
    )


# ---- Numbers: the trace AD_PSGD_pair_order of truth/traces.json


class TraceBed(PairwiseBed):
    """The four peers. "fresh": a gradient is that of the state just before the averaging; "stale": of the state after
    the peer's last own update, which is where its local steps began."""

    def __init__(self, kind: Literal["fresh", "stale"]) -> None:
        self.kind = kind
        self.wishes: dict[PeerId, PeerId] = dict(reversed(TRACE["events"]))
        super().__init__(neighbourhoods(4, arcs_of("ring", 4)), 0, partners=lambda me, _: [self.wishes[me]])

    def start_of(self, me: PeerId) -> float:
        return START

    def begin(self, me: PeerId, round: int) -> float:
        super().begin(me, round)
        return self.step(me)

    def step(self, me: PeerId) -> float:
        gradient = float(CURVATURES[me]) * float(self.state[me]) - float(SLOPES[me])
        return -float(TRACE["lr"]) * gradient

    def trained(self, me: PeerId, steps: Steps) -> Trained:
        found = self.step(me) if self.kind == "fresh" else steps.found
        return super().trained(me, Steps(steps.round, found))

    def settle(self) -> None:
        """Do all that is possible without local steps."""
        while moves := [move for move in self.possible() if move[0] != "steps"]:
            self.do(moves[0])


TRACE: dict[str, Any] = TRACES["AD_PSGD_pair_order"]


@pytest.mark.parametrize("kind", ["fresh", "stale"])
def test_the_numbers_of_ad_psgd(kind: Literal["fresh", "stale"]) -> None:
    bed = TraceBed(kind)
    bed.had_trouble = True  # floats: sums are kept to rounding only
    bed.settle()
    found = [list(bed.state)]
    for active, _ in TRACE["events"]:
        bed.do(("steps", active, active))
        bed.settle()
        found.append(list(bed.state))
    for states, expected in zip(found, TRACE[kind], strict=True):
        assert states == pytest.approx(expected, rel=DIGITS)
    assert bed.stalenesses == [0, 0, 1, 1, 1]


# ---- Beds


@pytest.mark.parametrize("seed", range(BEDS))
def test_in_any_order_all_come_to_the_end_and_averaging_keeps_the_sum(seed: int) -> None:
    bed = bed_of("pairwise", seed)
    run_to_the_end(bed)
    assert isinstance(bed, PairwiseBed)
    assert set(bed.finished.values()) == {"finished"}
    assert all(core.round == core.rounds and not core.lost for core in bed.cores)
    assert not bed.halves
    assert sum(bed.state) == bed.total


@pytest.mark.parametrize("seed", range(BEDS_WITH_TROUBLE))
def test_losses_and_returns_stop_nobody(seed: int) -> None:
    bed = bed_of("pairwise", seed)
    run_to_the_end(bed, troubles_of(bed, bed.cores[0].rounds, Random(seed)) if bed.links else ())


def test_in_long_runs_some_come_back_far_behind() -> None:
    adopted = 0
    for seed in range(BEDS_OF_LONG_RUNS):
        bed = bed_of("pairwise", seed, rounds=60)
        run_to_the_end(bed, troubles_of(bed, 60, Random(seed)) if bed.links else ())
        adopted += len(bed.adopted)
    assert adopted >= 5


def test_a_hub_of_many_is_not_kept_from_averaging_itself() -> None:
    """Its neighbours need no time to train: there is always one that waits."""
    bed = PairwiseBed(neighbourhoods(12, arcs_of("star", 12)), 0)
    for _ in range(4000):
        moves = bed.possible()
        bed.do(next((move for move in moves if move[0] in ("steps", "link")), moves[0]))
    assert bed.cores[6].round >= 20
