"""Coordinators and workers as real daemons: killed, started again, stopped, never there; and what is left of them."""

import gc
import json
import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from peer.experiment import load
from peer.ways import Options, start_one
from tests.forked import Forked, forked
from tests.processes import exists, free_ports

LINEAR = """
rounds = {rounds}
eval_every = {eval_every}
[task]
model = "linear"
data = "inline"
init = [1.5, -0.5, 0.25]
batch_size = 1
lr = 0.01
dtype = "float64"
shards = [
    [[[1.0, 0.0, 0.5], 3.0], [[0.5, 1.0, 0.0], 1.0]],
    [[[2.0, 0.3, 0.1], 5.0], [[0.1, 0.7, 0.2], 2.0]],
    [[[1.5, 0.2, 0.9], 7.0]],
    [[[0.4, 1.1, 0.3], 9.0], [[0.2, 0.1, 1.3], 4.0], [[0.6, 0.6, 0.6], 1.0]],
]
[record]
params = "final"
[transport]
dead_s = 2.0
suspect_s = 1.5
{transport}
[coordinator]
{coordinator}
{more}
"""
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
MODES = {
    "sync": 'mode = "sync"',
    "models": 'mode = "sync"\naggregate = "models"',
    "adam": 'mode = "sync"\nserver_optimizer = "adam"',
    "fraction": 'mode = "sync"\nfraction = 0.5',
    "two servers": 'mode = "sync"\nservers = 2',
    "quorum": 'mode = "quorum"\nquorum = 0.75',
    "async": 'mode = "async"',
    "round robin": 'mode = "async"\narrival = "round_robin"',
    "buffered": 'mode = "buffered"\nbuffer = 2',
    "easgd": 'mode = "sync"\n[algorithm]\nname = "easgd"',
}
EXACT = ("sync", "models", "adam", "fraction", "two servers", "easgd")
"""Modes whose result does not depend on what arrives when."""


def write(
    folder: Path, which: str = "sync", *, rounds: int = 60, eval_every: int = 10, more: str = "", transport: str = ""
) -> str:
    text = LINEAR.format(rounds=rounds, eval_every=eval_every, coordinator=MODES[which], more=more, transport=transport)
    (folder / "exp.toml").write_text(text)
    return "exp.toml"


def among(folder: Path, which: str = "sync", *, coordinators: tuple[str, ...] = ("coordinator",), **keys: Any) -> str:
    """Write an experiment of machines with addresses of their own."""
    names = [*(f"peer-{i}" for i in range(4)), *coordinators]
    entries = [
        f'[[peers]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\n'
        for name, port in zip(names, free_ports(len(names)), strict=True)
    ]
    return write(folder, which, more="".join(entries), **keys)


def uninterrupted(folder: Path, *sets: str) -> dict[str, Any]:
    with forked("simulate", "exp.toml", "--engine", "events", "--json", "--no-folder", *sets, cwd=folder) as run:
        code, summary = run.end()
    assert code == 0
    return summary


def coordinator_of(up: Forked) -> int:
    """Return the process id of the coordinator, which `up` starts last."""
    return max(up.children())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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


class Lab:
    """The daemons of `start`, by name, in one folder."""

    def __init__(self, stack: ExitStack, folder: Path, exp: str = "exp.toml") -> None:
        self.stack, self.folder, self.exp = stack, folder, exp
        self.daemons: dict[str, Forked] = {}

    def start(self, *names: str, more: tuple[str, ...] = ("--no-folder",)) -> None:
        for name in names:
            daemon = forked("start", self.exp, "--name", name, "--json", *more, cwd=self.folder)
            self.daemons[name] = self.stack.enter_context(daemon)

    def workers(self) -> None:
        self.start("peer-0", "peer-1", "peer-2", "peer-3")

    def ends(self, *names: str) -> list[tuple[int | None, dict[str, Any]]]:
        return [self.daemons[name].end() for name in names or self.daemons]


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
