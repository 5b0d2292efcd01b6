"""Faults beside coordinators and in rings, in the events engine: who falls, who is lost, and what the rest comes to.

Four peers; a local step takes 1 s, and there is no latency unless a test says so.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from peer import ways
from peer.experiment import Experiment, from_dict
from peer.scripting import Document
from tests.commands import inline

PEERS = 4
SHARDS = [[[[1.0 + i / 5, 0.5 - i], 2.0 + i], [[0.3 * i, 1.0], 1.0 - i]] * (i + 1) for i in range(PEERS)]
SYNC = {"coordinator": {"mode": "sync"}}
EASGD = {"coordinator": {"mode": "sync"}, "algorithm": {"name": "easgd"}}
MODES: dict[str, dict[str, Any]] = {
    "gradients": SYNC,
    "models": {"coordinator": {"mode": "sync", "aggregate": "models"}, "task": {"local_steps": 3, "momentum": 0.5}},
    "adam": {"coordinator": {"mode": "sync", "server_optimizer": "adam"}},
    "fraction": {"coordinator": {"mode": "sync", "fraction": 0.5}},
    "two servers": {"coordinator": {"mode": "sync", "servers": 2}},
    "fp16": {**SYNC, "compression": {"name": "fp16"}},
    "a peer": {"coordinator": {"mode": "sync", "name": "peer-1"}},
    "quorum": {"coordinator": {"mode": "quorum", "quorum": 4}},
    "easgd": EASGD,
    "round robin": {"coordinator": {"mode": "async", "arrival": "round_robin"}},
    "easgd, round robin": {"coordinator": {"mode": "async", "arrival": "round_robin"}, "algorithm": {"name": "easgd"}},
    "async": {"coordinator": {"mode": "async"}},
    "a bound": {"coordinator": {"mode": "async", "max_staleness": 2}},
    "a delay": {"coordinator": {"mode": "async", "arrival": "round_robin", "delay": 2}},
    "a quorum of two": {"coordinator": {"mode": "quorum", "quorum": 2, "late": "stale"}},
    "buffered": {"coordinator": {"mode": "buffered", "buffer": 3}},
}
IN_STEP = ("gradients", "models", "adam", "fraction", "two servers", "fp16", "a peer", "quorum", "easgd")
"""Modes whose result does not depend on what arrives when."""

SERVERS = {"two servers": "coordinator-1", "a peer": "peer-1"}


def experiment(which: str, **tables: Any) -> Experiment:
    chosen = MODES[which]
    task: dict[str, Any] = {**inline(SHARDS, [1.0, 2.0], lr=0.05)["task"]}  # type: ignore[dict-item]
    defaults = {"rounds": 12, "eval_every": 1, "record": {"params": "every"}}
    return from_dict(defaults | chosen | {"task": task | chosen.get("task", {}) | tables.pop("task", {})} | tables)


class Run:
    """What a run came to, and what was said and told of it."""

    def __init__(self, e: Experiment) -> None:
        self.words: list[str] = []
        listener = ways.Listener(note=self.words.append)
        result = ways.simulate(e, "events", ways.Options(writes=False, listener=listener))
        self.summary, self.code = Document(result.summary), result.exit_code

    @property
    def rounds(self) -> list[int]:
        return [entry.round for entry in self.summary.history]

    def said(self, words: str) -> bool:
        return any(words in line for line in self.words)


def run(which: str, *schedule: Mapping[str, object], **tables: Any) -> Run:
    return Run(experiment(which, faults={"schedule": list(schedule)}, **tables))


def coordinator_of(which: str) -> str:
    return SERVERS.get(which, "coordinator")


def figures(found: Run) -> list[dict[str, Any]]:
    """Return the history but for when it was and what it had cost."""
    costs = ("simulated_seconds", "payload_bytes_sent")
    history = found.summary.as_dict()["history"]
    return [{name: value for name, value in entry.items() if name not in costs} for entry in history]


# ---- A coordinator that falls and comes back

FALLS: dict[str, dict[str, Any]] = {
    "when a version is made": {"round": 5},
    "in the middle of a step": {"at_s": 5.5},
    "just after a version": {"at_s": 6.05},
}


@pytest.mark.parametrize(
    ("when", "latency_ms"),
    [("when a version is made", 0), ("in the middle of a step", 0), ("just after a version", 100)],
)
@pytest.mark.parametrize("which", IN_STEP)
def test_after_a_fall_a_run_in_step_ends_as_if_there_had_been_none(which: str, when: str, latency_ms: int) -> None:
    fall = {**FALLS[when], "kill": coordinator_of(which), "for_s": 7.0}
    clean, fallen = run(which), run(which, fall, network={"latency_ms": latency_ms})
    assert (fallen.summary.outcome, fallen.summary.lost) == ("finished", [])
    assert fallen.summary.params == clean.summary.params
    assert fallen.summary.coordinator == clean.summary.coordinator
    assert figures(fallen) == figures(clean), "and on the way, too"
    assert fallen.summary.short_rounds == 0


@pytest.mark.parametrize(("when", "every"), [("when a version is made", 1), ("just after a version", 3)])
@pytest.mark.parametrize("which", MODES)
def test_after_a_fall_every_mode_comes_to_its_end(which: str, when: str, every: int) -> None:
    fall = {**FALLS[when], "kill": coordinator_of(which), "for_s": 3.0}
    fallen = run(which, fall, checkpoint={"every_rounds": every}, network={"latency_ms": 50}, rounds=30)
    assert (fallen.summary.outcome, fallen.summary.lost, fallen.summary.rounds) == ("finished", [], 30)
    assert fallen.rounds == list(range(31)), "no version twice, and none left out"
    last = fallen.summary.history[-1].loss.mean
    assert last < 0.75 * fallen.summary.history[0].loss.mean


@pytest.mark.parametrize("which", ["gradients", "adam", "fraction", "fp16", "quorum"])
def test_versions_that_are_made_again_are_the_same(which: str) -> None:
    """Saved after versions 3, 6, ...: those after it are lost in the fall. Workers have no memory of their own here."""
    fall = {"at_s": 5.5, "kill": "coordinator", "for_s": 7.0}
    clean, fallen = run(which), run(which, fall, checkpoint={"every_rounds": 3})
    assert fallen.summary.params == clean.summary.params
    assert figures(fallen) == figures(clean)
    assert fallen.summary.gradients > clean.summary.gradients


def test_a_coordinator_may_fall_again_and_again() -> None:
    falls = [{"at_s": 2.5 + 8 * k, "kill": "coordinator", "for_s": 6.0} for k in range(5)]
    clean, fallen = run("gradients"), run("gradients", *falls)
    assert fallen.summary.params == clean.summary.params
    assert figures(fallen) == figures(clean)


def test_both_servers_may_fall() -> None:
    falls = [{"at_s": 3.5, "kill": "coordinator-0", "for_s": 4.0}, {"at_s": 5.5, "kill": "coordinator-1", "for_s": 6.0}]
    clean, fallen = run("two servers"), run("two servers", *falls)
    assert fallen.summary.params == clean.summary.params


def test_a_coordinator_that_stands_still_for_a_while_changes_nothing() -> None:
    clean, still = run("gradients"), run("gradients", {"at_s": 4.5, "stop": "coordinator", "for_s": 3.0})
    assert figures(still) == figures(clean)
    assert still.summary.simulated_seconds > clean.summary.simulated_seconds


# ---- A coordinator that is not there


@pytest.mark.parametrize("which", ["gradients", "easgd", "async", "two servers", "a peer"])
def test_a_coordinator_that_never_comes_back_is_given_up_after_join_s(which: str) -> None:
    at_s = 1.5 if which == "async" else 4.5
    name = coordinator_of(which)
    found = run(which, {"at_s": at_s, "kill": name}, transport={"join_s": 20.0})
    assert (found.code, found.summary.outcome) == (3, "failed")
    assert found.summary.why.endswith("a coordinator did not come back within 20 s")
    assert found.summary.lost == ([name, "coordinator@peer-1"] if which == "a peer" else [name])
    assert found.summary.params[0] is not None
    assert found.said(f"peer-0: {found.summary.lost[-1]} did not come back within 20 s")


@pytest.mark.parametrize("which", MODES)
def test_workers_wait_for_a_coordinator_that_joins_later(which: str) -> None:
    name = coordinator_of(which)
    found = run(which, {"at_s": 4.5, "join": name})
    assert (found.summary.outcome, found.summary.lost, found.rounds) == ("finished", [], list(range(13)))
    assert found.summary.history[1].simulated_seconds >= 5.5
    if which in IN_STEP:
        assert found.summary.params == run(which).summary.params


def test_a_coordinator_that_joins_too_late_leaves_its_workers_alone() -> None:
    found = run("gradients", {"at_s": 30.0, "join": "coordinator"}, transport={"join_s": 10.0})
    assert (found.code, found.summary.outcome) == (3, "alone")
    assert found.summary.why == "peer-0, peer-1, peer-2, peer-3 never heard a coordinator within 10 s"
    assert found.summary.rounds == 0


# ---- Workers


@pytest.mark.parametrize("which", ["gradients", "models", "fraction", "easgd", "two servers", "quorum"])
def test_a_killed_worker_is_missed_for_dead_s_at_most(which: str) -> None:
    clean, found = run(which), run(which, {"at_s": 4.5, "kill": "peer-2"})
    assert (found.code, found.summary.outcome, found.summary.lost) == (0, "finished", ["peer-2"])
    assert found.summary.params[2] is None
    assert found.rounds == list(range(13))
    assert found.summary.simulated_seconds - clean.summary.simulated_seconds <= 5.0
    assert found.summary.short_rounds > 0


@pytest.mark.parametrize("which", ["round robin", "a delay", "async", "a bound", "buffered", "a quorum of two"])
def test_where_nobody_has_to_be_there_a_killed_worker_holds_up_nothing_for_good(which: str) -> None:
    found = run(which, {"at_s": 1.5, "kill": "peer-2"}, rounds=60)
    assert (found.code, found.summary.outcome, found.summary.lost) == (0, "finished", ["peer-2"])
    assert found.rounds == list(range(61))


@pytest.mark.parametrize("away_s", [2.0, 12.0])
@pytest.mark.parametrize("which", [which for which in MODES if which not in ("adam", "fp16", "models")])
def test_a_worker_that_is_started_again_carries_on(which: str, away_s: float) -> None:
    found = run(which, {"at_s": 1.5, "kill": "peer-3", "for_s": away_s}, rounds=70)
    assert (found.summary.outcome, found.summary.lost, found.rounds) == ("finished", [], list(range(71)))
    if "easgd" not in which:
        assert all(row == found.summary.coordinator for row in found.summary.params)


@pytest.mark.parametrize("which", ["gradients", "fraction", "easgd", "two servers", "buffered", "quorum"])
def test_where_all_workers_are_killed_the_coordinator_has_failed(which: str) -> None:
    found = run(which, {"at_s": 3.5, "kill": [f"peer-{i}" for i in range(PEERS)]})
    assert (found.code, found.summary.outcome) == (3, "failed")
    assert "no worker is left to go on from version" in found.summary.why
    assert found.summary.lost == [f"peer-{i}" for i in range(PEERS)]
    assert found.summary.params == [None] * PEERS
    assert found.summary.coordinator is not None


def test_random_faults_of_workers_end_no_run() -> None:
    for seed in range(2):
        found = Run(experiment("gradients", rounds=40, seed=seed, faults={"per_minute": 20.0}))
        assert (found.code, found.rounds) == (0, list(range(41)))


SENDS_NAN = """
import torch


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 1, bias=False)

    def forward(self, x):
        y = super().forward(x)
        return y + torch.where(x[:, :1] > 100, float("nan"), 0.0) if self.training else y
"""


@pytest.mark.parametrize("which", ["gradients", "quorum", "async", "easgd", "two servers", "buffered"])
def test_who_pushes_nan_is_named_and_nobody_takes_it(which: str, tmp_path: Path) -> None:
    (tmp_path / "sends_nan.py").write_text(SENDS_NAN)
    shards = [*SHARDS[:3], [[[101.0, 0.0], 0.0]]]
    chosen = MODES[which]
    task = {"model": "sends_nan:Net", "data": "inline", "shards": shards, "batch_size": 0, "lr": 0.01}
    tables = {"rounds": 12, "eval_every": 1, "record": {"params": "final", "on_divergence": "continue"}}
    found = Run(from_dict({**tables, **chosen, "task": task}, folder=tmp_path))
    assert found.rounds == list(range(13))
    if which != "easgd":
        assert found.said("peer-3 pushed numbers that are not finite for version")
        assert not found.said("peer-1 pushed numbers that are not finite")
    assert None not in found.summary.coordinator
    assert all(None not in row for row in found.summary.params[:3])


# ---- A quorum

STRAGGLER = {"factors": [1, 1, 1, 2.5]}


def test_a_quorum_waits_for_no_straggler() -> None:
    """Versions are made each second, and what the slow one pushes comes 1.5 s after its round."""
    barrier = run("gradients", speed=STRAGGLER)
    dropped = Run(experiment("quorum", coordinator={"mode": "quorum", "quorum": 3}, speed=STRAGGLER))
    late = {"mode": "quorum", "quorum": 3, "late": "stale"}
    stale = Run(experiment("quorum", coordinator=late, speed=STRAGGLER))
    assert [barrier.summary.simulated_seconds, dropped.summary.simulated_seconds] == [30.0, 12.0]
    assert dropped.summary.short_rounds == 12
    assert dropped.summary.staleness.max == 0
    assert stale.summary.staleness.max > 0
    assert stale.summary.simulated_seconds <= 12.0
    assert stale.summary.params != dropped.summary.params


def test_a_timer_closes_a_round() -> None:
    coordinator = {"mode": "quorum", "quorum": 1.0, "timer_s": 1.5}
    found = Run(experiment("quorum", coordinator=coordinator, speed=STRAGGLER, rounds=4))
    assert [entry.simulated_seconds for entry in found.summary.history] == [0.0, 1.5, 3.0, 4.5, 6.0]
    assert found.summary.short_rounds > 0


def test_where_a_timer_passes_and_nothing_came_the_first_push_closes_the_round() -> None:
    coordinator = {"mode": "quorum", "quorum": 1.0, "timer_s": 0.25}
    found = Run(experiment("quorum", coordinator=coordinator, rounds=3, speed={"factors": [1, 1.125, 1.25, 1.5]}))
    assert found.summary.history[1].simulated_seconds == 1.0


# ---- A ring


def ring(*schedule: Mapping[str, object], **tables: Any) -> Run:
    chosen = {"coordinator": {"mode": "ring"}, "network": {"latency_ms": 100}, "rounds": 6}
    return Run(experiment("gradients", faults={"schedule": list(schedule)}, **chosen, **tables))


def reached(found: Run, clean: Run) -> set[int]:
    """Return after how many complete rounds the survivors stand, by what the same run without faults had."""
    after = [entry.params[0] for entry in clean.summary.history]
    return {after.index(row) for row in found.summary.params if row is not None}


@pytest.mark.parametrize("at_s", [1.05 + k / 10 for k in range(12)])
def test_a_ring_member_that_is_killed_leaves_no_partial_sum(at_s: float) -> None:
    """A round is 1 s of training, 3 x 100 ms of scatter and 3 x 100 ms of gather."""
    clean, found = ring(), ring({"at_s": at_s + 1.6, "kill": "peer-2"})
    assert (found.code, found.summary.outcome, found.summary.lost) == (3, "failed", ["peer-2"])
    assert "a member of the ring is lost" in found.summary.why
    rounds = reached(found, clean)
    assert rounds <= {1, 2, 3}
    assert max(rounds) - min(rounds) <= 1


def test_a_round_deadline_bounds_a_member_that_stands_still() -> None:
    clean = ring()
    found = ring({"at_s": 2.8, "stop": "peer-2"}, transport={"round_deadline_s": 2.0})
    assert (found.code, found.summary.outcome, found.summary.lost) == (3, "failed", ["peer-2"])
    assert "not complete within 2 s" in found.summary.why
    rounds = reached(found, clean)
    assert max(rounds) - min(rounds) <= 1


def test_a_member_that_stands_still_for_less_than_dead_s_is_waited_for() -> None:
    clean, found = ring(), ring({"at_s": 2.8, "stop": "peer-2", "for_s": 3.0})
    assert found.summary.outcome == "finished"
    assert found.summary.params == clean.summary.params
