"""What cores of peers that do not wait for each other have in common: beginning, losses, coming back, and the end.

Such a peer has rounds of its own, and its neighbours may be in any other. It begins when each of them has joined or is
lost; after that it waits for nobody. When its rounds are complete it says `Bye` and is done at once.

A neighbour that was lost and is there again hears from this peer in which round it is, by `Resume`. Whoever is told
so and lags by more than `KEEPS_OWN_ROUNDS` asks one neighbour for its parameters, trains on until they are there, and
goes on from them:

    Resume --far ahead--> Fetch --Copy, Copied--> Model --nothing at hand--> Adopt --Adopted--> the next local round

One lag is asked about once. What was learned and not yet taken in is void then.

Links lose nothing within one life of two peers with each other, but what they carry may come twice and in any order;
only `Bye` comes after all else. After a `PeerLost`, and at a `PeerJoined`, what was said in an earlier life is void.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import Literal

from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Bye,
    Command,
    Copied,
    Copy,
    Effect,
    Event,
    Fetch,
    Finish,
    Message,
    Mixed,
    Model,
    Neighbourhood,
    PeerId,
    PeerJoined,
    PeerLost,
    Received,
    Resume,
    Send,
)
from peer.protocol.standing import KEEPS_OWN_ROUNDS


class Independent(ABC):
    """One peer's half of a protocol without common rounds; the part that exchanges parameters is left open.

    `rounds` is how many local rounds to do, 0 for until stopped. `around(0)` is the peer's neighbourhood, which never
    changes. Each event is first taken note of, by the parts below, and then `_go_on` says what may be done now.

    A `Trained` that belongs to local steps which `Adopt` made void is ignored: up to the `Adopted` each, after it
    those of another round. So a shell must not tell it later than `Adopted` where the round is the same.
    """

    def __init__(self, me: PeerId, rounds: int, around: Callable[[int], Neighbourhood]) -> None:
        self.me = me
        self.rounds = rounds
        self.around = around
        self.deadline_s = inf
        self.phase = "waiting"
        self.round = 0
        self.short_rounds = 0
        self.lost: dict[PeerId, str] = {}
        here = around(0)
        self.neighbours = (set(here.weights) | set(here.listeners)) - {me}
        self._awaited = set(self.neighbours)
        self._closed: set[PeerId] = set()
        self._asked: PeerId | None = None  # for its parameters, which have not come yet
        self._model: Model | None = None  # which came, and waits for the state to be free
        self._copied_for: set[PeerId] = set()

    # ---- The Core interface

    def start(self, now_s: float) -> list[Effect]:
        return self._continue(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if self.phase == "done":
            return []
        return self._take(event, now_s) + self._continue(now_s)

    # ---- What a person may want to know

    @property
    def alive(self) -> set[PeerId]:
        """Neighbours that are neither lost nor done."""
        return self.neighbours - self.lost.keys() - self._closed

    def waits_for(self) -> set[PeerId]:
        """The peers without which this one does not go on at the moment."""
        return set(self._awaited) if self.phase == "waiting" else set()

    # ---- Left open: how parameters are exchanged

    @abstractmethod
    def _is_free(self) -> bool:
        """Say whether the state may be replaced: nothing is at hand that changes it, and nothing was promised of it."""

    @abstractmethod
    def _go_on(self, now_s: float) -> list[Effect]:
        """Do what is next; called after every event, but while parameters are adopted."""

    @abstractmethod
    def _note_work(self, event: Event, now_s: float) -> list[Effect]:
        """Take note of work that was done: `Trained`, `Mixed`, `Learned`."""

    @abstractmethod
    def _hear(self, sender: PeerId, message: Message, now_s: float) -> list[Effect]:
        """Take a message about parameters, from a neighbour that is alive."""

    @abstractmethod
    def _part(self, peer: PeerId) -> None:
        """The neighbour answers nothing any more: wait for nothing of it."""

    @abstractmethod
    def _forget(self, peer: PeerId) -> None:
        """Forget what the neighbour said, too: another life begins, or none."""

    @abstractmethod
    def _drop_training(self) -> None:
        """What was learned in this round is void."""

    # ---- Events

    def _take(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case PeerJoined(peer):
                return self._welcome(peer)
            case PeerLost(peer, reason):
                return self._lose(peer, reason)
            case Received(sender, message):
                return self._receive(sender, message, now_s) if sender in self.alive else []
            case Copied(to, payload):
                return self._give(to, Model(self.round, payload))
            case Adopted(round):
                self._begin_anew(round)
                return []
            case Command("stop"):
                return self._leave("interrupted")
        return self._note_work(event, now_s)

    def _receive(self, sender: PeerId, message: Message, now_s: float) -> list[Effect]:
        match message:
            case Bye(rounds):
                return self._farewell(sender, rounds)
            case Resume(round):
                return self._ask_if_far_behind(sender, round)
            case Fetch():
                return self._copy_for(sender)
            case Model():
                self._keep(sender, message)
                return []
        return self._hear(sender, message, now_s)

    def _continue(self, now_s: float) -> list[Effect]:
        if self.phase in ("done", "adopting"):
            return []
        if self._model is not None and self._is_free():
            return self._adopt(self._model)
        return self._go_on(now_s)

    def _alerts(self, event: Mixed) -> list[Effect]:
        return [
            Alert(f"sent numbers that are not finite in round {self.round}; they were not mixed", peer)
            for peer in event.rejected
        ]

    # ---- Neighbours

    def _welcome(self, peer: PeerId) -> list[Effect]:
        if peer not in self.neighbours:
            return []
        was_away = peer in self.lost or peer in self._closed  # done, say, and then started anew
        self.lost.pop(peer, None)
        self._closed.discard(peer)
        self._awaited.discard(peer)
        self._end_life(peer)
        return [Send(peer, Resume(self.round))] if was_away else []

    def _lose(self, peer: PeerId, reason: str) -> list[Effect]:
        if peer not in self.alive:
            return []
        self.lost[peer] = reason
        self._awaited.discard(peer)
        self._end_life(peer)
        return [Alert(f"is lost ({reason})", peer)]

    def _farewell(self, peer: PeerId, rounds: int) -> list[Effect]:
        if self.rounds == 0 or rounds != self.rounds:
            return self._lose(peer, f"left after round {rounds}")
        self._closed.add(peer)
        self._awaited.discard(peer)
        self._expect_no_model(peer)
        self._part(peer)
        return []

    def _end_life(self, peer: PeerId) -> None:
        self._copied_for.discard(peer)
        self._expect_no_model(peer)
        self._part(peer)
        self._forget(peer)

    def _expect_no_model(self, peer: PeerId) -> None:
        if self._asked == peer:
            self._asked = None

    # ---- Coming back

    def _ask_if_far_behind(self, sender: PeerId, round: int) -> list[Effect]:
        is_on_its_way = self._asked is not None or self._model is not None or self.phase == "adopting"
        lag = KEEPS_OWN_ROUNDS if self.round else 0  # who has completed no round has learned nothing
        if is_on_its_way or round <= self.round + lag:
            return []
        self._asked = sender
        return [Send(sender, Fetch())]

    def _copy_for(self, peer: PeerId) -> list[Effect]:
        if peer in self._copied_for:
            return []
        self._copied_for.add(peer)
        return [Copy(peer)]

    def _give(self, peer: PeerId, model: Model) -> list[Effect]:
        if peer not in self._copied_for:
            return []
        self._copied_for.discard(peer)
        return [Send(peer, model)] if peer in self.alive else []

    def _keep(self, sender: PeerId, model: Model) -> None:
        if self._asked != sender:
            return
        self._asked = None
        if self.rounds == 0 or model.round < self.rounds:  # who has completed all rounds gives nothing any more
            self._model = model

    def _adopt(self, model: Model) -> list[Effect]:
        self._model = None
        self._drop_training()
        self.phase = "adopting"
        return [Adopt(max(model.round, self.round), model.payload)]

    def _begin_anew(self, round: int) -> None:
        if self.phase == "adopting":
            self.phase = "waiting"
            self.round = round

    # ---- The end

    def _complete_round(self) -> list[Effect]:
        self.round += 1
        return self._leave("finished") if self.round == self.rounds else []

    def _leave(self, outcome: Literal["finished", "interrupted"]) -> list[Effect]:
        self.phase = "done"
        return [*(Send(peer, Bye(self.round)) for peer in sorted(self.alive)), Finish(outcome)]
