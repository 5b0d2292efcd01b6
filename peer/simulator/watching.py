"""Whom both engines of the simulator tell what they see."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter

from torch import Tensor

from peer.assembly import Assembly
from peer.history import Figures, History
from peer.protocol.messages import PeerId
from peer.record import Divergence, Row, metric_row

Tensors = dict[str, Tensor]


@dataclass
class Watch:
    """Keeps the history of a run.

    `on_entry` is told each new entry, `on_metric` each peer's figures, `on_alert` a peer's name and what a person
    should know of it, `on_model` a peer's name and its final model, where models are wanted.
    """

    assembly: Assembly
    on_entry: Callable[[Row], None] = lambda _: None
    on_metric: Callable[[Row], None] = lambda _: None
    on_alert: Callable[[str, str], None] = lambda _name, _text: None
    on_model: Callable[[str, Tensors], None] | None = None
    history: History = field(init=False)
    _started_s: float = field(default_factory=perf_counter)

    def __post_init__(self) -> None:
        every = self.assembly.experiment.record.params == "every"
        self.history = History(self.assembly.names, every, on_entry=self.on_entry)

    def is_due(self, round: int) -> bool:
        """Say whether the peers are evaluated after so many rounds."""
        return self.assembly.experiment.evaluates_after(round)

    def evaluated(self, round: int, figures: Mapping[PeerId, Figures], payload_bytes: int) -> Divergence | None:
        """Take in the figures of all peers after a round; returns where they have left all bounds, if they have."""
        seconds = perf_counter() - self._started_s
        for peer, name in enumerate(self.assembly.names):
            self.on_metric(metric_row(name, round, figures[peer].score, seconds, payload_bytes))
        return self.history.add(round, figures)
