"""The vocabulary of the system: what peers say to each other, what a core is told, and what it asks for.

A *core* is a state machine without sockets, clocks, threads or tensors. It is told events and answers with
effects; a shell (daemon or simulator) carries the effects out and tells the core what came of them. Payloads are
opaque here: the shells know what they are, the cores only move them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

PeerId = int
"""The index of a peer in node order. Names belong to the shells."""

Payload = Any
"""A message of an algorithm: tensors in the simulator, packed bytes in a daemon. A core never looks inside."""


# ---- What peers say to each other ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Data:
    """The `exchange`-th message of a round."""

    round: int
    exchange: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Skip:
    """In this round the sender has no data for this peer: the parameters of the two were too far apart."""

    round: int


@dataclass(frozen=True, slots=True)
class Done:
    """The sender has mixed this round: whoever it is to hear soon, without being heard by it before, may go on."""

    round: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The sender is alive and works on this round."""

    round: int


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender has completed `rounds` rounds and needs nothing more."""

    rounds: int


@dataclass(frozen=True, slots=True)
class Resume:
    """To a peer that was lost and is there again: "count on me from a round on, and I on you".

    The sender does not begin `round` before it has heard the same of the other; the greater of the two numbers is
    the round from which both count on each other. Where there are no common rounds, `round` is the sender's own.
    """

    round: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Whoever hears this sends its parameters, as a `Model`."""


@dataclass(frozen=True, slots=True)
class Model:
    """The parameters that the sender stands for, when it works on this round."""

    round: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Propose:
    """The sender's `number`-th wish to average; it changes nothing of its own until it has been answered.

    `answered` is the number of the last proposal of the other side that the sender has answered, 0 for none.
    """

    number: int
    answered: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Accept:
    """The answer to the `Propose` of that number: the sender has averaged, and this is what it had before."""

    number: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Busy:
    """The answer to the `Propose` of that number: the sender is in the middle of another one."""

    number: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Whoever hears this says `Echo` at once: so the sender measures the round trip."""

    number: int


@dataclass(frozen=True, slots=True)
class Echo:
    """The answer to the `Probe` of that number."""

    number: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The shortest round trip to this peer that the sender has seen."""

    rtt_us: int


@dataclass(frozen=True, slots=True)
class Degree:
    """How many neighbours the sender has within the threshold."""

    count: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a ring all-reduce, for the next in the ring; receiver and step say of which segment it is.

    "scatter": a sum over the `step` + 1 members up to the sender. "gather": the sum over all, `step` + 1 times handed
    on.
    """

    round: int
    phase: Literal["scatter", "gather"]
    step: int
    piece: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Broken:
    """The ring of which the sender is a member has ended, because this member is missing; pass it on."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Pull:
    """A worker's first word to a coordinator in each life, unless it has a `Push` to say again.

    `working_at` is the version from which it trains just now; None: it does nothing, and asks for parameters.
    """

    working_at: int | None


@dataclass(frozen=True, slots=True)
class Push:
    """What a worker has learned from the parameters of this version; it asks for new ones by it.

    `number` counts the pushes of this worker, from 1 on. So one that is said again is not applied again.
    """

    number: int
    version: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Global:
    """The coordinator's parameters at this version: a worker is to train from them.

    `heard` is the number of the last push that was heard of this worker, 0 for none; with the last version, of the last
    one that is in it.
    """

    version: int
    payload: Payload
    heard: int


Message = (
    Data
    | Skip
    | Done
    | Heartbeat
    | Bye
    | Resume
    | Fetch
    | Model
    | Propose
    | Accept
    | Busy
    | Probe
    | Echo
    | Measured
    | Degree
    | Piece
    | Broken
    | Pull
    | Push
    | Global
)


# ---- Events: what a core is told ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """A whole message has arrived."""

    sender: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Heard:
    """A part of a message has arrived: its sender is alive. For membership."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Shares:
    """A payload that differs from listener to listener.

    `own` is the one that its sender mixes itself; None where it is for others alone, as a push to coordinators is.
    """

    own: Payload
    to: Mapping[PeerId, Payload]


@dataclass(frozen=True, slots=True)
class Trained:
    """The local steps of a round are done; `payload` is the first message of its exchange.

    To a core that decides itself when what was learned is taken in, by `Learn`, the payload is None. To a worker beside
    coordinators it is the `Shares` of what each of these is to be pushed.
    """

    round: int
    payload: Payload | Shares | None


@dataclass(frozen=True, slots=True)
class Mixed:
    """A `Mix` has been carried out; `payload` is the next exchange's message, None after the last.

    `rejected` names senders whose payload was not finite and therefore was not mixed; `far` those whose parameters
    were beyond the threshold of the metric "model", and were not mixed either.
    """

    round: int
    exchange: int
    payload: Payload | Shares | None
    rejected: tuple[PeerId, ...] = ()
    far: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class Learned:
    """A `Learn` has been carried out; `payload` is what the peer would say now."""

    payload: Payload


@dataclass(frozen=True, slots=True)
class Copied:
    """A `Copy` has been carried out: the parameters of this peer, for `to`."""

    to: PeerId
    payload: Payload


@dataclass(frozen=True, slots=True)
class Adopted:
    """An `Adopt` has been carried out."""

    round: int


@dataclass(frozen=True, slots=True)
class Tick:
    """The time has passed `deadline_s` of the core."""


@dataclass(frozen=True, slots=True)
class Command:
    """A wish of the operator."""

    name: Literal["stop"]


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """A neighbour has been heard for the first time, or again after it was lost."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A neighbour is dead, left early, or never came. Never said of one that completed its rounds."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Greeted:
    """The greeting with a neighbour succeeded. For membership.

    `incarnation` counts the lives of the two with each other: it grows when one of them was lost to the other, or
    was started anew, and what was said in an earlier one is void.
    """

    peer: PeerId
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Severed:
    """A neighbour can no longer be talked to: its address refuses, or it refuses this peer, or it broke the protocol.

    For membership.
    """

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Divided:
    """A `Divide` has been carried out: all the pieces of this peer, by segment."""

    round: int
    pieces: tuple[tuple[Payload, ...], ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """A `Reduce` has been carried out: what the two came to."""

    round: int
    segment: int
    piece: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class Assembled:
    """An `Assemble` has been carried out; not `is_applied`: the sum is not finite, and the state is as it was."""

    round: int
    is_applied: bool = True


@dataclass(frozen=True, slots=True)
class Applied:
    """An `Apply` has been carried out: the coordinator's parameters, which are those of the next version now.

    `rejected` names the senders of what was not finite and therefore was not applied.
    """

    payload: Payload
    rejected: tuple[PeerId, ...] = ()


Event = (
    Received
    | Heard
    | Trained
    | Mixed
    | Learned
    | Copied
    | Adopted
    | Tick
    | Command
    | PeerJoined
    | PeerLost
    | Greeted
    | Severed
    | Divided
    | Reduced
    | Assembled
    | Applied
)


# ---- Effects: what a core asks for --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Train:
    """Do the local steps of a round, then tell `Trained`."""

    round: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a peer."""

    to: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a weighted sum.

    `staleness` is for how many of the receiver's own rounds it has had this payload, `age_s` for how many seconds.
    """

    weight: float
    sender: PeerId
    payload: Payload
    staleness: int = 0
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Mix:
    """Update the state with these terms, which are in node order with the own one at its place; tell `Mixed`.

    `me` says which of the terms is the own one. The weights sum to 1, but where W's columns do: there they are what
    the peer keeps of its own, and 1 for the share that each of the others gave it.
    """

    round: int
    exchange: int
    me: PeerId
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Learn:
    """Take what the local steps of a round have found into the state as it is now; tell `Learned`.

    None: nothing was learned; only tell what the peer would say. `staleness` is how often the state was mixed since
    the local steps began.
    """

    round: int | None
    staleness: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Tell `Copied` with the parameters that this peer stands for; they are for a neighbour."""

    to: PeerId


@dataclass(frozen=True, slots=True)
class Adopt:
    """Go on at the start of this round: from these parameters, or where `payload` is None from the own ones as they
    were at the end of the last completed round. Local steps that have begun are void. Tell `Adopted`.

    Where coordinators gave them, `payload` is a tuple, what each gave in the order of their numbers, and `version` is
    the least of theirs; not `is_answer`: what was pushed last is not in them, and never will be.
    """

    round: int
    payload: Payload | None
    version: int | None = None
    is_answer: bool = True


@dataclass(frozen=True, slots=True)
class Forget:
    """What was given to this neighbour and taken from it belongs to an earlier life: count anew."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class Tell:
    """Hand this event to the core that exchanges parameters. From membership."""

    event: Event


@dataclass(frozen=True, slots=True)
class Finish:
    """The core is done. "alone": a peer that should have neighbours never heard one. "failed": it cannot go on, and
    `why` says in one line what for."""

    outcome: Literal["finished", "interrupted", "alone", "failed"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """Something a person should know, said once; where `peer` is given, the text goes on from its name."""

    text: str
    peer: PeerId | None = None
    refusal: bool = False  # whether it is about a greeting that was turned down


@dataclass(frozen=True, slots=True)
class Divide:
    """Multiply what was trained by `weight` and cut it into the pieces of a ring all-reduce; tell `Divided`."""

    round: int
    weight: float
    payload: Payload


@dataclass(frozen=True, slots=True)
class Reduce:
    """Add two pieces, `heard` + `own`, and tell `Reduced`."""

    round: int
    segment: int
    piece: int
    heard: Payload
    own: Payload


@dataclass(frozen=True, slots=True)
class Assemble:
    """Put the pieces together, by segment, divide by `total`, and make that the state; tell `Assembled`.

    Only here does a ring all-reduce change the state, and only by the sum over all members.
    """

    round: int
    total: float
    pieces: tuple[tuple[Payload, ...], ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """Take what workers have pushed into the coordinator's parameters, all or nothing of it; tell `Applied`.

    `version` is the one before this update. The staleness of a term is how many versions it is behind that.
    """

    version: int
    terms: tuple[Term, ...]


Effect = Train | Send | Mix | Learn | Copy | Adopt | Forget | Tell | Finish | Alert | Divide | Reduce | Assemble | Apply


# ---- Cores and their surroundings ---------------------------------------------------------------------------


class Core(Protocol):
    """A protocol state machine: gossip, membership, and whatever else comes to speak here."""

    @property
    def deadline_s(self) -> float:
        """When `Tick` is wanted, on the clock that `now_s` is read from; inf if never."""
        ...

    def start(self, now_s: float) -> list[Effect]:
        """Begin; called once, before any event."""
        ...

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take one event and answer with the effects it has."""
        ...


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """One peer's surroundings in one round.

    `weights` is its row of the mixing matrix, itself included; it hears the other peers in it. `listeners` is its
    column, without itself: those that hear it, and the weight that they give to what it says.
    """

    weights: Mapping[PeerId, float]
    listeners: Mapping[PeerId, float]
