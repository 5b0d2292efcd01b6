"""How long local steps take in the simulator, by the [speed] table: as a function of peer and round, and of the seed.

A step of peer i takes step_s * factors[i]. With distribution "lognormal" every step is drawn anew, as exp(sigma z -
sigma^2 / 2) times that, z being standard normal, so that sigma changes the spread and not the mean. A trace, `file`,
has the lines "peer,step_s": those of a peer are its steps one after another, and begin again after the last; peers
that are not in it have step_s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from peer.assembly.lines import lines_of, number_in, numbered, unknown_peer
from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.experiment.wording import brief
from peer.seeds import stream

KEY = "speed.file"

SIGMA = 0.5
"""`sigma` where the file says nothing."""


@dataclass(frozen=True)
class Speeds:
    """How long the `local_steps` of a round take each peer; 0 of them where nothing is trained.

    `factors` are those of all peers, or none. `sigma` is None where every step of a peer takes the same time.
    """

    local_steps: int
    step_s: float = 1.0
    factors: Sequence[float] = ()
    sigma: float | None = None
    traces: Mapping[int, Sequence[float]] = field(default_factory=dict)
    seed: int = 0

    def round_s(self, peer: int, round: int) -> float:
        """Return how many seconds all local steps of one round take one peer."""
        if not self.local_steps:
            return 0.0
        if peer in self.traces:
            return self._factor(peer) * math.fsum(self._traced(self.traces[peer], round))
        steady_s = self.local_steps * (self.step_s * self._factor(peer))
        if self.sigma is None:
            return steady_s
        drawn = stream(self.seed, "speed", peer, round).standard_normal(self.local_steps)
        return steady_s * math.fsum(np.exp(self.sigma * drawn - self.sigma**2 / 2)) / self.local_steps

    def mean_round_s(self, peer: int) -> float:
        """Return how many seconds the local steps of a round take one peer on average."""
        trace = self.traces.get(peer, (self.step_s,))
        return self.local_steps * self._factor(peer) * math.fsum(trace) / len(trace)

    def _factor(self, peer: int) -> float:
        return self.factors[peer] if self.factors else 1.0

    def _traced(self, trace: Sequence[float], round: int) -> Sequence[float]:
        """Return the steps of one round."""
        first = round * self.local_steps
        return [trace[step % len(trace)] for step in range(first, first + self.local_steps)]


def speeds_of(experiment: Experiment, names: Sequence[str]) -> Speeds:
    """Read the speeds of an experiment. Raises ConfigError for factors that are not one per peer, and for what is
    wrong in the trace, with its line."""
    s, task = experiment.speed, experiment.task
    if s.factors and len(s.factors) != len(names):
        peers = "1 peer" if len(names) == 1 else f"{len(names)} peers"
        numbers = "1 number" if len(s.factors) == 1 else f"{len(s.factors)} numbers"
        raise ConfigError("speed.factors", f"has {numbers}, and there {'is' if len(names) == 1 else 'are'} {peers}")
    return Speeds(
        local_steps=0 if task.data == "none" else task.local_steps,
        step_s=s.step_s,
        factors=s.factors,
        sigma=(SIGMA if s.sigma is None else s.sigma) if s.distribution == "lognormal" else None,
        traces=_read(experiment.folder / Path(s.file).expanduser(), names) if s.file else {},
        seed=experiment.seed,
    )


def _read(path: Path, names: Sequence[str]) -> dict[int, list[float]]:
    index = numbered(names)
    found: dict[int, list[float]] = {}
    for where, cells in lines_of(path, KEY, ("peer", "step_s")):
        if cells["peer"] not in index:
            raise ConfigError(KEY, f"{where}: {unknown_peer(cells['peer'], names)}")
        step_s = number_in(cells, "step_s")
        if not 0.0 < step_s < math.inf:
            raise ConfigError(KEY, f"{where}: step_s is {brief(cells['step_s'])}, not a number above 0")
        found.setdefault(index[cells["peer"]], []).append(step_s)
    return found
