"""A worker beside a coordinator: it pulls parameters, trains from them, pushes what it has learned, and waits.

    waiting --Global--> adopting --Adopted--> training --Trained: Push--> waiting

Nobody interrupts it. While the coordinator is lost the worker ends what it has at hand and waits for it to come back.
Whenever the coordinator has joined, the worker speaks first: it says the push again that was not answered yet, or says
by `Pull` that it trains, or has nothing to do. Pushes are numbered, and a `Global` says which one it answers. So a push
is not applied twice, however often it is said, and one that a coordinator has lost in its fall is not lost for good.
A worker that is started anew takes the count over from the first `Global` that it hears.

Links lose nothing within one life of the two with each other, but what they carry may come twice and in any order;
only `Bye` comes after all else. After a `PeerLost`, and before a `PeerJoined`, what was said is void.
"""

from math import inf
from typing import Literal

from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Bye,
    Command,
    Effect,
    Event,
    Finish,
    Global,
    Message,
    Payload,
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

Phase = Literal["waiting", "adopting", "training", "done"]


class Worker:
    """One worker's half of a parameter server.

    `rounds` is how many versions the coordinator makes, 0 for until stopped. A lost coordinator is waited for during
    `return_s`, then the worker ends as "failed"; 0: it is waited for without end.

    `round` counts the pushes of this worker, and is the round in `Train` and `Adopt`; `version` is that of the
    parameters from which it trains, or has trained.
    """

    short_rounds = 0  # the coordinator counts them

    def __init__(self, me: PeerId, coordinator: PeerId, rounds: int, *, return_s: float = 0.0) -> None:
        self.me = me
        self.coordinator = coordinator
        self.rounds = rounds
        self.return_s = return_s
        self.deadline_s = inf
        self.phase: Phase = "waiting"
        self.round = 0
        self.version = 0
        self.lost: dict[PeerId, str] = {}
        self.neighbours = {coordinator}
        self._is_there = False
        self._unanswered: Push | None = None  # the last push, until a Global answers it

    # ---- The Core interface

    def start(self, now_s: float) -> list[Effect]:
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if self.phase == "done":
            return []
        match event:
            case PeerJoined(peer) if peer == self.coordinator:
                return self._greet()
            case PeerLost(peer, reason) if peer == self.coordinator:
                return self._lose(reason, now_s)
            case Received(sender, message) if sender == self.coordinator and self._is_there:
                return self._receive(message)
            case Adopted(round) if self.phase == "adopting" and round == self.round:
                self.phase = "training"
                return [Train(round)]
            case Trained(round, payload) if self.phase == "training" and round == self.round:
                return self._push(payload)
            case Tick() if now_s >= self.deadline_s:
                return self._give_up()
            case Command("stop"):
                return self._leave("interrupted")
        return []

    # ---- What a person may want to know

    @property
    def alive(self) -> set[PeerId]:
        """The coordinator, unless it is lost."""
        return self.neighbours - self.lost.keys()

    def waits_for(self) -> set[PeerId]:
        """The peers without which this one does not go on at the moment."""
        return {self.coordinator} if self.phase == "waiting" else set()

    # ---- Pull, train, push

    def _receive(self, message: Message) -> list[Effect]:
        match message:
            case Global() if self.phase == "waiting" and message.heard >= self.round:
                return self._adopt(message)
            case Bye(rounds):
                is_complete = 0 < self.rounds <= rounds
                return self._leave("finished" if is_complete else "interrupted")
        return []

    def _adopt(self, message: Global) -> list[Effect]:
        self._unanswered = None
        self.phase = "adopting"
        self.version, self.round = message.version, message.heard
        return [Adopt(self.round, message.payload)]

    def _push(self, payload: Payload) -> list[Effect]:
        self.phase = "waiting"
        self.round += 1
        self._unanswered = Push(self.round, self.version, payload)
        return [Send(self.coordinator, self._unanswered)] if self._is_there else []

    # ---- The coordinator comes and goes

    def _greet(self) -> list[Effect]:
        self._is_there = True
        self.lost.clear()
        self.deadline_s = inf
        working_at = None if self.phase == "waiting" else self.version
        return [Send(self.coordinator, self._unanswered or Pull(working_at))]

    def _lose(self, reason: str, now_s: float) -> list[Effect]:
        if self.lost:
            return []
        self._is_there = False
        self.lost[self.coordinator] = reason
        if self.return_s:
            self.deadline_s = now_s + self.return_s
        return [Alert(f"is lost ({reason}); this worker waits for it to come back", self.coordinator)]

    def _give_up(self) -> list[Effect]:
        alert = Alert(f"did not come back within {self.return_s:g} s", self.coordinator)
        return [alert, *self._leave("failed")]

    # ---- The end

    def _leave(self, outcome: Literal["finished", "interrupted", "failed"]) -> list[Effect]:
        self.phase = "done"
        self.deadline_s = inf
        goodbye: list[Effect] = [Send(self.coordinator, Bye(self.round))] if self._is_there else []
        return [*goodbye, Finish(outcome)]
