"""The events engine from end to end: time, links, speeds, and when a run ends."""

from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer import ways
from peer.assembly.cores import partners
from peer.errors import ConfigError
from peer.experiment import from_dict
from peer.scripting import simulate
from tests.commands import inline
from tests.four_peers import SHARDS, START, TRACES
from tests.six_peers import PEERS, RING_OF_FIVE, SOFTMAX, WAYS, experiment, run, run_softmax, seen, times, values

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


# ---- Many steps at once


@pytest.mark.parametrize("way", WAYS)
def test_steps_done_together_are_those_done_one_by_one(way: str) -> None:
    """To rounding, and event by event; with momentum, steps of all lengths and peers that come back."""
    speed = {"distribution": "lognormal"}
    faults = {"schedule": [{"round": 3, "kill": "peer-2", "for_s": 4.0}]}
    task = {**SOFTMAX, "momentum": 0.5, "local_steps": 2, "dtype": "float64"}
    one_by_one, together = (
        run_softmax(task={**task, "step": step}, algorithm=WAYS[way], rounds=12, speed=speed, faults=faults)
        for step in ("plain", "vmap")
    )
    assert (one_by_one.step, together.step) == ("plain", "vmap")
    assert one_by_one.event_hash == together.event_hash
    assert one_by_one.gradients == together.gradients
    np.testing.assert_allclose(together.params, one_by_one.params, rtol=1e-9, atol=1e-11)
