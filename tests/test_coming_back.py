"""A peer that was killed, stopped or late takes part again: real daemons on the loopback, at a gate in the middle.

Every model here waits at the gate after so many steps, until the test opens it; heartbeats go on meanwhile. So
there is time to be lost and to come back in, and no test depends on how fast a machine is.
"""

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Earshot, earshot, free_ports

NAMES = ("a", "b", "c", "d")
STEPS, ROUNDS = 30, 60
"""The gate is after so many steps of a process, of so many rounds."""

MODEL = f"""
import fcntl
from pathlib import Path

import torch


class Gated(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1, bias=False)
        self.steps = 0

    def forward(self, x):
        self.steps += self.training
        if self.steps > {STEPS}:
            with open(Path(__file__).with_name("gate")) as gate:
                fcntl.flock(gate, fcntl.LOCK_SH)
        return super().forward(x)
"""

EXPERIMENT = """
rounds = {rounds}
eval_every = 10
[task]
model = "mine:Gated"
data = "inline"
step = "plain"
dtype = "float64"
lr = {lr}
batch_size = 0
shards = [[[[1.0], 1.0]], [[[1.0], 2.0]], [[[1.0], 3.0]], [[[1.0], 4.0]]]
init = [[0.0], [0.0], [100.0], [0.0]]
[transport]
heartbeat_s = 0.2
suspect_s = {suspect_s}
dead_s = {dead_s}
join_s = {join_s}
[record]
params = "final"
"""

SYNCHRONOUS = ["dpsgd", "push_sum", "gradient_tracking"]


class Lab:
    """Four machines on a ring and the gate. What was started ends with the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        (folder / "mine.py").write_text(MODEL)
        self._gate = stack.enter_context((folder / "gate").open("w"))
        fcntl.flock(self._gate, fcntl.LOCK_EX)

    def write(self, *, lr: float = 0.0, rounds: int = ROUNDS, dead_s: float = 2, join_s: float = 60, more: str = "") -> None:
        text = EXPERIMENT.format(lr=lr, rounds=rounds, suspect_s=dead_s / 2, dead_s=dead_s, join_s=join_s)
        for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True):
            text += f'[[peers]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\n'
        (self.folder / "exp.toml").write_text(text + more)

    def start(self, name: str, *more: str) -> Earshot:
        folder = f"run-{name}"
        if (self.folder / folder).exists():
            folder += "-again"
        arguments = ("start", "exp.toml", "--name", name, "--json", "--out", folder, *more)
        return self._stack.enter_context(earshot(*arguments, cwd=self.folder))

    def start_all(self) -> dict[str, Earshot]:
        return {name: self.start(name) for name in NAMES}

    def open_the_gate(self) -> None:
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    def losses_and_joins(self, name: str, neighbour: str) -> list[str]:
        """Return what a daemon has noted of a neighbour, in order."""
        lines = (self.folder / f"run-{name}" / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [e["event"] for e in events if e["event"] in ("lost", "joined") and e["neighbour"] == neighbour]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


def ends_of(daemons: dict[str, Earshot]) -> dict[str, dict[str, Any]]:
    """Wait for all to end, well and together; return their summaries."""
    ends = {name: daemon.end() for name, daemon in daemons.items()}
    for name, (code, summary) in ends.items():
        assert code == 0, (name, summary, daemons[name].said)
        assert summary["outcome"] == "finished"
        assert summary["rounds"] == ROUNDS
        assert summary["lost"] == [], name
    return {name: summary for name, (_, summary) in ends.items()}


def value(summary: dict[str, Any]) -> float:
    [[x]] = summary["params"]
    return float(x)


def killed_and_started_again(lab: Lab, *more: str) -> dict[str, dict[str, Any]]:
    """Kill c in the middle, start it again when its neighbours have lost it, and let all come to their end."""
    daemons = lab.start_all()
    daemons["c"].read_until("round 20/")
    daemons["c"].process.kill()
    for name in ("b", "d"):
        daemons[name].read_until("c is lost")
    daemons["c"] = lab.start("c", *more)
    for name in ("b", "d"):
        daemons[name].read_until("c is there again")
    lab.open_the_gate()
    return ends_of(daemons)


def test_a_killed_peer_takes_a_model_and_mixes_again(lab: Lab) -> None:
    """Pure gossip of 0, 0, 100, 0: the mean is 25. Who began anew from 100 would draw all of them to another one."""
    lab.write()
    summaries = killed_and_started_again(lab)
    assert all(abs(value(summary) - 25.0) < 1e-9 for summary in summaries.values())
    assert 0 < summaries["c"]["gradients"] <= ROUNDS - STEPS
    assert summaries["a"]["gradients"] == ROUNDS
    assert summaries["b"]["short_rounds"] > 0
    assert summaries["a"]["short_rounds"] == 0
    for name in ("b", "d"):
        assert lab.losses_and_joins(name, "c") == ["joined", "lost", "joined"]
    assert lab.losses_and_joins("a", "b") == ["joined"]
