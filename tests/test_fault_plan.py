"""Faults as data: what the file says of whom, and what the seed draws."""

from collections import Counter
from itertools import islice
from statistics import fmean
from typing import Any

import pytest

from peer.assembly.faults import CUT_S, DEAD_S, STOPPED_S, Fault, faults_of, newcomers, random_faults
from peer.errors import ConfigError
from peer.experiment import from_dict

NAMES = ["oslo", "rome", "cairo", "lima", "quito"]
EDGES = [(0, 1), (1, 2), (2, 3), (3, 4)]


def planned(*entries: dict[str, Any]) -> tuple[Fault, ...]:
    return faults_of(from_dict({"faults": {"schedule": list(entries)}}), NAMES)


# ---- As written


def test_names_become_numbers_and_the_order_is_that_of_the_file() -> None:
    assert planned(
        {"round": 20, "kill": "lima"},
        {"at_s": 30, "restart": "lima"},
        {"at_s": 40, "cut": ["rome", "oslo"], "for_s": 10},
        {"round": 5, "stop": ["quito", "oslo"], "for_s": 8.5},
        {"round": 0, "leave": "oslo"},
        {"at_s": 0, "join": "rome"},
        {"at_s": 1, "continue": "oslo"},
        {"at_s": 1, "heal": ["oslo", "rome"]},
    ) == (
        Fault("kill", (3,), round=20),
        Fault("restart", (3,), at_s=30.0),
        Fault("cut", (1, 0), at_s=40.0, for_s=10.0),
        Fault("stop", (4, 0), round=5, for_s=8.5),
        Fault("leave", (0,), round=0),
        Fault("join", (1,), at_s=0.0),
        Fault("continue", (0,), at_s=1.0),
        Fault("heal", (0, 1), at_s=1.0),
    )


@pytest.mark.parametrize("everything", [True, "all"])
def test_to_heal_everything_names_nobody(everything: object) -> None:
    assert planned({"at_s": 4, "heal": everything}) == (Fault("heal", at_s=4.0),)


def test_peers_that_no_group_names_form_one_more() -> None:
    (fault,) = planned({"round": 3, "partition": [["lima", "oslo"], ["cairo"]], "for_s": 2})
    assert fault == Fault("partition", groups=((0, 3), (2,), (1, 4)), round=3, for_s=2.0)
    (whole,) = planned({"round": 3, "partition": [["lima", "oslo", "quito"], ["cairo", "rome"]]})
    assert whole.groups == ((0, 3, 4), (1, 2))


def test_nothing_is_planned_where_nothing_is_said() -> None:
    assert planned() == ()
    assert newcomers(()) == frozenset()


def test_newcomers_are_those_that_join() -> None:
    faults = planned({"round": 3, "join": ["lima", "oslo"]}, {"at_s": 3, "kill": "rome"}, {"at_s": 9, "join": "cairo"})
    assert newcomers(faults) == {0, 2, 3}


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ([{"at_s": 1, "kill": "romme"}], 'faults.schedule.0.kill: "romme" is not a peer .* did you mean rome?'),
        ([{"at_s": 1, "kill": "rome"}, {"at_s": 1, "cut": ["rome", "x"]}], 'schedule.1.cut: "x" is not a peer .*oslo,'),
        ([{"at_s": 1, "partition": [["rome"], ["y"]]}], 'schedule.0.partition: "y" is not a peer'),
        ([{"at_s": 1, "join": "rome"}, {"at_s": 5, "join": "rome"}], "schedule.1.join: rome joins twice; restart is"),
        ([{"at_s": 1, "kill": "rome"}, {"at_s": 5, "join": "rome"}], "schedule.0.kill: rome is not there yet"),
        ([{"round": 9, "join": "rome"}, {"round": 5, "stop": "rome"}], "schedule.1.stop: rome is not there yet"),
    ],
)
def test_what_cannot_be_is_refused_by_its_place(entries: list[dict[str, Any]], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        planned(*entries)


def test_a_newcomer_may_be_killed_once_it_is_there() -> None:
    assert len(planned({"at_s": 5, "kill": "rome"}, {"at_s": 1, "join": "rome"}, {"round": 0, "stop": "rome"})) == 3


# ---- At a rate


def drawn(count: int, per_minute: float = 6.0, seed: int = 0, edges: list[tuple[int, int]] = EDGES) -> list[Fault]:
    experiment = from_dict({"faults": {"per_minute": per_minute}, "seed": seed})
    return list(islice(random_faults(experiment, NAMES, edges), count))


def test_the_rate_is_kept_and_the_order_is_that_of_time() -> None:
    """1,200 faults at six a minute take 12,000 s, with a standard deviation of sqrt(1200) * 10 s."""
    times = [fault.at_s or 0.0 for fault in drawn(1200)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(12_000, abs=5 * 1200**0.5 * 10)


def test_the_kinds_are_even_and_each_ends_by_itself() -> None:
    faults = drawn(1200)
    counts = Counter(fault.what for fault in faults)
    assert counts.keys() == {"stop", "kill", "cut"}
    assert all(300 < count < 500 for count in counts.values())
    for what, (low, high) in {"stop": STOPPED_S, "cut": CUT_S, "kill": DEAD_S}.items():
        lasting = [fault.for_s or 0.0 for fault in faults if fault.what == what]
        assert low <= min(lasting) < max(lasting) <= high
        assert fmean(lasting) == pytest.approx((low + high) / 2, rel=0.1)


def test_everybody_and_every_edge_gets_its_turn() -> None:
    faults = drawn(600)
    assert {fault.peers for fault in faults if fault.what == "cut"} == set(EDGES)
    assert {fault.peers for fault in faults if fault.what != "cut"} == {(i,) for i in range(5)}


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    assert drawn(50) == drawn(50)
    assert drawn(50) != drawn(50, seed=1)


def test_without_edges_nothing_is_cut_and_without_a_rate_nothing_happens() -> None:
    assert {fault.what for fault in drawn(100, edges=[])} == {"stop", "kill"}
    assert drawn(1, per_minute=0.0) == []
