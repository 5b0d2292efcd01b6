"""The ordered stream of one link: what must arrive, in order, once, over connections that may break.

Items are numbered. The receiver acknowledges the next number it wants; the sender keeps what is not yet acknowledged
and goes back to it when a connection is replaced. At most `WINDOW` items are under way, so neither side's queues grow
with the size of a model, and heartbeats never wait behind more than that.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Literal

from peer.errors import WireError
from peer.network.sizes import Sizes
from peer.network.wire import CHUNK_BYTES, Chunk, Note
from peer.protocol.messages import (
    Accept,
    Broken,
    Busy,
    Bye,
    Data,
    Degree,
    Done,
    Echo,
    Fetch,
    Global,
    Measured,
    Message,
    Model,
    Piece,
    Probe,
    Propose,
    Pull,
    Push,
    Resume,
    Skip,
)

WINDOW = 8
"""Items under way: with chunks of 512 KiB, 4 MiB a link, enough for 300 Mb/s at a round trip of 100 ms."""

NUMBERS = (Done, Skip, Bye, Resume, Busy, Probe, Echo, Measured, Degree, Broken)
"""The messages that are one number."""

NOTES = (*NUMBERS, Pull, Fetch)
"""The messages without a payload. Their order is part of the wire's format."""

PAYLOADS = (Data, Model, Propose, Accept, Push, Global, Piece)
"""The messages that carry a payload, beside one number or two. Their order is part of the wire's format."""

PHASES: tuple[Literal["scatter", "gather"], ...] = ("scatter", "gather")
STEPS, PIECES = 2**20, 2**32
"""How many steps a phase of a ring all-reduce may have, and how many pieces a segment: where a piece belongs is one
number, (phase STEPS + step) PIECES + piece."""

Carrier = Data | Model | Propose | Accept | Push | Global | Piece
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
        """Queue a message. Its payload is a buffer of one byte or more, which must not change until acknowledged."""
        if isinstance(message, PAYLOADS):
            self._cut(message)
        else:
            self._add(_note(self._next, message), None)
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

    def _cut(self, message: Carrier) -> None:
        body = memoryview(message.payload).cast("B")
        assert body, "a message without bytes would never arrive"
        what, (first, second) = PAYLOADS.index(type(message)), _numbers(message)
        for offset in range(0, len(body), CHUNK_BYTES):
            chunk = Chunk(self._next, what, first, second, len(body), offset)
            self._add(chunk, body[offset : offset + CHUNK_BYTES])

    def _add(self, header: Numbered, body: memoryview | None) -> None:
        self._unacknowledged.append((header, body))
        self._next += 1


class Incoming:
    """The receiving half: what may come, and how large it is, is for `sizes`."""

    def __init__(self, sizes: Sizes) -> None:
        self.next_wanted = 0
        self.ended = False  # the other side has said Bye: nothing follows
        self._sizes = sizes
        self._buffer = bytearray()
        self._filling: tuple[int, int, int, int] | None = None  # what all chunks of the message that comes in say
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
        message, says = _carrier(header), (header.what, header.first, header.second, header.size)
        if header.offset == 0 and self._filling is None:
            self._check_size(message, header.size)
            self._buffer, self._filling, self._filled = bytearray(header.size), says, 0
        if says != self._filling or header.offset != self._filled:
            raise WireError("a chunk that does not continue the message before it")
        end = header.offset + len(body)
        if end > header.size:
            raise WireError(f"a message of more than its {header.size} bytes")
        self._buffer[header.offset : end] = body
        self._filled = end
        if end < header.size:
            return None
        payload, self._buffer, self._filling = self._buffer, bytearray(), None
        return replace(message, payload=payload)

    def _check_size(self, message: Carrier, size: int) -> None:
        allowed = self._sizes.allowed(message)
        if size not in allowed:
            sizes = f"{allowed[0]}" if len(allowed) == 1 else f"{allowed[0]} to {allowed[-1]}"
            raise WireError(f"a message {type(message).__name__} of {size} bytes; by the layout it has {sizes}")


# ---- Between messages and their headers


def _numbers(message: Carrier) -> tuple[int, int]:
    """Return what a `Chunk` says beside the payload."""
    match message:
        case Data(first, second) | Propose(first, second) | Push(first, second):
            return first, second
        case Global(version, _, heard):
            return version, heard
        case Piece(round, phase, step, piece):
            assert 0 <= step < STEPS, "more steps than a ring may have"
            assert 0 <= piece < PIECES, "more pieces than a segment may have"
            return round, (PHASES.index(phase) * STEPS + step) * PIECES + piece
        case Model(number) | Accept(number):
            return number, 0


def _carrier(header: Chunk) -> Carrier:
    """Return the message of which this is a chunk, without its payload. Raises WireError where there is none."""
    if header.what >= len(PAYLOADS):
        raise WireError(f"a payload of unknown kind {header.what}")
    kind, first, second = PAYLOADS[header.what], header.first, header.second
    if kind is Data or kind is Propose or kind is Push:
        return kind(first, second, None)
    if kind is Global:
        return Global(first, None, second)
    if kind is Piece:
        place, piece = divmod(second, PIECES)
        phase, step = divmod(place, STEPS)
        if phase >= len(PHASES):
            raise WireError(f"a piece of phase {phase}, which there is not")
        return Piece(first, PHASES[phase], step, piece, None)
    if second:
        raise WireError(f"a message {kind.__name__} with a second number")
    return Model(first, None) if kind is Model else Accept(first, None)


def _note(sequence: int, message: Message) -> Note:
    """Return a message without a payload as an item of the stream."""
    match message:
        case Fetch() | Pull(None):
            value = 0
        case Pull(int(version)):
            value = version + 1
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
            | Broken(value)
        ):
            pass
        case _:
            raise AssertionError(f"{message} does not belong into the stream")
    return Note(sequence, NOTES.index(type(message)), value)


def _noted(header: Note) -> Message:
    """Return the message that is this note. Raises WireError where there is none."""
    if header.what >= len(NOTES):
        raise WireError(f"a note of unknown kind {header.what}")
    if header.what < len(NUMBERS):
        return NUMBERS[header.what](header.value)
    if header.what == NOTES.index(Pull):
        return Pull(header.value - 1 if header.value else None)
    if header.value:
        raise WireError(f"a message Fetch with the number {header.value}")
    return Fetch()
