"""A bed of workers and one or several coordinators, in which all goes wrong.

The state of a coordinator is the list of all its updates, each the tokens of what was pushed: so it is its own history,
and as long as its version. The state of a worker is what it has adopted of each. All that a coordinator asks for is
held against what the bed has seen, on the rules of its own discipline; nothing of it is read out of the cores but
bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from peer.protocol.by_arrival import ByArrival
from peer.protocol.by_rounds import ByRounds
from peer.protocol.coordinator import Coordinator, Present
from peer.protocol.messages import (
    Adopt,
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
    Pull,
    Push,
    Received,
    Send,
    Shares,
    Tick,
    Train,
    Trained,
)
from peer.protocol.worker import Worker
from tests.async_link import Bed, Move, Steps


@dataclass(frozen=True)
class Token:
    """What a worker has pushed to a coordinator, made from this version; no two are the same."""

    hub: PeerId
    peer: PeerId
    serial: int
    version: int


History = tuple[tuple[Token, ...], ...]
Build = Callable[[PeerId, Present], Coordinator]


class CoordinatorBed(Bed):
    """Workers, and after them coordinators, the hubs; links delay, double and reorder.

    A hub stores where it stands after every `stores_every`-th update and the last, and begins from there when it is
    started again.
    """

    def __init__(
        self,
        workers: int,
        rounds: int,
        build: Build,
        random: Random,
        *,
        hubs: int = 1,
        doubles: float = 0.0,
        stores_every: int = 1,
        return_s: float = 500.0,
    ) -> None:
        self.workers = range(workers)
        self.hubs = range(workers, workers + hubs)
        self.rounds = rounds
        self.build = build
        self.stores_every = stores_every
        self.return_s = return_s
        self.stored = {hub: Present(()) for hub in self.hubs}
        self.applying: dict[PeerId, Apply] = {}
        self.seen: dict[PeerId, Seen] = {}
        self.serial = 0
        self.falls = 0
        super().__init__([Neighbourhood({}, {})] * (workers + hubs), random, doubles=doubles)

    def history(self, hub: PeerId) -> History:
        history: History = self.state[hub]
        return history

    @property
    def histories(self) -> list[History]:
        return [self.history(hub) for hub in self.hubs]

    def core(self, me: PeerId) -> Any:
        if me in self.workers:
            return Worker(me, self.hubs, self.rounds, return_s=self.return_s)
        core = self.build(me, self.stored[me])
        self.seen[me] = Seen(core, self.stored[me].version, dict(self.stored[me].settled))
        return core

    def start_of(self, me: PeerId) -> Any:
        return self.stored[me].payload if me in self.hubs else None

    def begin(self, me: PeerId, round: int) -> Shares:
        self.serial += 1
        versions = zip(self.hubs, map(len, self.state[me]), strict=True)
        return Shares(None, {hub: Token(hub, me, self.serial, version) for hub, version in versions})

    def trained(self, me: PeerId, steps: Steps) -> Trained:
        return Trained(steps.round, steps.found)

    # ---- What may happen next

    def possible(self) -> list[Move]:
        return super().possible() + [("state", hub, hub) for hub in self.applying]

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
        self.check_histories()

    def _at_work(self) -> list[tuple[PeerId, Any]]:
        return [(i, core) for i, core in enumerate(self.cores) if i not in self.dead and i not in self.finished]

    def _tick(self) -> None:
        for i, core in self._at_work():
            if self.now_s >= core.deadline_s:
                self.tell(i, Tick())

    def _end_work(self, me: PeerId) -> None:
        if me in self.workers:
            super()._end_work(me)
            return
        apply = self.applying.pop(me)
        assert apply.version == len(self.history(me)), "versions grow by one"
        self.state[me] = (*self.history(me), tuple(term.payload for term in apply.terms))
        self.tell(me, Applied(self.history(me)))
        version = len(self.history(me))
        if version % self.stores_every == 0 or version == self.rounds:
            self.stored[me] = self.cores[me].present()  # type: ignore[attr-defined]
            assert self.stored[me].payload == self.history(me)
            assert self.stored[me].version == version

    def _send(self, a: PeerId, b: PeerId, message: Message) -> None:
        """As between equals, but that a worker answers a goodbye by one."""
        is_answer = isinstance(message, Bye) and a in self.workers and (b, a) in self.heard_bye
        if is_answer:
            self.heard_bye.discard((b, a))
        super()._send(a, b, message)
        if is_answer:
            self.heard_bye.add((b, a))

    def forget(self, me: PeerId, peer: PeerId) -> None:
        """A goodbye belongs to the life in which it was said."""
        self.heard_bye.discard((peer, me))

    def kill(self, me: PeerId) -> None:
        super().kill(me)
        if me in self.hubs and me in self.dead:
            self.falls += 1
            self.applying.pop(me, None)

    # ---- What is checked

    def notice(self, me: PeerId, event: Event) -> None:
        if me in self.hubs and me not in self.finished:
            self.seen[me].note(event, self.now_s)

    def check(self, me: PeerId, event: Event, effects: list[Effect]) -> None:
        if me in self.workers:
            self._check_worker(me, effects)
            return
        if me not in self.finished:
            self.seen[me].check(effects, self.history(me))
        for effect in effects:
            if isinstance(effect, Apply):
                assert me not in self.applying, "two updates at a time"
                self.applying[me] = effect

    def _check_worker(self, me: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Adopt(_, payload, version):
                    assert payload is not None
                    assert version == min(map(len, payload))
                    for hub, history in zip(self.hubs, payload, strict=True):
                        assert {token.hub for update in history for token in update} <= {hub}, "in another order"
                case Train():
                    assert self.state[me] is not None
                case Send(to, Push(_, version, token)):
                    assert (token.hub, token.peer, token.version) == (to, me, version)
                case Finish("finished"):
                    assert self.state[me] == tuple(self.stored[hub].payload for hub in self.hubs)
                    assert {len(history) for history in self.state[me]} == {self.rounds}, "not the last version"
        numbers = {push.number for effect in effects if isinstance(push := getattr(effect, "message", None), Push)}
        assert len(numbers) <= 1, "one count for all"

    def check_histories(self) -> None:
        """Each token is applied at most once, at its hub, and was made from what there was at that version."""
        for hub in self.hubs:
            tokens = [token for update in self.history(hub) for token in update]
            assert len(tokens) == len(set(tokens)), "a push was applied twice"
            assert {token.hub for token in tokens} <= {hub}
            for version, update in enumerate(self.history(hub)):
                assert update, "nothing was applied"
                assert all(token.version <= version for token in update)


class Seen:
    """What a coordinator was told, and what follows from that by the rules of its discipline."""

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
        self.given_last: set[PeerId] = set()  # in this life
        self.was_given: dict[PeerId, int] = {}
        self.is_behind = False

    def note(self, event: Event, now_s: float) -> None:
        match event:
            case PeerJoined(peer):
                self.there.add(peer)
                self.silent.add(peer)
                self.given.pop(peer, None)
                self.given_last.discard(peer)
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
            case Received(peer, Pull(None)) if peer in self.there & self.silent:
                self.silent.discard(peer)
                void = [item for item in self.waiting() if item[0] == peer]
                self.arrived = [item for item in self.arrived if item not in void]
            case Received(peer) if peer in self.there:
                self.silent.discard(peer)
            case Command("stop"):
                self.is_stopped = True
            case Applied():
                self.is_applying = self.stands_in = self.is_behind = False
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
                case Send(peer, Global(version, payload)) if self.is_closing:
                    assert version == self.core.rounds == len(history)
                    assert payload == history
                    assert peer in self.there - self.silent
                    assert peer not in self.given_last, "given twice"
                    self.given_last.add(peer)
                case Send(peer, Bye()):
                    assert peer in self.given_last or self.is_stopped, "sent home without the last version"
                case Send(peer, Global(version, payload)):
                    assert payload == history[:version], "what is given is not that version"
                    assert peer in self.there
                    assert peer not in self.given
                    assert all(who != peer for who, _ in self.waiting()), "given anew before its push was taken"
                    self.given[peer] = self.was_given[peer] = version
                case Finish("failed"):
                    assert not self.there
                case Finish("finished"):
                    assert self.is_closing
                    assert not self.there or self.is_stopped
        if self.is_closing:
            assert self.there - self.silent <= self.given_last
        assert len(self.core._inbox) <= len(self.core.neighbours)
        assert len(self.core._kept) <= self.core._keeps

    def waiting(self) -> list[tuple[PeerId, Push]]:
        """Return what is in the inbox, but not in a buffer."""
        buffers = isinstance(self.core, ByArrival) and self.core.size > 1
        return [] if buffers and self.has_begun and not self.is_applying else self.arrived

    def due(self) -> list[tuple[PeerId, Push]] | None:
        if not self.has_begun or self.is_applying or self.is_closing or self.is_stopped:
            return None
        if isinstance(self.core, ByRounds) and any(push.version > self.version for _, push in self.arrived):
            self.arrived, self.is_behind = [], True
        if self.is_behind:
            self.arrived = [item for item in self.arrived if self.was_given.get(item[0]) == self.version]
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
