"""Who is there: awaited, alive, suspect, dead or left.

A neighbour once heard is dead when its connection broke and its address refuses new ones, or when it has been
silent for `dead_s`. One never heard is awaited for `join_s`. One that is late with its work but sends heartbeats is
alive. Before anybody is judged by a clock, the shell must have drained its sockets: `Tick` comes last.

One that is dead or has left comes back by a greeting in a greater incarnation than the one known; whatever else it
says is of an earlier life. Incarnations only grow. What is told of one neighbour are joins and losses in turn, but that
one that left may join again without a loss in between, and one that never came is lost without having joined.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Literal

from peer.protocol.messages import (
    Alert,
    Bye,
    Effect,
    Event,
    Finish,
    Greeted,
    Heard,
    PeerId,
    PeerJoined,
    PeerLost,
    Received,
    Severed,
    Tell,
    Tick,
)

Status = Literal["awaited", "alive", "suspect", "dead", "left"]


@dataclass(frozen=True)
class Patience:
    """How long a neighbour is waited for, in seconds."""

    suspect_s: float = 3.0
    dead_s: float = 5.0
    join_s: float = 60.0


@dataclass
class _Seen:
    status: Status
    since_s: float  # in this status
    heard_s: float
    incarnation: int = 0


class Membership:
    """One peer's view of its neighbours."""

    def __init__(self, neighbours: Iterable[PeerId], patience: Patience) -> None:
        self.patience = patience
        self.deadline_s = inf
        self._seen = {peer: _Seen("awaited", 0.0, -inf) for peer in sorted(neighbours)}
        self._heard_any = False
        self._ended_alone = False

    def start(self, now_s: float) -> list[Effect]:
        for seen in self._seen.values():
            seen.since_s = now_s
        self._set_deadline()
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Greeted(peer, incarnation):
                effects = self._greeted(peer, incarnation, now_s)
            case Heard(peer):
                effects = self._heard(peer, now_s)
            case Received(peer, message):
                effects = self._heard(peer, now_s)
                if isinstance(message, Bye) and self._status(peer) != "dead":
                    self._move(peer, "left", now_s)
            case PeerLost(peer, reason):  # whoever started it says so
                if self._status(peer) in ("awaited", "alive", "suspect"):
                    effects = self._bury(peer, reason, now_s)
            case Severed(peer, reason):
                if self._status(peer) in ("alive", "suspect"):
                    effects = self._bury(peer, reason, now_s)
            case Tick():
                effects = self._judge(now_s)
        self._set_deadline()
        return effects

    def status(self, peer: PeerId) -> Status:
        """Return what is known of a neighbour. Raises KeyError for a stranger."""
        return self._seen[peer].status

    def incarnation(self, peer: PeerId) -> int:
        """Return the greatest in which the neighbour was greeted, 0 before that. Raises KeyError for a stranger."""
        return self._seen[peer].incarnation

    def since_s(self, peer: PeerId) -> float:
        """Return since when the neighbour has had this status."""
        return self._seen[peer].since_s

    @property
    def has_heard_anybody(self) -> bool:
        """Whether any neighbour was ever heard."""
        return self._heard_any

    def awaited(self) -> list[PeerId]:
        """Return the neighbours never yet heard and still waited for."""
        return [peer for peer, seen in self._seen.items() if seen.status == "awaited"]

    # ---- Inside

    def _status(self, peer: PeerId) -> Status | None:
        seen = self._seen.get(peer)
        return seen.status if seen else None

    def _move(self, peer: PeerId, status: Status, now_s: float) -> None:
        if peer in self._seen:
            self._seen[peer].status, self._seen[peer].since_s = status, now_s

    def _greeted(self, peer: PeerId, incarnation: int, now_s: float) -> list[Effect]:
        seen = self._seen.get(peer)
        if seen is None or incarnation < seen.incarnation:
            return []
        is_another = incarnation > seen.incarnation
        seen.incarnation = incarnation
        if not is_another or seen.status == "awaited":
            return self._heard(peer, now_s)
        was_there = seen.status in ("alive", "suspect")
        seen.heard_s = now_s
        self._move(peer, "alive", now_s)
        self._heard_any = True
        lost: list[Effect] = [Tell(PeerLost(peer, "came back in a new life"))] if was_there else []
        return [*lost, Tell(PeerJoined(peer))]

    def _heard(self, peer: PeerId, now_s: float) -> list[Effect]:
        was = self._status(peer)
        if was in (None, "dead", "left"):
            return []
        self._seen[peer].heard_s = now_s
        if was != "alive":
            self._move(peer, "alive", now_s)
        if was != "awaited":
            return []
        self._heard_any = True
        return [Tell(PeerJoined(peer))]

    def _judge(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for peer, seen in self._seen.items():
            silent_s = now_s - seen.heard_s
            if now_s < self._due_s(seen):
                continue
            if seen.status == "awaited":
                effects += self._bury(peer, f"never heard within {self.patience.join_s:g} s", now_s)
            elif now_s >= self._dead_at_s(seen):
                effects += self._bury(peer, f"silent for {silent_s:.1f} s", now_s)
            else:
                self._move(peer, "suspect", now_s)
                effects.append(Alert(f"has been silent for {silent_s:.1f} s", peer))
        return effects

    def _bury(self, peer: PeerId, reason: str, now_s: float) -> list[Effect]:
        self._move(peer, "dead", now_s)
        effects: list[Effect] = [Tell(PeerLost(peer, reason))]
        if not self._heard_any and not self.awaited() and not self._ended_alone:
            self._ended_alone = True
            return [Finish("alone"), *effects]
        return effects

    def _set_deadline(self) -> None:
        self.deadline_s = min((self._due_s(seen) for seen in self._seen.values()), default=inf)

    def _due_s(self, seen: _Seen) -> float:
        """Return when the status of this neighbour changes if nothing is heard; inf if it stays."""
        match seen.status:
            case "awaited":
                return seen.since_s + self.patience.join_s
            case "alive":
                return min(seen.heard_s + self.patience.suspect_s, self._dead_at_s(seen))
            case "suspect":
                return self._dead_at_s(seen)
        return inf

    def _dead_at_s(self, seen: _Seen) -> float:
        return seen.heard_s + self.patience.dead_s
