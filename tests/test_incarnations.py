"""Two links without sockets, and whatever may happen between them: they come to the same incarnation, and mix none up.

A connection keeps the order of what it carries. When it breaks, the end of what it carried is lost, and the rest may be
read late: at the side that was dialled even after the first words of the next connection; whoever dials reads it before
it says anything on that one.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from peer.network.greeting import Greeting, from_wire
from peer.network.link import Link, LinkEvent
from peer.network.sizes import Sizes
from peer.network.stream import Incoming, Outgoing
from peer.network.wire import Header, Hello, Note, Refuse, Welcome, decode, encode
from peer.protocol.membership import Membership, Patience
from peer.protocol.messages import Alert, Bye, Effect, Event, Greeted, PeerJoined, PeerLost, Probe, Received, Tell

DIALLER, LISTENER = "dialler", "listener"
CALM_BEATS = 8
"""After so many heartbeats without trouble everything has come right."""


@dataclass
class Said:
    """A message of the stream: whose, and for which incarnation; None: for the first in which there is a greeting."""

    session: str
    incarnation: int | None


class Process:
    """One process of one peer: its link to the other, its membership, and what its owner does about both."""

    def __init__(self, name: str, session: str, wires: "Wires", said: list[Said]) -> None:
        other = LISTENER if name == DIALLER else DIALLER
        ours = Greeting(name, session, "d", {}, "l", [], "c", "cpu", "fused")
        self.name, self.session = name, session
        self.link = Link(0, other, ours, ours.to_wire(), Sizes(), self._transmit)
        self.link.dials = name == DIALLER
        self.late = 0  # words of earlier connections that are still to be heard; at the dialler
        self.route = 0  # of the connection on which the dialler was welcomed; at the listener
        self.membership = Membership([0], Patience())
        self.membership.start(0.0)
        self.heard: list[int] = []
        self._wires = wires
        self._said = said
        self._source: tuple[Incoming, str] = (self.link.incoming, "")  # whose messages come in this stream
        self._ended: Outgoing | None = None  # the stream in which it said goodbye
        self._told = "lost"  # last, to the core that exchanges parameters

    def beat(self) -> None:
        if not self.late:
            self.link.beat(0)

    def poll(self, arrived: list[tuple[int, Header, memoryview | None]]) -> None:
        """Take in what has arrived, then let the owner take in what came of it."""
        self.link.settle()
        events: list[LinkEvent] = []
        for route, header, body in arrived:
            before = self.link.incarnation
            events += self._dispatch(route, header, body)
            assert self.link.incarnation >= before
            if self.late:
                self.late -= 1
                if not self.late:
                    self.link.greet()
        if self.link.owes_ack:
            self.link.acknowledge()
        for event in events:
            if isinstance(event, Received) and isinstance(event.message, Probe):
                self.heard.append(event.message.number)
            if isinstance(event, Received) and isinstance(event.message, Bye) and self._told == "joined":
                self._told = "left"
            if not isinstance(event, Alert):
                self.tell(event)

    def tell(self, event: Event) -> None:
        known = self.membership.incarnation(0)
        self._carry_out(self.membership.handle(event, 0.0))
        assert self.membership.incarnation(0) >= known
        if isinstance(event, Greeted):
            assert self.membership.incarnation(0) >= event.incarnation

    @property
    def may_speak(self) -> bool:
        return not self.link.is_vacant and self._ended is not self.link.outgoing

    def say(self) -> None:
        """Put something into the stream; who hears it can look up whose it was."""
        if self.may_speak:
            self._said.append(Said(self.session, self.link.incarnation if self.link._session else None))
            self.link.send(Probe(len(self._said) - 1))

    def leave(self) -> None:
        if self.may_speak:
            self._ended = self.link.outgoing
            self.link.send(Bye(1))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(PeerJoined()):
                    assert self._told in ("lost", "left")
                    self._told = "joined"
                    self.say()
                case Tell(PeerLost(_, reason)):
                    assert self._told == "joined" or self.membership.incarnation(0) == 0
                    self._told = "lost"
                    if self.membership.status(0) == "dead":
                        self.link.turn_away(reason)

    def _dispatch(self, route: int, header: Header, body: memoryview | None) -> Iterator[LinkEvent]:
        if isinstance(header, Hello):
            yield from self._hello(route, header)
            return
        if self.name == DIALLER or route == self.route:
            for event in self.link.take(header, body):
                if isinstance(event, Received) and isinstance(event.message, Probe):
                    self._check(event.message.number)
                yield event

    def _check(self, number: int) -> None:
        """What is heard was said in this incarnation, all of it by one process, and comes once and in order."""
        said = self._said[number]
        assert said.incarnation in (None, self.link.incarnation)
        if self._source[0] is not self.link.incoming or not self._source[1]:
            self._source = (self.link.incoming, said.session)
        assert said.session == self._source[1]
        assert number > max(self.heard, default=-1)

    def _hello(self, route: int, hello: Hello) -> Iterator[LinkEvent]:
        theirs = from_wire(hello.greeting)
        if self.link.is_late(hello, theirs):
            return
        answer = yield from self.link.answer(hello, theirs)
        if answer is None or not self._wires.back(route, answer, None) or isinstance(answer, Refuse):
            return
        if route != self.route or self.link.connection != hello.connection:
            self.link.greeted = False
        self.route, self.link.connection = route, hello.connection
        yield from self.link.open(theirs)

    def _transmit(self, header: Header, body: memoryview | None = None) -> bool:
        if self.name == DIALLER:
            return self._wires.forth(header, body)
        if self._wires.back(self.route, header, body):
            return True
        self.link.greeted = False
        return False


@dataclass
class Wires:
    """The connections there have been: what is on the way over each, and which of them stands."""

    to_listener: dict[int, deque[tuple[Header, memoryview | None]]] = field(default_factory=dict)
    to_dialler: deque[tuple[Header, memoryview | None]] = field(default_factory=deque)
    route: int = 0

    def forth(self, header: Header, body: memoryview | None) -> bool:
        self.to_listener[self.route].append((header, body))
        return True

    def back(self, route: int, header: Header, body: memoryview | None) -> bool:
        if route != self.route:
            return False
        self.to_dialler.append((header, body))
        return True

    def replace(self, lost: int) -> None:
        """Another connection stands; as many of the last words on the old one are lost."""
        for queue in (self.to_listener.get(self.route, deque()), self.to_dialler):
            for _ in range(min(lost, len(queue))):
                queue.pop()
        self.route += 1
        self.to_listener[self.route] = deque()


class World:
    """The two peers, and what may happen to them."""

    def __init__(self) -> None:
        self.wires = Wires()
        self.said: list[Said] = []
        self.sessions = 0
        self.ends = 0  # of lives, by what has happened
        self.dialler, self.listener = self._process(DIALLER), self._process(LISTENER)
        self._connect(0)

    def possible(self) -> dict[str, Callable[[], None]]:
        return {
            "the dialler hears a word": lambda: self._dialler_hears(1),
            "the dialler hears all": lambda: self._dialler_hears(1000),
            "the listener hears a word": lambda: self._listener_hears(1, min),
            "the listener hears a late word": lambda: self._listener_hears(1, max),
            "the listener hears all": lambda: self._listener_hears(1000, min),
            "the dialler beats": self.dialler.beat,
            "the listener beats": self.listener.beat,
            "the dialler speaks": self.dialler.say,
            "the listener speaks": self.listener.say,
            "the dialler loses the listener": lambda: self.dialler.tell(PeerLost(0, "silent")),
            "the listener loses the dialler": lambda: self.listener.tell(PeerLost(0, "silent")),
            "the dialler says goodbye": self.dialler.leave,
            "the listener says goodbye": self.listener.leave,
            "the connection is replaced": lambda: self._connect(0),
            "the connection breaks": lambda: self._connect(1),
            "the connection breaks, and all is lost": lambda: self._connect(1000),
            "the dialler is started anew": self._restart_dialler,
            "the listener is started anew": self._restart_listener,
        }

    def do(self, name: str) -> None:
        self.possible()[name]()
        self.ends += "loses" in name or "anew" in name

    def calm(self) -> None:
        """Nothing more goes wrong."""
        for _ in range(CALM_BEATS):
            for side in (self.dialler, self.listener):
                side.beat()
            for _ in range(4):
                self._listener_hears(1000, min)
                self._dialler_hears(1000)

    def check_all_is_well(self) -> None:
        first, last = self.dialler.link, self.listener.link
        assert first.greeted
        assert last.greeted
        assert first.incarnation == last.incarnation <= self.ends
        for side, other in ((self.dialler, self.listener), (self.listener, self.dialler)):
            if side.link.incoming.ended:  # the other is done
                continue
            assert side.membership.status(0) == "alive"
            assert side.membership.incarnation(0) == side.link.incarnation
            other.say()
            self.calm()
            assert side.heard[-1] == len(self.said) - 1

    def _process(self, name: str) -> Process:
        self.sessions += 1
        return Process(name, f"session {self.sessions}", self.wires, self.said)

    def _connect(self, lost: int) -> None:
        self.wires.replace(lost)
        link = self.dialler.link
        link.connection += 1
        link.greeted = False
        self.dialler.late = len(self.wires.to_dialler)
        if not self.dialler.late:
            link.greet()

    def _restart_dialler(self) -> None:
        self.wires.to_dialler.clear()
        self.dialler = self._process(DIALLER)
        self._connect(0)

    def _restart_listener(self) -> None:
        for queue in self.wires.to_listener.values():
            queue.clear()
        self.listener = self._process(LISTENER)
        self._connect(0)

    def _dialler_hears(self, most: int) -> None:
        queue = self.wires.to_dialler
        arrived = [(0, *_over_the_wire(*queue.popleft())) for _ in range(min(most, len(queue)))]
        self.dialler.poll(arrived)

    def _listener_hears(self, most: int, which: Callable[[list[int]], int]) -> None:
        """One connection after another is read: the oldest first, or the newest."""
        arrived: list[tuple[int, Header, memoryview | None]] = []
        while most > len(arrived) and (routes := [route for route, queue in self.wires.to_listener.items() if queue]):
            route = which(routes)
            arrived.append((route, *_over_the_wire(*self.wires.to_listener[route].popleft())))
        self.listener.poll(arrived)


def _over_the_wire(header: Header, body: memoryview | None) -> tuple[Header, memoryview | None]:
    return decode([encode(header)] if body is None else [encode(header), body])


def state_of(world: World) -> str:
    """Everything on which it depends what may come, and nothing else: two worlds with the same are the same."""
    sessions: dict[str, int] = {}
    parts: list[object] = []
    for side in (world.dialler, world.listener):
        link = side.link
        parts += [link.incarnation, link.connection - world.dialler.link.connection, link.is_vacant, link.greeted]
        parts += [link.trusted, link.owes_ack, link.outgoing._next, link.outgoing._under_way, link.incoming.ended]
        parts += [
            len(link.outgoing._unacknowledged),
            link.incoming.next_wanted,
            side.route - world.wires.route,
            side.late,
        ]
        parts += [side._told, side.may_speak, side.membership.status(0), side.membership.incarnation(0)]
        parts += [sessions.setdefault(session, len(sessions)) for session in (side.session, link._session)]
    for route, queue in [(0, world.wires.to_dialler), *world.wires.to_listener.items()]:
        if queue:
            parts += [route and route - world.wires.route, *(_word(header, world, sessions) for header, _ in queue)]
    return repr(parts)


def _word(header: Header, world: World, sessions: dict[str, int]) -> list[object]:
    match header:
        case Hello() | Welcome():
            session, connection = header.greeting["session"], header.connection - world.dialler.link.connection
            knows = header.knows if isinstance(header, Hello) else ""
            seen = [sessions.setdefault(name, len(sessions)) for name in (session, knows)]
            return [type(header).__name__, connection, header.incarnation, *seen]
        case Refuse(_, incarnation):
            return ["Refuse", incarnation]
        case Note(sequence, what, _):
            return ["Note", sequence, what]
    return [header]


STEPS = 3


def test_whatever_happens_in_a_few_steps_they_find_each_other_again() -> None:
    """Every sequence of so many steps, those that lead to the same state once."""
    begun = ["the listener hears all", "the dialler hears all", "the listener hears all", "the dialler hears all"]
    seen: set[str] = set()
    frontier = [tuple(begun)]
    for _ in range(STEPS):
        further = []
        for before in frontier:
            for name in World().possible():
                world = World()
                for step in (*before, name):
                    world.do(step)
                state = state_of(world)
                if state not in seen:
                    seen.add(state)
                    further.append((*before, name))
                    world.calm()
                    world.check_all_is_well()
        frontier = further
    assert len(seen) > 500


names = st.sampled_from(list(World().possible()))


@settings(deadline=None, print_blob=True, max_examples=300)
@given(steps=st.lists(names, max_size=60))
def test_whatever_happens_they_find_each_other_again(steps: list[str]) -> None:
    world = World()
    for step in steps:
        world.do(step)
    world.calm()
    world.check_all_is_well()


# ---- One by one


def test_what_waited_for_the_first_greeting_is_said_in_whatever_life_that_is() -> None:
    world = World()
    world.listener.tell(PeerLost(0, "never heard within 60 s"))
    world.dialler.say()
    assert world.dialler.link.incarnation == 0
    world.calm()
    assert world.dialler.link.incarnation == 1
    assert world.listener.heard[0] == 0


def test_what_waited_for_who_is_lost_is_never_said() -> None:
    world = World()
    world.calm()
    world.do("the connection breaks, and all is lost")
    world.dialler.say()
    number = len(world.said) - 1
    world.dialler.tell(PeerLost(0, "silent"))
    world.calm()
    assert number not in world.listener.heard
    assert world.dialler.link.incarnation == world.listener.link.incarnation == 1
