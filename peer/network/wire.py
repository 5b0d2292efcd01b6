"""Frames: what stands in the bytes between two peers.

A message is one header frame, and for payloads one more frame with a chunk of raw numbers. The header is msgpack, a
positional array that begins with the version and the kind; nothing in it decides how much memory is taken. Every
way in which bytes can be wrong ends in `WireError`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from peer.errors import WireError

VERSION = "earshot-3"
"""First item of every header: stray bytes on the port are not taken for a message."""

HEADER_BYTES = 64 * 1024
CHUNK_BYTES = 512 * 1024
TEXT_CHARACTERS = 4096
LIST_ITEMS = 256
"""Of any list in a header. msgpack takes the memory of a list before it reads the items, at 1024 levels of nesting."""

TABLE_ITEMS = 1024


@dataclass(frozen=True, slots=True)
class Hello:
    """The greeting of the side that dials, meant for the peer called `to`.

    `connection` counts its connections, `incarnation` the lives of the two with each other. `knows` is the session of
    the process that it has exchanged something with in this incarnation, "" for none.
    """

    connection: int
    incarnation: int
    to: str
    knows: str
    greeting: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Welcome:
    """The greeting of the side that was dialled. The two numbers are those of the `Hello` which it answers."""

    connection: int
    incarnation: int
    greeting: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Why a greeting was turned down, or why this peer is no longer spoken to.

    `incarnation` is the one in which it may greet again; 0 where the refusal has nothing to do with that.
    """

    reason: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Beat:
    """Alive, in this round."""

    round: int


@dataclass(frozen=True, slots=True)
class Ack:
    """All items of the stream before `next` have arrived."""

    next: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a message from `offset` on; they travel in a frame of their own. Item `sequence` of the stream.

    `what` is one of the stream's PAYLOADS, `first` and `second` are the numbers beside the payload. `size` is how many
    bytes the whole message has: the receiver compares it with what its own layout allows.
    """

    sequence: int
    what: int
    first: int
    second: int
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class Note:
    """A message that is one number at most; `what` is one of the stream's NOTES. Item `sequence` of the stream."""

    sequence: int
    what: int
    value: int


Header = Hello | Welcome | Refuse | Beat | Ack | Chunk | Note

_KINDS: dict[str, type[Any]] = {
    "hello": Hello,
    "welcome": Welcome,
    "refuse": Refuse,
    "beat": Beat,
    "ack": Ack,
    "chunk": Chunk,
    "note": Note,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {kind: tuple(kind.__dataclass_fields__) for kind in _KINDS.values()}
_LARGEST = 2**62


def encode(header: Header) -> bytes:
    """Return the header frame. Raises WireError when it would be longer than a peer accepts."""
    kind = type(header)
    frame: bytes = msgpack.packb([VERSION, _NAMES[kind], *(getattr(header, name) for name in _FIELDS[kind])])
    if len(frame) > HEADER_BYTES:
        raise WireError(f"a header of {len(frame)} bytes; at most {HEADER_BYTES} are allowed")
    return frame


def decode(frames: Sequence[bytes | memoryview]) -> tuple[Header, memoryview | None]:
    """Return the header and, for a `Chunk`, its bytes. Raises WireError for anything else than a right message."""
    if not 1 <= len(frames) <= 2:
        raise WireError(f"{len(frames)} frames; a message has one or two")
    header = _decode_header(frames[0])
    if not isinstance(header, Chunk):
        if len(frames) != 1:
            raise WireError(f"a message {_NAMES[type(header)]} with a second frame")
        return header, None
    if len(frames) != 2:
        raise WireError("a chunk without its bytes")
    body = memoryview(frames[1])
    if not 0 < len(body) <= CHUNK_BYTES:
        raise WireError(f"a chunk of {len(body)} bytes; 1 to {CHUNK_BYTES} are allowed")
    return header, body


def _decode_header(frame: bytes | memoryview) -> Header:
    if len(frame) > HEADER_BYTES:
        raise WireError(f"a header of {len(frame)} bytes; at most {HEADER_BYTES} are allowed")
    try:
        items = msgpack.unpackb(frame, use_list=False, raw=False, max_map_len=TABLE_ITEMS, max_array_len=LIST_ITEMS)
    except Exception as error:  # msgpack raises many kinds on hostile bytes
        raise WireError(f"a header that is not msgpack ({type(error).__name__})") from error
    if not isinstance(items, tuple) or len(items) < 2 or items[0] != VERSION:
        raise WireError("a header of another protocol or version")
    kind = _KINDS.get(items[1]) if isinstance(items[1], str) else None
    if kind is None:
        raise WireError(f"a message of unknown kind {items[1]!r:.40}")
    fields = _FIELDS[kind]
    if len(items) != 2 + len(fields):
        raise WireError(f"a message {items[1]} with {len(items) - 2} fields instead of {len(fields)}")
    for name, value in zip(fields, items[2:], strict=True):
        _check_field(items[1], name, value)
    header: Header = kind(*items[2:])
    return header


def _check_field(kind: str, name: str, value: object) -> None:
    match name:
        case "greeting":
            right = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        case "reason" | "to" | "knows":
            right = isinstance(value, str) and len(value) <= TEXT_CHARACTERS
        case _:
            right = type(value) is int and 0 <= value <= _LARGEST
    if not right:
        raise WireError(f"a message {kind} whose {name} is {type(value).__name__} or out of range")
