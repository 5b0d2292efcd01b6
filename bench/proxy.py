"""A TCP proxy that is a slow line: every connection through it has a rate and a delay, in each direction its own.

    python bench/proxy.py --mbps 20 --latency-ms 10 7001:8001 7002:8002

What comes in at port 7001 of the loopback goes on to 8001, and back. The first line on stdout, "ready", says that all
ports are open. A line on stdin such as "100 10" gives every connection another rate and delay, and is answered by one
more "ready"; the proxy ends with its stdin. What is read is cut into pieces, and each has its time:

    departs  = max(now, when the piece before it departed) + bytes * 8 / rate
    arrives  = departs + latency

So a piece that is handed on late delays no other, and the rate is kept however busy the machine is. At most
`BOUND_BYTES` are under way in a direction; beyond that nothing is read, and the sender's own queues fill.
"""

import argparse
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from selectors import EVENT_READ, EVENT_WRITE, SelectSelector
from time import monotonic
from typing import TextIO

PIECE_S = 0.002
"""A piece keeps the line busy for no longer than that, so nothing waits much longer than on a line of single bytes."""

PIECE_BYTES = 64 * 1024
"""And no piece is longer than that."""

BOUND_BYTES = 1024 * 1024
"""More than a line of 100 Mb/s holds in 80 ms, so the proxy has always something to hand on while a sender sends."""

BUFFER_BYTES = 256 * 1024
"""Of each socket: little, so that what waits does so where it can be counted."""


@dataclass
class Lane:
    """One direction of one connection. `mbps` is in 10^6 bits a second, 0 for no limit."""

    mbps: float
    latency_ms: float
    bound_bytes: int = BOUND_BYTES
    held_bytes: int = 0
    _free_s: float = -inf  # when the last piece departs
    _pieces: deque[tuple[float, memoryview]] = field(default_factory=deque)  # (when it arrives, what is left of it)

    @property
    def takes_bytes(self) -> int:
        """How long the next piece may be; 0 while too much is under way."""
        longest = min(PIECE_BYTES, max(1, int(self.mbps * 1e6 / 8 * PIECE_S))) if self.mbps else PIECE_BYTES
        return min(longest, max(0, self.bound_bytes - self.held_bytes))

    @property
    def due_s(self) -> float:
        """When the next piece arrives; inf for none."""
        return self._pieces[0][0] if self._pieces else inf

    def put(self, piece: bytes, now_s: float) -> None:
        """Send a piece on its way."""
        takes_s = len(piece) * 8 / (self.mbps * 1e6) if self.mbps else 0.0
        self._free_s = max(now_s, self._free_s) + takes_s
        self._pieces.append((self._free_s + self.latency_ms / 1000, memoryview(piece)))
        self.held_bytes += len(piece)

    def arrived(self, now_s: float) -> memoryview | None:
        """Return what is to be handed on now, in order; None for nothing."""
        return self._pieces[0][1] if self.due_s <= now_s else None

    def handed_on(self, count: int) -> None:
        """The first `count` bytes of what `arrived` returned are gone."""
        due_s, piece = self._pieces.popleft()
        self.held_bytes -= count
        if count < len(piece):
            self._pieces.appendleft((due_s, piece[count:]))


@dataclass(eq=False)
class Flow:
    """A lane between two sockets."""

    source: socket.socket
    sink: socket.socket
    lane: Lane
    ended: bool = False  # the source has said all
    closed: bool = False  # and the sink has been told
    blocked: bool = False  # the sink takes nothing at the moment

    def read(self, now_s: float) -> None:
        """Take in a piece. Raises OSError for a broken connection."""
        with suppress(BlockingIOError):
            piece = self.source.recv(self.lane.takes_bytes)
            if piece:
                self.lane.put(piece, now_s)
            else:
                self.ended = True

    def write(self, now_s: float) -> None:
        """Hand on what has arrived, and the end after it. Raises OSError for a broken connection."""
        self.blocked = False
        while (piece := self.lane.arrived(now_s)) is not None:
            try:
                self.lane.handed_on(self.sink.send(piece))
            except BlockingIOError:
                self.blocked = True
                return
        if self.ended and not self.closed and not self.lane.held_bytes:
            self.closed = True
            self.sink.shutdown(socket.SHUT_WR)


class Proxy:
    """All listening ports and connections. `ports` are pairs: where it listens, and where that leads."""

    def __init__(
        self,
        ports: Sequence[tuple[int, int]],
        mbps: float,
        latency_ms: float,
        orders: TextIO | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.flows: list[Flow] = []
        self.is_over = False
        self._mbps = mbps
        self._latency_ms = latency_ms
        self._clock = clock
        self._selector = SelectSelector()  # the only one that waits for less than a millisecond
        self._orders = orders
        if orders is not None:
            self._selector.register(orders, EVENT_READ)
        self._targets: dict[socket.socket, int] = {}
        for port, target in ports:
            listener = socket.create_server(("127.0.0.1", port))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)  # what is accepted has it, too
            listener.setblocking(False)
            self._targets[listener] = target
            self._selector.register(listener, EVENT_READ)

    @property
    def ports(self) -> list[int]:
        """Where it listens."""
        return [listener.getsockname()[1] for listener in self._targets]

    def turn(self, most_s: float) -> None:
        """Wait until something can be done, for so long at most, and do it."""
        due_s = min((flow.lane.due_s for flow in self.flows if not flow.blocked), default=inf)
        self._choose()
        for key, events in self._selector.select(max(0.0, min(most_s, due_s - self._clock()))):
            if key.fileobj is self._orders:
                self._obey(self._orders.readline())
                continue
            assert isinstance(key.fileobj, socket.socket)
            if key.fileobj in self._targets:
                self._accept(key.fileobj)
                continue
            for flow in [flow for flow in self.flows if key.fileobj in (flow.source, flow.sink)]:
                if events & EVENT_READ and flow.source is key.fileobj and not flow.ended:
                    self._guarded(flow, flow.read)
                if events & EVENT_WRITE and flow.sink is key.fileobj:
                    flow.blocked = False
        for flow in list(self.flows):
            if not flow.blocked and (flow.lane.due_s <= self._clock() or flow.ended):
                self._guarded(flow, flow.write)
        for flow in [flow for flow in self.flows if flow.closed]:
            if all(other.closed for other in self.flows if other.source is flow.sink):
                self._drop(flow)

    def become(self, mbps: float, latency_ms: float) -> None:
        """Treat what is read from now on like this."""
        self._mbps, self._latency_ms = mbps, latency_ms
        for flow in self.flows:
            flow.lane.mbps, flow.lane.latency_ms = mbps, latency_ms

    def close(self) -> None:
        while self.flows:
            self._drop(self.flows[0])
        for listener in self._targets:
            listener.close()
        self._selector.close()

    def _obey(self, line: str) -> None:
        if not line:
            self.is_over = True
            return
        mbps, latency_ms = line.split()
        self.become(float(mbps), float(latency_ms))
        print("ready", flush=True)

    def _choose(self) -> None:
        """Wait for sources where there is room, and for sinks that are full."""
        wanted: dict[socket.socket, int] = {}
        for flow in self.flows:
            reads = EVENT_READ if flow.lane.takes_bytes and not flow.ended else 0
            wanted[flow.source] = wanted.get(flow.source, 0) | reads
            wanted[flow.sink] = wanted.get(flow.sink, 0) | (EVENT_WRITE if flow.blocked else 0)
        registered = self._selector.get_map()
        for end, events in wanted.items():
            if not events and end in registered:
                self._selector.unregister(end)
            elif events and end not in registered:
                self._selector.register(end, events)
            elif events and registered[end].events != events:
                self._selector.modify(end, events)

    def _accept(self, listener: socket.socket) -> None:
        near, _ = listener.accept()
        far = socket.socket()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        try:
            far.connect(("127.0.0.1", self._targets[listener]))
        except ConnectionRefusedError:  # nobody is there yet: who dials tries again
            near.close()
            far.close()
            return
        for end in (near, far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setblocking(False)
        self.flows += [
            Flow(source, sink, Lane(self._mbps, self._latency_ms)) for source, sink in ((near, far), (far, near))
        ]

    def _guarded(self, flow: Flow, act: Callable[[float], None]) -> None:
        try:
            act(self._clock())
        except OSError:
            self._drop(flow)

    def _drop(self, flow: Flow) -> None:
        """End the connection of this flow, both ways."""
        if flow not in self.flows:
            return
        ends = {flow.source, flow.sink}
        self.flows = [other for other in self.flows if other.source not in ends]
        for end in ends:
            if end in self._selector.get_map():
                self._selector.unregister(end)
            end.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbps", type=float, default=0.0, help="10^6 bits a second, 0 for no limit")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="one way")
    parser.add_argument("ports", nargs="+", metavar="LISTEN:TARGET")
    options = parser.parse_args()
    pairs = [(int(listen), int(target)) for listen, _, target in (text.partition(":") for text in options.ports)]
    proxy = Proxy(pairs, options.mbps, options.latency_ms, sys.stdin)
    print("ready", flush=True)
    while not proxy.is_over:
        proxy.turn(1.0)
    proxy.close()


if __name__ == "__main__":
    main()
