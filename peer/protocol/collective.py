"""All-reduce in one piece: in each round train, have somebody else sum over all members, and go on from the mean.

The same mode as `Ring`, for an engine that sums by itself and tells nothing on the way. Every member knows every other
one: all greet each other before the first round, and each sees by itself who is there.

    waiting --all others joined--> training --Trained--> dividing --Summed--> assembling --Assembled--> training,
    or after the last round closing --all others said Bye or are lost--> done

"dividing" is while the sum is under way, and `Divide` asks for it: nobody gets it without the parts of all. To each of
the others a member says by `Done` that its own part is there, so it is known who is waited for.

All end after the same round when one wants to stop. Who has not given its part to a round leaves at once, since nobody
can complete that round. Who has given it waits for the sum, as another one may have it already. Both say with the `Bye`
how many rounds they have completed: who hears of more than it has itself waits for the sum, which is on its way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from peer.protocol.messages import (
    Alert,
    Assemble,
    Command,
    Divided,
    Done,
    Effect,
    Event,
    PeerId,
    Received,
    Send,
    Trained,
)
from peer.protocol.ring import Ring


@dataclass(frozen=True, slots=True)
class Summed(Divided):
    """A `Divide` has been carried out by an engine that sums, too: `pieces` is the sum over all, as one piece.

    There is none where it came to nothing, and `problem` says in words why.
    """

    problem: str = ""


class Collective(Ring):
    """One member's half. `names` are those of all members, in node order.

    A sum that came to nothing does not say who is to blame. Membership does, within `patience_s`; after that the run
    fails without a name.
    """

    def __init__(
        self,
        me: PeerId,
        rounds: int,
        names: Sequence[str],
        *,
        weights: Sequence[float] | None = None,
        round_deadline_s: float = 0.0,
        patience_s: float = 6.0,
    ) -> None:
        super().__init__(me, rounds, [1] * len(names), weights=weights, round_deadline_s=round_deadline_s)
        self.names = tuple(names)
        self.patience_s = patience_s
        self.neighbours = set(range(self.members)) - {me}
        self._awaited = set(self.neighbours)
        self._given: dict[PeerId, int] = {}  # by member, the last round to which it has said to have given its part
        self._problem = ""  # why the sum of this round came to nothing

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        effects = self._handle(event, now_s)
        if self.phase == "dividing" and (self._ends_as or self._problem):
            self.deadline_s = min(self.deadline_s, now_s + self.patience_s)
        return effects

    def _handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Trained(round) if self.phase == "training" and round == self.round:
                if self.round_deadline_s and self.neighbours:
                    self.deadline_s = now_s + self.round_deadline_s
                ready: list[Effect] = [Send(peer, Done(round)) for peer in sorted(self.alive)]
                return ready + super().handle(event, now_s)
            case Summed(round) if self.phase == "dividing" and round == self.round:
                return self._take_sum(event)
            case Received(sender, Done(round)) if sender in self.alive:
                self._given[sender] = round
                return []
            case Command("stop") if self.phase in ("dividing", "assembling"):
                if self._ends_as is None:
                    self._ends_as, self._missing = "interrupted", self.me
                return self._end() if self._problem else []
        return super().handle(event, now_s)

    def waits_for(self) -> set[PeerId]:
        return set(self._late()) if self.phase == "dividing" else super().waits_for()

    # ---- Rounds

    def _take_sum(self, summed: Summed) -> list[Effect]:
        if summed.problem:
            self._problem = summed.problem
            return self._end() if self._ends_as else []
        self.phase = "assembling"
        self.deadline_s = inf
        return [Assemble(self.round, self.total, summed.pieces)]

    def _late(self) -> list[PeerId]:
        """Return whose part to this round is missing, as far as they have said."""
        return [peer for peer in sorted(self.alive) if self._given.get(peer, -1) < self.round]

    # ---- A member is missing, or leaves

    def _farewell(self, peer: PeerId, rounds: int) -> list[Effect]:
        has_more = rounds > self.round and rounds != self.rounds
        if self.phase != "dividing" or self._problem or not has_more:
            return super()._farewell(peer, rounds)
        self.lost[peer] = reason = f"left after round {rounds}"
        if self._ends_as is None:
            self._ends_as, self._missing = "interrupted", peer
        return [Alert(f"is lost ({reason})", peer)]

    def _is_complete_without(self, peer: PeerId) -> bool:
        is_last = self.round == self.rounds - 1 and self.phase in ("dividing", "assembling")
        return is_last or self.phase == "closing"

    def _break(self, peer: PeerId, outcome: Literal["interrupted", "failed"], why: str) -> list[Effect]:
        if peer in self.lost:
            why = f"{self.names[peer]} is lost ({self.lost[peer]}), and a sum needs every member"
        return super()._break(peer, outcome, why)

    def _close_round(self) -> list[Effect]:
        """Patience or the time for this round is at its end, without a sum."""
        if self._ends_as:
            return self._end()
        late = self._late()
        if late and not self._problem:
            reason = f"waited for in round {self.round}, which was not complete within {self.round_deadline_s:g} s"
            return self._lose(late[0], reason)
        problem = self._problem or f"it was not there within {self.round_deadline_s:g} s"
        self._ends_as, self._missing = "failed", self.me
        self._why = f"the sum of round {self.round} came to nothing ({problem}); because of whom is not known"
        return self._end()
