"""Entries of a history that wait until all are judged who are waited for: the same rule for daemons and simulator."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from peer.history import Figures
from peer.protocol.messages import PeerId
from peer.record import Row


@dataclass(frozen=True, eq=False)
class Judged:
    """One peer's figures after a round; `at` says when that was, and what it had cost until then."""

    figures: Figures
    at: Row


@dataclass
class Entries:
    """What peers were judged to be, by round, until an entry of it can be made."""

    _open: dict[int, dict[PeerId, Judged]] = field(default_factory=dict)

    def add(self, peer: PeerId, round: int, judged: Judged) -> None:
        self._open.setdefault(round, {})[peer] = judged

    def forget(self, peer: PeerId) -> None:
        """The peer begins anew: what it was before counts in no entry that is still to be made."""
        for judged in self._open.values():
            judged.pop(peer, None)

    def complete(self, there: Mapping[PeerId, int]) -> Iterator[tuple[int, dict[PeerId, Judged]]]:
        """Yield each round that all have been judged after, and take it out.

        `there` are those who are waited for, and how many rounds each has completed: who is beyond a round without
        having been judged after it has left it out. What others were judged to be does not count.
        """
        for round in sorted(self._open):
            judged = {peer: found for peer, found in self._open[round].items() if peer in there}
            if any(peer not in judged and completed < round for peer, completed in there.items()):
                return
            del self._open[round]
            if judged:
                yield round, judged
