"""Runs of coordinators and workers as real daemons: how they end, and what is left of them."""

import gc
import json
import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.experiment import load
from peer.ways import Options, start_one
from tests.coordinator_room import EXACT, MODES, Lab, among, uninterrupted, write
from tests.forked import forked
from tests.processes import exists

SOFTMAX = """
rounds = 6
eval_every = 3
[task]
model = "softmax"
dtype = "float64"
[topology]
peers = 1
[record]
params = "final"
[coordinator]
"""


# ---- Ends


@pytest.mark.parametrize(
    ("which", "sign"),
    [("sync", signal.SIGINT), ("async", signal.SIGTERM), ("easgd", signal.SIGINT), ("two servers", signal.SIGTERM)],
)
def test_an_interrupted_run_ends_in_good_order(tmp_path: Path, which: str, sign: signal.Signals) -> None:
    exp = write(tmp_path, which, rounds=1_000_000)
    with forked("up", exp, "--json", "--out", "run", cwd=tmp_path) as up:
        up.read_until("round 20/")
        children = up.children()
        up.signal(sign)
        code, summary = up.end()
    assert (code, summary["outcome"], summary["lost"]) == (130, "interrupted", [])
    assert summary["history"][-1]["round"] >= 20
    assert summary["coordinator"] is not None
    assert not any(exists(pid) for pid in children)


def test_a_stopped_coordinator_sends_its_workers_home(tmp_path: Path) -> None:
    among(tmp_path, rounds=1_000_000)
    with ExitStack() as stack:
        lab = Lab(stack, tmp_path)
        lab.start("coordinator")
        lab.workers()
        lab.daemons["coordinator"].read_until("round 20/")
        lab.daemons["coordinator"].signal(signal.SIGTERM)
        ends = lab.ends()
    assert [(code, summary["outcome"]) for code, summary in ends] == [(130, "interrupted")] * 5


@pytest.mark.parametrize("which", ["sync", "async", "quorum", "two servers", "easgd"])
def test_time_ends_a_run(tmp_path: Path, which: str) -> None:
    exp = write(tmp_path, which, rounds=0)
    with forked("up", exp, "--json", "--no-folder", "--set", "stop_after_s=0.8", cwd=tmp_path) as up:
        code, summary = up.end()
    assert (code, summary["outcome"], summary["lost"]) == (0, "finished", [])
    assert summary["rounds"] > 0
    assert summary["history"][-1]["round"] >= summary["rounds"] - 1


@pytest.mark.parametrize("which", ["sync", "fraction", "two servers", "quorum", "async", "buffered", "easgd"])
def test_a_figure_ends_a_run(tmp_path: Path, which: str) -> None:
    exp = write(tmp_path, which, rounds=0, eval_every=5)
    stop = ("--set", 'stop_when="loss.mean < 5"', "--require", "loss.mean < 5.5")
    with forked("up", exp, "--json", "--no-folder", *stop, cwd=tmp_path) as up:
        code, summary = up.end()
    assert (code, summary["outcome"], summary["lost"]) == (0, "finished", [])
    assert summary["rounds"] > 0
    if which in EXACT:
        clean = uninterrupted(tmp_path, *stop[:2])
        assert summary["rounds"] == clean["rounds"]
        assert summary["params"] == clean["params"]


def test_a_diverged_run_names_the_coordinator(tmp_path: Path) -> None:
    exp = write(tmp_path, rounds=3000)
    lr = ("--set", "task.lr=5.0")
    with forked("up", exp, "--json", "--no-folder", *lr, cwd=tmp_path) as up:
        code, summary = up.end()
    with forked("simulate", exp, "--engine", "events", "--json", "--no-folder", *lr, cwd=tmp_path) as run:
        other, virtual = run.end()
    assert code == other == 3
    assert summary["outcome"] == virtual["outcome"] == "diverged"
    assert summary["diverged"] == virtual["diverged"]
    assert summary["diverged"]["peer"] == "coordinator"
    assert summary["rounds"] == virtual["rounds"]
    assert summary["coordinator"] == virtual["coordinator"]


# ---- Names


def test_names_that_are_wrong_are_told_in_one_line(tmp_path: Path) -> None:
    exp = write(tmp_path)
    for name, words in (("lab", "nobody"), ("peer-0", "address"), ("coordinator", "address")):
        with forked("start", exp, "--name", name, "--json", cwd=tmp_path) as run:
            code, document = run.end()
        assert code == 2
        assert words in document["error"]
        assert len(run.said) == 1
    assert not (tmp_path / "runs").exists()


# ---- A peer that is the coordinator, too; one peer; documents


def test_nothing_is_left_of_a_worker_and_a_coordinator_in_one_process(tmp_path: Path) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0

    (tmp_path / "exp.toml").write_text(SOFTMAX + MODES["sync"] + '\nname = "peer-0"')
    e, found = load(tmp_path / "exp.toml"), []
    for _ in range(3):
        assert start_one(e, "peer-0", Options(writes=False)).exit_code == 0
        found.append(held())
    assert found[1] == found[2]


def test_a_machine_that_is_both_runs_both(tmp_path: Path) -> None:
    among(tmp_path, coordinators=())
    name = ("--set", 'coordinator.name="peer-1"')
    with ExitStack() as stack:
        lab = Lab(stack, tmp_path)
        lab.start("peer-0", "peer-1", "peer-2", "peer-3", more=("--no-folder", *name))
        ends = lab.ends()
    clean = uninterrupted(tmp_path, *name)
    assert [(code, summary["outcome"], summary["rounds"]) for code, summary in ends] == [(0, "finished", 60)] * 4
    assert [summary["params"][0] for _, summary in ends] == clean["params"]
    assert ends[1][1]["coordinator"] == clean["coordinator"]


def test_a_killed_machine_that_was_both_is_missed_by_all(tmp_path: Path) -> None:
    """It would begin from nothing as a worker, so `up` does not start it again."""
    exp = write(tmp_path, rounds=1_000_000, transport="join_s = 2.0")
    with forked("up", exp, "--json", "--out", "run", "--set", 'coordinator.name="peer-0"', cwd=tmp_path) as up:
        up.read_until("round 50/")
        os.kill(min(up.children()), signal.SIGKILL)
        code, summary = up.end()
    assert (code, summary["outcome"]) == (3, "failed")
    assert summary["lost"] == ["peer-0", "coordinator@peer-0"]


@pytest.mark.parametrize("which", ["sync", "round robin", "quorum", "buffered", "easgd", "two servers", "ring"])
def test_one_peer_is_enough(tmp_path: Path, which: str) -> None:
    (tmp_path / "exp.toml").write_text(SOFTMAX + MODES.get(which, 'mode = "ring"'))
    ends = []
    for command in (["up"], ["simulate", "--engine", "events"]):
        sets = ("--set", "coordinator.quorum=1.0") if which == "quorum" else ()
        with forked(*command, "exp.toml", "--json", "--no-folder", *sets, cwd=tmp_path) as run:
            ends.append(run.end())
    assert [(code, summary["outcome"], summary["rounds"], summary["peers"]) for code, summary in ends] == [
        (0, "finished", 6, 1)
    ] * 2
    assert ends[0][1]["params"] == ends[1][1]["params"]


def test_a_requirement_that_is_not_met(tmp_path: Path) -> None:
    exp = write(tmp_path, rounds=4)
    with forked("up", exp, "--json", "--no-folder", "--require", "loss.mean < 0.001", cwd=tmp_path) as up:
        code, summary = up.end()
    assert (code, summary["outcome"]) == (1, "finished")
    with forked("up", exp, "--json", "--no-folder", "--require", "loss.median < 1", cwd=tmp_path) as up:
        code, document = up.end()
    assert code == 2
    assert "error" in document


CONTRACT = {
    *("name", "engine", "step", "peers", "rounds", "seconds", "rounds_seconds", "accuracy", "loss"),
    *("consensus_distance", "payload_bytes_sent", "wire_bytes_sent", "short_rounds", "lost", "params"),
    *("outcome", "gradients", "history", "coordinator"),
}


@pytest.mark.parametrize("which", ["sync", "async", "easgd", "two servers"])
def test_the_summary_has_what_the_contract_says(tmp_path: Path, which: str) -> None:
    exp = write(tmp_path, which, rounds=4, eval_every=2)
    with forked("up", exp, "--json", "--out", "run", cwd=tmp_path) as up:
        code, summary = up.end()
    assert code == 0
    assert summary.keys() >= CONTRACT
    assert summary["peers"] == len(summary["params"]) == 4
    assert summary["wire_bytes_sent"] > summary["payload_bytes_sent"] > 0
    assert ("staleness" in summary) == (which == "async")
    folders = sorted(path.name for path in (tmp_path / "run" / "peers").iterdir())
    servers = ["coordinator-0", "coordinator-1"] if which == "two servers" else ["coordinator"]
    assert folders == [*servers, *(f"peer-{i}" for i in range(4))]
    assert all((tmp_path / "run" / "peers" / name / "checkpoints").is_dir() for name in servers)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
