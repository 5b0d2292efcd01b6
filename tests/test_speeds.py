"""How long local steps take: constant, by factors, drawn anew, and from a trace."""

import math
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from peer.assembly import assemble
from peer.assembly.speeds import Speeds, speeds_of
from peer.errors import ConfigError
from peer.experiment import from_dict

NAMES = ["oslo", "rome", "cairo", "lima"]


def speeds(folder: Path = Path(), *, task: dict[str, Any] | None = None, seed: int = 0, **speed: Any) -> Speeds:
    return speeds_of(from_dict({"task": task or {}, "speed": speed, "seed": seed}, folder=folder), NAMES)


def test_a_step_takes_its_seconds_times_the_factor_of_its_peer() -> None:
    found = speeds(step_s=0.5, factors=[1, 1, 2, 4], task={"local_steps": 3})
    assert [found.round_s(peer, 7) for peer in range(4)] == [1.5, 1.5, 3.0, 6.0]
    assert [found.mean_round_s(peer) for peer in range(4)] == [1.5, 1.5, 3.0, 6.0]
    assert speeds().round_s(3, 0) == 1.0


def test_nothing_is_trained_in_no_time() -> None:
    found = speeds(task={"data": "none", "init": [1.0]}, distribution="lognormal")
    assert found.round_s(0, 0) == found.mean_round_s(0) == 0.0


@pytest.mark.parametrize(
    ("factors", "words"), [([1, 2, 4], "has 3 numbers, and there are 4 peers"), ([1], "has 1 number, and there are 4")]
)
def test_there_are_as_many_factors_as_peers(factors: list[float], words: str) -> None:
    with pytest.raises(ConfigError, match=f"speed.factors: {words}"):
        speeds(factors=factors)


# ---- Lognormal


def test_every_step_is_drawn_anew_and_the_same_seed_draws_the_same() -> None:
    found = speeds(distribution="lognormal", seed=3)
    drawn = [found.round_s(peer, round) for peer in range(4) for round in range(10)]
    assert len(set(drawn)) == 40
    again, other = speeds(distribution="lognormal", seed=3), speeds(distribution="lognormal", seed=4)
    assert [again.round_s(peer, round) for peer in range(4) for round in range(10)] == drawn
    assert other.round_s(0, 0) != drawn[0]
    assert found.round_s(2, 5) == drawn[25], "whatever was asked before"


@pytest.mark.parametrize("sigma", [None, 0.1, 1.0])
def test_sigma_is_the_spread_of_the_logarithm_and_leaves_the_mean(sigma: float | None) -> None:
    """The mean of 4,000 has a relative standard error of sqrt(exp(sigma^2) - 1) / sqrt(4000), at most 0.021."""
    stated: dict[str, Any] = {} if sigma is None else {"sigma": sigma}
    found = speeds(step_s=2.0, factors=[1, 1, 1, 3], distribution="lognormal", **stated)
    drawn = [found.round_s(3, round) for round in range(4000)]
    assert fmean(drawn) == pytest.approx(6.0, rel=0.08)
    assert pstdev(map(math.log, drawn)) == pytest.approx(sigma or 0.5, rel=0.05)
    assert found.mean_round_s(3) == 6.0


def test_the_steps_of_a_round_are_drawn_one_by_one() -> None:
    """Of 100 steps the sum has a tenth of the spread of one."""
    drawn = [speeds(distribution="lognormal", task={"local_steps": 100}).round_s(0, r) / 100 for r in range(400)]
    assert pstdev(drawn) == pytest.approx(math.sqrt(math.exp(0.25) - 1) / 10, rel=0.15)


def test_without_spread_it_is_constant() -> None:
    assert speeds(step_s=0.3, distribution="lognormal", sigma=0, task={"local_steps": 4}).round_s(1, 1) == 4 * 0.3


# ---- A trace


def traced(folder: Path, text: str, **tables: Any) -> Speeds:
    (folder / "steps.csv").write_text(text)
    return speeds(folder, file="steps.csv", **tables)


def test_the_lines_of_a_peer_are_its_steps_and_begin_again_after_the_last(tmp_path: Path) -> None:
    text = "peer,step_s\n# measured\nrome,1\nlima,0.5\nrome,2\n1,4\n"
    found = traced(tmp_path, text, task={"local_steps": 2}, step_s=10.0)
    assert [found.round_s(1, round) for round in range(4)] == [1 + 2, 4 + 1, 2 + 4, 1 + 2]
    assert [found.round_s(3, round) for round in range(2)] == [1.0, 1.0]
    assert found.round_s(0, 0) == 20.0, "who is not in the trace has step_s"
    assert found.mean_round_s(1) == pytest.approx(2 * 7 / 3)


def test_factors_count_for_a_trace_too(tmp_path: Path) -> None:
    found = traced(tmp_path, "step_s,peer\n3,oslo\n", factors=[2, 1, 1, 1])
    assert (found.round_s(0, 5), found.round_s(1, 5)) == (6.0, 1.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("peer,step_s\nromme,1\n", '"romme" is not a peer of this experiment; did you mean rome?'),
        ("peer,step_s\nrome,0\n", 'line 2: step_s is "0", not a number above 0'),
        ("peer,step_s\nrome,fast\n", 'line 2: step_s is "fast"'),
        ("peer,step_s\nrome,inf\n", 'line 2: step_s is "inf"'),
        ("peer\nrome\n", "line 1: the header must name peer, step_s, and step_s is not there"),
        ("peer,step_s,round\n", 'line 1: a column "round" is not known; there are peer, step_s'),
        ("", "is empty; it needs the header peer,step_s"),
    ],
)
def test_what_is_wrong_in_a_trace_is_named_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        traced(tmp_path, text)
    assert refused.value.key == "speed.file"
    assert words in str(refused.value)


def test_no_trace_where_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"speed.file: cannot read .*No such file"):
        speeds(tmp_path, file="steps.csv")


# ---- In an assembly


def test_daemons_need_neither_the_trace_nor_the_links_of_the_simulator() -> None:
    experiment = from_dict({"speed": {"file": "no.csv"}, "network": {"file": "no.csv"}})
    assembly = assemble(experiment, measures=True)
    assert assembly.speeds.round_s(0, 0) == assembly.links.one_way_ms(0, 1) == 0.0
    with pytest.raises(ConfigError):
        assemble(experiment)
