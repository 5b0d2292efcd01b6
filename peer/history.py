"""The history of a run, entry by entry, and where it leaves all bounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.divergence import has_diverged
from peer.learner import Evaluation
from peer.protocol.messages import PeerId
from peer.record import Divergence, PeerScore, Row, consensus_distance, farthest_from_mean, history_entry

Params = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Figures:
    """One peer at one evaluation: its score and its parameters, (d,)."""

    score: PeerScore
    params: Params


@dataclass
class History:
    """What has been seen of all peers so far. `names` are in node order; `on_entry` is told each new entry.

    `keeps_params` puts every peer's parameters into every entry. `gossiped` are the parameters over which the
    consensus distance is taken, (s,) indices, None for all: peers need not agree on what they keep for themselves.
    `owner` is the coordinator whose model all are judged by, "" where each peer has its own.
    """

    names: tuple[str, ...]
    keeps_params: bool = False
    gossiped: NDArray[np.int64] | None = None
    on_entry: Callable[[Row], None] = lambda _: None
    owner: str = ""
    entries: list[Row] = field(default_factory=list)
    _losses_at_start: dict[PeerId, float] = field(default_factory=dict)
    _consensus_at_start: float = 0.0

    def add(self, round: int, figures: Mapping[PeerId, Figures], at: Row | None = None) -> Divergence | None:
        """Take in the figures of the peers that are there; returns where they have left all bounds, if they have.

        `at` goes into the entry as it is: when that was, and what it had cost until then. Where the round has an entry
        already, this one is later, and takes its place.
        """
        if self.entries and self.entries[-1]["round"] == round:
            self.entries.pop()
        peers = sorted(figures)
        scores = [figures[peer].score for peer in peers]
        params = np.stack([figures[peer].params for peer in peers])
        gossiped = params if self.gossiped is None else params[:, self.gossiped]
        consensus = consensus_distance(gossiped)
        if not self.entries:
            self._losses_at_start = {peer: figures[peer].score.loss or 0.0 for peer in peers}
            self._consensus_at_start = consensus
        entry = history_entry(round, scores, consensus, list(params) if self.keeps_params else None, at)
        self.entries.append(entry)
        self.on_entry(entry)
        for peer, score in zip(peers, scores, strict=True):
            if score.loss is not None and has_diverged(score.loss, self._losses_at_start.get(peer, 0.0)):
                return Divergence(round, self.owner or self.names[peer])
        if has_diverged(consensus, self._consensus_at_start):
            return Divergence(round, self.names[peers[farthest_from_mean(gossiped)]])
        return None


def peer_score(evaluation: Evaluation) -> PeerScore:
    """Turn a learner's evaluation into the record's figures."""
    score, own = evaluation.score, evaluation.own
    if own is None:
        return PeerScore(score.loss, score.accuracy, score.rows)
    return PeerScore(score.loss, score.accuracy, score.rows, own.loss, own.accuracy, own.rows)


def earliest(known: Divergence | None, found: Divergence, names: tuple[str, ...]) -> Divergence:
    """Return which of two came first: the earlier round, and within it the first peer in node order."""
    if known is None:
        return found
    return min(known, found, key=lambda divergence: (divergence.round, names.index(divergence.peer)))
