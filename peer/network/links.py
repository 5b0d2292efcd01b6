"""Connections: one per pair of peers, dialled by one side and used in both directions.

A `Links` belongs to one thread. It binds one ROUTER for the peers that dial, has one DEALER for each peer it dials,
greets, and turns frames into events. Sockets never linger, never queue for a peer that is not there, and bound every
frame that they accept.

The side that dials sends `Hello` on each new connection, and the other answers `Welcome`; only then does either send
its stream, from the first item that is not acknowledged. So an item may arrive twice, but none is missed. What a
neighbour says and may say is for its `Link`; the rest of what lies between the two is here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from time import monotonic

import zmq

from peer.errors import ConfigError, WireError
from peer.network.greeting import Greeting, from_wire, plain, refusal
from peer.network.line import Line, arrived, set_up
from peer.network.link import Link, LinkEvent
from peer.network.sizes import Sizes
from peer.network.stream import PAYLOADS
from peer.network.wire import (
    TEXT_CHARACTERS,
    Beat,
    Header,
    Hello,
    Refuse,
    decode,
    encode,
)
from peer.protocol.messages import Alert, Heartbeat, Message, PeerId, Severed

FLUSH_S = 0.5
"""How long `close` waits at most without any acknowledgement."""

FLUSH_MOST_S = 10.0
"""How long `close` waits at most in all."""

ALERTS = 8
"""How many different alerts there are about one neighbour, and about all strangers together."""


@dataclass
class Traffic:
    """What has gone out: encoded payloads, and all bytes at the sockets."""

    payload_bytes: int = 0
    wire_bytes: int = 0


class Links:
    """All connections of one peer.

    `names` are the neighbours' names by id; `greeting` is the own one; `sizes` says for each neighbour what may come
    from it. `listen` is an endpoint to bind, such as "tcp://127.0.0.1:*", or None. `pieces` is how many pieces a member
    of a ring sends in a round.

    Raises ConfigError when the endpoint cannot be bound.
    """

    def __init__(
        self,
        names: Mapping[PeerId, str],
        greeting: Greeting,
        sizes: Mapping[PeerId, Sizes],
        listen: str | None = "tcp://127.0.0.1:*",
        *,
        pieces: int = 0,
    ) -> None:
        self.traffic = Traffic()
        self.endpoint: str | None = None
        self._greeting = greeting
        fields = greeting.to_wire()
        self._lines = {peer: Line() for peer in names}
        self._links = {
            peer: Link(peer, name, greeting, fields, sizes[peer], partial(self._transmit, peer))
            for peer, name in names.items()
        }
        self._by_name = {link.name: link for link in self._links.values()}
        self._by_route: dict[bytes, Link] = {}
        self._most_messages = most_messages(max((len(sizes[peer].data) for peer in names), default=0), pieces)
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
        link, line = self._links[peer], self._lines[peer]
        assert not link.dials, f"{link.name} is dialled twice"
        line.dial(self._context, self._poller, endpoint, f"peers.{link.name}.address")
        link.dials = True

    def poll(self, timeout_s: float) -> list[LinkEvent]:
        """Wait for something to happen, then take in all that has arrived."""
        self._poller.poll(0 if self._news else max(0, ceil(timeout_s * 1000)))
        for link in self._links.values():
            link.settle()
        events = [*self._news, *self._drain()]
        self._news.clear()
        return events

    def send(self, peer: PeerId, message: Message) -> None:
        """Queue a message for a neighbour; it is delivered once, in order, for as long as the two have each other.

        A payload is a buffer of one byte or more, which must not change any more.
        What is sent to a neighbour that is lost, before it is greeted again, is lost, too.
        """
        link = self._links[peer]
        if link.is_vacant:
            return
        if isinstance(message, Heartbeat):
            self._transmit(peer, Beat(message.round))
            return
        if link.outgoing.messages == self._most_messages:
            if link.trusted:
                self._news += link.part("it acknowledges nothing of what it is sent")
            return
        link.send(message)
        if isinstance(message, PAYLOADS):
            self.traffic.payload_bytes += len(message.payload)

    def beat(self, round: int) -> None:
        """Tell every neighbour that this peer is alive; greet again those that have not answered yet, or are lost."""
        for link in self._links.values():
            link.beat(round)

    def turn_away(self, peer: PeerId, reason: str) -> None:
        """This peer counts a neighbour as lost. It is told so, now and whenever it goes on as if it were not.

        It may come back: that is a new incarnation, with `Greeted` and empty streams.
        """
        self._links[peer].turn_away(reason)

    def close(self) -> None:
        """Flush what the neighbours that are there still have to get, and close everything.

        It goes on for as long as acknowledgements keep coming, `FLUSH_MOST_S` at most; `FLUSH_S` without any is enough.
        """
        end_s = monotonic() + FLUSH_MOST_S
        until_s, acknowledged = monotonic() + FLUSH_S, self._acknowledged()
        while monotonic() < min(until_s, end_s) and any(link.is_waited_for for link in self._links.values()):
            self.poll(0.02)
            if acknowledged != self._acknowledged():
                until_s, acknowledged = monotonic() + FLUSH_S, self._acknowledged()
            for link in self._links.values():
                link.owes_ack |= link.greeted  # once more: so it shows at a ROUTER whether the other side is gone
        for line in self._lines.values():
            line.hang_up(self._poller)
        if self._router is not None:
            self._router.close(linger=0)
        self._context.term()

    def _acknowledged(self) -> list[int]:
        """Return how many items each neighbour has acknowledged."""
        return [link.outgoing.acknowledged_until for link in self._links.values()]

    # ---- Frames in

    def _drain(self) -> Iterator[LinkEvent]:
        began_s = monotonic()
        if self._router is not None:
            for frames in arrived(self._router):
                yield from self._routed(frames[0].bytes, frames[1:])
        for link in self._links.values():
            if link.dials:
                yield from self._dialled(link)
        for link in self._links.values():
            if link.owes_ack:
                link.acknowledge()
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
            elif isinstance(header, Refuse) and not header.incarnation:
                yield from self._once("", f"the other side of a connection says: {plain(header.reason)}")
        except WireError as error:
            yield from self._once("", f"a stranger sent {error}: ignored")

    def _dialled(self, link: Link) -> Iterator[LinkEvent]:
        line = self._lines[link.peer]
        refuses = line.follow(
            link, self._drained_s
        )  # before the frames: what came ahead of a break is in the queue by now
        for frames in arrived(line.dealer) if line.dealer is not None else ():
            yield from self._guarded(link, frames)
        if line.is_new:  # after the frames: now it is known which process they were exchanged with
            line.is_new = False
            link.greet()
        if refuses and link.trusted and not line.stands and not link.incoming.ended:
            yield Severed(link.peer, "its connection broke and its address refuses new ones")

    def _guarded(self, link: Link, frames: list[zmq.Frame]) -> Iterator[LinkEvent]:
        try:
            header, body = decode([frame.buffer for frame in frames])
            if not isinstance(header, Hello):
                yield from self._heeded(link, link.take(header, body))
            elif (route := self._lines[link.peer].route) is not None:
                yield from self._hello(route, header)
        except WireError as error:
            yield from self._heeded(link, link.part(f"it broke the protocol with {error}"))

    def _hello(self, route: bytes, hello: Hello) -> Iterator[LinkEvent]:
        theirs = from_wire(hello.greeting)
        link, known = self._by_name.get(theirs.name), self._by_route.get(route)
        if known not in (None, link):
            raise WireError(f"the name {theirs.name} on a connection of {known.name if known else ''}")
        reason: str | None = f"{theirs.name} is not a neighbour that dials {self._greeting.name}"
        if hello.to != self._greeting.name:
            reason = f"{theirs.name} looks for {plain(hello.to)}, and this is {self._greeting.name}"
        elif link is not None and not link.dials:
            reason = refusal(self._greeting, theirs)
        if reason or link is None:
            self._answer(route, Refuse((reason or "")[:TEXT_CHARACTERS], 0))
            text = f"the greeting of {theirs.name} was refused: {reason}"
            yield from self._once(link.name if link else "", text, refusal=True)
        elif not link.is_late(hello, theirs):
            yield from self._greet(link, route, hello, theirs)

    def _greet(self, link: Link, route: bytes, hello: Hello, theirs: Greeting) -> Iterator[LinkEvent]:
        """Answer a neighbour. The route is its own once it is welcome, and not before."""
        line, answer = self._lines[link.peer], (yield from link.answer(hello, theirs))
        if answer is None or not self._answer(route, answer) or isinstance(answer, Refuse):
            return  # it says Hello again
        if line.route != route or link.connection != hello.connection:
            link.greeted = False
        self._by_route.pop(line.route or b"", None)
        self._by_route[route] = link
        line.route, link.connection = route, hello.connection
        yield from link.open(theirs)

    # ---- Frames out

    def _transmit(self, peer: PeerId, header: Header, body: memoryview | None = None) -> bool:
        line = self._lines[peer]
        frames: list[bytes | memoryview] = [encode(header)] if body is None else [encode(header), body]
        if line.dealer is not None:
            # Not left to zmq.IMMEDIATE, which also drops what came before a break and is not read: a goodbye, say.
            return line.stands and self._send_frames(line.dealer, frames)
        if self._router is None or line.route is None:
            return False
        return self._send_frames(self._router, [line.route, *frames])

    def _answer(self, route: bytes, header: Header) -> bool:
        assert self._router is not None
        return self._send_frames(self._router, [route, encode(header)])

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
        set_up(router, listen)
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

    # ---- What is told

    def _heeded(self, link: Link, events: Iterator[LinkEvent]) -> Iterator[LinkEvent]:
        """Pass on what a link tells, and each alert once."""
        for event in events:
            if isinstance(event, Alert):
                yield from self._once(link.name, event.text, refusal=event.refusal)
            else:
                yield event

    def _once(self, about: str, text: str, *, refusal: bool = False) -> Iterator[LinkEvent]:
        """Say this once, and not too much about one neighbour, by name, or about strangers: ""."""
        if text not in self._said and self._alerts[about] < ALERTS:
            self._alerts[about] += 1
            self._said.add(text)
            yield Alert(text, refusal=refusal)


def most_messages(exchanges: int, pieces: int = 0) -> int:
    """Return how many messages may wait for their acknowledgement before a neighbour counts as one that gives none.

    A right one leaves at most these: of two rounds, since none is sent more than one round ahead of a neighbour, the
    data and a `Done`, or in a ring the pieces; of coming back a `Resume`, a `Fetch`, a `Model` and a `Done`; a
    `Propose` and an answer; a `Probe`, an `Echo`, a `Measured` and a `Degree`, before the rounds; towards a worker two
    `Global`s, the one that it has asked for and the last, or towards a coordinator a `Pull` and two `Push`es, as the
    second answers a `Global` that answered the first; a `Broken` and a `Bye`. The bound is twice that.
    """
    return 2 * (2 * (exchanges + 1 + pieces) + 4 + 2 + 4 + 3 + 2)
