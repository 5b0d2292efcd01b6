"""A ring of real daemons: what it costs, that it is the sum, and that it ends without a partial sum when one dies."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from peer.experiment import from_dict
from peer.scripting import simulate
from tests.daemon_pool import DaemonPool
from tests.forked import Forked, forked
from tests.processes import exists, free_ports

NET = """
import os
import signal
import sys

import torch

import peer.assembly.coordination
from peer.protocol.messages import Piece, Received
from peer.protocol.ring import Ring

peer.assembly.coordination.PIECE_BYTES = 2000  # four pieces to a segment


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(784, 10)

    def forward(self, x):
        return super().forward(x.flatten(1))


{fall}
"""
FALL = """
handle = Ring.handle


def fall(self, event, now_s):
    message = event.message if isinstance(event, Received) else None
    if isinstance(message, Piece) and self.me == 2 and message.round == 3 and message.phase == "{phase}":
        if message.piece == {piece} and "up" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
    return handle(self, event, now_s)


Ring.handle = fall
"""
RING = """
rounds = 12
eval_every = 1
[task]
model = "mine:Net"
partition = "dirichlet"
lr = 0.1
[topology]
peers = 4
[coordinator]
mode = "ring"
[record]
params = "every"
[transport]
dead_s = 2.0
suspect_s = 1.5
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[DaemonPool]:
    pool = DaemonPool()
    yield pool
    pool.close()


def write(folder: Path, *, fall: str = "", more: str = "") -> str:
    (folder / "mine.py").write_text(NET.format(fall=fall))
    (folder / "exp.toml").write_text(RING + more)
    return "exp.toml"


def among(folder: Path, names: int = 3, more: str = "", rounds: int = 1_000_000) -> str:
    """Write a ring of machines with addresses of their own."""
    text = RING.replace("rounds = 12", f"rounds = {rounds}").replace("eval_every = 1\n", "eval_every = 10\n")
    text = text.replace("[topology]\npeers = 4\n", "").replace("every", "final").replace("eval_final", "eval_every")
    for i, port in enumerate(free_ports(names)):
        more += f'[[peers]]\nname = "lab-{i + 1}"\naddress = "127.0.0.1:{port}"\n'
    (folder / "mine.py").write_text(NET.format(fall=""))
    (folder / "exp.toml").write_text(text + more)
    return "exp.toml"


def states(folder: Path) -> list[list[float]]:
    """Return the parameters, which all members have, after each round of a run in which nobody dies."""
    with forked("simulate", "exp.toml", "--engine", "events", "--json", "--no-folder", cwd=folder) as run:
        code, summary = run.end()
    assert code == 0
    assert all(row == entry["params"][0] for entry in summary["history"][1:] for row in entry["params"])
    return [entry["params"][0] for entry in summary["history"]]


@pytest.mark.parametrize("peers", [1, 2, 3, 4, 7])
def test_a_ring_of_daemons_sums_all_and_each_sends_its_share(pool: DaemonPool, peers: int) -> None:
    size, rounds = 1003, 2
    start = np.random.default_rng(peers).normal(size=(peers, size)).astype(np.float32)
    e = from_dict(
        {
            "rounds": rounds,
            "eval_every": rounds,
            "task": {"data": "none", "init": start.tolist()},
            "coordinator": {"mode": "ring"},
            "record": {"params": "final"},
        }
    )
    once, again = pool.up(e), pool.up(e)
    assert once.outcome == "finished"
    assert once.params == again.params == simulate(e, engine="events").params
    assert all(row == once.params[0] for row in once.params)
    exact = start.astype(np.float64).mean(axis=0)
    bound = peers * np.finfo(np.float32).eps * np.abs(start).astype(np.float64).sum(axis=0)
    assert (np.abs(np.array(once.params[0]) - exact) <= bound).all()
    assert once.payload_bytes_sent == rounds * 2 * (peers - 1) * size * 4, "that is 2 (n - 1) / n of it for each"


@pytest.mark.parametrize(("phase", "piece"), [("scatter", 0), ("scatter", 2), ("gather", 0), ("gather", 3)])
def test_a_member_that_is_killed_in_either_phase_leaves_no_partial_sum(tmp_path: Path, phase: str, piece: int) -> None:
    exp = write(tmp_path, fall=FALL.format(phase=phase, piece=piece))
    after = states(tmp_path)
    with forked("up", exp, "--json", "--out", "run", cwd=tmp_path) as up:
        up.read_until("round 1/")
        children = up.children()
        code, summary = up.end()
    assert (code, summary["outcome"]) == (3, "failed")
    assert "peer-2" in summary["why"] or "a member of the ring is lost" in summary["why"]
    assert summary["lost"] == ["peer-2"]
    survivors = [row for i, row in enumerate(summary["params"]) if i != 2]
    assert summary["params"][2] is None
    reached = [after.index(row) for row in survivors]
    assert set(reached) <= {3, 4}, "each stands at the end of a round that all had begun together"
    assert summary["rounds"] == min(reached)
    assert len(children) >= 4
    assert not any(exists(pid) for pid in children)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] == "failed"


def start_all(stack: ExitStack, folder: Path, exp: str, names: int = 3) -> list[Forked]:
    """Start all members, and wait until each has been through ten rounds."""
    members = [
        stack.enter_context(forked("start", exp, "--name", f"lab-{i + 1}", "--json", "--no-folder", cwd=folder))
        for i in range(names)
    ]
    for member in members:
        member.read_until("round 10")
    return members


def test_whoever_is_left_of_a_ring_ends_by_itself(tmp_path: Path) -> None:
    exp = among(tmp_path)
    with ExitStack() as stack:
        members = start_all(stack, tmp_path, exp)
        members[1].signal(signal.SIGKILL)
        ends = [members[i].end() for i in (0, 2)]
    for code, summary in ends:
        assert (code, summary["outcome"]) == (3, "failed")
        assert "a member of the ring is lost" in summary["why"]
        assert summary["lost"] == ["lab-2"]
    rounds = [summary["rounds"] for _, summary in ends]
    assert max(rounds) - min(rounds) <= 1
    if rounds[0] == rounds[1]:
        assert ends[0][1]["params"] == ends[1][1]["params"]


@pytest.mark.parametrize(("more", "why"), [("", "silent for"), ("round_deadline_s = 1\n", "not complete within 1 s")])
def test_a_member_that_stands_still_is_not_waited_for_without_end(tmp_path: Path, more: str, why: str) -> None:
    """By the deadline of the round, or else when it counts as dead. When it goes on, it finds that it is over."""
    exp = among(tmp_path, more=more)
    with ExitStack() as stack:
        members = start_all(stack, tmp_path, exp)
        members[1].signal(signal.SIGSTOP)
        ends = [members[i].end() for i in (0, 2)]
        members[1].signal(signal.SIGCONT)
        late = members[1].end()
    for code, summary in (*ends, late):
        assert (code, summary["outcome"]) == (3, "failed")
    blamed = ["lab-2" in summary["lost"] for _, summary in ends]
    assert any(blamed) if more else all(blamed)  # at the deadline, who waits for sums blames who was to hand them on
    assert any(why in summary["why"] for _, summary in ends)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_member_that_is_stopped_ends_the_ring_in_good_order(tmp_path: Path, sign: signal.Signals) -> None:
    exp = among(tmp_path)
    with ExitStack() as stack:
        members = start_all(stack, tmp_path, exp)
        members[0].signal(sign)
        ends = [member.end() for member in members]
    for code, summary in ends:
        assert (code, summary["outcome"]) == (130, "interrupted")
        assert summary["history"][-1]["round"] >= 10
