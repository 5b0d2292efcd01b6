"""The events engine: the daemons' own protocol cores on a virtual clock, message by message.

A heap holds what is to happen when; each event is handed to the core of its peer, and the effects are carried out by
the same `Learner` that a daemon has. Links have the latency of [network], and a local step takes `speed.step_s`.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter

import torch

from peer.assembly import Assembly, gossip_of, learner_of
from peer.errors import TrainingError
from peer.history import Figures, earliest, peer_score
from peer.learner import Said, wire_forms
from peer.protocol.messages import Alert, Data, Effect, Event, Mix, Mixed, PeerJoined, Received, Send, Train, Trained
from peer.record import Divergence, Ended
from peer.simulator.watching import Watch
from peer.task.local import Interrupted
from peer.task.task import Task


@dataclass(order=True)
class _Due:
    at_s: float
    tie: int
    peer: int = field(compare=False)
    event: Event | Train = field(compare=False)


class EventsEngine:
    """All peers of one experiment on one virtual clock."""

    def __init__(self, assembly: Assembly, task: Task, watch: Watch, stop: Callable[[], bool]) -> None:
        self.assembly = assembly
        self.watch = watch
        self.stop = stop
        self.now_s = 0.0
        e = assembly.experiment
        device = torch.device("cpu")
        trainer, shards, test = task.trainer(device), task.shards(device), task.test_rows(device)
        everyone = range(len(assembly.names))
        self.ended = Ended("events", trainer.step, len(everyone), simulated_seconds=0.0)
        self.cores = [gossip_of(assembly, i) for i in everyone]
        self.learners = [
            learner_of(assembly, task, i, trainer, task.start(i), shards[i], test, self.cores[i].around)
            for i in everyone
        ]
        self.watch.history.gossiped = assembly.shared_columns(task.layout)
        self._payload_bytes = [
            sum(t.numel() * t.element_size() for t in form.values())
            for form in wire_forms(self.learners[0].algorithm, task.start(0))
        ]
        self._steps_s = 0.0 if task.data is None else e.task.local_steps * e.speed.step_s
        self._heap: list[_Due] = []
        self._ties = count()
        self._open: dict[int, dict[int, Figures]] = {}  # round -> peer -> figures, until all are in

    def run(self) -> Ended:
        """Run to the end, or until `stop` says so."""
        try:
            self._evaluate_all_at_start()
            began_s = perf_counter()
            for core in self.cores:
                self._carry_out(core.me, core.start(self.now_s))
                for neighbour in sorted(core.neighbours):
                    self._at(self.now_s, core.me, PeerJoined(neighbour))
            while self._heap and not self._is_over():
                due = heapq.heappop(self._heap)
                self.now_s = due.at_s
                event = self._train(due.peer, due.event) if isinstance(due.event, Train) else due.event
                self._carry_out(due.peer, self.cores[due.peer].handle(event, self.now_s))
                if self.stop():
                    raise Interrupted
            self._evaluate_the_last_round()
            self.ended.rounds_seconds += perf_counter() - began_s
        except (Interrupted, KeyboardInterrupt):
            self.ended.outcome = "interrupted"
        except TrainingError as error:
            self.ended.outcome, self.ended.why, self.ended.details = "failed", str(error), error.details
        return self._result()

    # ---- Effects

    def _carry_out(self, me: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Train():
                    self._at(self.now_s + self._steps_s, me, effect)
                case Send(to, message):
                    if isinstance(message, Data):
                        self.ended.payload_bytes_sent += self._payload_bytes[message.exchange]
                    self._at(self.now_s + self.assembly.latencies.one_way_ms(me, to) / 1000, to, Received(me, message))
                case Mix():
                    self._at(self.now_s, me, self._mix(me, effect))
                case Alert(text, peer):
                    names = self.assembly.names
                    self.watch.on_alert(names[me], text if peer is None else f"{names[peer]} {text}")

    def _train(self, me: int, train: Train) -> Trained:
        """Do the local steps at the time at which they are done: until then the run may have ended."""
        return Trained(train.round, self.learners[me].train(train.round, self.stop))

    def _mix(self, me: int, mix: Mix) -> Mixed:
        learner = self.learners[me]
        outcome = learner.mix(mix.exchange, [Said(t.weight, t.sender, t.payload) for t in mix.terms])
        if outcome.message is None:
            self._completed(me, mix.round + 1)
        return Mixed(mix.round, mix.exchange, outcome.message, outcome.rejected, outcome.far)

    def _at(self, at_s: float, peer: int, event: Event | Train) -> None:
        heapq.heappush(self._heap, _Due(at_s, next(self._ties), peer, event))

    # ---- Figures

    def _evaluate_all_at_start(self) -> None:
        for me in range(len(self.cores)):
            self._evaluate(me, 0)

    def _completed(self, me: int, round: int) -> None:
        self.ended.simulated_seconds = self.now_s  # the goodbyes that follow are not part of it
        if self.learners[me].has_diverged():
            self._diverged(Divergence(round, self.assembly.names[me]))
        if self.watch.is_due(round):
            began_s = perf_counter()
            self._evaluate(me, round)
            self.ended.rounds_seconds -= perf_counter() - began_s

    def _evaluate(self, me: int, round: int) -> None:
        """Evaluate one peer; when all peers are in for this round, the history gets its entry."""
        learner = self.learners[me]
        figures = self._open.setdefault(round, {})
        figures[me] = Figures(peer_score(learner.evaluate(round, self.stop)), learner.params().numpy().copy())
        if len(figures) < len(self.cores):
            return
        del self._open[round]
        found = self.watch.evaluated(round, figures, self.ended.payload_bytes_sent)
        if found is not None:
            self._diverged(found)

    def _diverged(self, found: Divergence) -> None:
        self.ended.diverged = earliest(self.ended.diverged, found, self.assembly.names)

    def _is_over(self) -> bool:
        """A diverged run ends when every peer has done the round in which it was seen."""
        found = self.ended.diverged
        if found is None or self.assembly.experiment.record.on_divergence == "continue":
            return False
        return min(core.round for core in self.cores) >= found.round

    def _evaluate_the_last_round(self) -> None:
        """A run that ends early, because it has diverged, is evaluated where it ends."""
        rounds = {core.round for core in self.cores}
        if self.ended.diverged is None or len(rounds) > 1 or self.watch.is_due(min(rounds)):
            return
        for me in range(len(self.cores)):
            self._evaluate(me, min(rounds))

    def _result(self) -> Ended:
        ended = self.ended
        for learner in self.learners:
            learner.drop_unfinished()
        if ended.diverged is not None and ended.outcome == "finished":
            ended.outcome = "diverged"
        ended.rounds = min(core.round for core in self.cores)
        ended.history = self.watch.history.entries
        ended.short_rounds = sum(core.short_rounds for core in self.cores)
        ended.gradients = sum(learner.gradients for learner in self.learners)
        ended.params = [learner.params().numpy() for learner in self.learners]
        if self.watch.on_model is not None:
            for name, learner in zip(self.assembly.names, self.learners, strict=True):
                self.watch.on_model(name, learner.tensors())
        return ended
