"""Whom both engines of the simulator tell what they see."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter

from torch import Tensor

from peer.assembly import Assembly
from peer.assembly.coordination import owner_of
from peer.history import Figures, History
from peer.protocol.messages import PeerId
from peer.record import Divergence, Row, metric_row

Tensors = dict[str, Tensor]

PACE_S = 0.2
"""From one word of how far the run has come to the next."""


@dataclass(frozen=True)
class Pace:
    """How far a run has come. `share` is of all that it has to do, None where it has no end of its own."""

    round: int
    share: float | None
    seconds: float
    simulated_seconds: float | None = None
    events: int | None = None


@dataclass
class Watch:
    """Keeps the history of a run.

    `on_entry` is told each new entry, `on_metric` each peer's figures, `on_alert` a peer's name and what a person
    should know of it, `on_model` a peer's name and its final model, where models are wanted, `on_event` what happened
    to a peer, and `on_pace` from time to time how far the run has come.
    """

    assembly: Assembly
    on_entry: Callable[[Row], None] = lambda _: None
    on_metric: Callable[[Row], None] = lambda _: None
    on_alert: Callable[[str, str], None] = lambda _name, _text: None
    on_model: Callable[[str, Tensors], None] | None = None
    on_event: Callable[..., None] = lambda _kind, **_fields: None
    on_pace: Callable[[Pace], None] = lambda _: None
    history: History = field(init=False)
    _started_s: float = field(default_factory=perf_counter)
    _told_s: float = field(default_factory=perf_counter)

    def __post_init__(self) -> None:
        every = self.assembly.experiment.record.params == "every"
        self.history = History(self.assembly.names, every, on_entry=self.on_entry, owner=owner_of(self.assembly))

    def is_due(self, round: int) -> bool:
        """Say whether the peers are evaluated after so many rounds."""
        return self.assembly.experiment.evaluates_after(round)

    def wants_pace(self) -> bool:
        """Say whether it is time for a word of how far the run has come."""
        return perf_counter() - self._told_s >= PACE_S

    def pace(
        self, round: int, share: float | None, simulated_seconds: float | None = None, events: int | None = None
    ) -> None:
        """Tell how far the run has come."""
        self._told_s = perf_counter()
        self.on_pace(Pace(round, share, self._told_s - self._started_s, simulated_seconds, events))

    def evaluated(
        self,
        round: int,
        figures: Mapping[PeerId, Figures],
        at: Row,
    ) -> Divergence | None:
        """Take in the peers' figures after a round; returns where they have left all bounds, if they have.

        `at` goes into the entry: what had been sent until then, `payload_bytes_sent`, and when that was.
        """
        cost = {name: value for name, value in at.items() if name in ("payload_bytes_sent", "simulated_seconds")}
        seconds = perf_counter() - self._started_s
        for peer in sorted(figures):
            row = metric_row(self.assembly.names[peer], round, figures[peer].score, seconds, at["payload_bytes_sent"])
            self.on_metric(row | cost)
        return self.history.add(round, figures, at)
