"""What a peer that waits for nobody did to its parameters, in order: enough to do it again, bit for bit.

Every entry is a small table. `did` is one of

    train   local steps of `round` begin, from the parameters as they are; where no `learn` follows, they end there, too
    learn   what they have found is taken in
    say     `what` (data, propose, accept, model) of that `number` goes `to` a peer: data as they were when the round of
            that number had been trained, all else with the parameters as they are
    mix     the terms [weight, sender, what, number, life] are mixed; what, number and life are null for the own one
    adopt   parameters said by `of` are taken over, or where that is null the own ones of the last round

`life` is the incarnation of the two peers in which something was said, as both know it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from peer.protocol.messages import (
    Accept,
    Adopt,
    Data,
    Learn,
    Message,
    Mix,
    Model,
    Payload,
    PeerId,
    Propose,
    Received,
    Term,
    Train,
)

Entry = dict[str, Any]

KEPT_LABELS = 8
"""Of what each neighbour has said last, of each kind: of those that follow the rules more is never at hand. A model may
have to wait while much else is said."""

UNKNOWN = ["unknown", -1, -1]
"""The label of what came from a neighbour that does not follow the rules: no run ends because of its notes."""


@dataclass
class Journal:
    """Notes what one peer does; `write` takes each entry, `name_of` makes a peer's name of its number."""

    write: Callable[[Entry], None]
    name_of: Callable[[PeerId], str]
    _lives: dict[PeerId, int] = field(default_factory=dict)
    _planned: deque[Entry] = field(default_factory=deque)
    _said: dict[tuple[PeerId, str], deque[tuple[Payload, list[Any]]]] = field(default_factory=dict)

    def greeted(self, peer: PeerId, incarnation: int) -> None:
        self._lives[peer] = incarnation

    def received(self, received: Received) -> None:
        """Remember by its payload what a message was."""
        label = _label(received.message)
        if label is None:
            return
        sender = received.sender
        said = self._said.setdefault((sender, label[0]), deque(maxlen=KEPT_LABELS))
        said.append((received.message.payload, [*label, self._lives.get(sender, 0)]))  # type: ignore[union-attr]

    def sent(self, to: PeerId, message: Message) -> None:
        label = _label(message)
        if label is not None:
            what, number = label
            life = self._lives.get(to, 0)
            self.write({"did": "say", "to": self.name_of(to), "what": what, "number": number, "life": life})

    def begins(self, train: Train) -> None:
        """Local steps begin now, from the state as it is, and what they find is learned later."""
        self.write({"did": "train", "round": train.round})

    def plans(self, effect: Train | Mix | Learn | Adopt) -> None:
        """The state is to be changed so: note by what, as long as it is known."""
        match effect:
            case Train(round):
                self._planned.append({"did": "train", "round": round})
            case Learn(round):
                self._planned.append({"did": "learn", "round": round})
            case Mix(round):
                terms = [[t.weight, self.name_of(t.sender), *self._label_of(effect, t)] for t in effect.terms]
                self._planned.append({"did": "mix", "round": round, "terms": terms})
            case Adopt(round, payload):
                of = None if payload is None else self._whose(payload)
                self._planned.append({"did": "adopt", "round": round, "of": of})

    def did(self) -> None:
        """The first change of the state that was planned has been made."""
        self.write(self._planned.popleft())

    def _whose(self, payload: Payload) -> list[Any]:
        """Return who said this, and its label."""
        kept = ([self.name_of(sender), *label] for sender, it, label in self._labelled() if it is payload)
        return next(kept, [None, *UNKNOWN])

    def _label_of(self, mix: Mix, term: Term) -> list[Any]:
        if term.sender == mix.me:
            return [None, None, None]
        return next((label for _, it, label in self._labelled() if it is term.payload), UNKNOWN)

    def _labelled(self) -> Iterator[tuple[PeerId, Payload, list[Any]]]:
        """Yield sender, payload and label of what was said, of each kind the last first."""
        for (sender, _), said in self._said.items():
            for payload, label in reversed(said):
                yield sender, payload, label


def _label(message: Message) -> tuple[str, int] | None:
    match message:
        case Data(round):
            return "data", round
        case Propose(number):
            return "propose", number
        case Accept(number):
            return "accept", number
        case Model(round):
            return "model", round
    return None
