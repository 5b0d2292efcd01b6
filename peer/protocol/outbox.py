"""What one peer has to say and may not say yet: nobody is sent a message of a round for which it is too far behind."""

from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field

from peer.protocol.messages import Data, Effect, PeerId, Send, Skip

LEAD_ROUNDS = 1
"""How many rounds ahead of a listener's own a message may reach it. It bounds every inbox: a peer stashes at most
the messages of its round and of the next. Where peers hear each other in every round it holds by itself; elsewhere
`Done` tells how far a listener is."""


@dataclass
class Outbox:
    """The messages that wait, and how far each of the `neighbours` is known to be.

    `keeps` is how many wait for a listener at most, the newest, where nobody waits for it; None where all are kept.
    """

    neighbours: InitVar[Iterable[PeerId]]
    keeps: int | None
    waiting: dict[PeerId, list[Data | Skip]] = field(default_factory=dict)
    _completed: dict[PeerId, int] = field(init=False)  # the last round that each is known to have mixed

    def __post_init__(self, neighbours: Iterable[PeerId]) -> None:
        self._completed = dict.fromkeys(neighbours, -1)

    def send(self, peer: PeerId, message: Data | Skip) -> list[Effect]:
        """Send a message now, or when the listener is near enough."""
        if self._may_send(peer, message):
            return [Send(peer, message)]
        waiting = self.waiting.setdefault(peer, [])
        waiting.append(message)
        if self.keeps is not None:
            del waiting[: -self.keeps]
        return []

    def completed(self, peer: PeerId, round: int) -> list[Effect]:
        """The peer has mixed this round: send it what had to wait for that, unless it comes too late."""
        self._completed[peer] = max(self._completed[peer], round)
        effects: list[Effect] = []
        waiting = self.waiting.pop(peer, [])
        while waiting and self._may_send(peer, waiting[0]):
            is_late = self.keeps is not None and waiting[0].round <= self._completed[peer]
            effects += [] if is_late else [Send(peer, waiting[0])]
            del waiting[0]
        if waiting:
            self.waiting[peer] = waiting
        return effects

    def drop(self, peer: PeerId) -> None:
        """Nothing that waits for this peer is of use any more."""
        self.waiting.pop(peer, None)

    def clear(self) -> None:
        """Nothing that waits is of use any more."""
        self.waiting.clear()

    def begin_anew(self, peer: PeerId) -> None:
        """What is known of this peer is of an earlier life."""
        self.drop(peer)
        self._completed[peer] = -1

    def _may_send(self, peer: PeerId, message: Data | Skip) -> bool:
        return peer not in self.waiting and message.round <= self._completed[peer] + 1 + LEAD_ROUNDS
