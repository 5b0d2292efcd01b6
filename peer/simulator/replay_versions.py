"""A run beside a coordinator that waited for nobody, done again from what it noted: the same parameters, bit for bit.

For each push that it took in, the coordinator notes which version it made and how stale it was. All else follows:

    version v is made from the pushes noted with it, in their order
    a push of staleness s was learned from what was given as version v - 1 - s
    it is the worker's next one, for none is left out while nobody is lost

At the end of a whole run everybody is given the last version. Of a run that was stopped earlier it is not known what
each worker was given last, so only the coordinator is compared.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peer.algorithms.algorithm import bytes_of
from peer.algorithms.combine import is_finite
from peer.assembly import Assembly, exchange_of, learner_of
from peer.assembly.coordination import judges_copies
from peer.history import Figures, peer_score
from peer.learner import Evaluation, Learner
from peer.protocol.messages import Apply, PeerId, Shares, Term
from peer.record import Ended, Row, listed
from peer.simulator.centres import Centres
from peer.simulator.left import Left, Tensors, left_by, only
from peer.simulator.noted_versions import Taken, versions_of
from peer.simulator.watching import Watch
from peer.task.task import Task
from peer.verdict import Verdict


class Replay:
    """The coordinator and the workers of a run, and the versions that they have still to make again."""

    def __init__(self, assembly: Assembly, task: Task, versions: Sequence[Sequence[Taken]]) -> None:
        cpu, self._me = torch.device("cpu"), assembly.coordinator_ids.start
        trainer, shards, test = task.trainer(cpu), task.shards(cpu), task.test_rows(cpu)
        workers = range(len(assembly.names))
        self.is_elastic = assembly.experiment.is_elastic
        self.trainer = trainer
        self.version = 0
        self.payload_bytes_sent = 0
        self.verdict = None if judges_copies(assembly) else Verdict(trainer, shards, test)
        self.learners: dict[PeerId, Learner] = {}
        for i in workers:
            core = exchange_of(assembly, task, i, endless=True)
            self.learners[i] = learner_of(assembly, task, i, trainer, task.start(i), shards[i], test, core)
        self._pushes = dict.fromkeys(workers, 0)
        self._versions = versions
        self._answers = {
            t.sender: version for version, made in enumerate(versions, 1) for t in made
        }  # of the last push
        self._wanted = self._count_wanted()
        self._centres = Centres(assembly, task)
        payload = self._centres.begin_anew(self._me).present().payload
        self._given_bytes = bytes_of(payload)
        self._given = {
            0: self._centres.given_by_all((payload,))
        }  # by version, as long as somebody has still to take it

    def _count_wanted(self) -> Counter[int]:
        """Return how often each version is taken: to train from, and at the end the last one by all."""
        taken = Counter(version - 1 - t.staleness for version, made in enumerate(self._versions, 1) for t in made)
        taken[len(self._versions)] += len(self.learners)
        if self.is_elastic:
            taken.update(version for version in self._answers.values() if version < len(self._versions))
        return taken

    @property
    def gradients(self) -> int:
        """How many local steps there were, without those that came to nothing."""
        return sum(learner.gradients for learner in self.learners.values())

    def params(self) -> Tensor:
        """Return the coordinator's parameters, (d,)."""
        return self._centres.params()

    def make_next(self) -> None:
        """Make one version more."""
        made = self._versions[self.version]
        terms = [Term(1 / len(made), t.sender, self._push(t), t.staleness) for t in made]
        applied, _ = self._centres.apply(self._me, Apply(self.version, tuple(terms)))
        self.version += 1
        if self._wanted[self.version]:
            self._given[self.version] = self._centres.given_by_all((applied.payload,))

    def give_last(self) -> None:
        """Give all workers the last version; with EASGD, who had still an answer to come, takes that first."""
        for me in self.learners:
            answer = self._answers.get(me, self.version)
            if self.is_elastic and answer < self.version:
                self._give(me, answer)
            self._give(me, self.version, is_answer=answer == self.version)

    def _push(self, taken: Taken) -> Any:
        """Return what a worker pushes next."""
        me = taken.sender
        self._give(me, self.version - taken.staleness)
        message = self.learners[me].train(self._pushes[me])
        assert not isinstance(message, Shares), "it says the same to all"
        self._pushes[me] += 1
        (pushed,) = self._centres.parcels.push(message["u"])
        self.payload_bytes_sent += bytes_of(pushed)
        return pushed

    def _give(self, me: PeerId, version: int, *, is_answer: bool = True) -> None:
        given = self._given[version]
        self.payload_bytes_sent += self._given_bytes
        self._wanted[version] -= 1
        if not self._wanted[version]:
            del self._given[version]
        if is_finite({"x": given}):  # else a worker keeps its own
            self.learners[me].take(given, version, is_answer=is_answer)


def replay_versions(
    assembly: Assembly, task: Task, run: Path, watch: Watch, stop: Callable[[], bool]
) -> tuple[Ended, list[str]]:
    """Do a run of daemons again; returns what comes of it, and who could be compared with its daemon.

    A run whose parameters differ has failed. Raises ConfigError.
    """
    versions, left = versions_of(run, assembly), left_by(run)
    again = Replay(assembly, task, versions)
    ended = Ended("events", again.trainer.step, len(assembly.names))
    watch.history.gossiped = assembly.shared_columns(task.layout)
    _judge(watch, again)
    while again.version < len(versions) and not stop():
        again.make_next()
        if again.verdict is not None and (again.version == len(versions) or watch.is_due(again.version)):
            _judge(watch, again)
    is_whole = again.version == assembly.experiment.rounds
    if is_whole:
        again.give_last()
    if again.verdict is None and again.version:
        _judge(watch, again)
    if again.version < len(versions):
        ended.outcome = "interrupted"
    ended.rounds, ended.gradients = again.version, again.gradients
    ended.payload_bytes_sent = again.payload_bytes_sent
    ended.history = watch.history.entries
    ended.params = [learner.params().numpy() for learner in again.learners.values()]
    ended.coordinator = again.params().numpy()
    models = {assembly.names[i]: learner.tensors() for i, learner in again.learners.items()}
    if watch.on_model is not None:
        for name, tensors in models.items():
            watch.on_model(name, tensors)
    return ended, _compare(assembly, task, again, models if is_whole else {}, left, ended, run)


def _compare(
    assembly: Assembly,
    task: Task,
    again: Replay,
    models: Mapping[str, Tensors],
    left: Left,
    ended: Ended,
    run: Path,
) -> list[str]:
    """Compare with what the daemons left; returns of whom.

    Of a peer only what the coordinator gave, as buffers that the peer keeps may have seen local steps that came to
    nothing; with EASGD it moves statistics by those, too. A coordinator without a model file is in the summary.
    """
    if left.summary.get("outcome") != "finished":  # was everybody given the last version?
        models = {}
    certain = task.layout.parameters() if again.is_elastic else task.layout.segments
    names = {name for segment in certain for name in (segment.name, *segment.others)}
    theirs = {name: only(model, names) for name, model in left.models.items() if name in assembly.names}
    found: dict[str, Tensors] = {name: only(tensors, names) for name, tensors in models.items()}
    coordinator, x = assembly.coordinators[0], again.params()
    if coordinator in left.models:
        found[coordinator] = again.trainer.tensors(x, again.trainer.memory())
        theirs[coordinator] = dict(left.models[coordinator])
    elif (numbers := left.summary.get("coordinator")) is not None:
        found[coordinator], theirs[coordinator] = {"x": _as_listed(x)}, {"x": _numbers(numbers, x)}
    return Left(theirs, left.summary).compare(found, ended, run)


def _as_listed(x: Tensor) -> Tensor:
    return _numbers(listed([x.numpy()])[0] or [], x)


def _numbers(texts: Sequence[float | None], like: Tensor) -> Tensor:
    return torch.tensor([float("nan") if number is None else number for number in texts], dtype=like.dtype)


def _judge(watch: Watch, again: Replay) -> None:
    """Add an entry to the history: the coordinator's model for all, or each peer as it is."""
    evaluations: list[Evaluation]
    if again.verdict is not None:
        evaluations = again.verdict.of(again.params(), again.version)
        held = [again.params()] * len(evaluations)
    else:
        evaluations = [learner.evaluate(again.version) for learner in again.learners.values()]
        held = [learner.params() for learner in again.learners.values()]
    figures = {
        i: Figures(peer_score(evaluation), x.numpy().copy())
        for i, (evaluation, x) in enumerate(zip(evaluations, held, strict=True))
    }
    at: Row = {"payload_bytes_sent": again.payload_bytes_sent}
    if watch.history.keeps_params:
        at["coordinator"] = listed([again.params().numpy()])[0]
    watch.evaluated(again.version, figures, at)
