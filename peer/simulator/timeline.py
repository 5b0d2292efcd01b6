"""A virtual clock: a heap of what is to happen when, and a log of what has happened."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from math import inf
from struct import pack
from typing import get_args

from peer.protocol.messages import Event, Message, PeerId, Received, Severed, Train

# ---- What is to happen


@dataclass(frozen=True, slots=True)
class WorkEnds:
    """Local steps that end now, unless they are void."""

    life: int
    train: Train


@dataclass(frozen=True, slots=True)
class Arrival:
    """Something reaches a peer, unless the connection that it came over is no more."""

    sender: PeerId
    incarnation: int
    what: Message | Severed


@dataclass(frozen=True, slots=True)
class Greeting:
    """Two peers greet each other, if they still can."""

    other: PeerId
    incarnation: int


@dataclass(frozen=True, slots=True)
class LookAtClock:
    """A deadline of a core may have come."""


@dataclass(frozen=True, slots=True)
class Later:
    """Something that `Clockwork.at` was asked for."""

    happen: Callable[[], None]


Thing = WorkEnds | Arrival | Greeting | LookAtClock | Later
MOVING = (WorkEnds, Arrival, Greeting)  # what a peer that seems to stand still may be waiting for

AFTER_ALL = 1 << 60
"""Added to the place in line of a look at the clock: what arrives in the same instant is taken in before it."""


class Timeline:
    """What is to happen, in the order of time, and in each instant in the order in which it was planned.

    `coming` is how much of it is not a mere look at the clock.
    """

    def __init__(self) -> None:
        self.coming = 0
        self.heap: list[tuple[float, int, PeerId, Thing]] = []
        self._ties = count()

    @property
    def next_s(self) -> float:
        """When the next thing happens; inf for never."""
        return self.heap[0][0] if self.heap else inf

    def push(self, at_s: float, peer: PeerId, thing: Thing) -> None:
        tie = next(self._ties) + (AFTER_ALL if isinstance(thing, LookAtClock) else 0)
        heapq.heappush(self.heap, (at_s, tie, peer, thing))
        self.coming += isinstance(thing, MOVING)

    def pop(self) -> tuple[float, PeerId, Thing]:
        """Return when the next thing happens, to whom, and what."""
        at_s, _, peer, thing = heapq.heappop(self.heap)
        self.coming -= isinstance(thing, MOVING)
        return at_s, peer, thing

    def drop(self, kind: type) -> None:
        """Nothing of this kind happens any more."""
        self.heap = [item for item in self.heap if not isinstance(item[3], kind)]
        heapq.heapify(self.heap)


# ---- What has happened

_CODES: dict[type, int] = {kind: code for code, kind in enumerate((*get_args(Event), *get_args(Message)))}
_LOG_BYTES = 1 << 16


@dataclass
class EventLog:
    """How many events the cores were told, and a hash of all of them with their times."""

    events: int = 0
    _pending: bytearray = field(default_factory=bytearray)
    _hash: "blake2b" = field(default_factory=lambda: blake2b(digest_size=16))

    def note(self, now_s: float, me: PeerId, event: Event) -> None:
        self.events += 1
        what: Event | Message = event.message if isinstance(event, Received) else event
        other = event.sender if isinstance(event, Received) else getattr(event, "peer", -1)
        number = getattr(what, "round", getattr(what, "number", -1))
        self._pending += pack("<diiiq", now_s, me, other, _CODES.get(type(what), -1), number)
        if len(self._pending) > _LOG_BYTES:
            self._flush()

    def digest(self) -> str:
        """Return the hash so far: equal seeds have equal ones."""
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update(self._pending)
        self._pending.clear()
