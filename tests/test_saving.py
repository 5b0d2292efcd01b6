"""A coordinator saves a version before it goes on: what happens meanwhile waits, and is not lost."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peer import load, simulate
from peer.assembly import assemble, prepare_task
from peer.daemon.jobs import Done
from peer.daemon.node import Node
from peer.errors import TrainingError
from peer.protocol.by_rounds import ByRounds
from peer.protocol.coordinator import Present
from peer.protocol.membership import Membership, Patience
from peer.protocol.messages import (
    Applied,
    Bye,
    Command,
    Global,
    Greeted,
    Message,
    PeerId,
    PeerLost,
    Pull,
    Push,
    Received,
)
from tests.coordinator_room import lines
from tests.forked import forked


class Sent:
    """Links that only remember what they were to send."""

    def __init__(self) -> None:
        self.messages: list[tuple[PeerId, Message]] = []
        self.traffic = SimpleNamespace(payload_bytes=0, wire_bytes=0)

    def send(self, to: PeerId, message: Message) -> None:
        self.messages.append((to, message))

    def turn_away(self, peer: PeerId, reason: str) -> None:
        pass


class Saving:
    """Jobs and workers of a coordinator that are done when the test says so."""

    judges, gradients, step = False, 0, "plain"

    def __getattr__(self, name: str) -> Any:
        return lambda *_: True


class Silent:
    """A reporter that nobody listens to."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_fields: False


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """A coordinator of workers 0 and 1 that has been given both pushes of version 0."""
    monkeypatch.setattr("peer.daemon.node.CentreJobs", Saving)
    monkeypatch.setattr("peer.daemon.node.Workers", lambda *_args, **_settings: Saving())
    core, jobs = ByRounds(2, [0, 1], 10, Present(b"w0")), Saving()
    made = Node(core, Membership([0, 1], Patience()), Sent(), jobs, Silent())  # type: ignore[arg-type]
    for peer in (0, 1):
        made._take(Greeted(peer, 1), 0.0)
        made._take(Received(peer, Pull(None)), 0.0)
    for peer in (0, 1):
        made._take(Received(peer, Push(1, 0, b"u")), 1.0)
    return made


def sent(node: Node) -> list[tuple[PeerId, Message]]:
    messages: list[tuple[PeerId, Message]] = node.links.messages  # type: ignore[attr-defined]
    found, messages[:] = list(messages), []
    return found


def test_nothing_of_a_version_is_given_before_it_is_saved(node: Node) -> None:
    sent(node)
    node._tell(Applied(b"w1"), 2.0)
    assert sent(node) == []
    node._take_result(Done(is_saved=True), 3.0)
    assert sent(node) == [(0, Global(1, b"w1", 1)), (1, Global(1, b"w1", 1))]


def test_a_worker_that_comes_back_while_a_version_is_saved_is_given_it(node: Node) -> None:
    node._take(PeerLost(1, "its process ended"), 2.0)
    node._tell(Applied(b"w1"), 2.0)
    sent(node)
    node._take(Greeted(1, 2), 2.1)
    node._take(Received(1, Pull(None)), 2.2)
    node._take_result(Done(is_saved=True), 3.0)
    assert (1, Global(1, b"w1", 1)) in sent(node)
    assert node.core.alive == {0, 1}


def test_a_stop_waits_for_the_version_that_is_saved(node: Node) -> None:
    node._tell(Applied(b"w1"), 2.0)
    sent(node)
    node._tell(Command("stop"), 2.5)
    assert sent(node) == []
    node._take_result(Done(is_saved=True), 3.0)
    assert sent(node)[-2:] == [(0, Bye(1)), (1, Bye(1))]


def test_a_version_that_cannot_be_saved_is_given_to_nobody(node: Node) -> None:
    node._tell(Applied(b"w1"), 2.0)
    sent(node)
    node._take_result(TrainingError("no space left"), 3.0)
    assert sent(node) == [(0, Bye(1)), (1, Bye(1))]


def test_a_diverged_coordinator_sends_its_workers_home_without_saving(node: Node) -> None:
    node.reporter.diverged = lambda _: False  # type: ignore[method-assign]
    sent(node)
    node._take_result(Done(Applied(b"w1"), diverged_round=1), 2.0)
    assert [message for _, message in sent(node) if isinstance(message, Bye)] == [Bye(1), Bye(1)]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_what_is_saved_of_a_version_in_the_simulator_is_that_version(every: int, tmp_path: Path) -> None:
    """Pushes wait while one is applied; the coordinator falls, and what it made again is what it had made."""
    (tmp_path / "exp.toml").write_text("")
    shards = [[[[1.0], 3.0]], [[[2.0], 5.0]], [[[3.0], 7.0]]]
    task = {"model": "linear", "data": "inline", "shards": shards, "init": [1.5], "batch_size": 0, "lr": 0.02}
    tables: dict[str, Any] = {f"task.{key}": value for key, value in task.items()} | {
        "task.dtype": "float64",
        "coordinator.mode": "async",
        "coordinator.arrival": "round_robin",
        "speed.factors": [3, 1, 1],
        "checkpoint.every_rounds": every,
        "record.params": "every",
        "rounds": 12,
        "eval_every": 1,
    }
    fall = [{"at_s": 6.5, "kill": "coordinator", "for_s": 1.0}]
    calm, fallen = (
        simulate(load(tmp_path / "exp.toml", tables | faults), engine="events")
        for faults in ({}, {"faults.schedule": fall})
    )
    assert fallen.outcome == "finished"
    if every == 1:
        assert [e.coordinator for e in fallen.history] == [e.coordinator for e in calm.history]


def test_a_fall_behind_an_evaluation_holds_nobody_up(tmp_path: Path) -> None:
    """Under stop_when each evaluation is a barrier; versions that are made again have been evaluated before."""
    text = '[task]\nmodel = "softmax"\n[topology]\npeers = 2\n[coordinator]\nmode = "sync"\n'
    (tmp_path / "exp.toml").write_text(text)
    keys = ("rounds=40", "eval_every=5", 'stop_when="accuracy.mean >= 0.999"', "checkpoint.every_rounds=10")
    sets = [part for key in keys for part in ("--set", key)]
    with forked("up", "exp.toml", "--json", "--out", "run", *sets, cwd=tmp_path) as up:
        up.read_until("round 15/")
        os.kill(max(up.children()), signal.SIGKILL)
        code, summary = up.end()
    assert (code, summary["outcome"], summary["rounds"]) == (0, "finished", 40)
    assert "restarted" in {row["event"] for row in lines(tmp_path / "run" / "events.jsonl")}


def test_a_task_in_another_thread_has_a_model_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text('[task]\nmodel = "softmax"\n[topology]\npeers = 2\n')
    task = prepare_task(assemble(load(tmp_path / "exp.toml")))
    apart = task.apart()
    assert task.built is not None
    assert apart.built is not None
    assert apart.built.module is not task.built.module
    assert all(
        torch.equal(a, b) and a is not b
        for a, b in zip(apart.built.module.parameters(), task.built.module.parameters(), strict=True)
    )
