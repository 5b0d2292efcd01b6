"""Beds of a coordinator and its workers: one in which the test says who pushes next, one in which all goes wrong.

In `Class` the coordinator has one number, and every message arrives at once. In `CoordinatorBed` its state is the list
of all updates, each the tokens of what was pushed: so it is its own history, and as long as its version. All that the
coordinator asks for is held against what the bed has seen; nothing of it is read out of the cores but bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from peer.protocol.coordinator import ByArrival, ByRounds, Coordinator, Present
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Applied,
    Apply,
    Bye,
    Command,
    Effect,
    Event,
    Finish,
    Global,
    Message,
    Neighbourhood,
    PeerId,
    PeerJoined,
    PeerLost,
    Push,
    Received,
    Send,
    Tick,
    Train,
    Trained,
)
from peer.protocol.worker import Worker
from tests.async_link import Bed, Move, Steps

# ---- With numbers, one thing after the other


class Class:
    """A coordinator whose number is w, and workers that push gradients; links carry at once what they are given.

    Local steps last until `train`. An update takes lr / `size` times the weighted sum of gradients from w.
    """

    def __init__(
        self, core: Coordinator, lr: float, start: float, gradient: Callable[[PeerId, float], float], size: int = 1
    ) -> None:
        self.core, self.lr, self.gradient, self.size = core, lr, gradient, size
        self.w = [start]  # after each update
        self.terms: list[tuple[PeerId, int, float]] = []  # whose, how stale, how far w had gone since
        self.at: dict[PeerId, Any] = {}
        self.training: dict[PeerId, int] = {}
        self.workers = {peer: Worker(peer, core.me, core.rounds) for peer in sorted(core.neighbours)}
        self._carry_out(core.me, core.start(0.0))
        for peer in self.workers:
            self._tell(core.me, PeerJoined(peer))
        for peer in self.workers:
            self._tell(peer, PeerJoined(core.me))

    def train(self, peer: PeerId) -> None:
        """The local steps of this worker end."""
        round = self.training.pop(peer)
        self._tell(peer, Trained(round, self.gradient(peer, self.at[peer])))

    def _tell(self, me: PeerId, event: Event) -> None:
        core = self.core if me == self.core.me else self.workers[me]
        self._carry_out(me, core.handle(event, 0.0))

    def _carry_out(self, me: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._tell(to, Received(me, message))
                case Adopt(round, payload):
                    self.at[me] = payload
                    self._tell(me, Adopted(round))
                case Train(round):
                    self.training[me] = round
                case Apply(version, terms):
                    assert version == len(self.w) - 1
                    now = self.w[-1]
                    step = sum(term.weight * term.payload for term in terms) / self.size
                    self.terms += [(t.sender, t.staleness, abs(now - self.w[version - t.staleness])) for t in terms]
                    self.w.append(now - self.lr * step)
                    self._tell(me, Applied(self.w[-1]))


# ---- With all that goes wrong


@dataclass(frozen=True)
class Token:
    """What a worker has pushed; no two are the same."""

    peer: PeerId
    serial: int
    version: int


History = tuple[tuple[Token, ...], ...]
Build = Callable[[PeerId, Present], Coordinator]


class CoordinatorBed(Bed):
    """A coordinator, the last of the peers, and workers; links delay, double and reorder.

    The coordinator stores where it stands after every `stores_every`-th update and the last, and begins from there when
    it is started again.
    """

    def __init__(
        self,
        workers: int,
        rounds: int,
        build: Build,
        random: Random,
        *,
        doubles: float = 0.0,
        stores_every: int = 1,
        return_s: float = 500.0,
    ) -> None:
        self.hub = workers
        self.rounds = rounds
        self.build = build
        self.stores_every = stores_every
        self.return_s = return_s
        self.stored = Present(())
        self.applying: Apply | None = None
        self.serial = 0
        self.seen: Seen | None = None
        self.falls = 0
        super().__init__([Neighbourhood({}, {})] * (workers + 1), random, doubles=doubles)

    @property
    def history(self) -> History:
        history: History = self.state[self.hub]
        return history

    def core(self, me: PeerId) -> Any:
        if me != self.hub:
            return Worker(me, self.hub, self.rounds, return_s=self.return_s)
        core = self.build(me, self.stored)
        self.seen = Seen(core, self.stored.version, dict(self.stored.settled))
        return core

    def start_of(self, me: PeerId) -> Any:
        return self.stored.payload if me == self.hub else None

    def begin(self, me: PeerId, round: int) -> Token:
        self.serial += 1
        return Token(me, self.serial, len(self.state[me]))

    def trained(self, me: PeerId, steps: Steps) -> Trained:
        return Trained(steps.round, steps.found)

    # ---- What may happen next

    def possible(self) -> list[Move]:
        apply: list[Move] = [("state", self.hub, self.hub)] if self.applying else []
        return super().possible() + apply

    def do(self, move: Move) -> None:
        super().do(move)
        self._tick()

    def run_to_the_end(self, troubles: list[tuple[int, str]]) -> None:
        """Let all go wrong; then mend all, let time pass where nothing else happens, and see each come to its end."""
        self.run(troubles=troubles)
        self.make("restart")
        self.make("mend")
        while True:
            self.run()
            due = [core.deadline_s for i, core in self._at_work() if core.deadline_s < float("inf")]
            if not due:
                break
            self.now_s = max(self.now_s, min(due))
            self._tick()
        assert not list(self._at_work()), "somebody waits for ever"

    def _at_work(self) -> list[tuple[PeerId, Any]]:
        return [(i, core) for i, core in enumerate(self.cores) if i not in self.dead and i not in self.finished]

    def _tick(self) -> None:
        for i, core in self._at_work():
            if self.now_s >= core.deadline_s:
                self.tell(i, Tick())

    def _end_work(self, me: PeerId) -> None:
        if me != self.hub:
            super()._end_work(me)
            return
        apply, self.applying = self.applying, None
        assert apply is not None
        assert apply.version == len(self.history), "versions grow by one"
        self.state[me] = (*self.history, tuple(term.payload for term in apply.terms))
        self.tell(me, Applied(self.history))
        if len(self.history) % self.stores_every == 0 or len(self.history) == self.rounds:
            self.stored = self.cores[me].present()  # type: ignore[attr-defined]
            assert self.stored.payload == self.history
            assert self.stored.version == len(self.history)

    def _send(self, a: PeerId, b: PeerId, message: Message) -> None:
        """As between equals, but that a worker answers a goodbye by one."""
        is_answer = isinstance(message, Bye) and a != self.hub and (b, a) in self.heard_bye
        if is_answer:
            self.heard_bye.discard((b, a))
        super()._send(a, b, message)
        if is_answer:
            self.heard_bye.add((b, a))

    def kill(self, me: PeerId) -> None:
        super().kill(me)
        if me == self.hub and me in self.dead:
            self.falls += 1
            self.applying = None

    # ---- What is checked

    def notice(self, me: PeerId, event: Event) -> None:
        if me == self.hub and me not in self.finished:
            assert self.seen is not None
            self.seen.note(event, self.now_s)

    def check(self, me: PeerId, event: Event, effects: list[Effect]) -> None:
        if me == self.hub:
            assert self.seen is not None
            self.seen.check(effects, self.history)
            for effect in effects:
                if isinstance(effect, Apply):
                    assert self.applying is None, "two updates at a time"
                    self.applying = effect
        elif any(isinstance(effect, Train) for effect in effects):
            assert self.state[me] is not None

    def check_history(self) -> None:
        """Each token is applied at most once, and was made from what the coordinator had at that version."""
        tokens = [token for update in self.history for token in update]
        assert len(tokens) == len(set(tokens)), "a push was applied twice"
        for version, update in enumerate(self.history):
            assert update, "nothing was applied"
            assert all(token.version <= version for token in update)


class Seen:
    """What the coordinator was told, and what follows from that by the rules of its discipline."""

    def __init__(self, core: Coordinator, version: int, settled: dict[PeerId, int]) -> None:
        self.core = core
        self.version = version
        self.numbers = settled  # of the last push of each
        self.there = set(core.neighbours)
        self.silent = set(core.neighbours)
        self.arrived: list[tuple[PeerId, Push]] = []  # and not yet applied, in this order
        self.has_begun = False
        self.is_applying = False
        self.is_closing = 0 < core.rounds <= version
        self.is_stopped = False
        self.began_s = 0.0
        self.is_overdue = False
        self.stands_in = False
        self.turn = 0
        self.given: dict[PeerId, int] = {}

    def note(self, event: Event, now_s: float) -> None:
        match event:
            case PeerJoined(peer):
                self.there.add(peer)
                self.silent.add(peer)
                self.given.pop(peer, None)
            case PeerLost(peer):
                self.there.discard(peer)
                self.given.pop(peer, None)
            case Received(peer, Bye()):
                self.there.discard(peer)
            case Received(peer, Push() as push) if peer in self.there:
                self.silent.discard(peer)
                if push.number > self.numbers.get(peer, 0):
                    self.numbers[peer] = push.number
                    self.arrived.append((peer, push))
                    self.given.pop(peer, None)
            case Received(peer) if peer in self.there:
                self.silent.discard(peer)
            case Command("stop"):
                self.is_stopped = True
            case Applied():
                self.is_applying, self.stands_in = False, False
                self.version += 1
                self.is_closing = self.version == self.core.rounds
                self.began_s, self.is_overdue = now_s, False
            case Tick() if isinstance(self.core, ByRounds) and self.core.timer_s and self.has_begun:
                self.is_overdue |= not self.is_applying and now_s >= self.began_s + self.core.timer_s
        if not self.has_begun and not self.silent & self.there:
            self.has_begun, self.began_s = True, now_s

    def check(self, effects: list[Effect], history: History) -> None:
        due = self.due()
        applies = [effect for effect in effects if isinstance(effect, Apply)]
        if due is None:
            assert not applies, "it applies what is not due"
        else:
            [apply] = applies
            assert [(term.sender, term.payload) for term in apply.terms] == [(p, push.payload) for p, push in due]
            assert [term.staleness for term in apply.terms] == [self.version - p.payload.version for _, p in due]
            assert apply.version == self.version == len(history)
            self.arrived = [item for item in self.arrived if item not in due]
            self.is_applying = True
        for effect in effects:
            match effect:
                case Send(peer, Global(version, payload)):
                    assert payload == history[:version], "what is given is not that version"
                    assert peer in self.there
                    assert peer not in self.given
                    assert all(who != peer for who, _ in self.waiting()), "given anew before its push was taken"
                    self.given[peer] = version
                case Finish("failed"):
                    assert not self.there
                case Finish("finished"):
                    assert self.is_closing
                    assert not self.there or self.is_stopped
        assert len(self.core._inbox) <= len(self.core.neighbours)
        assert len(self.core._kept) <= self.core._keeps

    def waiting(self) -> list[tuple[PeerId, Push]]:
        """Return what is in the inbox, but not in a buffer."""
        buffered = isinstance(self.core, ByArrival) and self.core.size > 1 and not self.is_applying
        return [] if buffered else self.arrived

    def due(self) -> list[tuple[PeerId, Push]] | None:
        if not self.has_begun or self.is_applying or self.is_closing or self.is_stopped:
            return None
        self.arrived = [(peer, push) for peer, push in self.arrived if push.version <= self.version]
        return self._due_in_rounds(self.core) if isinstance(self.core, ByRounds) else self._due_by_arrival()

    def _due_in_rounds(self, core: ByRounds) -> list[tuple[PeerId, Push]] | None:
        if core.late == "drop":
            self.arrived = [(peer, push) for peer, push in self.arrived if push.version == self.version]
        pushed = {peer for peer, _ in self.arrived}
        self.stands_in |= not pushed and not core.chosen(self.version) & self.there
        members = core.neighbours if self.stands_in else core.chosen(self.version)
        is_met = members & self.there <= pushed or (core.count and len(pushed) >= core.count) or self.is_overdue
        return sorted(self.arrived, key=lambda item: item[0]) if pushed and is_met else None

    def _due_by_arrival(self) -> list[tuple[PeerId, Push]] | None:
        core = self.core
        assert isinstance(core, ByArrival)
        if core.max_staleness:
            oldest = self.version - core.max_staleness
            self.arrived = [(peer, push) for peer, push in self.arrived if push.version >= oldest]
        if core.arrival == "clock":
            return self.arrived[: core.size] if len(self.arrived) >= core.size else None
        line = self.there | {peer for peer, _ in self.arrived}
        first = min(line, key=lambda peer: (peer - self.turn) % (max(core.neighbours) + 1), default=None)
        due = [(peer, push) for peer, push in self.arrived if peer == first]
        if due:
            assert first is not None
            self.turn = first + 1
        return due or None
