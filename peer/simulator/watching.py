"""What both engines of the simulator share: evaluations of all peers, and when a run has to end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.assembly import Assembly
from peer.divergence import has_diverged
from peer.learner import Evaluation
from peer.record import Divergence, PeerScore, Row, consensus_distance, farthest_from_mean, history_entry, metric_row

Params = NDArray[np.floating[Any]]


def peer_score(evaluation: Evaluation) -> PeerScore:
    """Turn a learner's evaluation into the record's figures."""
    score, own = evaluation.score, evaluation.own
    if own is None:
        return PeerScore(score.loss, score.accuracy, score.rows)
    return PeerScore(score.loss, score.accuracy, score.rows, own.loss, own.accuracy, own.rows)


@dataclass
class Watch:
    """Keeps the history of a run. `on_entry` is told each new entry, `on_metric` each peer's figures,
    `on_alert` a peer's name and what a person should know of it."""

    assembly: Assembly
    on_entry: Callable[[Row], None] = lambda _: None
    on_metric: Callable[[Row], None] = lambda _: None
    on_alert: Callable[[str, str], None] = lambda _name, _text: None
    history: list[Row] = field(default_factory=list)
    _started_s: float = field(default_factory=perf_counter)
    _start: Row | None = None

    def is_due(self, round: int) -> bool:
        """Say whether the peers are evaluated after so many rounds."""
        e = self.assembly.experiment
        return round % e.eval_every == 0 or round == e.rounds

    def evaluated(
        self, round: int, scores: Sequence[PeerScore], params: Params, payload_bytes: int | None
    ) -> Divergence | None:
        """Take in the figures of all peers after a round; returns where they have left all bounds, if they have."""
        consensus = consensus_distance(params)
        keep = list(params) if self.assembly.experiment.record.params == "every" else None
        entry = history_entry(round, scores, consensus, keep)
        self.history.append(entry)
        seconds = perf_counter() - self._started_s
        for name, score in zip(self.assembly.names, scores, strict=True):
            self.on_metric(metric_row(name, round, score, seconds, payload_bytes))
        self.on_entry(entry)
        if self._start is None:
            self._start = {"losses": [s.loss or 0.0 for s in scores], "consensus": consensus}
        return self._divergence(round, scores, params, consensus)

    def _divergence(
        self, round: int, scores: Sequence[PeerScore], params: Params, consensus: float
    ) -> Divergence | None:
        assert self._start is not None
        for name, score, at_start in zip(self.assembly.names, scores, self._start["losses"], strict=True):
            if score.loss is not None and has_diverged(score.loss, at_start):
                return Divergence(round, name)
        if has_diverged(consensus, self._start["consensus"]):
            return Divergence(round, self.assembly.names[farthest_from_mean(params)])
        return None
