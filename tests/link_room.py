"""Links over real sockets: all ends are polled by one thread until what is wanted has happened, or it is too late."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from select import select
from time import monotonic
from typing import Any

import pytest
import zmq

from peer.network.greeting import Greeting
from peer.network.link import LinkEvent
from peer.network.links import Links
from peer.network.sizes import Sizes
from peer.protocol.membership import Membership, Patience
from peer.protocol.messages import Alert, Event, Greeted, Heartbeat, Message, PeerLost, Received, Severed, Tell

LATE_S = 20.0
PAYLOAD_BYTES = (5_000_000, 1000)
MODEL_BYTES = 600_000
PUSH_BYTES, GIVEN_BYTES, PIECE_BYTES, PIECES = 700_000, 800_000, 100_000, 3
SIZES = Sizes(
    PAYLOAD_BYTES,
    MODEL_BYTES,
    PUSH_BYTES,
    GIVEN_BYTES,
    lambda phase, step, piece: PIECE_BYTES if step == 0 and piece < PIECES else 0,
    is_ragged=True,
)
LOOPBACK = "tcp://127.0.0.1:*"

A, B, C = 0, 1, 2
NAMES = {A: "anna", B: "bela", C: "cora"}


def greeting_of(peer: int, **changes: Any) -> Greeting:
    greeting = Greeting(
        name=NAMES[peer],
        session=f"session of {NAMES[peer]}",
        digest="d1",
        fingerprint={"seed": "0", "task.lr": "0.05"},
        layout_digest="l1",
        layout=["w [2] float32"],
        code="c1",
        device="cpu",
        step="fused",
    )
    return replace(greeting, **changes)


def payload(exchange: int, seed: int) -> bytes:
    return Random(seed).randbytes(PAYLOAD_BYTES[exchange])


@dataclass
class Side:
    """One peer's links and all that came out of them. With a membership, it turns away whom that counts as lost."""

    links: Links
    membership: Membership | None = None
    events: list[LinkEvent] = field(default_factory=list)
    told: list[Event] = field(default_factory=list)  # by membership
    beats: int = 0

    def step(self) -> None:
        arrived = self.links.poll(0.005)
        self.events += arrived
        for event in arrived:
            if not isinstance(event, Alert):
                self.tell(event)

    def tell(self, event: Event) -> None:
        """Something happens that membership should know."""
        if self.membership is None:
            return
        for effect in self.membership.handle(event, 0.0):
            if isinstance(effect, Tell):
                self.told.append(effect.event)
                if isinstance(effect.event, PeerLost) and self.membership.status(effect.event.peer) == "dead":
                    self.links.turn_away(effect.event.peer, effect.event.reason)

    def beat(self) -> None:
        self.links.beat(self.beats)
        self.beats += 1

    def greeted(self, peer: int, incarnation: int = 0) -> bool:
        return Greeted(peer, incarnation) in self.events

    def messages(self, peer: int) -> list[Message]:
        """What has come from a neighbour, heartbeats apart."""
        received = [event for event in self.events if isinstance(event, Received) and event.sender == peer]
        return [event.message for event in received if not isinstance(event.message, Heartbeat)]

    def heartbeats(self, peer: int) -> int:
        return sum(event.sender == peer for event in self.events if isinstance(event, Received)) - len(
            self.messages(peer)
        )

    def alerts(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Alert)]

    def severed(self) -> list[Severed]:
        return [event for event in self.events if isinstance(event, Severed)]


class Proxy:
    """A TCP relay in front of an endpoint. It cuts its connections when so many bytes have passed."""

    def __init__(self, endpoint: str) -> None:
        self._target = ("127.0.0.1", int(endpoint.rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cut_after: list[int] = []
        self.cuts = 0
        self.passed = 0

    def step(self) -> None:
        if select([self._listener], [], [], 0)[0]:
            there = socket.create_connection(self._target)
            here, _ = self._listener.accept()
            self._pairs.append((here, there))
        for here, there in list(self._pairs):
            if not (self._relay(here, there) and self._relay(there, here)):
                self._close(here, there)
            if self.cut_after and self.passed > self.cut_after[0]:
                self.passed -= self.cut_after.pop(0)
                self.cut()

    def cut(self) -> None:
        self.cuts += bool(self._pairs)
        for pair in list(self._pairs):
            self._close(*pair)

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _relay(self, source: socket.socket, sink: socket.socket) -> bool:
        if not select([source], [sink], [], 0)[0] or not select([], [sink], [], 0)[1]:
            return True
        try:
            some = source.recv(100_000)
            sink.sendall(some)
        except ConnectionError:
            return False
        self.passed += len(some)
        return bool(some)

    def _close(self, here: socket.socket, there: socket.socket) -> None:
        if (here, there) in self._pairs:
            self._pairs.remove((here, there))
        here.close()
        there.close()


class Room:
    """Whatever a test opens, and the clock by which it moves."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.moving: list[Side | Proxy] = []
        self.opened: list[Any] = []

    def side(
        self, peer: int, *neighbours: int, listen: str | None = LOOPBACK, sizes: Sizes = SIZES, **changes: Any
    ) -> Side:
        names = {other: NAMES[other] for other in neighbours}
        greeting, all_sizes = greeting_of(peer, **changes), dict.fromkeys(neighbours, sizes)
        links = Links(names, greeting, all_sizes, listen, pieces=PIECES)
        side = Side(links)
        self.moving.append(side)
        self.opened.append(side.links)
        return side

    def member(self, peer: int, *neighbours: int, listen: str | None = LOOPBACK, **changes: Any) -> Side:
        """A side with a membership."""
        side = self.side(peer, *neighbours, listen=listen, **changes)
        side.membership = Membership(neighbours, Patience())
        side.membership.start(0.0)
        return side

    def pair(self) -> tuple[Side, Side]:
        """A and B, who have greeted; B has dialled."""
        a, b = self.side(A, B), self.side(B, A, listen=None)
        b.links.dial(A, endpoint_of(a))
        self.drive(lambda: a.greeted(B) and b.greeted(A))
        return a, b

    def proxy(self, endpoint: str) -> Proxy:
        proxy = Proxy(endpoint)
        self.moving.append(proxy)
        self.opened.append(proxy)
        return proxy

    def raw(self, kind: int) -> "zmq.Socket[bytes]":
        """A socket that speaks ZeroMQ and says what it likes."""
        raw = self.context.socket(kind)
        raw.setsockopt(zmq.LINGER, 0)
        self.opened.append(raw)
        return raw

    def leave(self, side: Side) -> None:
        """This side is polled no more."""
        self.moving.remove(side)

    def gone(self, side: Side) -> None:
        """A peer ends from one moment to the next: nothing is flushed."""
        self.leave(side)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("peer.network.links.FLUSH_S", 0.0)
            side.links.close()
        self.opened.remove(side.links)

    def drive(self, until: Callable[[], object]) -> None:
        """Move everything until something holds; beat ten times a second."""
        begun_s = beat_s = monotonic()
        while not until():
            now_s = monotonic()
            assert now_s - begun_s < LATE_S, [side.events[-20:] for side in self.moving if isinstance(side, Side)]
            for moving in self.moving:
                moving.step()
                if now_s >= beat_s and isinstance(moving, Side):
                    moving.beat()
            if now_s >= beat_s:
                beat_s = now_s + 0.1

    def close(self) -> None:
        for opened in self.opened:
            opened.close()
        self.context.term()


def endpoint_of(side: Side) -> str:
    assert side.links.endpoint is not None
    return side.links.endpoint


def free_endpoint() -> str:
    """An address of which the system says that it is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
