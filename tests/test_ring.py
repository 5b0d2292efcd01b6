"""Ring all-reduce: stories of one member as they should go, and beds of many in any order."""

import re
from fractions import Fraction
from math import inf
from random import Random
from textwrap import dedent

import pytest

from peer.protocol.messages import (
    Alert,
    Assemble,
    Assembled,
    Broken,
    Bye,
    Command,
    Divide,
    Divided,
    Effect,
    Event,
    Finish,
    Heartbeat,
    PeerJoined,
    PeerLost,
    Piece,
    Received,
    Reduce,
    Reduced,
    Send,
    Tick,
    Train,
    Trained,
)
from peer.protocol.ring import Ring, cut
from tests.ring_bed import RingBed, exact, in_ring_order, rounded

MEMBERS = [1, 2, 3, 4, 7]
SIZES = [1, 2, 6, 13, 28, 41]  # of which none of the above but 1 divides all; some have fewer elements than members


# ---- Stories: what a member is told, and what it then asks for. Pieces show whose parts are in them.


class Told:
    """Plays a story's lines with ">", one each second; what is being added is remembered until it is done."""

    def __init__(self, core: Ring) -> None:
        self.core = core
        self.now_s = -1.0
        self.sums: dict[tuple[int, int], str] = {}

    def play(self, story: str) -> None:
        lines = dedent(story).strip().splitlines()
        told = []
        for line in (line for line in lines if line.startswith(">")):
            told += [line, *(f"    {self.show(effect)}" for effect in self.tell(line[1:]))]
        assert told == lines, "\n".join(["it went otherwise:", *told])

    def tell(self, line: str) -> list[Effect]:
        self.now_s += 1.0
        if "starts" in line:
            return self.core.start(self.now_s)
        return self.core.handle(self.event(line), self.now_s)

    def event(self, line: str) -> Event:
        core, me = self.core, str(self.core.me)
        match re.sub(r"\s*\(.*\)$", "", line).split():
            case ["joined", peer]:
                return PeerJoined(int(peer))
            case ["lost", peer, *reason]:
                return PeerLost(int(peer), " ".join(reason))
            case ["trained"]:
                return Trained(core.round, me)
            case ["divided"]:
                return Divided(core.round, tuple((me,) * many for many in core.pieces))
            case ["reduced", place]:
                segment, piece = map(int, place.split("."))
                return Reduced(core.round, segment, piece, self.sums.pop((segment, piece)))
            case ["assembled"]:
                return Assembled(core.round)
            case ["assembled", "nothing"]:
                return Assembled(core.round, is_applied=False)
            case ["tick"]:
                return Tick()
            case ["stop"]:
                return Command("stop")
            case [sender, "bye", rounds]:
                return Received(int(sender), Bye(int(rounds)))
            case [sender, "heartbeat", round]:
                return Received(int(sender), Heartbeat(int(round)))
            case [sender, "broken", "at", peer]:
                return Received(int(sender), Broken(int(peer)))
            case [sender, "scatter" | "gather" as phase, place, payload]:
                numbers = [int(number) for number in place.split(".")]
                return Received(int(sender), Piece(numbers[0], phase, numbers[1], numbers[2], payload))
        raise AssertionError(line)

    def show(self, effect: Effect) -> str:
        match effect:
            case Train(round):
                return f"train {round}"
            case Divide(round, weight, payload):
                return f"divide {round}: {weight:g} x {payload}"
            case Reduce(_, segment, piece, heard, own):
                self.sums[segment, piece] = f"{heard}+{own}"
                return f"reduce {segment}.{piece}: {heard} + {own}"
            case Assemble(round, total, pieces):
                return f"assemble {round}: ({' | '.join(' '.join(segment) for segment in pieces)}) / {total:g}"
            case Send(to, Piece(round, phase, step, piece, payload)):
                return f"to {to}: {phase} {round}.{step}.{piece} {payload}"
            case Send(to, Bye(rounds)):
                return f"to {to}: bye {rounds}"
            case Send(to, Broken(peer)):
                return f"to {to}: broken at {peer}"
            case Finish(outcome, why):
                return f"finish: {outcome}" + (f", {why}" if why else "")
            case Alert(text, peer):
                return f"alert, {peer}: {text}"
        raise AssertionError(effect)


def test_one_round_of_one_of_three() -> None:
    Told(Ring(1, 1, [1, 1, 1])).play(
        """
        > 1 starts
        > joined 0
        > 0 heartbeat 0
        > joined 2
            train 0
        > trained
            divide 0: 1 x 1
        > divided
            to 2: scatter 0.0.0 1
        > 0 scatter 0.0.0 0
            reduce 0.0: 0 + 1
        > reduced 0.0
            to 2: scatter 0.1.0 0+1
        > 0 scatter 0.1.0 2+0
            reduce 2.0: 2+0 + 1
        > reduced 2.0  (this one has its sum)
            to 2: gather 0.0.0 2+0+1
        > 0 gather 0.0.0 1+2+0
            to 2: gather 0.1.0 1+2+0
        > 0 gather 0.1.0 0+1+2  (from which 2 has it, so it is not sent on)
            assemble 0: (0+1+2 | 1+2+0 | 2+0+1) / 3
        > assembled
            to 0: bye 1
            to 2: bye 1
        > 2 bye 1
        > 0 bye 1
            finish: finished
        > 0 bye 1
        """
    )


def test_pieces_go_their_way_without_waiting_for_each_other() -> None:
    Told(Ring(1, 2, [3, 2, 0])).play(
        """
        > 1 starts
        > joined 2
        > joined 0
            train 0
        > 0 scatter 0.0.2 0  (before the own part is there)
        > trained
            divide 0: 1 x 1
        > divided
            to 2: scatter 0.0.0 1
            to 2: scatter 0.0.1 1
            reduce 0.2: 0 + 1
        > 0 scatter 0.0.0 0
            reduce 0.0: 0 + 1
        > 0 gather 0.0.1 1+2+0  (while others are being added)
            to 2: gather 0.1.1 1+2+0
        > reduced 0.0
            to 2: scatter 0.1.0 0+1
        > 0 gather 0.1.0 0+1+2
        > reduced 0.2
            to 2: scatter 0.1.2 0+1
        > 0 gather 0.1.2 0+1+2
        > 0 gather 0.1.2 0+1+2  (again)
        > 0 scatter 0.0.2 0  (again)
        > 0 scatter 0.0.1 0
            reduce 0.1: 0 + 1
        > reduced 0.1
            to 2: scatter 0.1.1 0+1
        > 0 gather 0.0.0 1+2+0
            to 2: gather 0.1.0 1+2+0
        > 0 gather 0.1.1 0+1+2
            assemble 0: (0+1+2 0+1+2 0+1+2 | 1+2+0 1+2+0 | ) / 3
        > 0 scatter 1.0.0 0  (which is a round ahead)
        > assembled
            train 1
        > 0 scatter 0.0.0 0  (long past)
        > trained
            divide 1: 1 x 1
        > divided
            to 2: scatter 1.0.0 1
            to 2: scatter 1.0.1 1
            reduce 0.0: 0 + 1
        """
    )


def test_one_alone_trains() -> None:
    Told(Ring(0, 1, [2])).play(
        """
        > 0 starts
            train 0
        > trained
            divide 0: 1 x 0
        > divided
            assemble 0: (0 0) / 1
        > assembled
            finish: finished
        """
    )


def test_two_with_weights() -> None:
    Told(Ring(0, 0, [1, 1], weights=[3, 1])).play(
        """
        > 0 starts
        > joined 1
            train 0
        > 1 scatter 0.0.0 1
        > trained
            divide 0: 3 x 0
        > divided
            to 1: scatter 0.0.0 0
            reduce 1.0: 1 + 0
        > 1 gather 0.0.0 0+1
        > reduced 1.0
            to 1: gather 0.0.0 1+0
            assemble 0: (0+1 | 1+0) / 4
        > assembled
            train 1
        > stop
            to 1: bye 1
            finish: interrupted
        """
    )


def gathering(core: Ring) -> Told:
    """A member of three whose own part of round 0 is on its way."""
    told = Told(core)
    told.play(
        f"""
        > {core.me} starts
        > joined {core.previous}
        > joined {core.next}
            train 0
        > trained
            divide 0: 1 x {core.me}
        > divided
            to {core.next}: scatter 0.0.0 {core.me}
        """
    )
    return told


def with_all_pieces(core: Ring) -> Told:
    """Member 1 of three, which has all of round 0 and has not yet been told that it is applied."""
    told = gathering(core)
    told.play(
        """
        > 0 scatter 0.0.0 0
            reduce 0.0: 0 + 1
        > reduced 0.0
            to 2: scatter 0.1.0 0+1
        > 0 scatter 0.1.0 2+0
            reduce 2.0: 2+0 + 1
        > reduced 2.0
            to 2: gather 0.0.0 2+0+1
        > 0 gather 0.0.0 1+2+0
            to 2: gather 0.1.0 1+2+0
        > 0 gather 0.1.0 0+1+2
            assemble 0: (0+1+2 | 1+2+0 | 2+0+1) / 3
        """
    )
    return told


def test_a_neighbour_that_dies_ends_the_ring_and_the_other_one_is_told() -> None:
    gathering(Ring(1, 5, [1, 1, 1])).play(
        """
        > 0 scatter 0.0.0 0
            reduce 0.0: 0 + 1
        > lost 2 silent for 5.0 s
            alert, 2: is lost (silent for 5.0 s)
            to 0: broken at 2
            to 0: bye 0
            finish: failed, a member of the ring is lost (silent for 5.0 s)
        > reduced 0.0
        > 0 scatter 0.1.0 2+0
        """
    )


def test_what_is_heard_of_a_break_is_passed_on() -> None:
    gathering(Ring(1, 5, [1, 1, 1, 1])).play(
        """
        > 2 broken at 3
            alert, 3: is lost (the ring is broken there)
            to 0: broken at 3
            to 0: bye 0
            to 2: bye 0
            finish: failed, a member of the ring is lost (the ring is broken there)
        > 2 bye 0
        """
    )


def test_a_neighbour_that_cannot_go_on_is_named() -> None:
    gathering(Ring(1, 5, [1, 1, 1])).play(
        """
        > 2 broken at 2
            alert, 2: is lost (cannot go on)
            to 0: broken at 2
            to 0: bye 0
            finish: failed, a member of the ring is lost (cannot go on)
        """
    )


def test_a_member_learns_that_it_held_up_the_others() -> None:
    gathering(Ring(1, 5, [1, 1, 1])).play(
        """
        > 2 broken at 1
            alert, 2: has ended the ring because of this peer
            to 0: broken at 1
            to 0: bye 0
            to 2: bye 0
            finish: failed, a neighbour has ended the ring because of this peer
        """
    )


def test_a_neighbour_that_never_comes_ends_the_ring() -> None:
    Told(Ring(0, 5, [1, 1, 1])).play(
        """
        > 0 starts
        > joined 1
        > 1 broken at 2
            alert, 2: is lost (the ring is broken there)
            to 1: bye 0
            finish: failed, a member of the ring is lost (the ring is broken there)
        """
    )


def test_who_has_all_pieces_completes_the_round_before_it_fails() -> None:
    with_all_pieces(Ring(1, 5, [1, 1, 1])).play(
        """
        > lost 0 gone
            alert, 0: is lost (gone)
        > assembled
            to 2: broken at 0
            to 2: bye 1
            finish: failed, a member of the ring is lost (gone)
        """
    )


def test_who_has_all_pieces_of_the_last_round_has_finished() -> None:
    with_all_pieces(Ring(1, 1, [1, 1, 1])).play(
        """
        > 2 broken at 0
            alert, 0: is lost (the ring is broken there)
        > assembled
            to 2: bye 1
            finish: finished
        """
    )


def test_a_neighbour_that_dies_after_the_last_round_is_only_named() -> None:
    told = with_all_pieces(Ring(1, 1, [1, 1, 1]))
    told.play(
        """
        > assembled
            to 0: bye 1
            to 2: bye 1
        > lost 0 gone
            alert, 0: is lost (gone)
        > 2 bye 1
            finish: finished
        """
    )


def test_a_sum_that_is_not_finite_is_not_applied_and_ends_the_ring() -> None:
    with_all_pieces(Ring(1, 5, [1, 1, 1])).play(
        """
        > assembled nothing
            to 0: broken at 1
            to 2: broken at 1
            to 0: bye 0
            to 2: bye 0
            finish: failed, the sum of round 0 is not finite; it was not applied
        """
    )


def test_a_neighbour_that_stops_ends_the_ring_without_a_failure() -> None:
    gathering(Ring(1, 0, [1, 1, 1])).play(
        """
        > 2 bye 0
            alert, 2: is lost (left after round 0)
            to 0: bye 0
            finish: interrupted
        """
    )


def test_who_is_stopped_after_its_last_round_has_finished() -> None:
    with_all_pieces(Ring(1, 1, [1, 1, 1])).play(
        """
        > assembled
            to 0: bye 1
            to 2: bye 1
        > stop
            finish: finished
        """
    )


@pytest.mark.parametrize(
    ("heard", "late"),
    [
        ([], 3),
        (["scatter 0.0.0 3"], 2),
        (["scatter 0.0.0 3", "scatter 0.2.0 1+2+3"], 2),
        (["scatter 0.0.0 3", "scatter 0.1.0 2+3", "scatter 0.2.0 1+2+3"], 3),
    ],
)
def test_at_the_deadline_of_a_round_whoever_holds_it_up_is_named(heard: list[str], late: int) -> None:
    core = Ring(0, 5, [1, 1, 1, 1], round_deadline_s=60.0)
    told = gathering(core)
    assert core.deadline_s == told.now_s + 60.0
    for message in heard:
        told.tell(f"3 {message}")
    told.tell("tick (too early)")
    assert core.phase == "gathering"
    told.now_s = core.deadline_s - 1.0
    alive = [peer for peer in (1, 3) if peer != late]
    reason = "waited for in round 0, which was not complete within 60 s"
    told.play(
        "\n".join(
            [
                "> tick",
                f"    alert, {late}: is lost ({reason})",
                *(f"    to {peer}: broken at {late}" for peer in alive),
                *(f"    to {peer}: bye 0" for peer in alive),
                f"    finish: failed, a member of the ring is lost ({reason})",
            ]
        )
    )
    assert core.deadline_s == inf


def test_a_round_that_is_complete_has_no_deadline() -> None:
    core = Ring(1, 5, [1, 1, 1], round_deadline_s=60.0)
    told = with_all_pieces(core)
    assert core.deadline_s == inf
    told.play(
        """
        > assembled
            train 1
        """
    )
    assert core.deadline_s == inf


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (2, "scatter 0.0.0 0"),  # it does not come from there
        (0, "scatter 0.2.0 0"),  # no such step
        (0, "scatter 0.-1.0 0"),
        (0, "gather 0.2.0 0"),
        (0, "scatter 0.0.1 0"),  # no such piece
        (0, "scatter 0.0.-1 0"),
        (0, "gather 1.0.0 0"),  # nobody can have that sum yet
        (0, "scatter 2.0.0 0"),  # too far ahead
        (0, "scatter -1.0.0 0"),
        (0, "broken at 3"),
        (0, "broken at -1"),
        (0, "bye 3"),  # too early
        (2, "bye 3"),
    ],
)
def test_nonsense_ends_the_ring(sender: int, message: str) -> None:
    core = Ring(1, 3, [1, 1, 1])
    effects = gathering(core).tell(f"{sender} {message}")
    assert isinstance(effects[0], Alert)
    assert effects[0].peer == sender
    assert effects[-1] == Finish("failed", f"a member of the ring is lost ({core.lost[sender]})")
    assert set(core.lost) == {sender}
    assert not core._inbox


@pytest.mark.parametrize("message", ["scatter 1.0.0 0", "gather 0.0.0 0"])
def test_before_the_own_part_is_there_nothing_is_taken_but_parts_of_this_round(message: str) -> None:
    told = Told(Ring(1, 3, [1, 1, 1]))
    for line in ("1 starts", "joined 0", "joined 2"):
        told.tell(line)
    why = "a member of the ring is lost (sent a piece that has no place in round 0)"
    assert told.tell(f"0 {message}")[-1] == Finish("failed", why)


def test_nothing_of_a_round_after_the_last_is_taken() -> None:
    assert with_all_pieces(Ring(1, 1, [1, 1, 1])).tell("0 scatter 1.0.0 0")[0] == Alert(
        "is lost (sent a piece that has no place in round 0)", 0
    )


def test_a_member_says_for_whom_it_waits() -> None:
    core = Ring(1, 1, [1, 1, 1])
    core.start(0.0)
    assert core.waits_for() == {0, 2}
    told = gathering(Ring(1, 1, [1, 1, 1]))
    assert told.core.waits_for() == {0}
    told = with_all_pieces(Ring(1, 1, [1, 1, 1]))
    assert told.core.waits_for() == set()
    told.tell("assembled")
    told.tell("0 bye 1")
    assert told.core.waits_for() == {2}


# ---- Cutting


@pytest.mark.parametrize("members", MEMBERS)
@pytest.mark.parametrize("elements", [0, *SIZES])
@pytest.mark.parametrize("piece_elements", [1, 3, 100])
def test_every_element_is_in_one_piece_and_sizes_are_even(members: int, elements: int, piece_elements: int) -> None:
    segments = cut(elements, members, piece_elements)
    assert [k for segment in segments for piece in segment for k in piece] == list(range(elements))
    sizes = [sum(map(len, segment)) for segment in segments]
    assert len(sizes) == members
    assert max(sizes) - min(sizes) <= 1
    for segment in segments:
        pieces = list(map(len, segment))
        assert all(0 < size <= piece_elements for size in pieces)
        assert not pieces or max(pieces) - min(pieces) <= 1


# ---- Beds


def check_finished(bed: RingBed) -> None:
    members = list(bed.members)
    assert bed.finished == dict.fromkeys(members, "finished")
    assert bed.applied == [bed.rounds] * len(members)
    assert bed.state == [bed.expected[-1]] * len(members)
    assert not any(bed.alerts.values())


@pytest.mark.parametrize("members", MEMBERS)
@pytest.mark.parametrize("elements", SIZES)
def test_whatever_arrives_when_all_have_the_sum_in_ring_order_bit_for_bit(members: int, elements: int) -> None:
    for seed in range(4):
        bed = RingBed(members, 3, elements, drift=rounded, doubles=0.2, random=Random(seed))
        bed.run()
        check_finished(bed)


@pytest.mark.parametrize("members", MEMBERS)
@pytest.mark.parametrize("elements", SIZES)
def test_the_mean_is_exact_where_the_numbers_are(members: int, elements: int) -> None:
    weights = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0][:members]
    bed = RingBed(members, 2, elements, weights=weights, random=Random(members))
    bed.run()
    check_finished(bed)
    row = [Fraction(k + 1) for k in range(elements)]
    for round in range(2):
        total = sum(map(Fraction, weights))
        parts = [
            [Fraction(weights[m]) * (row[k] + exact(m, round, k)) for k in range(elements)] for m in range(members)
        ]
        row = [sum((part[k] for part in parts), Fraction()) / total for k in range(elements)]
    assert bed.state[0] == tuple(row)


def test_the_order_of_summing_makes_a_difference_to_these_floats() -> None:
    """Otherwise the test above would not see it."""
    here = in_ring_order(7, 1, 41, rounded)[-1]
    sums = [sum(k + 1.0 + rounded(m, 0, k) for m in range(7)) / 7.0 for k in range(41)]
    assert sum(a != b for a, b in zip(here, sums, strict=True)) > 5


@pytest.mark.parametrize("members", MEMBERS)
@pytest.mark.parametrize("elements", SIZES)
def test_nobody_sends_more_than_its_share(members: int, elements: int) -> None:
    bed = RingBed(members, 2, elements, doubles=0.2, random=Random(elements))
    bed.run()
    for member in bed.members:
        for round in range(2):
            assert abs(bed.elements_sent[member, round] - 2 * (members - 1) * elements / members) <= members
    assert sum(bed.elements_sent.values()) == 2 * 2 * (members - 1) * elements


def test_a_member_that_does_nothing_stashes_at_most_the_segments_of_the_others() -> None:
    bed = RingBed(4, 3, 13, piece_elements=1)
    bed.stuck.add(2)
    bed.run()
    others = 13 - len(bed.segments[2])
    assert bed.most_stashed == others
    bed.stuck.clear()
    bed.run()
    check_finished(bed)


@pytest.mark.parametrize("members", [2, 3, 4, 7])
def test_at_the_deadline_all_end_where_they_were_and_one_that_trains_for_too_long_is_named(members: int) -> None:
    for seed in range(10):
        bed = RingBed(members, 2, 9, round_deadline_s=1000.0, random=Random(seed))
        stuck = seed % members
        bed.run(until_step=5 * seed * members)
        bed.stuck.add(stuck)
        bed.run()
        was_training = bed.cores[stuck].phase == "training"
        bed.now_s += 1000.0
        bed.tell_the_time()
        bed.run()
        if was_training:
            check_broken(bed, stuck, [member for member in bed.members if member != stuck])


# ---- Beds in which a member dies


def check_broken(bed: RingBed, missing: int, survivors: list[int]) -> None:
    """Whoever has not done all rounds has failed, names who is missing, and stands at the end of its last round."""
    for member in survivors:
        core = bed.cores[member]
        assert bed.state[member] == bed.expected[bed.applied[member]]
        assert bed.applied[member] == core.round
        assert bed.finished[member] == ("finished" if core.round == bed.rounds else "failed")
        if bed.finished[member] == "failed":
            assert [alert.peer for alert in bed.alerts[member]] == [missing]
            assert set(core.lost) == {missing}
    applied = [bed.applied[member] for member in survivors]
    assert max(applied) - min(applied) <= 1


@pytest.mark.parametrize(("members", "elements", "piece_elements"), [(2, 4, 1), (3, 3, 1), (3, 8, 2), (4, 4, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_a_member_that_dies_at_any_step_leaves_nothing_half_done(
    members: int, elements: int, piece_elements: int, seed: int
) -> None:
    def bed() -> RingBed:
        return RingBed(members, 2, elements, piece_elements=piece_elements, random=Random(seed))

    steps = bed().run()
    failed = 0
    for at in range(steps):
        for victim in range(members):
            broken = bed()
            broken.run([(at, lambda broken=broken, victim=victim: broken.kill(victim))])  # type: ignore[misc]
            check_broken(broken, victim, [member for member in range(members) if member != victim])
            failed += "failed" in broken.finished.values()
    assert failed > steps * members / 2


@pytest.mark.parametrize("seed", range(150))
def test_whatever_goes_wrong_nobody_applies_a_partial_sum(seed: int) -> None:
    """Every sum that is applied is held against the whole one, by the bed."""
    random = Random(seed)
    members = random.choice([2, 3, 4, 7])
    bed = RingBed(members, 3, random.choice(SIZES), drift=rounded, doubles=0.1, random=random)
    kinds = [
        lambda: bed.kill(random.randrange(members)),
        lambda: bed.cut(*random.choice(sorted(bed.links))),
        lambda: bed.stop(random.randrange(members)),
    ]
    bed.run([(random.randrange(80 * members), random.choice(kinds)) for _ in range(random.randint(1, 3))])
    assert bed.finished.keys() == set(bed.members) - bed.dead
    for member, outcome in bed.finished.items():
        assert bed.state[member] == bed.expected[bed.applied[member]]
        assert bed.applied[member] - bed.cores[member].round in (0, outcome == "interrupted")
        assert (outcome == "finished") == (bed.cores[member].round == 3)
        assert (outcome != "failed") or bed.alerts[member]
