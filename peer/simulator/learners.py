"""The learners of all peers of the events engine, and what their messages weigh."""

from collections.abc import Callable

import torch

from peer.algorithms.algorithm import bytes_of
from peer.assembly import Assembly, Exchange, exchange_of, learner_of
from peer.learner import Learner, wire_forms
from peer.protocol.messages import Accept, Data, Global, Message, Model, PeerId, Piece, Propose, Push
from peer.simulator.together import vectorised
from peer.task.local import Learned
from peer.task.rows import RowTrainer
from peer.task.task import Task


class Learners:
    """One learner for each peer, with one trainer for all of them. `stop` is asked between local steps."""

    def __init__(self, assembly: Assembly, task: Task, stop: Callable[[], bool]) -> None:
        n, device = len(assembly.names), torch.device("cpu")
        self.each: dict[PeerId, Learner] = {}
        self._assembly = assembly
        self._task = task
        self._stop = stop
        self._trainer, self._shards, self._test = task.trainer(device), task.shards(device), task.test_rows(device)
        self._rows: RowTrainer | None = None
        if assembly.experiment.task.step == "vmap":  # else each by itself, as a daemon does it, to the last bit
            x = torch.stack([task.start(i) for i in range(n)])
            self._rows = vectorised(task, self._trainer, self._shards, "vmap", x)
        self.step = self._trainer.step if self._rows is None else self._rows.step
        self._gradients_of_the_gone = 0
        start = task.start(0)
        self._model_bytes = start.numel() * start.element_size()
        self._data_bytes = [bytes_of(form) for form in wire_forms(assembly.fitted(task.layout), start)]

    def __getitem__(self, me: PeerId) -> Learner:
        return self.each[me]

    @property
    def gradients(self) -> int:
        """How many local steps were learned from, also by those that are gone."""
        return self._gradients_of_the_gone + sum(learner.gradients for learner in self.each.values())

    def begin_anew(self, me: PeerId) -> Exchange:
        """Give a peer a learner that knows nothing yet, and the core that goes with it."""
        core = exchange_of(self._assembly, self._task, me, endless=True)
        if me in self.each:
            self.each[me].drop_unfinished()  # steps of a peer that is gone, and that nobody has heard of
            self._gradients_of_the_gone += self.each[me].gradients
            if self._rows is not None:
                self._rows.begin_anew(me)
        start, shard = self._task.start(me), self._shards[me]
        self.each[me] = learner_of(self._assembly, self._task, me, self._trainer, start, shard, self._test, core)
        return core

    def practise(self, me: PeerId) -> None:
        """Do the local steps that a peer has begun."""
        if self._rows is None:
            self.each[me].practise(self._stop)
        elif self.each[me].begun is not None:
            self._practise_together(self._rows)

    def drop_unfinished(self) -> None:
        for learner in self.each.values():
            learner.drop_unfinished()

    def payload_bytes(self, message: Message) -> int:
        """Return how many bytes of numbers a message carries."""
        match message:
            case Data(_, exchange):
                return self._data_bytes[exchange]
            case Propose() | Accept():
                return self._data_bytes[0]
            case Model():
                return self._model_bytes
            case Push(_, _, payload) | Global(_, payload) | Piece(_, _, _, _, payload):
                return bytes_of(payload)
        return 0

    def _practise_together(self, rows: RowTrainer) -> None:
        """Do all local steps that have begun: nothing that happens until they end can change what they find."""
        begun = [(me, learner.begun) for me, learner in self.each.items()]
        these = [(me, *where) for me, where in begun if where is not None]
        peers, rounds, x = zip(*these, strict=True)
        shards = [shard for shard in self._shards if shard is not None]
        by_lr = [self.each[me].lr_round for me in peers]
        lr_rounds = [round if at is None else at for round, at in zip(rounds, by_lr, strict=True)]
        deltas = rows.train_some(torch.stack(x), shards, peers, rounds, self._stop, lr_rounds)
        s = rows.schedule
        for me, round, delta in zip(peers, lr_rounds, deltas, strict=True):
            self.each[me].practised(Learned(delta, s.lr_at(round), s.local_steps))
