"""The threads that compute for one node, and what they are given to do.

Most nodes have one, which does one job after the other. Where others may average with a peer while it trains, its local
steps have a thread of their own: the trainer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from peer.daemon.beside_jobs import RingJobs
from peer.daemon.centre_jobs import CentreJobs
from peer.daemon.jobs import Done, Jobs
from peer.daemon.journal import Journal
from peer.daemon.worker import Worker
from peer.errors import EarshotError
from peer.protocol.coordinator import Present
from peer.protocol.messages import (
    Adopt,
    Apply,
    Assemble,
    Copy,
    Divide,
    Effect,
    Forget,
    Learn,
    Mix,
    Reduce,
    Train,
    Trained,
)


@dataclass
class Workers:
    """Hands the effects that take time to the threads. `trains_apart`: there is a trainer. `journal` notes what is to
    become of the state of a peer that waits for nobody."""

    jobs: Jobs | CentreJobs
    journal: Journal | None
    trains_apart: bool
    _worker: Worker[Done] = field(default_factory=Worker)
    _trainer: Worker[Done] | None = None
    _practises: bool = False  # the trainer is at local steps
    _to_adopt: Adopt | None = None  # when they are over: they are void, and their momentum belongs before

    def __post_init__(self) -> None:
        if self.trains_apart:
            self._trainer = Worker()

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when there are results."""
        return [worker.descriptor for worker in self._all]

    @property
    def _all(self) -> list[Worker[Done]]:
        return [self._worker] if self._trainer is None else [self._worker, self._trainer]

    # ---- What they do

    def carry_out(self, effect: Effect) -> None:
        """Have this done; its result comes out of `results`."""
        match effect:
            case Train():
                self._train(effect)
            case Mix() | Learn() | Adopt():
                self._change(effect)
            case Copy():
                self._worker.submit(partial(self._peer.copy, effect))
            case Forget():
                self._worker.submit(partial(self._peer.forget, effect))
            case Apply():
                self._worker.submit(partial(self._centre.apply, effect))
            case Divide():
                self._worker.submit(partial(self._ring.divide, effect))
            case Reduce():
                self._worker.submit(partial(self._ring.reduce, effect))
            case Assemble():
                self._worker.submit(partial(self._ring.assemble, effect))

    def judge(self, round: int) -> None:
        """Have the parameters judged as they are; `round` is what the figures are called after."""
        worker = self._trainer or self._worker
        worker.submit(partial(self.jobs.evaluate, round, worker.is_stopping))

    def save(self, present: Present) -> None:
        """Have a coordinator saved."""
        self._worker.submit(partial(self._centre.save, present))

    # ---- What they have done

    def results(self) -> Iterator[Done | EarshotError]:
        """Yield what has been done since the last call."""
        for worker in self._all:
            for result in worker.results():
                self._note(result)
                yield result

    def accepts(self, result: Done) -> bool:
        """Say whether this counts: local steps do not that ended when there was something to adopt, which is now."""
        if self._trainer is None or not isinstance(result.event, Trained):
            return True
        self._practises = False
        if self._to_adopt is None:
            return True
        self._worker.submit(partial(self._peer.adopt, self._to_adopt))
        self._to_adopt = None
        return False

    def close(self, patience_s: float) -> bool:
        """Stop them after the local steps at hand; returns whether that happened in time."""
        until_s = monotonic() + patience_s
        closed = [worker.close(max(0.0, until_s - monotonic())) for worker in self._all]
        if not all(closed):
            return False
        for result in self._worker.left():  # what was done and not yet told
            self._note(result)
        self.jobs.drop_unfinished()
        return True

    # ---- Inside

    def _train(self, train: Train) -> None:
        if self._trainer is None:
            if self.journal is not None:
                self.journal.plans(train)
            self._worker.submit(partial(self._peer.train, train.round, self._worker.is_stopping))
            return
        if self.journal is not None:
            self.journal.begins(train)
        self._practises = True
        self._peer.learner.begin(train.round)  # here: from the state as it is, before it is mixed again
        self._trainer.submit(partial(self._peer.practise, train.round, self._trainer.is_stopping))

    def _change(self, effect: Mix | Learn | Adopt) -> None:
        """Have the state changed, one change after the other."""
        if self.journal is not None and not (isinstance(effect, Learn) and effect.round is None):
            self.journal.plans(effect)
        match effect:
            case Mix():
                mix = self._peer.mix_with_one if self.trains_apart else self._peer.mix
                self._worker.submit(partial(mix, effect))
            case Learn():
                self._worker.submit(partial(self._peer.learn, effect))
            case Adopt() if self._practises:
                self._to_adopt = effect
            case Adopt():
                self._worker.submit(partial(self._peer.adopt, effect))

    def _note(self, result: Done | EarshotError) -> None:
        if self.journal is not None and isinstance(result, Done) and result.changed_state:
            self.journal.did()

    @property
    def _peer(self) -> Jobs:
        assert isinstance(self.jobs, Jobs)
        return self.jobs

    @property
    def _ring(self) -> RingJobs:
        assert isinstance(self.jobs, RingJobs)
        return self.jobs

    @property
    def _centre(self) -> CentreJobs:
        assert isinstance(self.jobs, CentreJobs)
        return self.jobs
