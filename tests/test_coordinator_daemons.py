"""Coordinators and workers as real daemons: killed, started again, never there, late, or not finite."""

import json
import os
import signal
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.coordinator_room import EXACT, Lab, among, lines, uninterrupted, write
from tests.forked import Forked, forked
from tests.processes import exists


def coordinator_of(up: Forked) -> int:
    """Return the process id of the coordinator, which `up` starts last."""
    return max(up.children())


def check_versions_never_go_back(run: Path) -> None:
    """Nobody was judged after a version, and then after an earlier one."""
    seen: dict[str, int] = {}
    for row in lines(run / "metrics.jsonl"):
        assert row["round"] >= seen.get(row["peer"], 0)
        seen[row["peer"]] = row["round"]


# ---- A coordinator that is killed


@pytest.mark.parametrize("which", ["sync", "models", "fraction", "two servers", "quorum", "round robin", "easgd"])
def test_a_coordinator_that_is_killed_under_up_goes_on_from_what_it_saved(tmp_path: Path, which: str) -> None:
    exp = write(tmp_path, which)
    with forked("up", exp, "--json", "--out", "run", cwd=tmp_path) as up:
        up.read_until("round 10/")
        worker = min(up.children())
        os.kill(worker, signal.SIGSTOP)  # so a round is open
        os.kill(coordinator_of(up), signal.SIGKILL)
        up.read_until("is started again")
        os.kill(worker, signal.SIGCONT)
        children = up.children()
        code, summary = up.end()
    assert (code, summary["outcome"], summary["rounds"]) == (0, "finished", 60)
    assert summary["lost"] == []
    assert [entry["round"] for entry in summary["history"]] == list(range(0, 61, 10))
    check_versions_never_go_back(tmp_path / "run")
    assert "restarted" in {row["event"] for row in lines(tmp_path / "run" / "events.jsonl")}
    assert not any(exists(pid) for pid in children)
    if which in EXACT:
        clean = uninterrupted(tmp_path)
        assert summary["params"] == clean["params"]
        assert summary["coordinator"] == clean["coordinator"]
        assert [entry["loss"] for entry in summary["history"]] == [entry["loss"] for entry in clean["history"]]


@pytest.mark.parametrize("which", ["sync", "easgd"])
def test_a_coordinator_that_is_killed_under_start_is_resumed(tmp_path: Path, which: str) -> None:
    among(tmp_path, which)
    with ExitStack() as stack:
        lab = Lab(stack, tmp_path)
        lab.start("coordinator", more=("--out", "run"))
        lab.workers()
        lab.daemons["peer-1" if which == "easgd" else "coordinator"].read_until("round 10/")
        lab.daemons["peer-2"].signal(signal.SIGSTOP)  # so a round is open
        lab.daemons["coordinator"].signal(signal.SIGKILL)
        lab.daemons["coordinator"].end_as_text()
        lab.daemons["peer-2"].signal(signal.SIGCONT)
        lab.start("coordinator", more=("--resume", "run"))
        ends = lab.ends()
    clean = uninterrupted(tmp_path)
    assert [(code, summary["outcome"], summary["rounds"]) for code, summary in ends] == [(0, "finished", 60)] * 5
    coordinator, *workers = [summary for _, summary in ends]
    assert coordinator["coordinator"] == clean["coordinator"]
    assert [worker["params"][0] for worker in workers] == clean["params"]
    check_versions_never_go_back(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == coordinator
    if which != "easgd":
        assert lines(tmp_path / "run" / "metrics.jsonl")[-1]["round"] == 60


def test_the_run_of_another_experiment_is_not_resumed(tmp_path: Path) -> None:
    among(tmp_path, rounds=5)
    with ExitStack() as stack:
        lab = Lab(stack, tmp_path)
        lab.start("coordinator", more=("--out", "run"))
        lab.workers()
        assert [code for code, _ in lab.ends()] == [0] * 5
    again = ("start", "exp.toml", "--name", "coordinator", "--json", "--resume", "run")
    with forked(*again, "--set", "task.lr=0.02", cwd=tmp_path) as other:
        code, document = other.end()
    assert code == 2
    assert "another" in document["error"]
    with forked("start", "exp.toml", "--name", "peer-1", "--json", "--resume", "run", cwd=tmp_path) as worker:
        code, document = worker.end()
    assert code == 2
    assert "--resume" in document["error"]


# ---- Who is never there, or never comes back


def test_a_worker_that_never_finds_its_coordinator_is_alone(tmp_path: Path) -> None:
    among(tmp_path, transport="join_s = 1.5")
    with ExitStack() as stack:
        lab = Lab(stack, tmp_path)
        lab.start("peer-0")
        line = lab.daemons["peer-0"].read_until("waits for")
        ((code, summary),) = lab.ends()
    assert "coordinator since" in line
    assert "until" in line
    assert (code, summary["outcome"]) == (3, "alone")
    assert "peer-0 never heard coordinator within 1.5 s" in summary["why"]


def test_a_coordinator_that_no_worker_comes_to_ends_alone(tmp_path: Path) -> None:
    among(tmp_path, transport="join_s = 1.5")
    with ExitStack() as stack:
        lab = Lab(stack, tmp_path)
        lab.start("coordinator")
        ((code, summary),) = lab.ends()
    assert code == 3
    assert summary["outcome"] == "alone"


def test_workers_give_up_a_coordinator_that_does_not_come_back(tmp_path: Path) -> None:
    among(tmp_path, rounds=1_000_000, eval_every=20, transport="join_s = 3.0")
    with ExitStack() as stack:
        lab = Lab(stack, tmp_path)
        lab.start("coordinator")
        lab.workers()
        lab.daemons["coordinator"].read_until("round 20/")
        lab.daemons["coordinator"].signal(signal.SIGKILL)
        lab.daemons["coordinator"].end_as_text()
        line = lab.daemons["peer-0"].read_until("coordinator is lost")
        ends = lab.ends("peer-0", "peer-1", "peer-2", "peer-3")
    assert "waits for it to come back" in line
    for code, summary in ends:
        assert (code, summary["outcome"]) == (3, "failed")
        assert summary["lost"] == ["coordinator"]
        assert "did not come back within 3 s" in summary["why"]


def test_workers_under_up_give_up_a_coordinator_that_cannot_be_started_again(tmp_path: Path) -> None:
    """Without a folder nothing was saved: it would begin from nothing."""
    exp = write(tmp_path, rounds=1_000_000, transport="join_s = 2.0")
    with forked("up", exp, "--json", "--no-folder", cwd=tmp_path) as up:
        up.read_until("round 50/")
        os.kill(coordinator_of(up), signal.SIGKILL)
        code, summary = up.end()
    assert (code, summary["outcome"]) == (3, "failed")
    assert summary["lost"] == ["coordinator"]
    assert "did not come back within 2 s" in summary["why"]


def test_a_killed_worker_is_missed_for_no_longer_than_it_takes_to_notice(tmp_path: Path) -> None:
    exp = write(tmp_path)
    with forked("up", exp, "--json", "--out", "run", cwd=tmp_path) as up:
        up.read_until("round 10/")
        os.kill(min(up.children()), signal.SIGKILL)
        code, summary = up.end()
    assert (code, summary["outcome"], summary["rounds"]) == (0, "finished", 60)
    assert summary["lost"] == ["peer-0"]
    assert summary["params"][0] is None
    assert summary["short_rounds"] > 0
    assert summary["peers"] == 4


def test_a_worker_that_is_started_again_carries_on(tmp_path: Path) -> None:
    among(tmp_path, rounds=150)
    with ExitStack() as stack:
        lab = Lab(stack, tmp_path)
        lab.start("coordinator", more=("--out", "run"))
        lab.workers()
        lab.daemons["coordinator"].read_until("round 10/")
        lab.daemons["peer-3"].signal(signal.SIGKILL)
        lab.daemons["peer-3"].end_as_text()
        lab.start("peer-3")
        ends = dict(zip(lab.daemons, lab.ends(), strict=True))
    for code, summary in ends.values():
        assert (code, summary["outcome"], summary["rounds"], summary["lost"]) == (0, "finished", 150, [])
    model = ends["coordinator"][1]["coordinator"]
    assert all(ends[f"peer-{i}"][1]["params"] == [model] for i in range(4))
    assert 0 < ends["peer-3"][1]["gradients"] < 150


def test_where_all_workers_are_killed_the_coordinator_has_failed(tmp_path: Path) -> None:
    among(tmp_path, rounds=1_000_000)
    with ExitStack() as stack:
        lab = Lab(stack, tmp_path)
        lab.start("coordinator")
        lab.workers()
        lab.daemons["coordinator"].read_until("round 10/")
        for i in range(4):
            lab.daemons[f"peer-{i}"].signal(signal.SIGKILL)
        ((code, summary),) = lab.ends("coordinator")
    assert (code, summary["outcome"]) == (3, "failed")
    assert "no worker is left" in summary["why"]
    assert summary["lost"] == [f"peer-{i}" for i in range(4)]


# ---- Workers that do not do as they should

MINE = """
import sys
import time
from multiprocessing import current_process
from pathlib import Path

import torch


class Net(torch.nn.Module):
    '''The linear model; training with it is another matter at peer-3.'''

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.steps = 0

    def forward(self, x):
        y = x.flatten(1) @ self.weight
        if self.training and current_process().name == "peer-3":
            self.steps += 1
            {at_peer_3}
        return y
"""
NOT_FINITE = "y = y * float('nan')"
STRAGGLES = """
            while self.steps == 1 and not Path("go").exists():
                time.sleep(0.01)
            if self.steps > 1:
                print("again", file=sys.stderr, flush=True)
"""


def with_own_model(folder: Path, at_peer_3: str, which: str, **keys: Any) -> str:
    (folder / "mine.py").write_text(MINE.format(at_peer_3=at_peer_3.strip()))
    exp = write(folder, which, **keys)
    text = (folder / exp).read_text().replace('model = "linear"', 'model = "mine:Net"')
    (folder / exp).write_text(text)
    return exp


def test_what_a_worker_pushes_that_is_not_finite_is_left_out_and_its_name_said(tmp_path: Path) -> None:
    exp = with_own_model(tmp_path, NOT_FINITE, "sync", rounds=5)
    others = ("--set", "task.batch_size=0", "--set", 'coordinator.weighting="equal"')
    with forked("up", exp, "--json", "--out", "run", *others, cwd=tmp_path) as up:
        code, summary = up.end()
    assert (code, summary["outcome"], summary["rounds"], summary["lost"]) == (0, "finished", 5, [])
    said = [row for row in lines(tmp_path / "run" / "events.jsonl") if row["event"] == "alert"]
    assert [row["peer"] for row in said] == ["coordinator"]  # once is enough
    assert all("peer-3 pushed numbers that are not finite" in row["text"] for row in said)
    w = np.array([1.5, -0.5, 0.25])
    shards = tomllib.loads((tmp_path / exp).read_text())["task"]["shards"][:3]
    for _ in range(5):
        w = w - 0.01 * np.mean([gradient(shard, w) for shard in shards], axis=0)
    assert summary["coordinator"] == pytest.approx(w.tolist(), rel=1e-9)
    assert summary["params"] == [summary["coordinator"]] * 4


def gradient(shard: list[Any], w: "np.ndarray") -> "np.ndarray":
    """Return the gradient of the mean loss of a shard, a list of [features, target], at w, (3,)."""
    x, y = np.array([features for features, _ in shard]), np.array([target for _, target in shard])
    return x.T @ (x @ w - y) / len(y)  # type: ignore[no-any-return]


@pytest.mark.parametrize("late", ["drop", "stale"])
def test_a_quorum_does_not_wait_for_a_straggler(tmp_path: Path, late: str) -> None:
    exp = with_own_model(tmp_path, STRAGGLES, "quorum", rounds=1_000_000)
    late_too = ("--set", f'coordinator.late="{late}"')
    with forked("up", exp, "--json", "--out", "run", *late_too, cwd=tmp_path) as up:
        up.read_until("round 10/")
        (tmp_path / "go").touch()  # its push of the first version comes now
        up.read_until("again")  # it has been given another one
        up.signal(signal.SIGINT)
        code, summary = up.end()
    assert (code, summary["outcome"], summary["lost"]) == (130, "interrupted", [])
    updates = [row for row in lines(tmp_path / "run" / "events.jsonl") if row["event"] == "update"]
    before = [row["peer"] for row in updates if row["version"] <= 10]
    assert sorted(before) == sorted(["peer-0", "peer-1", "peer-2"] * 10)
    of_the_first = [row for row in updates if row["peer"] == "peer-3" and row["version"] == row["staleness"] + 1]
    assert len(of_the_first) == (late == "stale")
    assert summary["short_rounds"] >= 10


def test_where_all_workers_are_killed_under_up_the_run_has_failed(tmp_path: Path) -> None:
    exp = write(tmp_path, rounds=1_000_000)
    with forked("up", exp, "--json", "--no-folder", cwd=tmp_path) as up:
        up.read_until("round 10/")
        *workers, coordinator = sorted(up.children())
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        code, summary = up.end()
    assert (code, summary["outcome"]) == (3, "failed")
    assert "coordinator: no worker is left to go on from version" in summary["why"]
    assert summary["lost"] == [f"peer-{i}" for i in range(4)]
    assert not exists(coordinator)
