"""Bugs put into the cores on purpose, to see that the fault bed finds them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from peer.protocol.asynchronous import Asynchronous, Heard
from peer.protocol.gossip import Gossip
from peer.protocol.messages import Data, Effect, Message, Mix, Neighbourhood, PeerId, Send

nothing_wrong = nullcontext


@contextmanager
def no_renormalisation() -> Iterator[None]:
    """A peer gives its own message W's weight, whoever is missing."""

    def own_weight(me: PeerId, here: Neighbourhood, *_: Any) -> float:
        return here.weights[me]

    with ExitStack() as stack:
        for module in ("gossip", "asynchronous"):
            stack.enter_context(patch(f"peer.protocol.{module}.own_weight", own_weight))
        yield


def unbounded_inbox() -> AbstractContextManager[Any]:
    """A peer stashes what it hears, of whatever round."""

    def is_wanted(self: Gossip, sender: PeerId, round: int, exchange: int) -> bool:
        return sender in self.around(round).weights

    return patch.object(Gossip, "_is_wanted", is_wanted)


def unbounded_outbox() -> AbstractContextManager[Any]:
    """A peer sends all that it has to say, whether or not the last message was answered."""

    def tell(self: Asynchronous, listener: PeerId, data: Data) -> list[Effect]:
        return [Send(listener, data)]

    return patch.object(Asynchronous, "_tell", tell)


def older_over_newer() -> AbstractContextManager[Any]:
    """What comes last counts, though it was said earlier."""
    right = Asynchronous._hear

    def hear(self: Asynchronous, sender: PeerId, message: Message, now_s: float) -> list[Effect]:
        if isinstance(message, Data) and message.round < self._newest.get(sender, 0):
            self._heard[sender] = Heard(message.payload, self._mixes, now_s)
        return right(self, sender, message, now_s)

    return patch.object(Asynchronous, "_hear", hear)


def always_fresh() -> AbstractContextManager[Any]:
    """Each mix makes what was mixed look as if it had just come."""
    right = Asynchronous._mix

    def mix(self: Asynchronous, own: Any, now_s: float) -> Mix:
        found = right(self, own, now_s)
        self._heard = {peer: replace(what, after_mixes=self._mixes) for peer, what in self._heard.items()}
        return found

    return patch.object(Asynchronous, "_mix", mix)


def last_round_again() -> AbstractContextManager[Any]:
    """Where a neighbour is missing, what it said in the last round is mixed once more."""
    right = Gossip._take_out

    def take_out(self: Gossip) -> dict[PeerId, Any]:
        before: dict[PeerId, Any] = getattr(self, "_before", {})
        heard = right(self)
        heard |= {p: what for p, what in before.items() if p not in heard and p in self.around(self.round).weights}
        self._before = heard  # type: ignore[attr-defined]
        return heard

    return patch.object(Gossip, "_take_out", take_out)


MUTANTS: dict[str | None, Callable[[], AbstractContextManager[Any]]] = {
    mutant.__name__: mutant
    for mutant in (
        no_renormalisation,
        unbounded_inbox,
        unbounded_outbox,
        older_over_newer,
        always_fresh,
        last_round_again,
    )
}
