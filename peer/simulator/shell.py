"""What the clockwork asks of a peer's core, and of whatever carries out its effects."""

from typing import Protocol

from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Apply,
    Assemble,
    Copied,
    Copy,
    Divide,
    Effect,
    Event,
    Finish,
    Forget,
    Learn,
    Learned,
    Message,
    Mix,
    PeerId,
    Reduce,
    Send,
    Train,
    Trained,
)


class Core(Protocol):
    """What the clockwork asks of a peer's core."""

    me: PeerId
    neighbours: set[PeerId]
    short_rounds: int

    @property
    def deadline_s(self) -> float: ...

    @property
    def round(self) -> int: ...

    @property
    def phase(self) -> str: ...

    def waits_for(self) -> set[PeerId]: ...

    def start(self, now_s: float) -> list[Effect]: ...

    def handle(self, event: Event, now_s: float) -> list[Effect]: ...


class Shell(Protocol):
    """What carries out the effects of the cores, and wants to know what happens."""

    def core(self, me: PeerId) -> Core:
        """Return a new core for a peer that begins from nothing, now or again."""
        ...

    def step_s(self, me: PeerId, round: int) -> float:
        """Return how long the local steps of a round take."""
        ...

    def payload_bytes(self, message: Message) -> int: ...

    def begin(self, me: PeerId, train: Train) -> None: ...

    def train(self, me: PeerId, train: Train) -> Trained: ...

    def mix(self, me: PeerId, mix: Mix) -> Event | None:
        """Mix; None keeps the peer from going on until it is told `Mixed` by `Clockwork.tell`."""
        ...

    def learn(self, me: PeerId, learn: Learn) -> Learned: ...

    def copy(self, me: PeerId, copy: Copy) -> Copied: ...

    def adopt(self, me: PeerId, adopt: Adopt) -> Adopted: ...

    def forget(self, me: PeerId, forget: Forget) -> None: ...

    def compute(self, me: PeerId, what: Apply | Divide | Reduce | Assemble) -> Event | None:
        """Carry out what coordinators and rings ask for; returns as `mix` does."""
        ...

    def finished(self, me: PeerId, finish: Finish) -> None: ...

    def sent(self, me: PeerId, send: Send) -> None: ...

    def alert(self, me: PeerId, alert: Alert) -> None: ...

    def save(self, me: PeerId) -> None:
        """A peer has come to a further round, and nothing of what it asks for then has been carried out: what outlives
        its process is saved now."""
        ...

    def advanced(self, me: PeerId, round: int) -> None:
        """A peer has come to a further round."""
        ...
