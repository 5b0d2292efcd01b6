"""Synchronous ring all-reduce: in each round train, sum over all members along a ring, and go on from the mean.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. The members stand in
node order; each sends to the next and hears the one before. What was trained is cut into as many segments as there
are members, and each segment into pieces. Segment s sets out from member s and is passed on n - 1 times; whoever gets
it adds its own part ("scatter"). So member s - 1 has the sum, which is passed on another n - 1 times ("gather"). A
member sends 2 (n - 1) / n of the whole. Every piece goes its way without waiting for any other: while one is added,
others are sent and received.

    waiting --both neighbours joined--> training --Trained--> dividing --Divided--> gathering
    gathering --the sum of every piece is there--> assembling --Assembled--> training, or after the last round closing
    closing --both neighbours said Bye or are lost--> done

A piece is summed in ring order, ((x_s + x_s+1) + x_s+2) + ..., whatever arrives when, and all members get the same
bits, as it is summed only once. Messages may come twice and in any order, but a `Bye` only after all else.

Nobody completes a round without the part of every member. So a neighbour is at most one round ahead, and of a round
for which a member has nothing to give yet only "scatter" may reach it: the inbox holds at most n - 1 segments.

A ring does not heal. When a member is lost, or a round takes longer than `round_deadline_s` after the own part was
ready, whoever notices names it to its neighbours by `Broken`, they pass it on, and all end as "failed". An early `Bye`
is a wish to stop: it ends the ring as "interrupted". The state of each is then what it was at the end of its last
round; what it has gathered of another one is void. Who has all pieces of a round completes it first.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import fsum, inf
from typing import Literal

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
    Message,
    Payload,
    PeerId,
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

Phase = Literal["waiting", "training", "dividing", "gathering", "assembling", "closing", "done"]


def cut(elements: int, members: int, piece_elements: int) -> tuple[tuple[range, ...], ...]:
    """Return which of so many elements are in each piece of each segment: one segment for each member.

    Segments differ by at most one element, and so do the pieces of one segment, which have at most `piece_elements`.
    A segment without elements has no pieces. `piece_elements` is at least 1.
    """
    return tuple(
        tuple(_parts(segment, -(-len(segment) // piece_elements))) for segment in _parts(range(elements), members)
    )


def _parts(whole: range, parts: int) -> list[range]:
    short, longer = divmod(len(whole), parts) if parts else (0, 0)
    starts = [k * short + min(k, longer) for k in range(parts + 1)]
    return [whole[a:b] for a, b in pairwise(starts)]


class Ring:
    """One member's half of a ring all-reduce.

    `rounds` is how many to do, 0 for until stopped. `pieces` says how many pieces each segment has, so there are as
    many members; a segment may have none. `weights` are those of the members, say how many rows each has: the mean is
    the weighted sum divided by the sum of the weights; None if all count the same.
    """

    short_rounds = 0  # no round is ever closed without somebody

    def __init__(
        self,
        me: PeerId,
        rounds: int,
        pieces: Sequence[int],
        *,
        weights: Sequence[float] | None = None,
        round_deadline_s: float = 0.0,
    ) -> None:
        self.me = me
        self.rounds = rounds
        self.pieces = tuple(pieces)
        self.members = len(self.pieces)
        assert weights is None or len(weights) == self.members
        self.weight = 1.0 if weights is None else weights[me]
        self.total = float(self.members) if weights is None else fsum(weights)
        self.round_deadline_s = round_deadline_s
        self.deadline_s = inf
        self.phase: Phase = "waiting"
        self.round = 0
        self.previous: PeerId = (me - 1) % self.members
        self.next: PeerId = (me + 1) % self.members
        self.neighbours = {self.previous, self.next} - {me}
        self._due = 2 * sum(self.pieces) - self.pieces[me] - self.pieces[self.next]  # pieces to hear in a round
        self.lost: dict[PeerId, str] = {}
        self._awaited = set(self.neighbours)
        self._closed: set[PeerId] = set()  # they say nothing more
        self._ends_as: Literal["interrupted", "failed"] | None = None
        self._missing: PeerId | None = None  # because of whom the ring ends
        self._why = ""
        self._inbox: dict[tuple[int, int], Payload] = {}  # (step, piece) of "scatter", before there is an own part
        self._own: dict[tuple[int, int], Payload] = {}  # (segment, piece), and so below
        self._heard: set[tuple[Literal["scatter", "gather"], int, int]] = set()
        self._sums: dict[tuple[int, int], Payload] = {}

    # ---- The Core interface

    def start(self, now_s: float) -> list[Effect]:
        return self._begin_when_both_are_known()

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if self.phase == "done":
            return []
        match event:
            case PeerJoined(peer):
                self._awaited.discard(peer)
                return self._begin_when_both_are_known()
            case PeerLost(peer, reason) if peer in self.alive:
                return self._lose(peer, reason)
            case Received(sender, message) if sender in self.alive:
                return self._receive(sender, message)
            case Trained(round, payload) if self.phase == "training" and round == self.round:
                self.phase = "dividing"
                return [Divide(round, self.weight, payload)]
            case Divided(round, pieces) if self.phase == "dividing" and round == self.round:
                self.deadline_s = now_s + self.round_deadline_s if self.round_deadline_s else inf
                return self._set_out(pieces)
            case Reduced(round, segment, piece, payload) if self.phase == "gathering" and round == self.round:
                return self._pass_on(segment, piece, payload)
            case Assembled(round, is_applied) if self.phase == "assembling" and round == self.round:
                return self._complete_round() if is_applied else self._give_up()
            case Tick() if now_s >= self.deadline_s:
                return self._close_round()
            case Command("stop"):
                return self._stop()
        return []

    # ---- What a person may want to know

    @property
    def alive(self) -> set[PeerId]:
        """Neighbours that are neither lost nor done."""
        return self.neighbours - self.lost.keys() - self._closed

    def waits_for(self) -> set[PeerId]:
        """The peers without which this one does not go on at the moment."""
        match self.phase:
            case "waiting":
                return set(self._awaited)
            case "gathering":
                return {self.previous} if len(self._heard) < self._due else set()
            case "closing":
                return self.alive
        return set()

    # ---- Rounds

    def _begin_when_both_are_known(self) -> list[Effect]:
        return [] if self.phase != "waiting" or self._awaited else self._begin_round()

    def _begin_round(self) -> list[Effect]:
        self.phase = "training"
        return [Train(self.round)]

    def _set_out(self, pieces: tuple[tuple[Payload, ...], ...]) -> list[Effect]:
        """The own part is there: send the segment that begins here, and add to what has come already."""
        assert tuple(map(len, pieces)) == self.pieces
        self.phase = "gathering"
        self._own = {(s, k): payload for s, segment in enumerate(pieces) for k, payload in enumerate(segment)}
        effects: list[Effect] = []
        for piece in range(self.pieces[self.me]):
            effects += self._pass_on(self.me, piece, self._own.pop((self.me, piece)))
        inbox, self._inbox = self._inbox, {}
        for (step, piece), payload in sorted(inbox.items(), key=lambda item: item[0]):
            effects += self._take(Piece(self.round, "scatter", step, piece, payload))
        return effects + self._assemble_when_all_is_there()

    def _take(self, message: Piece) -> list[Effect]:
        """Take a piece of this round, to which the own part is there."""
        key = (message.phase, message.step, message.piece)
        if key in self._heard:
            return []
        self._heard.add(key)
        segment, piece = self.segment_heard(message.phase, message.step), message.piece
        if message.phase == "gather":
            return self._gather(segment, piece, message.payload, message.step + 1)
        return [Reduce(self.round, segment, piece, message.payload, self._own.pop((segment, piece)))]

    def segment_heard(self, phase: Literal["scatter", "gather"], step: int) -> int:
        """Return the segment of what this member hears in a step."""
        return (self.me - step - (phase == "scatter")) % self.members

    def _pass_on(self, segment: int, piece: int, payload: Payload) -> list[Effect]:
        """The own part is in this piece: send it to the next to add, or if it was the last, to keep."""
        step = (self.me - segment) % self.members
        if step < self.members - 1:
            return [Send(self.next, Piece(self.round, "scatter", step, piece, payload))]
        return self._gather(segment, piece, payload, 0)

    def _gather(self, segment: int, piece: int, payload: Payload, step: int) -> list[Effect]:
        """The sum of this piece is there: keep it, and send it on unless the next one has it."""
        self._sums[segment, piece] = payload
        is_wanted = step < self.members - 1
        sent = [Send(self.next, Piece(self.round, "gather", step, piece, payload))] if is_wanted else []
        return sent + self._assemble_when_all_is_there()

    def _assemble_when_all_is_there(self) -> list[Effect]:
        if self.phase != "gathering" or len(self._sums) < sum(self.pieces):
            return []
        self.phase = "assembling"
        self.deadline_s = inf
        pieces = tuple(tuple(self._sums[s, k] for k in range(many)) for s, many in enumerate(self.pieces))
        return [Assemble(self.round, self.total, pieces)]

    def _complete_round(self) -> list[Effect]:
        self._forget_round()
        self.round += 1
        if self.rounds and self.round == self.rounds:
            return self._close()
        return self._end() if self._ends_as else self._begin_round()

    def _forget_round(self) -> None:
        self._own, self._sums, self._heard = {}, {}, set()

    # ---- What neighbours say

    def _receive(self, sender: PeerId, message: Message) -> list[Effect]:
        match message:
            case Piece():
                return self._hear(sender, message)
            case Broken(peer):
                return self._hear_of_a_break(sender, peer)
            case Bye(rounds):
                return self._farewell(sender, rounds)
        return []

    def _hear(self, sender: PeerId, message: Piece) -> list[Effect]:
        if sender != self.previous or not self._has_place(message):
            return self._lose(sender, f"sent a piece that has no place in round {self.round}")
        if message.round < self.round:
            return []
        if message.round == self._last_divided():
            return self._take(message) if self.phase == "gathering" else []
        self._inbox.setdefault((message.step, message.piece), message.payload)
        return []

    def _last_divided(self) -> int:
        """Return the last round to which this member has given its part, -1 before the first."""
        return self.round - (self.phase in ("waiting", "training", "dividing", "closing"))

    def _has_place(self, message: Piece) -> bool:
        """Say whether the one before can have sent this, now or earlier. So nothing is stashed beyond the bound."""
        if message.round < 0 or not 0 <= message.step < self.members - 1:
            return False
        ahead = message.round - self._last_divided()
        is_in_time = ahead <= (message.phase == "scatter") and not 0 < self.rounds <= message.round
        return is_in_time and 0 <= message.piece < self.pieces[self.segment_heard(message.phase, message.step)]

    def _farewell(self, peer: PeerId, rounds: int) -> list[Effect]:
        if self.rounds == 0 or rounds != self.rounds:
            return self._part(peer, f"left after round {rounds}", "interrupted")
        if not self._is_complete_without(peer):
            return self._lose(peer, f"said goodbye with pieces missing, in round {self.round}")
        self._closed.add(peer)
        return self._finish_when_both_are_done()

    def _is_complete_without(self, peer: PeerId) -> bool:
        """Say whether this neighbour can have all its sums, and nothing more is to come from it."""
        if self.phase == "closing":
            return True
        is_last = self.round == self._last_divided() == self.rounds - 1
        return is_last and (peer != self.previous or len(self._heard) == self._due)

    # ---- A ring that breaks

    def _lose(self, peer: PeerId, reason: str) -> list[Effect]:
        return self._part(peer, reason, "failed")

    def _part(self, peer: PeerId, reason: str, outcome: Literal["interrupted", "failed"]) -> list[Effect]:
        self.lost[peer] = reason
        why = f"a member of the ring is lost ({reason})"
        return [Alert(f"is lost ({reason})", peer), *self._break(peer, outcome, why)]

    def _hear_of_a_break(self, sender: PeerId, peer: PeerId) -> list[Effect]:
        """A neighbour has ended, because of a member that may be anywhere in the ring."""
        if not 0 <= peer < self.members:
            return self._lose(sender, "named a member that there is not")
        self._closed.add(sender)
        if peer == self.me:
            why = "has ended the ring because of this peer"
            return [Alert(why, sender), *self._break(peer, "failed", f"a neighbour {why}")]
        if peer in self.lost:
            return self._break(peer, "failed", f"a member of the ring is lost ({self.lost[peer]})")
        return self._lose(peer, "cannot go on" if peer == sender else "the ring is broken there")

    def _break(self, peer: PeerId, outcome: Literal["interrupted", "failed"], why: str) -> list[Effect]:
        """Because of this member there is no further round; one whose pieces are all there is still completed."""
        if self._ends_as is None:
            self._ends_as, self._missing, self._why = outcome, peer, why
        if self.phase == "closing":
            return self._finish_when_both_are_done()
        return [] if self.phase == "assembling" else self._end()

    def _close_round(self) -> list[Effect]:
        """The time for this round is over: nothing is applied without everybody."""
        reason = f"waited for in round {self.round}, which was not complete within {self.round_deadline_s:g} s"
        return self._lose(self._late_member(), reason)

    def _late_member(self) -> PeerId:
        """Return whose own part is missing, as far as can be told, else who is to hand on the sums.

        Parts that set out behind the first missing one have passed all members up to here, so these are not late.
        """
        for step in range(self.members - 1):
            segment = self.segment_heard("scatter", step)
            if not all(("scatter", step, piece) in self._heard for piece in range(self.pieces[segment])):
                return segment
        return self.previous

    def _give_up(self) -> list[Effect]:
        """The sum cannot be used. It is the same for all, so they all find that."""
        self._ends_as, self._missing = "failed", self.me
        self._why = f"the sum of round {self.round} is not finite; it was not applied"
        return self._end()

    def _end(self) -> list[Effect]:
        """End before all rounds are done, and tell the neighbours why."""
        assert self._ends_as is not None
        assert self._missing is not None
        self.phase = "done"
        self.deadline_s = inf
        self._forget_round()
        self._inbox.clear()
        broken: list[Effect] = []
        if self._ends_as == "failed":
            broken = [Send(peer, Broken(self._missing)) for peer in sorted(self.alive)]
        why = self._why if self._ends_as == "failed" else ""
        return [*broken, *self._say_goodbye(), Finish(self._ends_as, why)]

    # ---- The end

    def _close(self) -> list[Effect]:
        self.phase = "closing"
        return self._say_goodbye() + self._finish_when_both_are_done()

    def _say_goodbye(self) -> list[Effect]:
        """To one that was done before, too: it waits for that."""
        return [Send(peer, Bye(self.round)) for peer in sorted(self.neighbours - self.lost.keys())]

    def _finish_when_both_are_done(self) -> list[Effect]:
        if self.phase != "closing" or self.alive:
            return []
        self.phase = "done"
        return [Finish("finished")]

    def _stop(self) -> list[Effect]:
        if self.phase == "closing":  # its own rounds are complete: it stops waiting for the others
            self.phase = "done"
            return [Finish("finished")]
        self._ends_as, self._missing = "interrupted", self.me
        return self._end()
