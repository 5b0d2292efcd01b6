"""Who counts with whom, from which round on: lost neighbours, those that are done, and those that came back.

A neighbour that was lost and is there again counts from a round that both sides agree on. Each tells the other, once,
a round that it has not begun and does not begin before it has heard the other: the greater of the two is that round.
So neither waits for a round that the other has left behind, and nobody else has to be asked.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from peer.protocol.messages import PeerId

KEEPS_OWN_ROUNDS = 10
"""How many rounds a peer may have been away and still go on from its own parameters: what it has learned itself is
then worth more than what it has missed. One that has completed no round has learned nothing."""


@dataclass
class Standing:
    """What one peer knows of its `neighbours` in this respect."""

    neighbours: frozenset[PeerId]
    lost: dict[PeerId, str] = field(default_factory=dict)
    closed: set[PeerId] = field(default_factory=set)
    _since: dict[PeerId, int] = field(default_factory=dict)  # the round from which one that came back counts
    _asked: dict[PeerId, int] = field(default_factory=dict)  # told to it, and not yet answered
    _answered: set[PeerId] = field(default_factory=set)  # those that have told theirs since they were last lost

    @property
    def alive(self) -> set[PeerId]:
        """Neighbours that are neither lost nor done."""
        return set(self.neighbours) - self.lost.keys() - self.closed

    def counts(self, peer: PeerId, round: int) -> bool:
        """Say whether a neighbour takes part in a round."""
        return peer not in self.lost and peer not in self._asked and round >= self._since.get(peer, 0)

    def may_count(self, peer: PeerId, round: int) -> bool:
        """Say whether a neighbour takes part in a round, or may do so for all that is known before it has answered."""
        return self.counts(peer, round) or round >= self._asked.get(peer, inf)

    def counting(self, peers: Iterable[PeerId], round: int) -> set[PeerId]:
        """Return those of the peers that take part in a round."""
        taking_part = self.neighbours.intersection(peers)
        if not (self.lost or self._asked or self._since):  # nobody was ever lost
            return set(taking_part)
        return {peer for peer in taking_part if self.counts(peer, round)}

    def lose(self, peer: PeerId, reason: str) -> None:
        self.lost[peer] = reason
        self._since.pop(peer, None)
        self._asked.pop(peer, None)
        self._answered.discard(peer)

    def close(self, peer: PeerId) -> None:
        """The peer is done, and answers nothing any more."""
        self.closed.add(peer)
        self._asked.pop(peer, None)

    def ask(self, peer: PeerId, round: int) -> None:
        """The peer is there again and is told this round; what was agreed with it in an earlier life is void."""
        self.lost.pop(peer, None)
        self.closed.discard(peer)
        self._since.pop(peer, None)
        self._answered.discard(peer)
        self._asked[peer] = round

    def agree(self, peer: PeerId, theirs: int) -> int:
        """The peer has told its round in answer; returns the one that both have agreed on."""
        self._answered.add(peer)
        self._since[peer] = max(self._asked.pop(peer), theirs)
        return self._since[peer]

    def has_asked(self, peer: PeerId) -> bool:
        return peer in self._asked

    def has_answered(self, peer: PeerId) -> bool:
        return peer in self._answered

    def unanswered(self, round: int = 2**62) -> set[PeerId]:
        """Return those that have to answer before this round may begin."""
        return {peer for peer, told in self._asked.items() if told <= round}

    def starting(self, round: int) -> list[PeerId]:
        """Return those that count again from exactly this round on, in node order."""
        return sorted(peer for peer, since in self._since.items() if since == round)

    def counts_from(self, peer: PeerId) -> int:
        """Return the first round, as far as is known, in which one that came back counts; -1 for one never lost."""
        return max(self._since.get(peer, -1), self._asked.get(peer, -1))

    def first_common_round(self) -> float:
        """Return the first round in which anybody that is alive takes part; inf where nobody is."""
        return min((self._since.get(peer, 0) for peer in self.alive - self._asked.keys()), default=inf)

    def soonest(self) -> list[PeerId]:
        """Return those that are alive and have agreed, the one that counts soonest first."""
        return sorted(self.alive - self._asked.keys(), key=lambda peer: (self._since.get(peer, 0), peer))
