"""When a run of daemons is over before their rounds are: after so many seconds, when a figure is reached, or, where
nobody waits for anybody, when all together have done their local rounds."""

from collections.abc import Iterator

from peer.experiment import Experiment
from peer.record import Row
from peer.require import parse_stop


def has_barriers(experiment: Experiment) -> bool:
    """Whether nobody goes on after an evaluation before all have been judged: not where somebody would be waited for
    who is held there."""
    e = experiment
    is_one_model = not e.is_elastic and e.coordinator.servers == 1 and e.algorithm.buffers == "average"
    waits = e.coordinator.mode in ("none", "sync", "quorum", "ring") or is_one_model
    return bool(e.stop_when) and not e.is_asynchronous and waits


class Ending:
    """What the experiment says of its end, for so many peers."""

    def __init__(self, experiment: Experiment, peers: int) -> None:
        self._experiment = experiment
        self._peers = peers
        self._stop_when = parse_stop(experiment.stop_when)
        self._judged = 0  # the last round after which peers that wait for nobody were judged
        self._is_enough = False

    @property
    def has_barriers(self) -> bool:
        """Whether nobody goes on after an evaluation before all have been judged."""
        return has_barriers(self._experiment)

    def judge(self, entry: Row) -> None:
        """Take in an entry of the history."""
        self._is_enough |= self._stop_when is not None and self._stop_when.is_met(entry)

    def rounds_to_judge(self, local_rounds: int) -> Iterator[int]:
        """Yield after which rounds peers that wait for nobody are to be judged now: they have done so many in all."""
        if not self._experiment.is_asynchronous or self.is_reached(local_rounds, 0.0):
            return
        while (following := self._judged + self._experiment.eval_every) <= local_rounds // self._peers:
            self._judged = following
            yield following

    def is_reached(self, local_rounds: int, seconds: float) -> bool:
        """Say whether the run is over."""
        e = self._experiment
        late = 0.0 < e.stop_after_s <= seconds
        done = e.is_asynchronous and 0 < e.rounds <= local_rounds // self._peers
        return self._is_enough or late or done
