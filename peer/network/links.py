"""Connections: one per pair of peers, dialled by one side and used in both directions.

A `Links` belongs to one thread. It binds one ROUTER for the peers that dial, has one DEALER for each peer it dials,
greets, and turns frames into events. Sockets never linger, never queue for a peer that is not there, and bound every
frame that they accept.

The side that dials sends `Hello` on each new connection, and the other answers `Welcome`; only then does either send
its stream, from the first item that is not acknowledged. So an item may arrive twice, but none is missed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from time import monotonic

import zmq
from zmq.utils.monitor import recv_monitor_message

from peer.errors import ConfigError, WireError
from peer.network.greeting import Greeting, from_wire, plain, refusal
from peer.network.stream import Incoming, Outgoing
from peer.network.wire import (
    CHUNK_BYTES,
    HEADER_BYTES,
    TEXT_CHARACTERS,
    Ack,
    Beat,
    Chunk,
    Goodbye,
    Header,
    Hello,
    Refuse,
    RoundDone,
    RoundSkipped,
    Sounding,
    Welcome,
    decode,
    encode,
)
from peer.protocol.messages import Alert, Data, Greeted, Heartbeat, Message, PeerId, Received, Severed

QUEUE_MESSAGES = 64
"""High-water mark of each socket: more than a window of the stream and the control messages beside it."""

CONNECT_TIMEOUT_MS = 2000
RECONNECT_MS = 100
RECONNECT_MAX_MS = 2000
FLUSH_S = 0.5
"""How long `close` waits at most for the last acknowledgements."""

ALERTS = 8
"""How many different alerts there are about one neighbour, and about all strangers together."""

LinkEvent = Greeted | Severed | Received | Alert


@dataclass
class Traffic:
    """What has gone out: encoded payloads, and all bytes at the sockets."""

    payload_bytes: int = 0
    wire_bytes: int = 0


@dataclass(eq=False)
class _Link:
    """One neighbour: how to reach it, and the two halves of its stream."""

    peer: PeerId
    name: str
    incoming: Incoming
    outgoing: Outgoing = field(default_factory=Outgoing)
    dealer: "zmq.Socket[bytes] | None" = None
    monitor: "zmq.Socket[bytes] | None" = None
    route: bytes | None = None  # at the ROUTER, for a peer that dials
    connection: int = 0  # its number, counted by the side that dials
    stands: bool = False  # the connection that was dialled
    greeted: bool = False  # on the connection there is now: the stream may be sent
    session: str = ""  # of the process that was greeted
    trusted: bool = False  # that process passed the greeting, and has neither refused ours nor broken the protocol
    owes_ack: bool = False  # the last one found a full queue, or no connection
    connecting_since_s: float = 0.0
    turned_away: str = ""  # why this peer is no longer spoken to

    @property
    def has_begun(self) -> bool:
        """Whether a part of either stream has arrived."""
        return bool(self.incoming.next_wanted or self.outgoing.acknowledged_until)

    @property
    def is_waited_for(self) -> bool:
        """Whether an acknowledgement may still come: not from a peer that has said goodbye and then gone."""
        return self.trusted and not self.outgoing.is_empty() and (self.greeted or not self.incoming.ended)


class Links:
    """All connections of one peer.

    `names` are the neighbours' names by id; `greeting` is the own one; `payload_bytes` the size of the message of
    each exchange. `listen` is an endpoint to bind, such as "tcp://127.0.0.1:*", or None.

    Raises ConfigError when the endpoint cannot be bound.
    """

    def __init__(
        self,
        names: Mapping[PeerId, str],
        greeting: Greeting,
        payload_bytes: tuple[int, ...],
        listen: str | None = "tcp://127.0.0.1:*",
    ) -> None:
        self.traffic = Traffic()
        self.endpoint: str | None = None
        self._greeting = greeting
        self._greeting_fields = greeting.to_wire()
        self._links = {peer: _Link(peer, name, Incoming(payload_bytes)) for peer, name in names.items()}
        self._by_name = {link.name: link for link in self._links.values()}
        self._by_route: dict[bytes, _Link] = {}
        self._most_messages = 4 * len(payload_bytes) + 4  # unacknowledged ones; a right neighbour keeps half of it free
        self._news: list[LinkEvent] = []  # what `send` found out, for the next `poll`
        self._said: set[str] = set()
        self._alerts: Counter[str] = Counter()
        self._drained_s = monotonic()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._router: zmq.Socket[bytes] | None = None
        if listen is not None:
            self._bind(listen)

    # ---- For the owner

    def watch(self, descriptor: int) -> None:
        """Let `poll` also wake up when this file descriptor is readable."""
        self._poller.register(descriptor, zmq.POLLIN)

    def dial(self, peer: PeerId, endpoint: str) -> None:
        """Connect to a neighbour, now or whenever it comes up. Raises ConfigError for what is no endpoint."""
        link = self._links[peer]
        assert link.dealer is None, f"{link.name} is dialled twice"
        dealer = self._context.socket(zmq.DEALER)
        _set_up(dealer, endpoint)
        dealer.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        link.monitor, link.dealer = dealer.get_monitor_socket(), dealer
        self._poller.register(dealer, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)
        try:
            dealer.connect(endpoint)
        except zmq.ZMQError as error:
            self._hang_up(link)
            raise ConfigError(
                f"peers.{link.name}.address", f"{endpoint} cannot be dialled ({zmq.strerror(error.errno or 0)})"
            ) from None

    def poll(self, timeout_s: float) -> list[LinkEvent]:
        """Wait for something to happen, then take in all that has arrived."""
        self._poller.poll(0 if self._news else max(0, ceil(timeout_s * 1000)))
        events = [*self._news, *self._drain()]
        self._news.clear()
        return events

    def send(self, peer: PeerId, message: Message) -> None:
        """Queue a message for a neighbour; it is delivered once, in order, for as long as the neighbour lives."""
        link = self._links[peer]
        if link.turned_away:
            return
        if isinstance(message, Heartbeat):
            self._transmit(link, Beat(message.round))
            return
        if link.outgoing.messages == self._most_messages:
            if link.trusted:
                self._distrust(link)
                self._news.append(Severed(peer, "it acknowledges nothing of what it is sent"))
            return
        link.outgoing.put(message)
        if isinstance(message, Data):
            self.traffic.payload_bytes += len(message.payload)
        self._push(link)

    def beat(self, round: int) -> None:
        """Tell every neighbour that this peer is alive; greet again those that have not answered yet."""
        for link in self._links.values():
            if link.turned_away:
                continue
            if link.greeted:
                self._transmit(link, Beat(round))
                self._push(link)
            elif link.dealer is not None:
                self._say_hello(link)

    def turn_away(self, peer: PeerId, reason: str) -> None:
        """Speak to this neighbour no more: it was counted as lost. It is told so, now and whenever it speaks."""
        link = self._links[peer]
        self._distrust(link)
        link.turned_away = reason
        link.outgoing = Outgoing()
        self._transmit(link, self._dismissal(link))

    def close(self) -> None:
        """Flush what the neighbours that are there still have to get, for `FLUSH_S` at most, and close everything."""
        until_s = monotonic() + FLUSH_S
        while monotonic() < until_s and any(link.is_waited_for for link in self._links.values()):
            self.poll(0.02)
            for link in self._links.values():
                link.owes_ack |= link.greeted  # once more: so it shows at a ROUTER whether the other side is gone
        for link in self._links.values():
            self._hang_up(link)
        if self._router is not None:
            self._router.close(linger=0)
        self._context.term()

    # ---- Frames in

    def _drain(self) -> Iterator[LinkEvent]:
        began_s = monotonic()
        if self._router is not None:
            for frames in _arrived(self._router):
                yield from self._routed(frames[0].bytes, frames[1:])
        for link in self._links.values():
            if link.dealer is not None:
                yield from self._dialled(link, link.dealer)
        for link in self._links.values():
            if link.owes_ack:
                link.owes_ack = not self._transmit(link, Ack(link.incoming.next_wanted))
        self._drained_s = began_s

    def _routed(self, route: bytes, frames: list[zmq.Frame]) -> Iterator[LinkEvent]:
        link = self._by_route.get(route)
        if link is not None:
            yield from self._guarded(link, frames)
            return
        try:
            header, _ = decode([frame.buffer for frame in frames])
            if isinstance(header, Hello):
                yield from self._hello(route, header)
            elif isinstance(header, Refuse):
                yield from self._once("", f"the other side of a connection says: {plain(header.reason)}")
        except WireError as error:
            yield from self._once("", f"a stranger sent {error}: ignored")

    def _dialled(self, link: _Link, dealer: "zmq.Socket[bytes]") -> Iterator[LinkEvent]:
        refuses = self._follow(link)  # before the frames: what came ahead of a break is in the queue by now
        for frames in _arrived(dealer):
            yield from self._guarded(link, frames)
        if refuses and link.trusted and not link.stands and not link.incoming.ended:
            yield Severed(link.peer, "its connection broke and its address refuses new ones")

    def _guarded(self, link: _Link, frames: list[zmq.Frame]) -> Iterator[LinkEvent]:
        try:
            header, body = decode([frame.buffer for frame in frames])
            if link.turned_away:
                if isinstance(header, Hello | Beat):
                    self._transmit(link, self._dismissal(link))
                return
            yield from self._dispatch(link, header, body)
        except WireError as error:
            yield from self._part(link, f"it broke the protocol with {error}")

    def _dispatch(self, link: _Link, header: Header, body: memoryview | None) -> Iterator[LinkEvent]:
        match header:
            case Hello() if link.route is not None:
                yield from self._hello(link.route, header)
            case Welcome(connection, fields) if link.dealer is not None and not link.greeted:
                if connection == link.connection:  # and not one that stood before
                    yield from self._welcome(link, from_wire(fields))
            case Refuse(reason):
                yield from self._part(link, f"it refuses this peer: {plain(reason, TEXT_CHARACTERS)}")
            case Beat(round) if link.trusted:
                yield Received(link.peer, Heartbeat(round))
            case Ack(next_wanted) if link.trusted:
                link.outgoing.acknowledged(next_wanted)
                self._push(link)
            case Chunk() | RoundDone() | RoundSkipped() | Sounding() | Goodbye() if link.trusted:
                message = link.incoming.take(header, body)
                link.owes_ack = not self._transmit(link, Ack(link.incoming.next_wanted))
                if message is not None:
                    yield Received(link.peer, message)

    def _part(self, link: _Link, reason: str) -> Iterator[LinkEvent]:
        """Take note that a neighbour cannot be talked to; before the first greeting that may still change."""
        if link.trusted:
            self._distrust(link)
            yield Severed(link.peer, reason)
        elif not link.turned_away:
            yield from self._once(link.name, f"{link.name}: {reason}", refusal=True)

    def _distrust(self, link: _Link) -> None:
        link.trusted = link.greeted = link.owes_ack = False

    # ---- Greetings

    def _say_hello(self, link: _Link) -> None:
        if link.turned_away:
            self._transmit(link, self._dismissal(link))
            return
        self._transmit(link, Hello(link.connection, link.name, self._greeting_fields))

    def _hello(self, route: bytes, hello: Hello) -> Iterator[LinkEvent]:
        assert self._router is not None
        theirs = from_wire(hello.greeting)
        link, known = self._by_name.get(theirs.name), self._by_route.get(route)
        if known not in (None, link):
            raise WireError(f"the name {theirs.name} on a connection of {known.name if known else ''}")
        reason: str | None = f"{theirs.name} is not a neighbour that dials {self._greeting.name}"
        if hello.to != self._greeting.name:
            reason = f"{theirs.name} looks for {plain(hello.to)}, and this is {self._greeting.name}"
        elif link is not None and link.dealer is None:
            reason = self._objection(link, theirs)
        if reason or link is None:
            self._send_frames(self._router, [route, encode(Refuse((reason or "")[:TEXT_CHARACTERS]))])
            text = f"the greeting of {theirs.name} was refused: {reason}"
            yield from self._once(link.name if link else "", text, refusal=True)
            return
        if link.route is not None:
            self._by_route.pop(link.route, None)
        is_new = not link.greeted or link.route != route or link.connection != hello.connection
        link.route, link.connection = route, hello.connection
        self._by_route[route] = link
        welcomed = self._transmit(link, Welcome(hello.connection, self._greeting_fields))
        if is_new and not welcomed:
            link.greeted = False  # it says Hello again
            return
        yield from self._greeted(link, theirs, is_new)

    def _welcome(self, link: _Link, theirs: Greeting) -> Iterator[LinkEvent]:
        if link.name != theirs.name:
            reason: str | None = f"{link.name} was expected at this address, and {theirs.name} answered"
        else:
            reason = self._objection(link, theirs)
        if reason:
            self._transmit(link, Refuse(reason[:TEXT_CHARACTERS]))
            yield from self._part(link, f"its greeting was refused: {reason}")
            return
        yield from self._greeted(link, theirs, True)

    def _objection(self, link: _Link, theirs: Greeting) -> str | None:
        if link.turned_away:
            return self._dismissal(link).reason
        if link.session not in ("", theirs.session) and link.has_begun:
            return f"{link.name} was started anew in the middle of the run, which is not built yet"
        return refusal(self._greeting, theirs)

    def _dismissal(self, link: _Link) -> Refuse:
        text = f"{link.name} was counted as lost by {self._greeting.name} ({link.turned_away})"
        return Refuse(text[:TEXT_CHARACTERS])

    def _greeted(self, link: _Link, theirs: Greeting, is_new: bool) -> Iterator[LinkEvent]:
        link.session = theirs.session
        link.greeted = link.trusted = True
        if is_new:
            link.outgoing.rewind()
            link.owes_ack = True  # what arrived before the connection broke need not come again
            yield Greeted(link.peer)
        self._push(link)

    # ---- Frames out

    def _push(self, link: _Link) -> None:
        """Send as much of the stream as the window and the socket take."""
        while link.greeted and (item := link.outgoing.ready()) is not None:
            header, body = item
            if not self._transmit(link, header, body):
                return
            link.outgoing.sent()

    def _transmit(self, link: _Link, header: Header, body: memoryview | None = None) -> bool:
        frames: list[bytes | memoryview] = [encode(header)]
        if body is not None:
            frames.append(body)
        if link.dealer is not None:
            # Not left to zmq.IMMEDIATE, which also drops what came before a break and is not read: a goodbye, say.
            return link.stands and self._send_frames(link.dealer, frames)
        if self._router is None or link.route is None:
            return False
        return self._send_frames(self._router, [link.route, *frames])

    def _send_frames(self, socket: "zmq.Socket[bytes]", frames: list[bytes | memoryview]) -> bool:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH or socket is not self._router:
                raise
            route = frames[0]
            if isinstance(route, bytes) and route in self._by_route:
                self._by_route[route].greeted = False  # the other side is gone; it greets again when it is back
            return False
        self.traffic.wire_bytes += sum(len(frame) for frame in frames)
        return True

    # ---- Connections

    def _bind(self, listen: str) -> None:
        router = self._context.socket(zmq.ROUTER)
        _set_up(router, listen)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            router.bind(listen)
        except zmq.ZMQError as error:
            router.close(linger=0)
            self._context.term()
            raise ConfigError(
                "transport.listen",
                f"{listen} cannot be bound ({zmq.strerror(error.errno or 0)}); choose another address",
            ) from None
        self._router = router
        self.endpoint = router.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")  # type: ignore[union-attr]
        self._poller.register(router, zmq.POLLIN)

    def _follow(self, link: _Link) -> bool:
        """Follow a dialled connection and greet when it stands. Returns whether its address refuses new ones."""
        refuses = is_new = False
        while link.monitor is not None and link.monitor.poll(0):
            match recv_monitor_message(link.monitor)["event"]:
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    link.connection += 1
                    link.stands, link.greeted, is_new, refuses = True, False, True, False
                case zmq.EVENT_DISCONNECTED:
                    link.stands = link.greeted = is_new = False
                case zmq.EVENT_CONNECT_DELAYED:
                    link.connecting_since_s = self._drained_s  # or later: it is known only that it was not before
                case zmq.EVENT_CLOSED:  # refused, or unanswered as in a cut network: that takes longer
                    refuses = monotonic() - link.connecting_since_s < CONNECT_TIMEOUT_MS / 1000
        if is_new:
            self._say_hello(link)
        return refuses

    def _hang_up(self, link: _Link) -> None:
        if link.dealer is not None:
            if link.monitor is not None:
                self._poller.unregister(link.monitor)
                link.dealer.disable_monitor()
                link.monitor.close(linger=0)
            self._poller.unregister(link.dealer)
            link.dealer.close(linger=0)
            link.dealer = link.monitor = None
        if link.route is not None:
            self._by_route.pop(link.route, None)
            link.route = None

    def _once(self, about: str, text: str, *, refusal: bool = False) -> Iterator[LinkEvent]:
        """Say this once, and not too much about one neighbour, by name, or about strangers: ""."""
        if text not in self._said and self._alerts[about] < ALERTS:
            self._alerts[about] += 1
            self._said.add(text)
            yield Alert(text, refusal=refusal)


def _set_up(socket: "zmq.Socket[bytes]", endpoint: str) -> None:
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, max(CHUNK_BYTES, HEADER_BYTES))


def _arrived(socket: "zmq.Socket[bytes]") -> Iterator[list[zmq.Frame]]:
    """Yield the messages that are there now; a flood from one side has its turn and no more."""
    for _ in range(4 * QUEUE_MESSAGES):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return
