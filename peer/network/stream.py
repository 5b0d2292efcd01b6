"""The ordered stream of one link: what must arrive, in order, once, over connections that may break.

Items are numbered. The receiver acknowledges the next number it wants; the sender keeps what is not yet acknowledged
and goes back to it when a connection is replaced. At most `WINDOW` items are under way, so neither side's queues grow
with the size of a model, and heartbeats never wait behind more than that.
"""

from collections import deque
from dataclasses import dataclass, field

from peer.errors import WireError
from peer.network.wire import CHUNK_BYTES, Chunk, Note
from peer.protocol.messages import (
    Accept,
    Busy,
    Bye,
    Data,
    Degree,
    Done,
    Echo,
    Fetch,
    Measured,
    Message,
    Model,
    Payload,
    Probe,
    Propose,
    Resume,
    Skip,
)

WINDOW = 8
"""Items under way: with chunks of 512 KiB, 4 MiB a link, enough for 300 Mb/s at a round trip of 100 ms."""

NUMBERS = (Done, Skip, Bye, Resume, Busy, Probe, Echo, Measured, Degree)
"""The messages that are one number."""

NOTES = (Fetch, *NUMBERS)
"""The messages without a payload. Their order is part of the wire's format."""

PAYLOADS = (Data, Model, Propose, Accept)
"""The messages that carry a payload, beside one number or two. Their order is part of the wire's format."""

Numbered = Chunk | Note
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
                self._cut(PAYLOADS.index(Data), round, exchange, payload)
            case Model(round, payload):
                self._cut(PAYLOADS.index(Model), round, 0, payload)
            case Propose(number, answered, payload):
                self._cut(PAYLOADS.index(Propose), number, answered, payload)
            case Accept(number, payload):
                self._cut(PAYLOADS.index(Accept), number, 0, payload)
            case Fetch():
                self._add(Note(self._next, NOTES.index(Fetch), 0), None)
            case (
                Done(value)
                | Skip(value)
                | Bye(value)
                | Resume(value)
                | Busy(value)
                | Probe(value)
                | Echo(value)
                | Measured(value)
                | Degree(value)
            ):
                self._add(Note(self._next, NOTES.index(type(message)), value), None)
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

    def _cut(self, what: int, first: int, second: int, payload: Payload) -> None:
        body = memoryview(payload).cast("B")
        assert body, "a message without bytes would never arrive"
        for offset in range(0, len(body), CHUNK_BYTES):
            self._add(Chunk(self._next, what, first, second, offset), body[offset : offset + CHUNK_BYTES])

    def _add(self, header: Numbered, body: memoryview | None) -> None:
        self._unacknowledged.append((header, body))
        self._next += 1


class Incoming:
    """The receiving half.

    By the own layout: `payload_bytes[k]` is the size of the message of exchange k, and a proposal and its answer carry
    one of exchange 0; `model_bytes` is the size of the parameters, 0 where nobody is to send them.
    """

    def __init__(self, payload_bytes: tuple[int, ...], model_bytes: int = 0) -> None:
        self.next_wanted = 0
        self.ended = False  # the other side has said Bye: nothing follows
        self._payload_bytes = payload_bytes
        self._model_bytes = model_bytes
        self._buffer = bytearray()
        self._filling: tuple[int, int, int] | None = None  # what, first and second of the message that comes in
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
        if isinstance(header, Note):
            message = _noted(header)
            self.ended = isinstance(message, Bye)
            return message
        assert body is not None
        return self._fill(header, body)

    def _fill(self, header: Chunk, body: memoryview) -> Message | None:
        size, key = self._size_bytes(header), (header.what, header.first, header.second)
        if header.offset == 0 and self._filling is None:
            self._buffer, self._filling, self._filled = bytearray(size), key, 0
        if key != self._filling or header.offset != self._filled:
            raise WireError("a chunk that does not continue the message before it")
        end = header.offset + len(body)
        if end > size:
            raise WireError(f"a message of more than the {size} bytes that the model has")
        self._buffer[header.offset : end] = body
        self._filled = end
        if end < size:
            return None
        whole = _whole(header, self._buffer)
        self._buffer, self._filling = bytearray(), None
        return whole

    def _size_bytes(self, header: Chunk) -> int:
        """Return the size of the whole message. Raises WireError for one that there cannot be."""
        if header.what >= len(PAYLOADS):
            raise WireError(f"a payload of unknown kind {header.what}")
        kind = PAYLOADS[header.what]
        exchange = header.second if kind is Data else 0
        if kind is not Model and exchange >= len(self._payload_bytes):
            raise WireError(f"exchange {exchange} of {len(self._payload_bytes)}")
        if kind in (Model, Accept) and header.second:
            raise WireError(f"a message {kind.__name__} with a second number")
        size = self._model_bytes if kind is Model else self._payload_bytes[exchange]
        if not size:
            raise WireError(f"a message {kind.__name__}, which nobody sends in this run")
        return size


def _noted(header: Note) -> Message:
    if header.what >= len(NOTES):
        raise WireError(f"a note of unknown kind {header.what}")
    if header.what != NOTES.index(Fetch):
        return NUMBERS[header.what - 1](header.value)
    if header.value:
        raise WireError(f"a message Fetch with the number {header.value}")
    return Fetch()


def _whole(header: Chunk, payload: bytearray) -> Message:
    kind = PAYLOADS[header.what]
    if kind is Data:
        return Data(header.first, header.second, payload)
    if kind is Propose:
        return Propose(header.first, header.second, payload)
    return Model(header.first, payload) if kind is Model else Accept(header.first, payload)
