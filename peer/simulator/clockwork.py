"""The daemons' own protocol cores on a virtual clock: a heap of what is to happen when.

Each event is handed to the core of its peer, and a `Shell` carries out what the core asks for: with tensors in the
events engine, with bare numbers in tests. Messages go over the links of a `World`. Where something can go wrong, each
peer has a membership core, too, as in a daemon; nobody has to simulate heartbeats for it: before it judges, it is told
of all that can be heard.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from operator import gt
from typing import Literal

from peer.protocol.membership import Membership, Patience
from peer.protocol.messages import (
    Adopt,
    Alert,
    Apply,
    Assemble,
    Bye,
    Command,
    Copy,
    Data,
    Divide,
    Effect,
    Event,
    Finish,
    Forget,
    Greeted,
    Heartbeat,
    Learn,
    Message,
    Mix,
    PeerId,
    PeerJoined,
    PeerLost,
    Received,
    Reduce,
    Send,
    Severed,
    Tell,
    Tick,
    Train,
)
from peer.protocol.worker import Worker
from peer.simulator.connections import Connections
from peer.simulator.shell import Core, Shell
from peer.simulator.timeline import Arrival, EventLog, Greeting, Later, LookAtClock, Thing, Timeline, WorkEnds
from peer.simulator.world import World

State = Literal["absent", "up", "stopped", "gone", "done"]


GONE = "its connection broke and its address refuses new ones"
"""Why a peer is lost whose process has ended."""


@dataclass
class Process:
    """One peer's process: its cores, and how it is."""

    core: Core
    membership: Membership | None
    state: State = "up"
    life: int = 0  # local steps that were begun in an earlier one are void
    round: int = 0
    tick_s: float = inf  # the next tick in the heap
    stopped_s: float = 0.0
    kept: list[tuple[float, Thing]] = field(default_factory=list)  # what came while it was stopped, with its time


class Clockwork:
    """All peers on one virtual clock.

    `patience` is that of the membership cores; None where nothing can go wrong, and then there are none. `absent` are
    not there from the start. `dials(a, b)` says whether of two neighbours it is a that dials b.
    """

    def __init__(
        self,
        peers: int,
        shell: Shell,
        world: World,
        patience: Patience | None = None,
        absent: Iterable[PeerId] = (),
        heartbeat_s: float = 0.5,
        dials: Callable[[PeerId, PeerId], bool] = gt,
    ) -> None:
        self.now_s = 0.0
        self.moved_s = 0.0  # when something happened last that was not a mere look at the clock
        self.world = world
        self._shell = shell
        self._patience = patience
        self._heartbeat_s = heartbeat_s
        self._dials = dials
        self.timeline = Timeline()
        self._log = EventLog()
        self._soon: deque[tuple[PeerId, Event]] = deque()
        self.connections = Connections()
        self.processes = [self._process(me) for me in range(peers)]
        self.states: Counter[State] = Counter({"up": peers})
        for me in absent:
            self._set_state(me, "absent")

    # ---- Running

    def start(self) -> None:
        """Begin: all that are there know each other."""
        for me, process in enumerate(self.processes):
            if process.state == "up":
                self._start(me)
        for a, b in self._pairs():
            there = [self.processes[peer].state == "up" for peer in (a, b)]
            if self._patience is None:
                self._soon += [(a, PeerJoined(b)), (b, PeerJoined(a))]
            elif all(there):
                self._connect(a, b)
        for a, b in self._pairs():
            for me, other in ((a, b), (b, a)):
                waits = isinstance(self.processes[me].core, Worker)  # for its coordinators, as long as membership does
                if self.processes[me].state == "up" and self.processes[other].state == "absent" and not waits:
                    self._take(me, PeerLost(other, "it joins later"))
        self._do_soon()

    def step(self) -> None:
        """Let the next thing happen."""
        self.now_s, peer, thing = self.timeline.pop()
        self._happen(peer, thing)
        self._do_soon()

    @property
    def events(self) -> int:
        """How many events the cores have been told."""
        return self._log.events

    @property
    def event_hash(self) -> str:
        """A hash of all events so far with their times: equal seeds have equal ones."""
        return self._log.digest()

    @property
    def next_s(self) -> float:
        """When the next thing happens; inf for never."""
        return self.timeline.next_s

    def at(self, at_s: float, happen: Callable[[], None]) -> None:
        """Let something happen at a time."""
        self.timeline.push(at_s, -1, Later(happen))

    def tell(self, peer: PeerId, event: Event, *, is_last: bool = False) -> None:
        """Tell a core something, as soon as what happens now has happened; the last thing at once, to no effect."""
        if is_last:
            self._log.note(self.now_s, peer, event)
            self.processes[peer].core.handle(event, self.now_s)
        else:
            self._soon.append((peer, event))

    def is_given_up(self, me: PeerId) -> bool:
        """Say whether a peer is connected with nobody."""
        return not any(self.connections.stands(me, other) for other in self.processes[me].core.neighbours)

    def is_stuck(self, patience_s: float) -> bool:
        """Say whether nobody has moved for so long and nothing is on its way to anybody, or nobody ever will."""
        return not self.timeline.heap or (not self.timeline.coming and self.now_s - self.moved_s > patience_s)

    def _do_soon(self) -> None:
        while self._soon:
            peer, event = self._soon.popleft()
            if self.processes[peer].state in ("up", "stopped"):
                self._handle(peer, event)

    def _happen(self, peer: PeerId, thing: Thing) -> None:
        match thing:
            case Later(happen):
                self.moved_s = self.now_s
                happen()
            case Arrival():
                self._arrive(peer, thing)
            case WorkEnds(life, train):
                process = self.processes[peer]
                if process.life != life or process.state in ("gone", "done"):
                    return
                if process.state == "stopped":
                    process.kept.append((self.now_s, thing))
                    return
                self.moved_s = self.now_s
                self._handle(peer, self._shell.train(peer, train))
            case LookAtClock():
                self._tick(peer)
            case Greeting(other, incarnation):
                self._greet(peer, other, incarnation)

    # ---- Cores

    def _process(self, me: PeerId) -> Process:
        core = self._shell.core(me)
        return Process(core, None if self._patience is None else Membership(core.neighbours, self._patience))

    def _set_state(self, me: PeerId, state: State) -> None:
        process = self.processes[me]
        self.states[process.state] -= 1
        self.states[state] += 1
        process.state = state

    def _start(self, me: PeerId) -> None:
        process = self.processes[me]
        if process.membership is not None:
            self._carry_out(me, process.membership.start(self.now_s))
        self._carry_out(me, process.core.start(self.now_s))
        self._set_tick(me)

    def _take(self, me: PeerId, event: Event) -> None:
        """Hand an event to membership first, as a daemon does."""
        membership = self.processes[me].membership
        assert membership is not None
        self._carry_out(me, membership.handle(event, self.now_s))
        if not isinstance(event, PeerLost | Severed):  # a loss comes back from membership, if it is news
            self._handle(me, event)

    def _handle(self, me: PeerId, event: Event) -> None:
        process = self.processes[me]
        self._log.note(self.now_s, me, event)
        effects = process.core.handle(event, self.now_s)
        if process.core.round > process.round:
            self._shell.save(me)
        self._carry_out(me, effects)
        if process.core.round > process.round:
            process.round = process.core.round
            self._shell.advanced(me, process.round)
        self._set_tick(me)

    def _carry_out(self, me: PeerId, effects: list[Effect]) -> None:
        shell, process = self._shell, self.processes[me]
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._send(me, to, message)
                case Train(round):
                    shell.begin(me, effect)
                    self.timeline.push(self.now_s + shell.step_s(me, round), me, WorkEnds(process.life, effect))
                case Mix():
                    mixed = shell.mix(me, effect)
                    if mixed is not None:
                        self._soon.append((me, mixed))
                case Apply() | Divide() | Reduce() | Assemble():
                    came = shell.compute(me, effect)
                    if came is not None:
                        self._soon.append((me, came))
                case Learn():
                    self._soon.append((me, shell.learn(me, effect)))
                case Copy():
                    self._soon.append((me, shell.copy(me, effect)))
                case Adopt():
                    process.life += 1
                    self._soon.append((me, shell.adopt(me, effect)))
                case Forget():
                    shell.forget(me, effect)
                case Tell(event):
                    if isinstance(event, PeerLost) and _is_dead(process.membership, event.peer):
                        self._turn_away(me, event.peer)  # not one that has just come back in a new life
                    self._handle(me, event)
                case Alert():
                    shell.alert(me, effect)
                case Finish(outcome) if outcome != "alone" or isinstance(process.core, Worker):
                    # others that hear nobody may be joined later
                    shell.finished(me, effect)
                    self._set_state(me, "done" if outcome == "finished" else "gone")
                    self._hang_up(me)

    # ---- Messages

    def _send(self, me: PeerId, to: PeerId, message: Message) -> None:
        if self._patience is not None and not self.connections.stands(me, to):
            return
        send = Send(to, message)
        self._shell.sent(me, send)
        arrivals_s = self.world.arrivals_s(
            me,
            to,
            self._shell.payload_bytes(message),
            self.now_s,
            insists=not isinstance(message, Data),
            is_last=isinstance(message, Bye),
        )
        incarnation = self.connections.incarnation(me, to)
        for at_s in arrivals_s:
            self.timeline.push(at_s, to, Arrival(me, incarnation, message))

    def _arrive(self, me: PeerId, arrival: Arrival) -> None:
        process, sender = self.processes[me], arrival.sender
        if self._patience is None:
            assert not isinstance(arrival.what, Severed)
            if process.state == "up":
                self.moved_s = self.now_s
                self._handle(me, Received(sender, arrival.what))
            return
        is_void = arrival.incarnation != self.connections.incarnation(me, sender)
        if is_void or process.state in ("gone", "done", "absent"):
            return
        if not self.world.is_open(me, sender):
            self.connections.hold(sender, me, arrival)
        elif process.state == "stopped":
            process.kept.append((self.now_s, arrival))
        else:
            self.moved_s = self.now_s
            self._take(me, arrival.what if isinstance(arrival.what, Severed) else Received(sender, arrival.what))

    # ---- The clock of membership and of round deadlines

    def _set_tick(self, me: PeerId) -> None:
        process = self.processes[me]
        due_s = process.core.deadline_s
        if process.membership is not None and process.state == "up":
            due_s = min(due_s, process.membership.deadline_s)
        if due_s < process.tick_s:
            process.tick_s = due_s
            self.timeline.push(max(due_s, self.now_s), me, LookAtClock())

    def _tick(self, me: PeerId) -> None:
        process = self.processes[me]
        process.tick_s = inf
        if process.state != "up":
            return
        membership = process.membership
        if membership is not None and membership.deadline_s <= self.now_s:
            for other in sorted(process.core.neighbours):
                if self._hears(me, other):
                    self._take(me, Received(other, Heartbeat(self.processes[other].core.round)))
            self._carry_out(me, membership.handle(Tick(), self.now_s))
        if process.core.deadline_s <= self.now_s:
            self.moved_s = self.now_s
            self._handle(me, Tick())
        self._set_tick(me)

    def _hears(self, me: PeerId, other: PeerId) -> bool:
        """Say whether a sign of life of the other reaches this peer now."""
        there = self.processes[other].state in ("up", "done") and self.connections.stands(me, other)
        return there and self.world.is_open(me, other)

    def _hear_for_the_last_time(self, me: PeerId, other: PeerId) -> None:
        """From now on there may be silence."""
        if self.processes[me].state == "up" and self._hears(me, other):
            self._take(me, Received(other, Heartbeat(self.processes[other].core.round)))

    # ---- Connections

    def _pairs(self) -> list[tuple[PeerId, PeerId]]:
        return [(p.core.me, q) for p in self.processes for q in sorted(p.core.neighbours) if p.core.me < q]

    def _connect(self, a: PeerId, b: PeerId) -> None:
        incarnation = self.connections.open(a, b)
        self.world.new_connection(a, b)
        for me, other in ((a, b), (b, a)):
            self._take(me, Greeted(other, incarnation))

    def _turn_away(self, me: PeerId, other: PeerId) -> None:
        """A peer counts another as lost: it tells it so, and greets it again if it is still there."""
        if self.connections.stands(me, other):
            incarnation = self.connections.end(me, other)
            severed = Severed(me, "it counts this peer as lost")
            at_s = self.now_s + self.world.round_trip_s(me, other) / 2
            self.timeline.push(at_s, other, Arrival(me, incarnation, severed))
        self._greet_later(me, other, self._heartbeat_s)

    def _hang_up(self, me: PeerId) -> None:
        """A process ends by itself: to whom it has said no goodbye, it is lost."""
        for other in sorted(self.processes[me].core.neighbours):
            if self.connections.stands(me, other):
                severed = Severed(me, GONE)
                (at_s,) = self.world.arrivals_s(me, other, 0, self.now_s, insists=True, is_last=True)
                self.timeline.push(at_s, other, Arrival(me, self.connections.incarnation(me, other), severed))

    def _greet_later(self, a: PeerId, b: PeerId, after_s: float = 0.0) -> None:
        incarnation = self.connections.incarnation(a, b)
        at_s = self.now_s + after_s + self.world.round_trip_s(a, b)
        self.timeline.push(at_s, a, Greeting(b, incarnation))

    def _greet(self, a: PeerId, b: PeerId, incarnation: int) -> None:
        both_are_up = all(self.processes[peer].state == "up" for peer in (a, b))
        is_due = not self.connections.stands(a, b) and incarnation == self.connections.incarnation(a, b)
        if both_are_up and is_due and self.world.is_open(a, b):
            self.moved_s = self.now_s
            self._connect(a, b)

    # ---- What goes wrong

    # Each returns whether it changed anything: who is dead cannot be stopped.

    def kill(self, me: PeerId) -> bool:
        """A process ends without a word. Who had dialled it learns that at once, others by silence."""
        process = self.processes[me]
        if process.state not in ("up", "stopped"):
            return False
        for other in sorted(process.core.neighbours):
            self._hear_for_the_last_time(other, me)
        self._set_state(me, "gone")
        process.life, process.kept = process.life + 1, []
        for other in sorted(process.core.neighbours):
            stood = self.connections.stands(me, other)
            incarnation = self.connections.end(me, other)
            if stood and self._dials(other, me) and self.world.is_open(me, other):
                at_s = self.now_s + self.world.round_trip_s(me, other) / 2
                self.timeline.push(at_s, other, Arrival(me, incarnation, Severed(me, GONE)))
        return True

    def restart(self, me: PeerId) -> bool:
        """A process that is gone, or was not there yet, begins."""
        if self.processes[me].state not in ("gone", "absent"):
            return False
        self._set_state(me, "up")
        life = self.processes[me].life + 1
        self.processes[me] = self._process(me)
        self.processes[me].life = life
        for other in sorted(self.processes[me].core.neighbours):
            self.connections.end(me, other)
        self._start(me)
        for other in sorted(self.processes[me].core.neighbours):
            self._greet_later(me, other)
        return True

    def stop(self, me: PeerId) -> bool:
        """A process stands still, and its sockets with it."""
        process = self.processes[me]
        if process.state != "up":
            return False
        for other in sorted(process.core.neighbours):
            self._hear_for_the_last_time(other, me)
        self._set_state(me, "stopped")
        process.stopped_s = self.now_s
        return True

    def go_on(self, me: PeerId) -> bool:
        """A process that stood still goes on; local steps take as much longer."""
        process = self.processes[me]
        if process.state != "stopped":
            return False
        self._set_state(me, "up")
        kept, process.kept = process.kept, []
        for due_s, thing in kept:
            late_s = due_s - process.stopped_s if isinstance(thing, WorkEnds) else 0.0
            self.timeline.push(self.now_s + late_s, me, thing)
        self.moved_s = self.now_s
        self._meet_again(me)
        process.tick_s = inf
        self._set_tick(me)
        return True

    def leave(self, me: PeerId) -> bool:
        """A peer says goodbye and ends."""
        if self.processes[me].state != "up":
            return False
        self._handle(me, Command("stop"))
        return True

    def are_neighbours(self, a: PeerId, b: PeerId) -> bool:
        return b in self.processes[a].core.neighbours

    def cut(self, a: PeerId, b: PeerId) -> bool:
        """Nothing passes any more between two neighbours."""
        if not self.are_neighbours(a, b) or not self.world.is_open(a, b):
            return False
        self._hear_for_the_last_time(a, b)
        self._hear_for_the_last_time(b, a)
        self.world.cut(a, b)
        return True

    def heal(self, a: PeerId, b: PeerId) -> bool:
        """What passes between two is no longer cut."""
        if not self.world.is_cut(a, b):
            return False
        self.world.heal(a, b)
        self._after_a_heal()
        return True

    def part(self, groups: tuple[tuple[PeerId, ...], ...]) -> bool:
        """Nothing passes any more between groups of peers."""
        for a, b in self._pairs():
            self._hear_for_the_last_time(a, b)
            self._hear_for_the_last_time(b, a)
        self.world.part(groups, len(self.processes))
        return True

    def heal_all(self) -> bool:
        """Nothing is cut any more, and nobody is parted."""
        self.world.heal_all()
        self._after_a_heal()
        return True

    def _after_a_heal(self) -> None:
        """Peers may hear each other again: what was held up goes on its way, and who was lost is greeted."""
        for pair, held in self.connections.release():
            if self.world.is_open(*pair):
                self.connections.let_go(pair)
                for me, arrival in held:
                    self.timeline.push(self.now_s + self.world.round_trip_s(*pair) / 2, me, arrival)
        for me, process in enumerate(self.processes):
            if process.state == "up":
                self._meet_again(me)

    def _meet_again(self, me: PeerId) -> None:
        """Greet all neighbours with whom there is no connection."""
        for other in sorted(self.processes[me].core.neighbours):
            if not self.connections.stands(me, other):
                self._greet_later(me, other, self._heartbeat_s)


def _is_dead(membership: Membership | None, peer: PeerId) -> bool:
    return membership is not None and membership.status(peer) == "dead"
