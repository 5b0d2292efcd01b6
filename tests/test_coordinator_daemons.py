"""Coordinators and workers as real daemons: killed, started again, stopped, never there; and what is left of them."""

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Forked, children_of, forked
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
    text = LINEAR.format(
        rounds=rounds, eval_every=eval_every, coordinator=MODES[which], more=more, transport=transport
    )
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


@pytest.mark.parametrize("which", MODES)
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
