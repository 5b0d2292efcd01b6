"""Who is connected with whom in a virtual world, in which life of the two, and what is held up between them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from peer.protocol.messages import PeerId

Pair = tuple[PeerId, PeerId]


@dataclass
class Connections:
    """The connections of all pairs of peers. `incarnation` of a pair grows whenever what was under way is void."""

    _connected: set[Pair] = field(default_factory=set)
    _incarnations: dict[Pair, int] = field(default_factory=dict)
    ended: int = 0  # how often one has ended
    _held: dict[Pair, list[tuple[PeerId, Any]]] = field(default_factory=dict)

    def stands(self, a: PeerId, b: PeerId) -> bool:
        """Say whether the two have greeted each other and have not parted since."""
        return pair_of(a, b) in self._connected

    def incarnation(self, a: PeerId, b: PeerId) -> int:
        return self._incarnations.get(pair_of(a, b), 0)

    def open(self, a: PeerId, b: PeerId) -> int:
        """The two have greeted each other; returns in which incarnation."""
        self._connected.add(pair_of(a, b))
        return self.incarnation(a, b)

    def end(self, a: PeerId, b: PeerId) -> int:
        """Whatever is on its way between these two is void; returns the next incarnation."""
        pair = pair_of(a, b)
        self.ended += pair in self._connected
        self._connected.discard(pair)
        self._held.pop(pair, None)
        self._incarnations[pair] = self.incarnation(a, b) + 1
        return self._incarnations[pair]

    def hold(self, a: PeerId, to: PeerId, what: Any) -> None:
        """Something does not get through to a peer, for as long as the link is cut."""
        self._held.setdefault(pair_of(a, to), []).append((to, what))

    def release(self) -> Iterator[tuple[Pair, list[tuple[PeerId, Any]]]]:
        """Yield what is held up, pair by pair; who takes it in says so by `let_go`."""
        yield from list(self._held.items())

    def let_go(self, pair: Pair) -> None:
        del self._held[pair]


def pair_of(a: PeerId, b: PeerId) -> Pair:
    return (a, b) if a < b else (b, a)
