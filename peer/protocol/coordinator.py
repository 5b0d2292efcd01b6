"""The coordinator of a parameter server: what its disciplines, `by_rounds` and `by_arrival`, have in common.

    waiting --each worker has spoken or is lost--> open --enough was pushed: Apply--> applying
    applying --Applied: one version more--> open, or after the last version closing
    closing --each worker said Bye or is lost--> done

A worker that does nothing is *given* the parameters by a `Global`, trains, and comes back with a `Push`, which asks for
the next. What is applied is always one whole update, in `Apply`, and versions grow by one with each. What is pushed
meanwhile waits in the inbox, which holds at most one push of each worker, as nobody is given anything before its push
has left it. The disciplines say what is applied when, and who is given what. The last version is given to all workers,
whether they have asked or are at work, with a `Bye` after it; who is lost at that moment gets it when it is back. A
coordinator that is stopped before that says only `Bye`.

A lost worker is waited for no longer; what was heard of it whole still counts, unless it is started anew before that is
applied: then it does its part again. One that comes back says what it does and is given the present version, if it does
nothing. When nobody is left the run ends as "failed".

Pushes of a worker are numbered. A coordinator that falls begins from a `Present` of an earlier version: workers then
say again what was not answered, what is in those parameters is known by its number, and what was made from a version
that there is not any more is dropped. Of `ByArrival` with a buffer, what was in the buffer is lost in the fall.

Links lose nothing within one life of two peers with each other, but what they carry may come twice and in any order;
only `Bye` comes after all else. After a `PeerLost`, and before a `PeerJoined`, what was said is void.

Several coordinators, each with a part of the parameters, share their workers and know nothing of one another. Each
keeps these rules for its own part; see `worker` for what holds beyond.

The coordinator is a process of its own here. One that also trains needs a `Worker` core beside this one, whose
messages the shell hands over without a link, which is never lost, and whose steps do not keep this one from working.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from peer.protocol.messages import (
    Alert,
    Applied,
    Apply,
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
    Term,
    Tick,
)

Phase = Literal["waiting", "open", "applying", "closing", "done"]


@dataclass(frozen=True)
class Present:
    """Where a coordinator stands, and can begin: its parameters, and the last push of each worker that is in them.

    `turn` is whose push is next, where they take turns.
    """

    payload: Payload
    version: int = 0
    settled: Mapping[PeerId, int] = field(default_factory=dict)
    turn: PeerId = 0


class Coordinator(ABC):
    """What the disciplines have in common; what is applied when is left open.

    `rounds` is how many versions there will be, 0 for until stopped. Where all workers are lost, `return_s` is how long
    one is waited for, then the coordinator ends as "failed".
    """

    def __init__(
        self, me: PeerId, workers: Iterable[PeerId], rounds: int, present: Present, *, return_s: float = 0.0
    ) -> None:
        self.me = me
        self.neighbours = set(workers)
        assert self.neighbours
        assert me not in self.neighbours
        self.rounds = rounds
        self.return_s = return_s
        self.phase: Phase = "waiting"
        self.version = present.version
        self.settled = dict.fromkeys(sorted(self.neighbours), 0) | dict(present.settled)
        self.short_rounds = 0
        self.dropped = 0  # pushes that were not applied: too late, or void
        self.lost: dict[PeerId, str] = {}
        self._timer_s = inf  # when a discipline wants a Tick
        self._deserted_s = inf  # until when one of the lost is waited for, where all are
        self._turn: PeerId = present.turn  # of this worker, or of the next one that is there
        self._next_turn: PeerId = present.turn  # likewise, when the present version was made
        self._kept: dict[int, Payload] = {self.version: present.payload}  # parameters by version
        self._keeps = 1  # how many of them
        self._silent = set(self.neighbours)  # nothing was heard of them in this life
        self._closed: set[PeerId] = set()
        self._told_goodbye: set[PeerId] = set()
        self._is_to_stop = False  # when the update at hand is complete
        self._heard = dict(self.settled)  # the number of the last push of each
        self._inbox: dict[PeerId, Push] = {}  # in the order in which they came
        self._applying: dict[PeerId, int] = {}  # numbers of pushes that are being applied, or wait in a buffer
        self._asking: dict[PeerId, None] = {}  # who does nothing, in the order in which they asked
        self._given: dict[PeerId, int] = {}  # who trains, from which version
        self._named: set[PeerId] = set()  # who has pushed what is not finite
        self._last_given: dict[PeerId, int] = {}  # by this coordinator, since it was started

    # ---- The Core interface

    def start(self, now_s: float) -> list[Effect]:
        if 0 < self.rounds <= self.version:
            self.phase = "closing"
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if self.phase == "done":
            return []
        return self._take(event, now_s) + self._go_on(now_s)

    # ---- What a person may want to know

    @property
    def deadline_s(self) -> float:
        """When `Tick` is wanted; inf if never."""
        return min(self._timer_s, self._deserted_s)

    @property
    def round(self) -> int:
        """The version: how many updates were applied."""
        return self.version

    @property
    def alive(self) -> set[PeerId]:
        """Workers that are neither lost nor done."""
        return self.neighbours - self.lost.keys() - self._closed

    def present(self) -> Present:
        """Return what another coordinator needs to go on from here.

        For versions never to go back it is stored after each `Applied`, before the effects of that are carried out;
        the last one in any case, as its workers are sent home. Where it is stored less often, workers that come back
        after the fallen versions were made anew may push what they made of the old ones.
        """
        return Present(self._kept[self.version], self.version, dict(self.settled), self._next_turn)

    def waits_for(self) -> set[PeerId]:
        """The workers without which there is no next version."""
        match self.phase:
            case "waiting":
                return self._silent & self.alive
            case "open":
                return self._missing()
            case "closing":
                return self.alive
        return set()

    # ---- Left open: the discipline

    _gives_every_version = False  # even where what makes the next one has arrived already

    def _begin_version(self, now_s: float) -> None:  # noqa: B027 - most have nothing to do
        """A version begins."""

    @abstractmethod
    def _is_too_late(self, peer: PeerId, push: Push) -> bool:
        """Say whether a push, made from this or an earlier version, is to be dropped."""

    @abstractmethod
    def _due(self) -> list[tuple[PeerId, Push]]:
        """Take out of the inbox what is to be applied now, in order; nothing if it is not time yet."""

    @abstractmethod
    def _weights(self, pushes: list[tuple[PeerId, Push]]) -> list[float]:
        """Return what each of the pushes that are applied now weighs."""

    @abstractmethod
    def _version_for(self, peer: PeerId) -> int | None:
        """Return the version which a worker that asks is given now, None if it has to wait."""

    @abstractmethod
    def _missing(self) -> set[PeerId]:
        """Return the workers whose push is waited for."""

    def _note_time(self, now_s: float) -> None:  # noqa: B027 - most have nothing to do
        """`Tick`."""

    # ---- Events

    def _take(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case PeerJoined(peer) if peer in self.neighbours:
                self._welcome(peer)
            case PeerLost(peer, reason):
                return self._lose(peer, reason)
            case Received(sender, message) if sender in self.alive:
                return self._receive(sender, message)
            case Applied():
                return self._applied(event, now_s)
            case Tick():
                self._note_time(now_s)
            case Command("stop"):
                return self._stop()
        return []

    def _go_on(self, now_s: float) -> list[Effect]:
        if self.alive:
            self._deserted_s = inf
        if self.phase == "waiting" and not self._silent & self.alive:
            self.phase = "open"
            self._begin_version(now_s)
        if self.phase == "open":
            self._drop_what_is_void()
            if pushes := self._due():
                return [self._apply(pushes)]
            return self._give() if self.alive else self._wait_for_one(now_s)
        return self._close() if self.phase == "closing" else []

    # ---- Versions

    def _drop_what_is_void(self) -> None:
        for peer, push in list(self._inbox.items()):
            if push.version > self.version or self._is_too_late(peer, push):
                self._drop(peer)

    def _drop(self, peer: PeerId) -> None:
        if self._inbox.pop(peer, None):
            self.dropped += 1

    def _apply(self, pushes: list[tuple[PeerId, Push]]) -> Apply:
        self.phase = "applying"
        self._timer_s = inf
        self._applying = {peer: push.number for peer, push in pushes}  # the last of each
        weighted = zip(self._weights(pushes), pushes, strict=True)
        terms = (Term(weight, peer, push.payload, self.version - push.version) for weight, (peer, push) in weighted)
        return Apply(self.version, tuple(terms))

    def _applied(self, event: Applied, now_s: float) -> list[Effect]:
        assert self.phase == "applying"
        effects: list[Effect] = [
            Alert(f"pushed numbers that are not finite for version {self.version}; they were not applied", peer)
            for peer in dict.fromkeys(event.rejected)
            if peer not in self._named
        ]
        self._named.update(event.rejected)
        self.settled |= self._applying
        self._next_turn = self._turn
        self.version += 1
        self._kept[self.version] = event.payload
        self._kept.pop(self.version - self._keeps, None)
        self.phase = "closing" if self.version == self.rounds else "open"
        if self._is_to_stop:
            return effects + self._stop()
        if self.phase == "open":
            self._begin_version(now_s)
            effects += self._give() if self._gives_every_version else []
        return effects

    def _give(self) -> list[Effect]:
        effects: list[Effect] = []
        for peer in [peer for peer in self._asking if peer not in self._inbox]:
            version = self._version_for(peer)
            if version is not None:
                del self._asking[peer]
                self._given[peer] = self._last_given[peer] = version
                effects.append(Send(peer, Global(version, self._kept[version], self._heard[peer])))
        return effects

    # ---- Workers

    def _receive(self, sender: PeerId, message: Message) -> list[Effect]:
        match message:
            case Pull(working_at) if sender in self._silent:
                self._silent.discard(sender)
                if working_at is None:
                    self._drop(sender)
                    self._asking[sender] = None
                else:
                    self._given[sender] = working_at
            case Push():
                return self._hear(sender, message)
            case Bye(rounds):
                return self._farewell(sender, rounds)
        return []

    def _hear(self, sender: PeerId, push: Push) -> list[Effect]:
        """Take a push, but one that was heard before; even that is a first word in a new life."""
        is_first_word, is_new = sender in self._silent, push.number > self._heard[sender]
        if is_new and not is_first_word and self._given.get(sender) != push.version:
            return self._lose(sender, f"pushed something of version {push.version} that it was not asked for")
        self._silent.discard(sender)
        if is_new:
            self._heard[sender] = push.number
            self._inbox.setdefault(sender, push)
        if is_new or is_first_word:
            self._given.pop(sender, None)
            self._asking[sender] = None
        return []

    def _welcome(self, peer: PeerId) -> None:
        self.lost.pop(peer, None)
        self._closed.discard(peer)
        self._end_life(peer)
        self._silent.add(peer)

    def _lose(self, peer: PeerId, reason: str) -> list[Effect]:
        if peer not in self.alive:
            return []
        self.lost[peer] = reason
        self._end_life(peer)
        return [Alert(f"is lost ({reason})", peer)]

    def _end_life(self, peer: PeerId) -> None:
        self._asking.pop(peer, None)
        self._given.pop(peer, None)
        self._told_goodbye.discard(peer)

    def _farewell(self, peer: PeerId, rounds: int) -> list[Effect]:
        if self.phase != "closing":
            return self._lose(peer, f"left after {rounds} pushes")
        self._closed.add(peer)
        return []

    # ---- The end

    def _close(self) -> list[Effect]:
        """Send those home that have spoken; when all have answered, it is done."""
        if self.alive:
            return self._give_last()
        self.phase = "done"
        return [Finish("finished")]

    def _give_last(self) -> list[Effect]:
        """Give the last version and say goodbye, whether it was asked for or not."""
        effects: list[Effect] = []
        for peer in sorted(self.alive - self._silent - self._told_goodbye):
            self._told_goodbye.add(peer)
            last = Global(self.version, self._kept[self.version], self.settled[peer])
            effects += [Send(peer, last), Send(peer, Bye(self.version))]
        return effects

    def _wait_for_one(self, now_s: float) -> list[Effect]:
        """Nobody is there: wait for somebody to come back, and not for ever."""
        if self._deserted_s == inf:
            self._deserted_s = now_s + self.return_s
        if now_s < self._deserted_s:
            return []
        self._end()
        return [Finish("failed", f"no worker is left to go on from version {self.version}")]

    def _stop(self) -> list[Effect]:
        if self.phase == "applying":
            self._is_to_stop = True
            return []
        is_complete = self.phase == "closing"
        given = self._give_last() if is_complete else []
        told = sorted(self.alive - self._told_goodbye)
        self._end()
        goodbyes = (Send(peer, Bye(self.version)) for peer in told)
        return [*given, *goodbyes, Finish("finished" if is_complete else "interrupted")]

    def _end(self) -> None:
        self.phase = "done"
        self._timer_s = self._deserted_s = inf
