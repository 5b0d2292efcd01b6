"""A run of peers that waited for nobody, done again from what each noted of it: the same parameters, bit for bit.

Each peer's notes are in the order in which its own parameters changed; `peer.daemon.journal` says what stands in them.
Between two peers the only order is that something must have been said before it is mixed. So each peer is taken as far
as what it needs has been said, then the next one, until all are at their end.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.assembly import Assembly, exchange_of, learner_of
from peer.errors import ConfigError
from peer.history import Figures, peer_score
from peer.learner import Learner, Said, wire_forms
from peer.protocol.messages import Shares
from peer.record import Ended
from peer.simulator.left import KEY, Note, events_of, left_by, not_an_event
from peer.simulator.watching import Watch
from peer.task.task import Task

Label = tuple[str, str, str, int, int]
"""Who said it, to whom, what it was, its number, and the life of the two in which it was said."""


class Replay:
    """The peers of a run, and what each has still to do again."""

    def __init__(self, assembly: Assembly, task: Task, run: Path) -> None:
        device = torch.device("cpu")
        trainer, shards, test = task.trainer(device), task.shards(device), task.test_rows(device)
        self._names = assembly.names
        self._learns_apart = assembly.experiment.algorithm.name == "adpsgd"
        self._notes = notes_of(run, assembly.names)
        self._wanted = Counter(label for me, notes in self._notes.items() for n in notes for label in labels(me, n))
        self._said: dict[Label, Message] = {}
        self._trained: dict[str, tuple[int, Message]] = {}  # each one's last round, and what there was to say of it
        self.step = trainer.step
        self.payload_bytes_sent = 0
        start = task.start(0)
        form = wire_forms(assembly.fitted(task.layout), start)[0]
        self._bytes = {"data": _size(form.values()), "model": _size([start])}
        self.learners: dict[str, Learner] = {}
        for i, name in enumerate(assembly.names):
            core = exchange_of(assembly, task, i, endless=True)
            self.learners[name] = learner_of(assembly, task, i, trainer, task.start(i), shards[i], test, core)

    def run(self, stop: Callable[[], bool]) -> None:
        """Do everything again. Raises ConfigError where something that was mixed was never said."""
        moved = True
        while moved:
            moved = False
            for me, notes in self._notes.items():
                while notes and self._is_ready(me, notes[0]) and not stop():
                    self._do(me, notes.popleft())
                    moved = True
        if not stop():
            self._check_end()
        for learner in self.learners.values():
            learner.drop_unfinished()

    def _is_ready(self, me: str, note: Note) -> bool:
        return all(label in self._said for label in labels(me, note))

    def _do(self, me: str, note: Note) -> None:
        learner = self.learners[me]
        match note["did"]:
            case "train" if self._learns_apart:
                learner.begin(note["round"])
            case "train":
                self._trained[me] = note["round"], _whole(learner.train(note["round"]))
            case "learn":
                if learner.begun is None:
                    raise ConfigError(KEY, f"{me} learned what it has no note of training, in round {note['round']}")
                learner.practise()
                learner.learn()
                learner.settle()
            case "say":
                self.payload_bytes_sent += self._bytes["model" if note["what"] == "model" else "data"]
                label = _said_by(me, note)
                if label is not None and self._wanted[label]:
                    self._said[label] = self._what_is_said(me, note)
            case "mix":
                learner.mix(0, [self._term(me, term) for term in note["terms"]])
            case "adopt":
                of = note["of"]
                if learner.begun is not None:  # void, but the momentum has them
                    learner.practise()
                learner.adopt(None if of is None else self._take((of[0], me, *of[1:])))

    def _what_is_said(self, me: str, note: Note) -> Message:
        if note["what"] == "model":
            return self.learners[me].copy()
        if note["what"] == "data":  # it may have waited for the listener: since then the state was mixed
            round, message = self._trained.get(me, (None, {}))
            if round != note["number"]:  # a newer message takes the place of one that waits
                raise ConfigError(KEY, f"{me} said data {note['number']}, and its notes last had it train {round}")
            return message
        return _whole(self.learners[me].say())

    def _term(self, me: str, term: list[Any]) -> Said:
        weight, sender, *label = term
        own = sender == me
        message = _whole(self.learners[me].say()) if own else self._take((sender, me, *label))
        return Said(weight, self._names.index(sender), message)

    def _take(self, label: Label) -> Message:
        message = self._said[label]
        self._wanted[label] -= 1
        if not self._wanted[label]:
            del self._said[label]
        return message

    def _check_end(self) -> None:
        for me, notes in self._notes.items():
            if notes:
                note = notes[0]
                raise ConfigError(KEY, f"{me} cannot {note['did']} again in the order of the notes: {note}")


def replay(
    assembly: Assembly, task: Task, run: Path, watch: Watch, stop: Callable[[], bool]
) -> tuple[Ended, list[str]]:
    """Do a run of daemons again; returns what comes of it, and the peers that could be compared with their daemons.

    A run whose parameters differ has failed. Raises ConfigError.
    """
    again = Replay(assembly, task, run)
    n, left = len(assembly.names), left_by(run)
    ended = Ended("events", again.step, n)
    watch.history.gossiped = assembly.shared_columns(task.layout)
    _judge(watch, again, 0, 0, set())
    again.run(stop)
    if stop():
        ended.outcome = "interrupted"
    ended.lost = [name for name in assembly.names if name in left.lost]
    ended.gradients = sum(learner.gradients for learner in again.learners.values())
    ended.rounds = ended.gradients // (n * assembly.experiment.task.local_steps)
    ended.payload_bytes_sent = again.payload_bytes_sent
    if ended.rounds and len(ended.lost) < n:
        _judge(watch, again, ended.rounds, ended.payload_bytes_sent, left.lost)
    ended.history = watch.history.entries
    ended.params = [None if name in left.lost else x.params().numpy() for name, x in again.learners.items()]
    found = {name: x.tensors() for name, x in again.learners.items() if name not in left.lost}
    if watch.on_model is not None:
        for name, tensors in found.items():
            watch.on_model(name, tensors)
    return ended, left.compare(found, ended, run)


def notes_of(run: Path, names: tuple[str, ...]) -> dict[str, deque[Note]]:
    """Read each peer's notes from a run folder. Raises ConfigError where there are none, or not those of this run."""
    notes: dict[str, deque[Note]] = defaultdict(deque)
    for where, note in events_of(run):
        if note["event"] == "did":
            _add(notes, note, names, where)
    if not notes:
        raise ConfigError(
            KEY,
            f"{run / 'events.jsonl'} has no mixes: only daemons that wait for nobody note them. A synchronous run "
            "needs none; simulate --engine events comes to the same parameters",
        )
    found = {name: notes[name] for name in names}
    _check_all_was_said(found)
    return found


def _check_all_was_said(notes: dict[str, deque[Note]]) -> None:
    said = {label for me, own in notes.items() for note in own if (label := _said_by(me, note)) is not None}
    for me, own in notes.items():
        for note in own:
            for label in labels(me, note):
                if label not in said:
                    sender, _, what, number, _ = label
                    did = "mixed" if note["did"] == "mix" else "took over"
                    raise ConfigError(KEY, f"{me} {did} {what} {number} of {sender}, who has no note of saying it")


def _said_by(me: str, note: Note) -> Label | None:
    return (me, note["to"], note["what"], note["number"], note["life"]) if note["did"] == "say" else None


def _add(notes: dict[str, deque[Note]], note: Note, names: tuple[str, ...], where: str) -> None:
    if "peer" not in note:
        raise not_an_event(where)
    if note["peer"] not in names:
        raise ConfigError(KEY, f"{where}: {note['peer']} is not a peer of this experiment")
    notes[note["peer"]].append(note)


def labels(me: str, note: Note) -> list[Label]:
    """Return what a peer must have been told for what it did."""
    match note["did"]:
        case "mix":
            return [(sender, me, *label) for _, sender, *label in note["terms"] if sender != me]
        case "adopt" if note["of"] is not None:
            sender, *label = note["of"]
            return [(sender, me, *label)]
    return []


def _judge(watch: Watch, again: Replay, round: int, payload_bytes_sent: int, lost: AbstractSet[str]) -> None:
    figures = {
        i: Figures(peer_score(learner.evaluate(round)), learner.params().numpy().copy())
        for i, (name, learner) in enumerate(again.learners.items())
        if name not in lost
    }
    watch.evaluated(round, figures, {"payload_bytes_sent": payload_bytes_sent})


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _whole(message: Message | Shares) -> Message:
    assert not isinstance(message, Shares), "peers that wait for nobody say the same to all"
    return message
