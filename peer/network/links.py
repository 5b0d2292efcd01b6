"""Connections: one per pair of peers, dialled by one side and used in both directions.

A `Links` belongs to one thread. It binds one ROUTER for the peers that dial, has one DEALER for each peer it dials,
greets, and turns frames into events. Sockets never linger, never queue for a peer that is not there, and bound every
frame that they accept.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic

import zmq
from zmq.utils.monitor import recv_monitor_message

from peer.errors import ConfigError, WireError
from peer.network.greeting import Greeting, from_wire, refusal
from peer.network.stream import Incoming, Outgoing
from peer.network.wire import (
    CHUNK_BYTES,
    HEADER_BYTES,
    TEXT_CHARACTERS,
    Ack,
    Beat,
    Chunk,
    End,
    Header,
    Hello,
    Mixed,
    Refuse,
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

LinkEvent = Greeted | Severed | Received | Alert


@dataclass
class Traffic:
    """What has gone out: encoded payloads, and all bytes at the sockets."""

    payload_bytes: int = 0
    wire_bytes: int = 0


@dataclass
class _Link:
    """One neighbour: how to reach it, and the two halves of its stream."""

    peer: PeerId
    incoming: Incoming
    outgoing: Outgoing = field(default_factory=Outgoing)
    dealer: "zmq.Socket[bytes] | None" = None
    monitor: "zmq.Socket[bytes] | None" = None
    route: bytes | None = None  # at the ROUTER, for a peer that dials
    session: str = ""
    greeted: bool = False  # on the connection there is now
    was_connected: bool = False
    connecting_since_s: float = 0.0
    turned_away: str = ""  # why this peer is no longer spoken to


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
        self._names = dict(names)
        self._ids = {name: peer for peer, name in names.items()}
        self._links = {peer: _Link(peer, Incoming(payload_bytes)) for peer in names}
        self._by_route: dict[bytes, _Link] = {}
        self._said: set[str] = set()
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
        """Connect to a neighbour, now or whenever it comes up."""
        link = self._links[peer]
        dealer = self._context.socket(zmq.DEALER)
        _bound_queues(dealer)
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        dealer.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        link.monitor = dealer.get_monitor_socket()
        link.dealer = dealer
        dealer.connect(endpoint)
        self._poller.register(dealer, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)

    def poll(self, timeout_s: float) -> list[LinkEvent]:
        """Wait for something to happen, then take in all that has arrived."""
        self._poller.poll(max(0, int(timeout_s * 1000)))
        return list(self._drain())

    def send(self, peer: PeerId, message: Message) -> None:
        """Queue a message for a neighbour; it is delivered once, in order, for as long as the neighbour lives."""
        link = self._links[peer]
        if link.turned_away:
            return
        if isinstance(message, Heartbeat):
            self._transmit(link, Beat(message.round))
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
                self._transmit(link, Ack(link.incoming.next_wanted))  # an earlier one may have found a full queue
                self._push(link)
            elif link.dealer is not None:
                self._transmit(link, Hello(self._greeting.to_wire()))

    def turn_away(self, peer: PeerId, reason: str) -> None:
        """Speak to this neighbour no more: it was counted as lost."""
        link = self._links[peer]
        link.turned_away = reason
        link.greeted = False
        link.outgoing = Outgoing()
        self._hang_up(link)

    def close(self) -> None:
        """Flush what the neighbours that are there still have to get, for `FLUSH_S` at most, and close everything."""
        until_s = monotonic() + FLUSH_S
        while monotonic() < until_s and any(x.greeted and not x.outgoing.is_empty() for x in self._links.values()):
            self.poll(0.02)
        for link in self._links.values():
            self._hang_up(link)
        if self._router is not None:
            self._router.close(linger=0)
        self._context.term()

    # ---- Frames in

    def _drain(self) -> Iterator[LinkEvent]:
        if self._router is not None:
            for frames in _arrived(self._router):
                yield from self._routed(frames[0].bytes, frames[1:])
        for link in list(self._links.values()):
            if link.dealer is not None:
                for frames in _arrived(link.dealer):
                    yield from self._guarded(link, frames)
            if link.monitor is not None:
                yield from self._monitored(link)

    def _routed(self, route: bytes, frames: list[zmq.Frame]) -> Iterator[LinkEvent]:
        link = self._by_route.get(route)
        if link is not None:
            yield from self._guarded(link, frames)
            return
        try:
            header, _ = decode([frame.buffer for frame in frames])
            if isinstance(header, Hello):
                yield from self._hello(route, from_wire(header.greeting))
        except WireError as error:
            yield from self._once(f"a stranger sent {error}: ignored")

    def _guarded(self, link: _Link, frames: list[zmq.Frame]) -> Iterator[LinkEvent]:
        if link.turned_away:
            return
        try:
            header, body = decode([frame.buffer for frame in frames])
            yield from self._dispatch(link, header, body)
        except WireError as error:
            yield Severed(link.peer, f"broke the protocol with {error}")

    def _dispatch(self, link: _Link, header: Header, body: memoryview | None) -> Iterator[LinkEvent]:
        match header:
            case Hello(fields) if link.route is not None:
                yield from self._hello(link.route, from_wire(fields))
            case Welcome(fields) if link.dealer is not None:
                yield from self._welcome(link, from_wire(fields))
            case Refuse(reason):
                yield from self._once(f"{self._names[link.peer]} refuses the greeting: {reason}")
            case Beat(round) if link.greeted:
                yield Received(link.peer, Heartbeat(round))
            case Ack(next_wanted) if link.greeted:
                link.outgoing.acknowledged(next_wanted)
                self._push(link)
            case Chunk() | Mixed() | End() if link.greeted:
                message = link.incoming.take(header, body)
                self._transmit(link, Ack(link.incoming.next_wanted))
                if message is not None:
                    yield Received(link.peer, message)

    # ---- Greetings

    def _hello(self, route: bytes, theirs: Greeting) -> Iterator[LinkEvent]:
        assert self._router is not None
        peer = self._ids.get(theirs.name)
        link = None if peer is None else self._links[peer]
        if link is None or link.dealer is not None:
            reason = f"{theirs.name} is not a neighbour that dials {self._greeting.name}"
        else:
            reason = self._objection(link, theirs) or ""
        if reason or link is None:
            self._send_frames(self._router, [route, encode(Refuse(reason[:TEXT_CHARACTERS]))])
            yield from self._once(f"the greeting of {theirs.name} was refused: {reason}")
            return
        new_connection = link.route != route
        if link.route is not None:
            self._by_route.pop(link.route, None)
        link.route, link.session = route, theirs.session
        self._by_route[route] = link
        self._transmit(link, Welcome(self._greeting.to_wire()))
        yield from self._greeted(link, new_connection)

    def _welcome(self, link: _Link, theirs: Greeting) -> Iterator[LinkEvent]:
        if self._names[link.peer] != theirs.name:
            reason: str | None = f"{self._names[link.peer]} was expected at this address, and {theirs.name} answered"
        else:
            reason = self._objection(link, theirs)
        if reason:
            self._transmit(link, Refuse(reason[:TEXT_CHARACTERS]))
            yield from self._once(f"the greeting of {theirs.name} was refused: {reason}")
            return
        link.session = theirs.session
        yield from self._greeted(link, not link.greeted)

    def _objection(self, link: _Link, theirs: Greeting) -> str | None:
        if link.turned_away:
            return f"it was counted as lost ({link.turned_away})"
        if link.session and link.session != theirs.session and link.incoming.next_wanted:
            return "it was started anew in the middle of the run, which is not built yet"
        return refusal(self._greeting, theirs)

    def _greeted(self, link: _Link, new_connection: bool) -> Iterator[LinkEvent]:
        if new_connection:
            link.greeted = True
            link.outgoing.rewind()
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
            return self._send_frames(link.dealer, frames)
        if self._router is not None and link.route is not None:
            return self._send_frames(self._router, [link.route, *frames])
        return False

    def _send_frames(self, socket: "zmq.Socket[bytes]", frames: list[bytes | memoryview]) -> bool:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:  # the other side is gone; it greets again when it is back
                return False
            raise
        self.traffic.wire_bytes += sum(len(frame) for frame in frames)
        return True

    # ---- Connections

    def _bind(self, listen: str) -> None:
        router = self._context.socket(zmq.ROUTER)
        _bound_queues(router)
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

    def _monitored(self, link: _Link) -> Iterator[LinkEvent]:
        """Follow a dialled connection: greet when it stands; it is severed when it broke and is refused."""
        while link.monitor is not None and link.monitor.poll(0):
            event = recv_monitor_message(link.monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                link.was_connected = True
                self._transmit(link, Hello(self._greeting.to_wire()))
            elif event == zmq.EVENT_DISCONNECTED:
                link.greeted = False
            elif event == zmq.EVENT_CONNECT_DELAYED:
                link.connecting_since_s = monotonic()
            elif event == zmq.EVENT_CLOSED and link.was_connected and not link.greeted:
                refused = monotonic() - link.connecting_since_s < CONNECT_TIMEOUT_MS / 2000
                if refused:  # and not merely unanswered, which a cut network would be
                    yield Severed(link.peer, "its connection broke and its address refuses new ones")

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

    def _once(self, text: str) -> Iterable[LinkEvent]:
        if text not in self._said and len(self._said) < QUEUE_MESSAGES:
            self._said.add(text)
            yield Alert(text)


def _bound_queues(socket: "zmq.Socket[bytes]") -> None:
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
