"""The ordered stream of one link: what must arrive, in order, once, over connections that may break.

Items are numbered. The receiver acknowledges the next number it wants; the sender keeps what is not yet acknowledged
and goes back to it when a connection is replaced. At most `WINDOW` items are under way, so neither side's queues grow
with the size of a model, and heartbeats never wait behind more than that.
"""

from collections import deque
from dataclasses import dataclass, field

from peer.errors import WireError
from peer.network.wire import CHUNK_BYTES, Chunk, Goodbye, RoundDone, RoundSkipped, Sounding
from peer.protocol.messages import Bye, Data, Degree, Done, Echo, Measured, Message, Probe, Skip

WINDOW = 8
"""Items under way: with chunks of 512 KiB, 4 MiB a link, enough for 300 Mb/s at a round trip of 100 ms."""

Numbered = Chunk | RoundDone | RoundSkipped | Sounding | Goodbye
SOUNDINGS: tuple[type[Probe] | type[Echo] | type[Measured] | type[Degree], ...] = (Probe, Echo, Measured, Degree)

Item = tuple[Numbered, memoryview | None]


@dataclass
class Outgoing:
    """The sending half."""

    _next: int = 0
    _unacknowledged: deque[Item] = field(default_factory=deque)  # the first `_under_way` of them have been sent
    _under_way: int = 0
    _ends: deque[int] = field(default_factory=deque)  # the number after each message that is not yet acknowledged

    @property
    def acknowledged_until(self) -> int:
        """The first item that is not acknowledged."""
        return self._next - len(self._unacknowledged)

    @property
    def messages(self) -> int:
        """How many messages are not yet acknowledged as a whole."""
        return len(self._ends)

    def put(self, message: Message) -> None:
        """Queue a message. Its payload is bytes that must not change until it is acknowledged."""
        match message:
            case Data(round, exchange, payload):
                body = memoryview(payload).cast("B")
                assert body, "a message without bytes would never arrive"
                for offset in range(0, len(body), CHUNK_BYTES):
                    self._add(Chunk(self._next, round, exchange, offset), body[offset : offset + CHUNK_BYTES])
            case Done(round):
                self._add(RoundDone(self._next, round), None)
            case Skip(round):
                self._add(RoundSkipped(self._next, round), None)
            case Probe(value) | Echo(value) | Measured(value) | Degree(value):
                self._add(Sounding(self._next, SOUNDINGS.index(type(message)), value), None)
            case Bye(rounds):
                self._add(Goodbye(self._next, rounds), None)
            case _:
                raise AssertionError(f"{message} does not belong into the stream")
        self._ends.append(self._next)

    def ready(self) -> Item | None:
        """Return the next item to send, None while the window is full or nothing waits."""
        if self._under_way >= min(WINDOW, len(self._unacknowledged)):
            return None
        return self._unacknowledged[self._under_way]

    def sent(self) -> None:
        """The item last returned by `ready` has gone out."""
        self._under_way += 1

    def acknowledged(self, next_wanted: int) -> None:
        """The other side has everything before this number. Raises WireError for what was never sent."""
        if next_wanted > self._next:
            raise WireError("an acknowledgement of what was never sent")
        while self._unacknowledged and self._unacknowledged[0][0].sequence < next_wanted:
            self._unacknowledged.popleft()
            self._under_way = max(0, self._under_way - 1)
        while self._ends and self._ends[0] <= next_wanted:
            self._ends.popleft()

    def rewind(self) -> None:
        """The connection was replaced: send again what is not acknowledged."""
        self._under_way = 0

    def is_empty(self) -> bool:
        """Say whether all that was put has been acknowledged."""
        return not self._unacknowledged

    def _add(self, header: Numbered, body: memoryview | None) -> None:
        self._unacknowledged.append((header, body))
        self._next += 1


class Incoming:
    """The receiving half. `payload_bytes[k]` is the size of the message of exchange k, by the own layout."""

    def __init__(self, payload_bytes: tuple[int, ...]) -> None:
        self.next_wanted = 0
        self.ended = False  # the other side has said Bye: nothing follows
        self._payload_bytes = payload_bytes
        self._buffer: bytearray | None = None
        self._filling: tuple[int, int] | None = None
        self._filled = 0

    def take(self, header: Numbered, body: memoryview | None) -> Message | None:
        """Take the next item; returns a message when it is whole.

        An item that was seen before, or that follows a gap, changes nothing. Raises WireError for one that does not
        fit the layout.
        """
        if header.sequence != self.next_wanted:
            return None
        if self.ended or (self._filling is not None and not isinstance(header, Chunk)):
            raise WireError("an item that cannot follow the one before it")
        self.next_wanted += 1
        match header:
            case RoundDone(_, round):
                return Done(round)
            case RoundSkipped(_, round):
                return Skip(round)
            case Sounding(_, what, value):
                if what >= len(SOUNDINGS):
                    raise WireError(f"a sounding of unknown kind {what}")
                return SOUNDINGS[what](value)
            case Goodbye(_, rounds):
                self.ended = True
                return Bye(rounds)
            case Chunk():
                assert body is not None
                return self._fill(header, body)

    def _fill(self, header: Chunk, body: memoryview) -> Data | None:
        if header.exchange >= len(self._payload_bytes):
            raise WireError(f"exchange {header.exchange} of {len(self._payload_bytes)}")
        size = self._payload_bytes[header.exchange]
        if header.offset == 0 and self._filling is None:
            self._buffer, self._filling, self._filled = bytearray(size), (header.round, header.exchange), 0
        if (header.round, header.exchange) != self._filling or header.offset != self._filled:
            raise WireError("a chunk that does not continue the message before it")
        end = header.offset + len(body)
        if end > size:
            raise WireError(f"a message of more than the {size} bytes that the model has")
        assert self._buffer is not None
        self._buffer[header.offset : end] = body
        self._filled = end
        if end < size:
            return None
        whole = Data(header.round, header.exchange, self._buffer)
        self._buffer = self._filling = None
        return whole
