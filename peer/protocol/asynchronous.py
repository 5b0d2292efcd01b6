"""Asynchronous neighbour averaging: train, say what came of it, mix with the newest that was heard, go on.

    waiting --all neighbours joined or lost--> training --Trained: send, Mix--> mixing --Mixed--> the next round

A peer takes each neighbour's newest message, as often as it likes and however old it is, up to `max_staleness`. What a
neighbour that was not heard, is lost, or is too stale would have had of the weights goes to the peer itself, so every
row goes on summing to 1.

`Done` answers each `Data`. Towards each listener at most one message is unanswered and at most one waits, the newest;
so a slow listener costs a fast peer nothing, and no queue grows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from peer.protocol.independent import Independent
from peer.protocol.messages import (
    Data,
    Done,
    Effect,
    Event,
    Message,
    Mix,
    Mixed,
    Neighbourhood,
    Payload,
    PeerId,
    Send,
    Term,
    Train,
    Trained,
)
from peer.protocol.weights import own_weight


@dataclass(frozen=True, slots=True)
class Heard:
    """The newest message of a neighbour; it came at `at_s`, after so many of the receiver's own mixes."""

    payload: Payload
    after_mixes: int
    at_s: float


class Asynchronous(Independent):
    """One peer's half of asynchronous neighbour averaging.

    `max_staleness` is for how many of its own mixes a peer goes on using a message after the first; None: for ever.
    """

    def __init__(
        self,
        me: PeerId,
        rounds: int,
        around: Callable[[int], Neighbourhood],
        *,
        max_staleness: int | None = None,
    ) -> None:
        super().__init__(me, rounds, around)
        self.max_staleness = max_staleness
        self._here = around(0)
        self._mixes = 0
        self._newest: dict[PeerId, int] = {}  # the round of the newest message of each neighbour
        self._heard: dict[PeerId, Heard] = {}
        self._unanswered: dict[PeerId, int] = {}  # the round of the message that each listener has yet to answer
        self._following: dict[PeerId, Data] = {}  # what it gets then

    # ---- Rounds

    def _is_free(self) -> bool:
        return self.phase != "mixing"

    def _go_on(self, now_s: float) -> list[Effect]:
        if self.phase != "waiting" or self._awaited:
            return []
        self.phase = "training"
        return [Train(self.round)]

    def _note_work(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Trained(round, payload) if self.phase == "training" and round == self.round:
                self.phase = "mixing"
                listeners = sorted(self.alive & self._here.listeners.keys())
                effects = [effect for peer in listeners for effect in self._tell(peer, Data(round, 0, payload))]
                return [*effects, self._mix(payload, now_s)]
            case Mixed() if self.phase == "mixing":
                return self._mixed(event)
        return []

    def _mix(self, own: Payload, now_s: float) -> Mix:
        self._drop_stale()
        heard = self._heard
        kept = own_weight(self.me, self._here, heard, (), "rows")
        terms = [
            Term(self._here.weights[peer], peer, what.payload, self._mixes - what.after_mixes, now_s - what.at_s)
            for peer, what in heard.items()
        ]
        self._mixes += 1
        terms.append(Term(kept, self.me, own))
        return Mix(self.round, 0, self.me, tuple(sorted(terms, key=lambda term: term.sender)))

    def _drop_stale(self) -> None:
        bound = inf if self.max_staleness is None else self.max_staleness
        self._heard = {p: what for p, what in self._heard.items() if self._mixes - what.after_mixes <= bound}

    def _mixed(self, event: Mixed) -> list[Effect]:
        effects = self._alerts(event)
        for peer in event.rejected:  # said once, and not offered again
            if peer in self._heard and self._heard[peer].after_mixes < self._mixes:
                del self._heard[peer]
        self.phase = "waiting"
        return effects + self._complete_round()

    # ---- Neighbours

    def _hear(self, sender: PeerId, message: Message, now_s: float) -> list[Effect]:
        match message:
            case Data(round, _, payload) if sender in self._here.weights:
                if round > self._newest.get(sender, -1):
                    self._newest[sender] = round
                    self._heard[sender] = Heard(payload, self._mixes, now_s)
                return [Send(sender, Done(round))]
            case Done(round) if self._unanswered.get(sender) == round:
                del self._unanswered[sender]
                following = self._following.pop(sender, None)
                return [] if following is None else self._tell(sender, following)
        return []

    def _tell(self, listener: PeerId, data: Data) -> list[Effect]:
        if listener in self._unanswered:
            self._following[listener] = data
            return []
        self._unanswered[listener] = data.round
        return [Send(listener, data)]

    def _part(self, peer: PeerId) -> None:
        self._unanswered.pop(peer, None)
        self._following.pop(peer, None)

    def _forget(self, peer: PeerId) -> None:
        self._newest.pop(peer, None)
        self._heard.pop(peer, None)

    def _drop_training(self) -> None:
        """Nor is anything said any more that was learned before."""
        self._following.clear()
