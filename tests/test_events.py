"""The events engine from end to end: time, links, speeds, faults, and when a run ends.

Most runs are of six peers on a ring with one row of data each, or of pure gossip: the same with a learning rate of 0.
A local step takes 1 s and there is no latency unless a test says so, so a round ends at each full second.
"""

from collections.abc import Mapping
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer import ways
from peer.assembly.cores import partners
from peer.errors import ConfigError
from peer.experiment import Experiment, from_dict
from peer.scripting import Document, simulate
from tests.commands import inline
from tests.four_peers import SHARDS, START, TRACES

PEERS = 6
STARTS = [float(i * i) for i in range(PEERS)]
MEAN = sum(STARTS) / PEERS
SOFTMAX = {"model": "softmax", "partition": "dirichlet", "alpha": 0.5, "lr": 0.1}
RING_OF_FIVE = {"family": "ring", "peers": 5}
WAYS: dict[str, dict[str, str]] = {"in step": {}, "asynchronous": {"mode": "async"}, "adpsgd": {"name": "adpsgd"}}


def experiment(*, lr: float = 0.05, **tables: Any) -> Experiment:
    shards = [[[[1.0 + i / 5], 2.0 + i]] for i in range(PEERS)]
    task = inline(shards, [[x] for x in STARTS], lr=lr)["task"]
    return from_dict({"rounds": 30, "eval_every": 5, "task": task, "record": {"params": "final"}} | tables)


def run(*, lr: float = 0.05, **tables: Any) -> Document:
    """Run six peers with one row of data each, on a ring unless `tables` say otherwise."""
    return simulate(experiment(lr=lr, **tables), engine="events")


def run_softmax(**tables: Any) -> Document:
    defaults = {"rounds": 6, "eval_every": 3, "task": SOFTMAX, "topology": RING_OF_FIVE, "record": {"params": "final"}}
    return simulate(from_dict(defaults | tables), engine="events")


def with_faults(*schedule: Mapping[str, object], **tables: Any) -> Document:
    return run(faults={"schedule": list(schedule)}, **tables)


def said(**tables: Any) -> list[str]:
    """Return the words of a run, in the order in which they were said."""
    notes: list[str] = []
    ways.simulate(experiment(**tables), "events", ways.Options(writes=False, listener=ways.Listener(note=notes.append)))
    return notes


def values(summary: Document) -> list[float]:
    """Return the one parameter of each peer that is there."""
    return [row[0] for row in summary.params if row is not None]


def seen(summary: Document) -> list[tuple[object, ...]]:
    """Return what the evaluations found, without when that was and what it had cost."""
    figures = ("round", "accuracy", "loss", "consensus_distance")
    return [tuple(entry[figure] for figure in figures) for entry in summary.as_dict()["history"]]


def times(summary: Document) -> list[float]:
    return [entry.simulated_seconds for entry in summary.history]


def distances(summary: Document) -> dict[int, float]:
    return {entry.round: entry.consensus_distance for entry in summary.history}


# ---- Time


STRAGGLER: dict[str, Any] = {
    "task": {"model": "softmax"},
    "topology": {"family": "ring", "peers": 4},
    "speed": {"factors": [1.0, 1.0, 1.0, 4.0]},
}
"""truth.json, "wall_clock": step times 1, 1, 1, 4."""


def test_in_step_ten_rounds_take_forty_seconds_where_one_step_takes_four() -> None:
    summary = run_softmax(rounds=10, **STRAGGLER)
    assert summary.simulated_seconds == 40.0
    assert summary.gradients == 40
    assert times(summary) == [0.0, 12.0, 24.0, 36.0, 40.0]


@pytest.mark.parametrize("way", ["asynchronous", "adpsgd"])
def test_who_does_not_wait_does_130_steps_in_these_forty_seconds(way: str) -> None:
    summary = run_softmax(rounds=0, stop_after_s=40.0, eval_every=10, algorithm=WAYS[way], **STRAGGLER)
    assert summary.outcome == "finished"
    assert summary.simulated_seconds == 40.0
    assert summary.gradients == 40 + 40 + 40 + 10
    assert summary.rounds == 130 // 4
    assert summary.history[-1].simulated_seconds == 40.0


@pytest.mark.parametrize("way", WAYS)
def test_a_run_ends_at_the_very_second_at_which_it_is_to_stop(way: str) -> None:
    summary = run(rounds=0, stop_after_s=12.25, algorithm=WAYS[way], speed={"factors": [1, 1, 2, 1, 1, 1]})
    assert summary.outcome == "finished"
    assert summary.simulated_seconds == 12.25
    assert summary.history[-1].simulated_seconds == 12.25
    assert summary.history[-1].round == summary.rounds
    in_step = 6 * 6 + 1  # peer 5 is three edges away from the straggler, and a round ahead
    assert summary.gradients == (in_step if way == "in step" else 5 * 12 + 6)


def test_a_run_that_stops_early_shows_no_round_that_not_all_have_completed() -> None:
    """Who is far from the straggler is ahead, and was evaluated after round 4 when the run ends in round 2."""
    summary = run(rounds=0, eval_every=4, stop_after_s=11.0, speed={"factors": [4, 1, 1, 1, 1, 1]})
    assert [(entry.round, entry.simulated_seconds) for entry in summary.history] == [(0, 0.0), (2, 11.0)]
    assert summary.rounds == 2


@pytest.mark.parametrize("way", WAYS)
def test_history_tells_what_each_evaluation_had_cost(way: str) -> None:
    summary = run(rounds=20, algorithm=WAYS[way], network={"latency_ms": 40.0})
    assert [entry.round for entry in summary.history] == [0, 5, 10, 15, 20]
    assert times(summary)[0] == 0.0
    assert all(earlier < later for earlier, later in pairwise(times(summary)))
    sent = [entry.payload_bytes_sent for entry in summary.history]
    assert sent[0] == 0
    assert all(earlier < later for earlier, later in pairwise(sent))
    assert sent[-1] <= summary.payload_bytes_sent
    assert times(summary)[-1] == summary.simulated_seconds


def test_the_rounds_engine_tells_bytes_and_no_simulated_seconds() -> None:
    history = simulate(experiment(rounds=10), engine="rounds").as_dict()["history"]
    assert [entry["payload_bytes_sent"] for entry in history] == [0, 5 * 12 * 8, 10 * 12 * 8]
    assert not any("simulated_seconds" in entry for entry in history)


# ---- Nothing in the way: as the rounds engine has it


CHOSEN: dict[str, dict[str, Any]] = {
    "dpsgd": {},
    "gradient tracking": {"algorithm": {"name": "gradient_tracking"}},
    "push-sum on a directed graph": {
        "algorithm": {"name": "push_sum"},
        "topology": {"family": "tests.own_topologies:one_way_streets"},
    },
    "base-(k+1)": {"topology": {"family": "base_k", "peers": 5, "k": 1}},
    "diloco": {"algorithm": {"name": "diloco"}, "task": SOFTMAX | {"local_steps": 2, "momentum": 0.5}},
}


@pytest.mark.parametrize("which", CHOSEN)
def test_without_latency_and_faults_it_agrees_with_the_rounds_engine(which: str) -> None:
    task = CHOSEN[which].get("task", SOFTMAX) | {"dtype": "float64"}
    virtual = run_softmax(**CHOSEN[which] | {"task": task})
    base = {"rounds": 6, "eval_every": 3, "task": task, "topology": RING_OF_FIVE, "record": {"params": "final"}}
    rounds = simulate(from_dict(base | {k: v for k, v in CHOSEN[which].items() if k != "task"}), engine="rounds")
    a, b = np.array(rounds.params), np.array(virtual.params)
    assert np.abs(a - b).max() / np.abs(b).max() <= 1e-9
    assert rounds.payload_bytes_sent == virtual.payload_bytes_sent
    assert rounds.gradients == virtual.gradients


@pytest.mark.parametrize("way", WAYS)
def test_a_network_of_zeros_is_none(way: str) -> None:
    zeros = dict.fromkeys(("latency_ms", "jitter_ms", "bandwidth_mbps", "loss", "duplicate", "reorder"), 0.0)
    plain, zero = run_softmax(algorithm=WAYS[way]), run_softmax(algorithm=WAYS[way], network=zeros)
    assert plain.params == zero.params
    assert plain.event_hash == zero.event_hash
    assert plain.as_dict()["history"] == zero.as_dict()["history"]


# ---- Links


WILD = {
    "latency_ms": 30.0,
    "jitter_ms": 2000.0,
    "bandwidth_mbps": 1.0,
    "loss": 0.2,
    "duplicate": 0.3,
    "reorder": 0.3,
}


@pytest.mark.parametrize("which", CHOSEN)
def test_a_wild_network_changes_nothing_but_time_where_all_go_in_step(which: str) -> None:
    calm, wild = run_softmax(**CHOSEN[which]), run_softmax(network=WILD, **CHOSEN[which])
    assert wild.outcome == "finished"
    assert wild.params == calm.params
    assert seen(wild) == seen(calm)
    assert wild.payload_bytes_sent == calm.payload_bytes_sent
    assert wild.short_rounds == 0
    assert wild.simulated_seconds > calm.simulated_seconds + 3.0


def test_a_round_takes_its_step_and_the_way_of_a_message() -> None:
    """Softmax: 7850 numbers of 4 bytes and 64 of header, at 1 Mb/s, to two neighbours each over a link of its own."""
    summary = run_softmax(network={"latency_ms": 30.0, "bandwidth_mbps": 1.0})
    assert summary.simulated_seconds == pytest.approx(6 * (1.0 + (7850 * 4 + 64) * 8 / 1e6 + 0.030), abs=1e-9)


# ---- Seeds


RANDOM: dict[str, Any] = {
    "speed": {"distribution": "lognormal", "sigma": 0.7},
    "network": {"latency_ms": 50.0, "jitter_ms": 300.0, "loss": 0.05},
    "faults": {"per_minute": 10.0},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_seed_is_the_same_run_to_the_last_event(way: str) -> None:
    first, again, other = (run(seed=seed, algorithm=WAYS[way], **RANDOM) for seed in (4, 4, 5))
    assert first.event_hash == again.event_hash
    assert first.events == again.events
    assert first.params == again.params
    assert first.as_dict()["history"] == again.as_dict()["history"]
    assert first.event_hash != other.event_hash
    assert first.simulated_seconds != other.simulated_seconds


# ---- AD-PSGD, averaging by averaging


TRACE = TRACES["AD_PSGD_pair_order"]
STEPS = {0: (1, 4, 100), 1: (3, 100), 2: (2, 100), 3: (4, 100)}
"""Steps end at 1 s on peer 0, at 2 s on peer 2, then on 1, on 3, and at 5 s on 0 again: who is active in the trace."""


def draws_the_pairs_of_the_trace(seed: int) -> bool:
    done = dict.fromkeys(range(4), 0)
    for active, passive in TRACE["events"]:
        around = sorted({(active - 1) % 4, (active + 1) % 4})
        if partners(seed, active, around, done[active])[0] != passive:
            return False
        done[active] += 1
    return True


@pytest.mark.parametrize("events", range(6))
def test_adpsgd_follows_the_trace_of_pairs(tmp_path: Path, events: int) -> None:
    """It is the stale one: local steps start from the state right after the peer's own last update, and what others
    average with it meanwhile does not move where its gradient is taken. Peer 0 shows it, which has averaged with 3
    before its second step ends."""
    lines = [f"peer-{peer},{step_s}" for peer, steps_s in STEPS.items() for step_s in steps_s]
    (tmp_path / "steps.csv").write_text("\n".join(["peer,step_s", *lines]))
    seed = next(seed for seed in count() if draws_the_pairs_of_the_trace(seed))
    tables: dict[str, Any] = {
        "seed": seed,
        "rounds": 0,
        "stop_after_s": events + 0.5,
        "algorithm": {"name": "adpsgd"},
        "speed": {"file": "steps.csv"},
        "record": {"params": "final"},
        **inline(SHARDS, [START], lr=TRACE["lr"]),
    }
    summary = simulate(from_dict(tables, folder=tmp_path), engine="events")
    assert summary.gradients == events
    np.testing.assert_allclose(values(summary), TRACE["stale"][events], rtol=0, atol=1e-12)


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
    assert summary.why == "every peer's process ended before its time"
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


# ---- stop_when


@pytest.mark.parametrize("engine", ["rounds", "events"])
def test_a_run_stops_at_the_first_evaluation_that_is_good_enough(engine: ways.Engine) -> None:
    tables: dict[str, Any] = {"rounds": 60, "eval_every": 2, "task": SOFTMAX, "topology": RING_OF_FIVE}
    whole = run_softmax(**tables).as_dict()["history"]
    good = next(entry for entry in whole if entry["accuracy"]["mean"] >= 0.6)
    stopped = simulate(from_dict(tables | {"stop_when": "accuracy.mean >= 0.6"}), engine=engine)
    assert 4 < good["round"] < 50
    assert stopped.outcome == "finished"
    assert stopped.rounds == good["round"]
    assert stopped.history[-1].round == good["round"]
    assert stopped.history[-1].accuracy.mean == pytest.approx(good["accuracy"]["mean"], abs=1e-3)
    assert stopped.gradients == 5 * good["round"]


def test_nobody_is_beyond_the_round_at_which_a_run_stops() -> None:
    """With a straggler others are ahead, but not beyond an evaluation."""
    bound = "consensus_distance <= 1.0"
    summary = run(lr=0.0, eval_every=3, stop_when=bound, speed={"factors": [4, 1, 1, 1, 1, 1]})
    before, last = summary.history[-2:]
    assert summary.rounds == last.round < 30
    assert last.consensus_distance <= 1.0 < before.consensus_distance
    assert summary.gradients == PEERS * last.round
    assert summary.consensus_distance == last.consensus_distance
    assert np.var(values(summary)) == pytest.approx(last.consensus_distance, rel=1e-9)


@pytest.mark.parametrize("way", ["asynchronous", "adpsgd"])
def test_who_does_not_wait_stops_when_it_is_good_enough_too(way: str) -> None:
    summary = run(rounds=60, eval_every=1, algorithm=WAYS[way], stop_when="consensus_distance <= 5.0")
    before, last = summary.history[-2:]
    assert last.consensus_distance <= 5.0 < before.consensus_distance
    assert summary.rounds == last.round
    assert summary.simulated_seconds == last.simulated_seconds


@pytest.mark.parametrize("engine", ["rounds", "events"])
def test_a_bound_that_is_never_met_stops_nothing(engine: ways.Engine) -> None:
    summary = simulate(experiment(stop_when="loss.mean < -1"), engine=engine)
    plain = simulate(experiment(), engine=engine)
    assert summary.rounds == 30
    assert summary.params == plain.params


@pytest.mark.parametrize("engine", ["rounds", "events"])
@pytest.mark.parametrize(
    ("text", "words"),
    [("acuracy.mean >= 0.9", "acuracy.mean"), ("gradients >= 5", "gradients"), ("accuracy.mean", "NUMBER COMPARISON")],
)
def test_a_name_that_no_evaluation_knows_is_refused(engine: ways.Engine, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        simulate(experiment(stop_when=text), engine=engine)
    assert refused.value.key == "stop_when"
