"""How stale pushes are, what is made of it, and what bounds it; and what waiting costs.

A push's staleness is how many versions were made since its worker was given the parameters that it trained from.
"""

import json
from fractions import Fraction
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from peer.scripting import Document, simulate
from tests.four_peers import SHARDS, TRACES
from tests.served_peers import centre, served

TRUTH: dict[str, Any] = json.loads((Path(__file__).parent / "truth" / "truth.json").read_text(encoding="utf-8"))


def asynchronous(workers: int, rounds: int, speed: dict[str, Any] | None = None, **coordinator: Any) -> Document:
    """Return a run of so many workers with the same row, each of whose gradients is applied when it arrives."""
    table = {"mode": "async", **coordinator}
    e = served(rounds, table, {"lr": 0.01}, shards=[SHARDS[0]] * workers, speed=speed or {}, eval_every=rounds)
    return simulate(e, engine="events")


# ---- How stale


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("arrival", ["clock", "round_robin"])
def test_of_equally_fast_workers_all_others_come_in_between(workers: int, arrival: str) -> None:
    assert TRUTH["wall_clock"]["mean_staleness_equal_speed"] == "n-1 for n equal workers in steady state"
    rounds = 10 * workers
    found = asynchronous(workers, rounds, arrival=arrival).staleness
    assert found.histogram == [1] * (workers - 1) + [rounds - workers + 1]
    assert found.max == workers - 1
    steady = found.mean * rounds - sum(range(workers - 1))
    assert steady / (rounds - workers + 1) == pytest.approx(workers - 1, rel=1e-12)


@pytest.mark.parametrize(
    "speed",
    [{"factors": [1.0, 1.0, 1.0, 4.0]}, {"factors": [1.0, 1.3, 1.7, 2.9]}, {"distribution": "lognormal", "sigma": 0.7}],
    ids=["straggler", "uneven", "drawn"],
)
def test_on_average_all_others_come_in_between_however_fast_they_are(speed: dict[str, Any]) -> None:
    """Each update is one of the others' while each other worker trains: n - 1 times, but for those of the last ones."""
    workers, rounds = 4, 400
    found = asynchronous(workers, rounds, speed).staleness
    cut_off = workers * (workers - 1) * found.max  # of the first updates, and those under way at the end
    assert workers - 1 - cut_off / rounds <= found.mean <= workers - 1
    assert found.mean == pytest.approx(workers - 1, rel=0.05)
    assert sum(found.histogram) == rounds
    assert sum(k * count for k, count in enumerate(found.histogram)) == pytest.approx(found.mean * rounds, rel=1e-12)


def test_waiting_for_a_straggler_costs_what_the_truth_says() -> None:
    """t = (1, 1, 1, 4): in step 40 gradients in 40 s, and 130 where nobody waits."""
    assert "sync 10 rounds =40 s and 40 gradients; async in 40 s = 40+40+40+10 = 130" in TRUTH["wall_clock"]["async_"]
    speed = {"factors": [1.0, 1.0, 1.0, 4.0]}
    in_step = simulate(served(10, {"mode": "sync"}, {"lr": 0.01}, speed=speed), engine="events")
    assert (in_step.simulated_seconds, in_step.gradients) == (40.0, 40)
    assert not hasattr(in_step, "staleness"), "in step nothing is stale"
    free = served(0, {"mode": "async"}, {"lr": 0.01}, speed=speed, stop_after_s=40, eval_every=1000)
    summary = simulate(free, engine="events")
    assert summary.outcome == "finished"
    assert (summary.simulated_seconds, summary.rounds, summary.gradients) == (40.0, 130, 130)
    assert sum(summary.staleness.histogram) == 130


def test_how_long_ago_is_told_in_seconds_too() -> None:
    """The straggler's first push is of parameters that are 4 s old; those of the others, 1 s."""
    found = asynchronous(2, 5, {"factors": [1.0, 4.0]}).staleness
    assert found.max == 4 or found.max == 3
    assert found.max_s == 4.0
    assert found.mean_s == pytest.approx((4 * 1.0 + 4.0) / 5)


# ---- What is made of it


def scaled_by_hand(rule: str) -> list[float]:
    """Return the lecture's chain, w = 2 and gradients -2, -6 and -10, the second of staleness 1, the third of 2."""
    scales = {"constant": (1, 1, 1), "inverse": (1, Fraction(1, 2), Fraction(1, 3))}
    s = scales.get(rule, (1.0, 1 / sqrt(2), 1 / sqrt(3)))
    steps = [0.1 * 2 * float(s[0]), 0.1 * 6 * float(s[1]), 0.1 * 10 * float(s[2])]
    return [2.0 + sum(steps[:k]) for k in range(4)]


@pytest.mark.parametrize("rule", ["constant", "inverse", "inverse_sqrt"])
@pytest.mark.parametrize("arrival", ["clock", "round_robin"])
@pytest.mark.parametrize("aggregate", ["gradients", "models"])
def test_a_stale_push_is_scaled_as_asked(rule: str, arrival: str, aggregate: str) -> None:
    chain = TRACES["lecture"]["async_chain"]
    shards = [[[[1.0], chain["w"][0] - g]] for g in chain["gradients"]]
    table = {"mode": "async", "arrival": arrival, "staleness": rule, "aggregate": aggregate}
    e = served(3, table, {"lr": chain["lr"]}, shards=shards, init=[2.0], speed={"factors": [1.0, 1.5, 1.75]})
    found = centre(simulate(e, engine="events"))
    assert found == pytest.approx(scaled_by_hand(rule), rel=1e-14)
    if rule == "inverse":
        assert found == pytest.approx([2.0, 2.2, 2.5, 2.5 + 1 / 3], rel=1e-14)


# ---- What bounds it


@pytest.mark.parametrize("bound", [1, 2, 5])
@pytest.mark.parametrize("speed", [{}, {"factors": [1.0, 1.0, 1.0, 1.0, 1.0, 9.0]}], ids=["even", "straggler"])
def test_no_push_is_staler_than_the_bound(bound: int, speed: dict[str, Any]) -> None:
    rounds = 120
    found = asynchronous(6, rounds, speed, max_staleness=bound)
    assert found.rounds == rounds
    assert found.staleness.max <= bound
    assert sum(found.staleness.histogram) == rounds
    free = asynchronous(6, rounds, speed)
    assert free.staleness.max >= 5
    assert (found.simulated_seconds > free.simulated_seconds) == (bound < 5 or bool(speed)), "somebody had to wait"


@pytest.mark.parametrize("bound", [1, 3])
def test_as_many_train_at_a_time_as_can_stay_fresh(bound: int) -> None:
    """The bound and one more: of eight workers who could make eight updates a second."""
    assert asynchronous(8, 48).simulated_seconds == 6.0
    assert asynchronous(8, 48, max_staleness=bound).simulated_seconds == 48 / (bound + 1)
