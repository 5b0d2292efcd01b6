"""Faults in the events engine, from end to end: who is lost, who comes back, and what that leaves of the rest."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.experiment import from_dict
from peer.scripting import simulate
from tests.six_peers import (
    MEAN,
    PEERS,
    STARTS,
    WAYS,
    distances,
    experiment,
    run,
    run_softmax,
    said,
    seen,
    times,
    values,
    with_faults,
)

# ---- A peer that is gone


def test_a_killed_peer_is_lost_and_the_others_finish() -> None:
    summary = with_faults({"at_s": 10.5, "kill": "peer-2"})
    assert summary.outcome == "finished"
    assert summary.lost == ["peer-2"]
    assert summary.rounds == 30
    assert summary.params[2] is None
    assert len(values(summary)) == 5
    assert summary.gradients == 5 * 30 + 10
    assert summary.short_rounds == 2 * 20
    assert summary.simulated_seconds == 34.5  # who was dialled waits for it for 5 s from the kill on
    assert [entry.round for entry in summary.history] == [0, 5, 10, 15, 20, 25, 30]


def test_of_two_neighbours_the_one_that_dialled_learns_of_a_death_at_once() -> None:
    words = said(faults={"schedule": [{"at_s": 10.5, "kill": "peer-2"}]})
    losses = [line for line in words if "peer-2 is lost" in line]
    assert losses == [
        "peer-3: peer-2 is lost (its connection broke and its address refuses new ones)",
        "peer-1: peer-2 is lost (silent for 5.0 s)",
    ]


def test_a_kill_by_round_comes_when_that_peer_has_completed_so_many() -> None:
    summary = with_faults({"round": 7, "kill": "peer-2"}, speed={"factors": [1, 1, 2, 1, 1, 1]})
    assert summary.lost == ["peer-2"]
    assert summary.gradients == 5 * 30 + 7


@pytest.mark.parametrize("away_s", [4.0, 12.0])
def test_a_peer_that_is_started_again_catches_up_with_the_others(away_s: float) -> None:
    """Away for less than `dead_s`, it comes back in a new life before all its neighbours had given up the old one."""
    clean, summary = run(rounds=60), with_faults({"at_s": 10.5, "kill": "peer-2", "for_s": away_s}, rounds=60)
    assert summary.outcome == "finished"
    assert summary.lost == []
    assert summary.gradients < 60 * PEERS
    assert summary.short_rounds <= 2 * 15  # two neighbours, until it is there again
    np.testing.assert_allclose(values(summary), values(clean), atol=0.01)  # where D-PSGD stays, with or without


def test_a_peer_that_came_back_is_as_good_as_the_others() -> None:
    kill = {"round": 5, "kill": "peer-1", "for_s": 12.0}
    summary = run_softmax(rounds=40, eval_every=10, faults={"schedule": [kill]}, topology={"peers": 4})
    last = summary.history[-1].accuracy
    assert summary.outcome == "finished"
    assert summary.lost == []
    assert last.min > last.max - 0.05
    assert last.min > 0.7


def test_a_restart_can_be_an_entry_of_its_own() -> None:
    one = with_faults({"at_s": 10.5, "kill": "peer-2", "for_s": 12.0})
    two = with_faults({"at_s": 10.5, "kill": "peer-2"}, {"at_s": 22.5, "restart": "peer-2"})
    assert one.params == two.params
    assert one.event_hash == two.event_hash


def test_a_peer_that_leaves_is_missed_without_delay() -> None:
    summary = with_faults({"at_s": 10.5, "leave": "peer-2"})
    assert summary.outcome == "finished"
    assert summary.lost == ["peer-2"]
    assert summary.params[2] is None
    assert summary.simulated_seconds == 30.0


def test_a_newcomer_takes_the_model_of_a_neighbour() -> None:
    """Gossip alone: it would pull the mean by a sixth of what it began with, 4, and brings 10 or so instead."""
    others = [start for i, start in enumerate(STARTS) if i != 2]
    summary = with_faults({"at_s": 20.5, "join": "peer-2"}, lr=0.0, rounds=60)
    assert summary.outcome == "finished"
    assert summary.lost == []
    assert summary.gradients < 6 * 60
    assert np.ptp(values(summary)) < 1e-3
    assert abs(values(summary)[0] - np.mean(others)) < 0.1
    assert abs(MEAN - np.mean(others)) > 1.0


def test_a_newcomer_is_not_evaluated_before_it_is_there() -> None:
    summary = with_faults({"at_s": 20.5, "join": "peer-5"}, lr=0.0, record={"params": "every"})
    assert {len(entry.params) for entry in summary.history if entry.round <= 15} == {5}
    assert len(summary.history[-1].params) == 6


def test_where_all_are_killed_the_run_has_failed_and_says_so() -> None:
    summary = with_faults({"at_s": 7.5, "kill": [f"peer-{i}" for i in range(PEERS)]})
    assert summary.outcome == "failed"
    assert summary.why == "nobody is left to go on: all were killed, stopped or left"
    assert summary.lost == [f"peer-{i}" for i in range(PEERS)]
    assert summary.params == [None] * PEERS
    assert summary.rounds == 7


def test_where_all_are_killed_and_one_will_be_back_the_run_goes_on() -> None:
    kill = {"at_s": 7.5, "kill": [f"peer-{i}" for i in range(PEERS)]}
    summary = with_faults(kill, {"at_s": 20.0, "restart": "peer-3"})
    assert summary.lost == [f"peer-{i}" for i in range(PEERS) if i != 3]


# ---- Late is not dead


@pytest.mark.parametrize(
    ("fault", "cost_s"),
    [
        ({"at_s": 10.5, "stop": "peer-2", "for_s": 4.0}, 4.0),
        ({"round": 10, "stop": "peer-2", "for_s": 4.0}, 4.0),
        ({"at_s": 10.5, "cut": ["peer-2", "peer-3"], "for_s": 4.0}, 3.5),  # nothing was to be said before 11 s
        ({"round": 10, "cut": ["peer-2", "peer-3"], "for_s": 4.0}, 3.0),
        ({"at_s": 10.5, "partition": [["peer-0", "peer-1"], ["peer-3"]], "for_s": 4.0}, 3.5),
    ],
    ids=["stop", "stop by round", "cut", "cut by round", "partition"],
)
@pytest.mark.parametrize("way", ["dpsgd", "gradient_tracking"])
def test_what_is_over_before_anybody_is_given_up_only_costs_time(
    fault: dict[str, object], cost_s: float, way: str
) -> None:
    clean, summary = (run(algorithm={"name": way}, faults={"schedule": s}) for s in ([], [fault]))
    assert summary.params == clean.params
    assert seen(summary) == seen(clean)
    assert summary.lost == []
    assert summary.short_rounds == 0
    assert summary.simulated_seconds == 30.0 + cost_s


def test_the_words_say_who_stood_still_and_that_nobody_was_lost() -> None:
    words = said(faults={"schedule": [{"at_s": 10.5, "stop": "peer-2", "for_s": 4.0}]})
    assert "peer-2: stands still" in words
    assert "peer-2: goes on" in words
    assert not any("is lost" in line for line in words)


def test_a_peer_that_stands_still_for_too_long_is_given_up_and_comes_back() -> None:
    fault = {"at_s": 10.5, "stop": "peer-2", "for_s": 12.0}
    words = said(faults={"schedule": [fault]})
    assert sum("peer-2 is lost" in line for line in words) == 2
    summary = with_faults(fault, rounds=60)
    assert summary.lost == []
    np.testing.assert_allclose(values(summary), values(run(rounds=60)), atol=0.01)


# ---- Partitions


def test_two_sides_that_lose_each_other_come_together_again() -> None:
    """Gossip alone. Parted, each side comes to a mean of its own; healed, all come to one."""
    groups = [["peer-0", "peer-1", "peer-2"], ["peer-3", "peer-4", "peer-5"]]
    parted = {"at_s": 2.5, "partition": groups, "for_s": 30.0}
    words = said(lr=0.0, rounds=80, faults={"schedule": [parted]})
    for who, whom in ((0, 5), (5, 0), (2, 3), (3, 2)):
        assert sum(line.startswith(f"peer-{who}: peer-{whom} is lost") for line in words) == 1
    summary = with_faults(parted, lr=0.0, rounds=80)
    assert summary.outcome == "finished"
    assert summary.lost == []
    apart = distances(summary)
    assert apart[15] > 1.0
    assert apart[20] == pytest.approx(apart[15], rel=1e-2)  # each side is at one
    assert apart[80] < 1e-6 * apart[20]


def test_everything_can_be_healed_by_an_entry() -> None:
    """Two cuts part the ring, until all are healed."""
    cuts = [{"at_s": 2.5, "cut": ["peer-0", "peer-5"]}, {"at_s": 2.5, "cut": ["peer-2", "peer-3"]}]
    for healing in ([{"at_s": 32.5, "heal": True}], [{**cut, "for_s": 30.0} for cut in cuts]):
        schedule = [*cuts, *healing] if "heal" in healing[0] else healing
        apart = distances(with_faults(*schedule, lr=0.0, rounds=80))
        assert apart[20] > 1.0
        assert apart[80] < 1e-6 * apart[20]


# ---- Without waiting


@pytest.mark.parametrize("way", ["asynchronous", "adpsgd"])
def test_who_does_not_wait_outlives_faults_too(way: str) -> None:
    schedule = [
        {"at_s": 5.5, "kill": "peer-1"},
        {"at_s": 9.5, "kill": "peer-4", "for_s": 12.0},
        {"at_s": 12.5, "stop": "peer-2", "for_s": 8.0},
        {"at_s": 15.5, "cut": ["peer-2", "peer-3"], "for_s": 8.0},
    ]
    tables: dict[str, Any] = {"algorithm": WAYS[way], "network": {"latency_ms": 20.0}, "rounds": 60}
    summary = with_faults(*schedule, **tables)
    assert summary.outcome == "finished"
    assert summary.lost == ["peer-1"]
    assert summary.params[1] is None
    assert np.ptp(values(summary)) < 1.5


@pytest.mark.parametrize("way", WAYS)
def test_random_faults_are_outlived(way: str) -> None:
    summary = run(faults={"per_minute": 10.0}, algorithm=WAYS[way], rounds=40)
    calm = run(algorithm=WAYS[way], rounds=40)
    assert summary.outcome == "finished"
    assert summary.rounds == 40
    assert summary.event_hash != calm.event_hash
    assert summary.simulated_seconds > calm.simulated_seconds
    assert all(0.0 < x < 6.0 for x in values(summary))


# ---- Deadlines of rounds


def test_a_deadline_closes_rounds_that_a_slow_link_would_hold_up(tmp_path: Path) -> None:
    """The two at its ends are so much faster that the others do not wait in vain for them, too."""
    (tmp_path / "links.csv").write_text("from,to,latency_ms\npeer-2,peer-3,1500\n")
    speed = {"factors": [1, 1, 0.9, 0.9, 1, 1]}
    tables = experiment(rounds=20, speed=speed).model_dump(exclude_defaults=True) | {"network": {"file": "links.csv"}}
    waiting = simulate(from_dict(tables, folder=tmp_path), engine="events")
    hurried = simulate(from_dict(tables | {"transport": {"round_deadline_s": 0.25}}, folder=tmp_path), engine="events")
    assert waiting.short_rounds == 0
    assert waiting.simulated_seconds == pytest.approx(20 * (0.9 + 1.5))
    assert hurried.outcome == "finished"
    assert hurried.rounds == 20
    assert hurried.lost == []
    assert hurried.short_rounds == 2 * 20
    assert hurried.simulated_seconds == pytest.approx(20 * (0.9 + 0.25))


# ---- Push-sum


TO_THE_MEAN: dict[str, dict[str, Any]] = {
    "cuts": {
        "faults": {
            "schedule": [
                {"at_s": 2.5, "cut": ["peer-0", "peer-1"], "for_s": 4.0},
                {"at_s": 4.5, "cut": ["peer-3", "peer-5"], "for_s": 3.0},
            ]
        }
    },
    "losses and a deadline": {
        "network": {"latency_ms": 10.0, "loss": 0.15},
        "transport": {"round_deadline_s": 0.5},  # time to send again what was lost, which nobody does
    },
    "cuts and a deadline": {
        "network": {"latency_ms": 10.0},
        "transport": {"round_deadline_s": 0.2},
        "faults": {"schedule": [{"at_s": 1.5, "cut": ["peer-0", "peer-1"], "for_s": 4.0}]},
    },
}


SHORT_ROUNDS = {"cuts": 0, "losses and a deadline": 80 * PEERS // 4, "cuts and a deadline": 3}


@pytest.mark.parametrize("which", TO_THE_MEAN)
def test_push_sum_keeps_the_mean_whatever_becomes_of_the_links(which: str) -> None:
    tables: dict[str, Any] = {"algorithm": {"name": "push_sum"}, "topology": {"family": "exponential"}, "rounds": 80}
    summary = run(lr=0.0, **tables, **TO_THE_MEAN[which])
    assert summary.outcome == "finished"
    assert summary.lost == []
    assert summary.short_rounds >= SHORT_ROUNDS[which]
    assert ("deadline" in which) or summary.short_rounds == 0
    np.testing.assert_allclose(values(summary), MEAN, rtol=1e-10)


# ---- Barriers


@pytest.mark.parametrize("away_s", [2.0, 4.0, 8.0])
@pytest.mark.parametrize("every", [1, 2])
def test_who_comes_back_beyond_the_round_that_is_judged_holds_up_nobody(every: int, away_s: float) -> None:
    """With stop_when all wait at an evaluation; a peer that jumps over it is not waited for."""
    kill = {"at_s": 2.5, "kill": "peer-3", "for_s": away_s}
    summary = with_faults(kill, rounds=20, eval_every=every, stop_when="consensus_distance <= 1e-30")
    assert (summary.outcome, summary.rounds, summary.lost) == ("finished", 20, [])


@pytest.mark.parametrize(
    ("tables", "schedule"),
    [
        ({"speed": {"factors": [1, 1, 1, 1, 1, 4]}}, [{"at_s": 9.3, "kill": "peer-2", "for_s": 0.3}]),
        (
            {},
            [
                {"at_s": 1.5, "kill": "peer-0", "for_s": 0.5},
                {"at_s": 1.6, "cut": ["peer-0", "peer-1"]},
                {"at_s": 1.6, "cut": ["peer-0", "peer-5"]},
            ],
        ),
        ({"speed": {"factors": [1, 4, 1, 1, 1, 1]}}, [{"at_s": 9.6, "kill": "peer-2", "for_s": 4.0}]),
        ({}, [{"at_s": 1.0, "stop": "peer-0"}]),
    ],
    ids=[
        "killed while it is held",
        "a new life apart from the others",
        "killed beside a straggler",
        "stopped for good",
    ],
)
def test_whoever_begins_anew_or_stands_still_holds_up_no_evaluation(
    tables: dict[str, Any], schedule: list[dict[str, Any]]
) -> None:
    summary = with_faults(*schedule, rounds=8, eval_every=1, stop_when="consensus_distance <= 1e-30", **tables)
    assert (summary.outcome, summary.rounds, summary.history[-1].round) == ("finished", 8, 8)
    assert times(summary) == sorted(times(summary))
    assert times(summary)[-1] <= summary.simulated_seconds


def test_figures_are_of_those_who_are_left_when_one_stands_still_for_good() -> None:
    summary = with_faults({"at_s": 1.0, "stop": "peer-0"}, rounds=20)
    assert summary.lost == ["peer-0"]
    assert (summary.rounds, summary.history[-1].round) == (20, 20)
    assert summary.params[0] is None


def test_what_changes_nothing_is_not_told() -> None:
    words = said(
        rounds=10,
        faults={
            "schedule": [
                {"at_s": 1.0, "restart": "peer-2"},
                {"at_s": 1.0, "continue": "peer-1"},
                {"at_s": 1.0, "heal": ["peer-0", "peer-1"]},
                {"at_s": 1.0, "cut": ["peer-0", "peer-3"]},
            ]
        },
    )
    assert not any(text in line for line in words for text in ("started again", "goes on", "hear each other"))


def test_of_two_stops_the_longer_one_counts() -> None:
    schedule = [{"at_s": 2.0, "stop": "peer-1", "for_s": 1.0}, {"at_s": 2.5, "stop": "peer-1", "for_s": 3.0}]
    words = said(rounds=10, faults={"schedule": schedule})
    assert sum("stands still" in line for line in words) == 1
    longer, shorter = (with_faults(*s, rounds=10).simulated_seconds for s in (schedule, schedule[:1]))
    assert longer == pytest.approx(shorter + 2.5)
