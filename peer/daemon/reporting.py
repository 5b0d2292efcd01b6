"""What a node tells of itself, and whom: a parent process, or a person at a terminal."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from peer.centre import Update
from peer.daemon.jobs import Judged
from peer.errors import EarshotError
from peer.protocol.messages import PeerId
from peer.record import Staleness

EventKind = Literal["joined", "near", "far", "lost", "refused"]
Outcome = Literal["finished", "interrupted", "alone", "diverged", "failed"]


@dataclass(frozen=True)
class Progress:
    """How a peer is doing."""

    round: int
    phase: str
    neighbours: int
    waits_for: tuple[tuple[PeerId, float], ...]  # (peer, for how many seconds)
    payload_bytes: int
    wire_bytes: int
    gradients: int


@dataclass(frozen=True)
class Figures:
    """An evaluation, and how many bytes of payload had been sent until then.

    Beside coordinators, `heard_bytes` are those that had come from the other side: who judges knows both halves.
    """

    judged: Judged
    payload_bytes: int
    heard_bytes: int = 0


@dataclass
class NodeEnd:
    """What one peer's run came to."""

    outcome: Outcome
    rounds: int
    rounds_seconds: float
    short_rounds: int
    lost: dict[PeerId, str]
    gradients: int
    payload_bytes: int
    wire_bytes: int
    step: str
    diverged_round: int | None = None
    failure: EarshotError | None = None
    why: str = ""  # it ended as failed, without an error
    tidy: bool = True  # whether the worker ended in time
    staleness: Staleness = field(default_factory=Staleness)
    is_alone: bool = False  # there are neighbours, and none was ever heard


class Reporter(Protocol):
    """Whoever wants to know how a peer is doing: a parent process, or a person at a terminal."""

    def progress(self, progress: Progress) -> None: ...

    def figures(self, figures: Figures) -> None: ...

    def alert(self, text: str, peer: PeerId | None) -> None: ...

    def event(self, kind: EventKind, peer: PeerId | None, reason: str) -> None: ...

    def updated(self, version: int, update: Update, age_s: float) -> None:
        """A coordinator has taken in, for its next version, what a worker made of one that was so old."""
        ...

    def diverged(self, round: int) -> bool:
        """Take note; returns whether the node should wait for a stop instead of ending now."""
        ...

    def stop_is_wanted(self) -> bool: ...

    def round_to_judge(self) -> int | None:
        """After a stop: the round whose figures are wanted of whoever stands at its end."""
        ...

    def judges_anywhere(self) -> bool:
        """After a stop: whether figures are wanted wherever a peer stands, called after `round_to_judge` if any."""
        ...

    def may_go_on(self, round: int) -> bool:
        """Say whether a peer that has been judged after this round may begin the next one."""
        ...

    def figures_wanted(self, round: int) -> list[int]:
        """Of a peer that waits for nobody and has done so many local rounds: after which rounds to judge it now."""
        ...

    def gone(self) -> list[PeerId]:
        """Neighbours whose process is known to have ended, since the last call."""
        ...
