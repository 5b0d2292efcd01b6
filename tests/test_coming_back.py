"""A peer that was killed, stopped or late takes part again: real daemons on the loopback, at a gate in the middle.

Every model here waits at the gate after so many steps, until the test opens it; heartbeats go on meanwhile. So
there is time to be lost and to come back in, and no test depends on how fast a machine is.
"""

import fcntl
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Forked, forked
from tests.processes import free_ports

NAMES = ("a", "b", "c", "d")
STEPS, ROUNDS = 30, 60
"""The gate is after so many steps of a process, of so many rounds."""

MODEL = """
import fcntl
from pathlib import Path

import torch


class Gated(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1, bias=False)
        self.left = int(Path(__file__).with_name("steps").read_text())

    def forward(self, x):
        self.left -= self.training
        if self.left < 0:
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


class Lab:
    """Four machines on a ring and the gate. What was started ends with the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        (folder / "mine.py").write_text(MODEL)
        self._gate = stack.enter_context((folder / "gate").open("w"))
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        self.let_pass(STEPS)

    def let_pass(self, steps: int) -> None:
        """Put the gate after so many steps of each process that is started from now on."""
        (self.folder / "steps").write_text(str(steps))

    def write(
        self, *, rounds: int = ROUNDS, lr: float = 0.0, dead_s: float = 2, join_s: float = 60, more: str = ""
    ) -> None:
        text = EXPERIMENT.format(rounds=rounds, lr=lr, suspect_s=dead_s / 2, dead_s=dead_s, join_s=join_s)
        for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True):
            text += f'[[peers]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\n'
        (self.folder / "exp.toml").write_text(text + more)

    def start(self, name: str, *more: str) -> Forked:
        folder = f"run-{name}"
        if (self.folder / folder).exists():
            folder += "-again"
        arguments = ("start", "exp.toml", "--name", name, "--json", "--out", folder, *more)
        return self._stack.enter_context(forked(*arguments, cwd=self.folder))

    def start_all(self) -> dict[str, Forked]:
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


def ends_of(daemons: dict[str, Forked], rounds: int = ROUNDS) -> dict[str, dict[str, Any]]:
    """Wait for all to end, well and together; return their summaries."""
    ends = {name: daemon.end() for name, daemon in daemons.items()}
    for name, (code, summary) in ends.items():
        assert code == 0, (name, summary, daemons[name].said)
        assert summary["outcome"] == "finished"
        assert summary["rounds"] == rounds
        assert summary["lost"] == [], name
    return {name: summary for name, (_, summary) in ends.items()}


def value(summary: dict[str, Any]) -> float:
    [[x]] = summary["params"]
    return float(x)


def killed_and_started_again(lab: Lab, *more: str) -> dict[str, dict[str, Any]]:
    """Kill c in the middle, start it again when its neighbours have lost it, and let all come to their end."""
    daemons = lab.start_all()
    daemons["c"].read_until("round 20/")
    daemons["c"].signal(signal.SIGKILL)
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
    assert all(abs(value(summary) - 25.0) < 1e-3 for summary in summaries.values())
    assert 0 < summaries["c"]["gradients"] <= ROUNDS - STEPS
    assert summaries["a"]["gradients"] == ROUNDS
    assert summaries["b"]["short_rounds"] > 0
    assert summaries["a"]["short_rounds"] == 0
    for name in ("b", "d"):
        assert lab.losses_and_joins(name, "c") == ["joined", "lost", "joined"]
    assert lab.losses_and_joins("a", "b") == ["joined"]


def test_a_peer_that_is_back_before_anybody_missed_it(lab: Lab) -> None:
    """Nobody dials d but d its neighbours, so they see no broken connection, only another process of that name."""
    lab.write(dead_s=600)
    daemons = lab.start_all()
    daemons["d"].read_until("round 20/")
    daemons["d"].signal(signal.SIGKILL)
    daemons["d"] = lab.start("d")
    for name in ("a", "c"):
        assert "started anew" in daemons[name].read_until("d is lost")
        daemons[name].read_until("d is there again")
    lab.open_the_gate()
    summaries = ends_of(daemons)
    assert all(abs(value(summary) - 25.0) < 1e-3 for summary in summaries.values())
    assert summaries["d"]["gradients"] <= ROUNDS - STEPS
    for name in ("a", "c"):
        assert lab.losses_and_joins(name, "d") == ["joined", "lost", "joined"]


def test_a_newcomer_is_told_the_round_and_takes_a_model(lab: Lab) -> None:
    lab.write(join_s=5)
    daemons = {name: lab.start(name) for name in ("a", "b", "d")}
    for name in ("b", "d"):
        assert "never heard within 5 s" in daemons[name].read_until("c is lost")
    daemons["a"].read_until(f"round {STEPS}/")  # the three have 0, 0, 0: they are at the gate
    daemons["c"] = lab.start("c")
    for name in ("b", "d"):
        daemons[name].read_until("c is there again")
    lab.open_the_gate()
    summaries = ends_of(daemons)
    assert all(value(summary) == 0.0 for summary in summaries.values()), "what the newcomer began with counts nowhere"
    assert 0 < summaries["c"]["gradients"] <= ROUNDS - STEPS
    assert lab.losses_and_joins("b", "c") == ["lost", "joined"]


def test_a_peer_that_was_stopped_for_long_goes_on(lab: Lab) -> None:
    lab.write()
    daemons = lab.start_all()
    daemons["c"].read_until("round 20/")
    daemons["c"].signal(signal.SIGSTOP)
    for name in ("b", "d"):
        assert "silent" in daemons[name].read_until("c is lost")
    daemons["c"].signal(signal.SIGCONT)
    for name in ("b", "d"):
        daemons[name].read_until("c is there again")
    lab.open_the_gate()
    summaries = ends_of(daemons)
    values = [value(summary) for summary in summaries.values()]
    assert max(values) - min(values) < 1e-3
    assert abs(values[0] - 25.0) < 1.0


@pytest.mark.parametrize("name", ["push_sum", "gradient_tracking"])
def test_algorithms_that_conserve_a_sum_outlive_a_restart(lab: Lab, name: str) -> None:
    """Each pulls to a target of its own, 1 to 4; with a decreasing step all would end near one point among them."""
    lab.write(lr=0.05, more=f'[algorithm]\nname = "{name}"\n')
    summaries = killed_and_started_again(lab)
    values = [value(summary) for summary in summaries.values()]
    assert all(isfinite(x) for x in values)
    assert max(values) - min(values) < 1.0
    assert all(-10.0 < x < 100.0 for x in values)
    assert summaries["c"]["gradients"] <= ROUNDS - STEPS


def test_another_experiment_is_refused_in_place_of_the_killed_one(lab: Lab) -> None:
    lab.write(join_s=3)
    daemons = lab.start_all()
    daemons["c"].read_until("round 20/")
    daemons["c"].signal(signal.SIGKILL)
    for name in ("b", "d"):
        daemons[name].read_until("c is lost")
    stranger = lab.start("c", "--set", "task.lr=0.5")
    code, summary = stranger.end()
    assert (code, summary["outcome"]) == (3, "alone")
    assert "task.lr" in summary["why"]
    lab.open_the_gate()
    for name in ("a", "b", "d"):
        code, summary = daemons[name].end()
        assert (code, summary["rounds"]) == (0, ROUNDS)
        assert summary["lost"] == ([] if name == "a" else ["c"])
        assert "is there again" not in "\n".join(daemons[name].said)


# ---- Peers that wait for nobody


INDEPENDENT = {"async": 'mode = "async"', "adpsgd": 'name = "adpsgd"'}
LOCAL_STEPS, LOCAL_ROUNDS = 300, 900
"""The gate, where one is counted by rounds of its own: far enough from both ends for what happens meanwhile."""


@pytest.mark.parametrize("which", INDEPENDENT)
def test_a_killed_peer_that_waits_for_nobody_goes_on_in_the_round_of_a_neighbour(lab: Lab, which: str) -> None:
    lab.let_pass(LOCAL_STEPS)
    lab.write(rounds=LOCAL_ROUNDS, more=f"[algorithm]\n{INDEPENDENT[which]}\n")
    daemons = lab.start_all()
    for daemon in daemons.values():
        daemon.read_until(f"round {LOCAL_STEPS - 10}/")
    daemons["c"].signal(signal.SIGKILL)
    for name in ("b", "d"):
        daemons[name].read_until("c is lost")
    lab.let_pass(0)
    daemons["c"] = lab.start("c")
    for name in ("b", "d"):
        daemons[name].read_until("c is there again")
    lab.open_the_gate()
    summaries = ends_of(daemons, LOCAL_ROUNDS)
    assert 0 < summaries["c"]["gradients"] < LOCAL_ROUNDS
    assert summaries["a"]["gradients"] == LOCAL_ROUNDS
    values = [value(summary) for summary in summaries.values()]
    assert max(values) - min(values) < 1e-3
    assert values[0] < 90.0, "who began anew from 100 took what a neighbour had"
    for name in ("b", "d"):
        assert lab.losses_and_joins(name, "c") == ["joined", "lost", "joined"]
