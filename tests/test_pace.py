"""What a round will take: by hand, and as the events engine finds it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peer.assembly import assemble, pace
from peer.assembly.links import HEADER_BYTES
from peer.assembly.pace import seconds_per_round
from peer.experiment import Experiment, from_dict
from peer.explanation import explain
from peer.scripting import simulate


def experiment(count: int, folder: Path = Path(), weights: int = 1, **tables: Any) -> Experiment:
    """A row per peer, as many weights as it has features, and a local step of one second."""
    task = {
        "model": "linear",
        "data": "inline",
        "shards": [[[[1.0 / weights] * weights, 1.0 * i]] for i in range(count)],
        "init": [0.0] * weights,
        "batch_size": 0,
        "lr": 0.01,
    }
    return from_dict({"task": task, **tables}, folder=folder)


def pace_of(count: int, folder: Path = Path(), payload_bytes: tuple[int, ...] = (4,), **tables: Any) -> float | None:
    return seconds_per_round(assemble(experiment(count, folder, **tables)), payload_bytes)


SLOW = {"factors": [1, 1, 1, 4]}

# ---- By hand


def test_who_waits_goes_at_the_pace_of_the_slowest() -> None:
    assert pace_of(4, speed=SLOW) == 4.0
    assert pace_of(4, speed=SLOW, network={"latency_ms": 500}) == 4.0, "it finds there what it is to hear"
    assert pace_of(4, network={"latency_ms": 500}) == 1.5


def test_who_does_not_wait_does_as_many_local_rounds_as_it_can() -> None:
    """In 4 s it is 4 + 4 + 4 + 1, and a round is 4 of them: 40 s are 32.5 rounds, or 130 gradients."""
    for network in ({}, {"latency_ms": 500}):
        found = pace_of(4, speed=SLOW, algorithm={"mode": "async"}, network=network)
        assert found == pytest.approx(4 / 3.25, rel=1e-12)
    assert pace_of(4, speed=SLOW, algorithm={"name": "adpsgd"}) == pytest.approx(4 / 3.25, rel=1e-12)


def test_under_adpsgd_a_local_round_holds_an_answer() -> None:
    network = {"latency_ms": 500, "jitter_ms": 200, "bandwidth_mbps": 8, "loss": 0.5}
    found = pace_of(4, payload_bytes=(10**6 - HEADER_BYTES,), algorithm={"name": "adpsgd"}, network=network)
    assert found == pytest.approx(1 + 2 * (0.5 + 0.1 + 1.0 + 1.0 * (1.0 + 0.2)), rel=1e-9)
    assert pace_of(1, algorithm={"name": "adpsgd"}, network=network) == 1.0


def test_a_megabyte_over_twenty_megabits_a_second() -> None:
    found = pace_of(4, payload_bytes=(10**6,), network={"bandwidth_mbps": 20, "latency_ms": 10})
    assert found == pytest.approx(1 + (10**6 + HEADER_BYTES) * 8 / 20e6 + 0.01, rel=1e-9)


def test_each_exchange_takes_its_own_way() -> None:
    found = pace_of(
        4,
        payload_bytes=(10**6, 2 * 10**6),
        algorithm={"name": "gradient_tracking"},
        network={"bandwidth_mbps": 8, "latency_ms": 250},
    )
    assert found == pytest.approx(1 + 3 + 2 * 0.25, rel=1e-3)


def test_a_link_carries_one_message_after_another(tmp_path: Path) -> None:
    """Along one way around, what takes three seconds to be sent comes every three seconds, though nobody waits for an
    answer and a step takes one."""
    (tmp_path / "ring.edges").write_text("0 1\n1 2\n2 0\n")
    (tmp_path / "links.csv").write_text("from,to,bandwidth_mbps\n0,1,8\n")
    found = pace_of(
        3,
        tmp_path,
        payload_bytes=(3 * 10**6 - HEADER_BYTES,),
        topology={"family": "file:ring.edges", "directed": True},
        network={"file": "links.csv"},
    )
    assert found == pytest.approx(3.0, rel=1e-9)


def test_a_deadline_bounds_the_wait() -> None:
    assert pace_of(4, speed=SLOW, transport={"round_deadline_s": 1.5}) == 4.0, "the slowest waits for nobody"
    assert pace_of(4, network={"latency_ms": 5000}, transport={"round_deadline_s": 1.5}) == 2.5


def test_a_peer_alone_and_peers_that_hear_nobody_take_their_steps() -> None:
    assert pace_of(1, network={"latency_ms": 500}) == 1.0
    assert pace_of(4, speed=SLOW, network={"latency_ms": 500}, algorithm={"name": "local"}) == 4.0


LINE_MBPS = (10**6 + HEADER_BYTES) * 8 / 1e6
"""On which a megabyte takes a second."""


@pytest.mark.parametrize(
    ("family", "seconds"), [("ring", 2), ("complete", 5), ("random_matching", 1), ("one_peer_exponential", 1)]
)
def test_a_line_that_links_share_takes_what_the_busiest_machine_says_or_hears(family: str, seconds: int) -> None:
    network = {"node_mbps": LINE_MBPS, "latency_ms": 250}
    found = pace_of(6, payload_bytes=(10**6,), network=network, topology={"family": family})
    assert found == pytest.approx(1 + seconds + 0.25, rel=1e-9)


def test_in_a_star_the_line_of_the_hub_is_never_idle() -> None:
    """It does its step while the last are still being told, and some of these have theirs behind them by then."""
    network = {"node_mbps": LINE_MBPS, "latency_ms": 250}
    found = pace_of(6, payload_bytes=(10**6,), network=network, topology={"family": "star"})
    assert found == pytest.approx(5.0, rel=1e-9)


def test_a_link_slower_than_the_line_is_what_counts() -> None:
    network = {"node_mbps": LINE_MBPS, "bandwidth_mbps": LINE_MBPS / 5}
    assert pace_of(6, payload_bytes=(10**6,), network=network) == pytest.approx(1 + 5, rel=1e-9)
    network = {"node_mbps": LINE_MBPS, "bandwidth_mbps": LINE_MBPS * 5}
    assert pace_of(6, payload_bytes=(10**6,), network=network) == pytest.approx(1 + 2, rel=1e-9)


def test_under_adpsgd_the_answer_goes_over_the_line_of_a_machine() -> None:
    network = {"node_mbps": LINE_MBPS, "bandwidth_mbps": 5 * LINE_MBPS}
    found = pace_of(4, payload_bytes=(10**6,), algorithm={"name": "adpsgd"}, network=network)
    assert found == pytest.approx(1 + 2, rel=1e-9)


def test_jitter_and_losses_are_waited_for_by_the_latest_of_several() -> None:
    """Of 19 arrivals that are each up to a second late the latest is so by 19/20 on average, where one is by 1/2. Of 19
    that are lost with a chance of a tenth, and then take 0.8 + 0.2 s more, all arrive at once in 0.9^19 = 14 %."""
    late = pace_of(20, topology={"family": "complete"}, network={"jitter_ms": 1000})
    lossy = pace_of(20, topology={"family": "complete"}, network={"latency_ms": 400, "loss": 0.1})
    assert late is not None
    assert lossy is not None
    assert 1.85 < late < 2.0
    assert 1.4 + 0.86 < lossy < 1.4 + 2.5
    assert pace_of(20, topology={"family": "complete"}, network={"jitter_ms": 1000}) == late, "from the seed"


def test_steps_that_are_drawn_are_waited_for_too() -> None:
    found = pace_of(8, speed={"distribution": "lognormal"}, topology={"family": "complete"})
    assert found is not None
    assert found == pytest.approx(2.0, rel=0.15), "the largest of eight with sigma 0.5 is about exp(1.42/2 - 1/8)"


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert pace_of(4, topology={"metric": "model", "threshold": 1.0}) is None
    assert pace_of(4, topology={"metric": "rtt", "threshold": 1.0}) is None
    assert pace_of(4, topology={"metric": "rtt", "threshold": 1.0}, algorithm={"name": "exact"}) == 1.0
    gossip: dict[str, Any] = {"task": {"data": "none", "init": [[1.0], [2.0]]}}
    assert seconds_per_round(assemble(from_dict(gossip)), [4]) is None
    assert seconds_per_round(assemble(from_dict(gossip | {"algorithm": {"mode": "async"}})), [4]) is None
    assert seconds_per_round(assemble(from_dict(gossip | {"network": {"latency_ms": 250}})), [4]) == 0.25


def test_all_to_all_without_looking_at_each_link_comes_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: dict[str, Any] = {
        "algorithm": {"name": "exact"},
        "speed": {"distribution": "lognormal"},
        "network": {"latency_ms": 300},
    }
    one_by_one = pace_of(6, **tables)
    monkeypatch.setattr(pace, "EVERYONE_PEERS", 1)
    assert pace_of(6, **tables) == one_by_one
    for unlike in ("jitter_ms", "node_mbps"):
        assert pace_of(6, **tables | {"network": {unlike: 1}}) is None


# ---- As the events engine finds it


def ended_s(count: int, rounds: int, folder: Path, **tables: Any) -> float:
    found: float = simulate(experiment(count, folder, rounds=rounds, **tables), engine="events").simulated_seconds
    return found


ways_ms = st.lists(st.floats(0, 3000), min_size=8, max_size=8)


@settings(deadline=None, max_examples=25, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one_way_ms=ways_ms, rounds=st.integers(1, 6), name=st.sampled_from(["dpsgd", "gradient_tracking", "exact"]))
def test_it_is_what_the_events_engine_takes_for_the_later_rounds(
    tmp_path: Path, one_way_ms: list[float], rounds: int, name: str
) -> None:
    ways = dict(zip([(i, j) for i in range(4) for j in ((i - 1) % 4, (i + 1) % 4)], one_way_ms, strict=True))
    lines = [f"{a},{b},{latency_ms!r}\n" for (a, b), latency_ms in ways.items()]
    (tmp_path / "links.csv").write_text("".join(["from,to,latency_ms\n", *lines]))
    tables: dict[str, Any] = {"network": {"file": "links.csv", "latency_ms": 100}, "algorithm": {"name": name}}
    payloads = (4, 4) if name == "gradient_tracking" else (4,)
    half = rounds // 2
    first_s = ended_s(4, half, tmp_path, **tables) if half else 0.0
    expected = (ended_s(4, rounds, tmp_path, **tables) - first_s) / (rounds - half)
    assert pace_of(4, tmp_path, payloads, rounds=rounds, **tables) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("family", ["random_matching", "one_peer_exponential", "epidemic"])
def test_so_it_is_where_neighbours_change(family: str, tmp_path: Path) -> None:
    tables: dict[str, Any] = {"topology": {"family": family}, "network": {"latency_ms": 250}}
    found = pace_of(4, rounds=8, **tables)
    expected = (ended_s(4, 8, tmp_path, **tables) - ended_s(4, 4, tmp_path, **tables)) / 4
    assert found == pytest.approx(expected, rel=1e-9)


SHARED: dict[str, dict[str, Any]] = {
    "ring": {},
    "complete": {"topology": {"family": "complete"}},
    "star": {"topology": {"family": "star"}},
    "matching": {"topology": {"family": "random_matching"}},
    "one peer exponential": {"topology": {"family": "one_peer_exponential"}},
    "two exchanges": {"algorithm": {"name": "gradient_tracking"}},
    "exact": {"algorithm": {"name": "exact"}},
    "a straggler": {"speed": {"factors": [1, 1, 1, 4, 1, 1]}},
    "uneven peers": {"speed": {"factors": [1, 1.1, 1.7, 2.1, 1.3, 1.9]}, "topology": {"family": "complete"}},
}


@pytest.mark.parametrize("what", SHARED)
def test_lines_of_machines_are_what_they_are_in_the_events_engine(what: str, tmp_path: Path) -> None:
    """A message of one weight is 68 bytes, and takes 0.3 s."""
    tables = {"network": {"node_mbps": 68 * 8 / 0.3e6, "latency_ms": 50}, **SHARED[what]}
    predicted = explain(experiment(6, rounds=8, **tables)).document["seconds_per_round"]
    expected = (ended_s(6, 8, tmp_path, **tables) - ended_s(6, 4, tmp_path, **tables)) / 4
    assert predicted == pytest.approx(expected, rel=1e-9)


ALIKE: dict[str, tuple[int, dict[str, Any]]] = {
    "jitter": (8, {"network": {"latency_ms": 50, "jitter_ms": 500}}),
    "loss": (8, {"network": {"latency_ms": 50, "loss": 0.1}}),
    "loss among all": (8, {"network": {"latency_ms": 50, "loss": 0.05}, "topology": {"family": "complete"}}),
    "lognormal steps": (8, {"speed": {"distribution": "lognormal"}, "network": {"latency_ms": 50}}),
    "bandwidth": (4, {"speed": SLOW, "network": {"latency_ms": 50, "bandwidth_mbps": 0.001}}),
    "two exchanges": (8, {"algorithm": {"name": "gradient_tracking"}, "network": {"jitter_ms": 300, "loss": 0.05}}),
    "pairs that change": (
        8,
        {"topology": {"family": "random_matching"}, "speed": {"distribution": "lognormal"}, "network": {"loss": 0.1}},
    ),
    "no waiting": (4, {"algorithm": {"mode": "async"}, "speed": SLOW, "network": {"latency_ms": 50}}),
    "averaging by pairs": (8, {"algorithm": {"name": "adpsgd"}, "network": {"latency_ms": 50}}),
}


@pytest.mark.parametrize("what", ALIKE)
def test_what_is_drawn_comes_within_a_tenth_of_the_events_engine(what: str, tmp_path: Path) -> None:
    count, tables = ALIKE[what]
    predicted = explain(experiment(count, rounds=64, **tables)).document["seconds_per_round"]
    assert predicted == pytest.approx(ended_s(count, 64, tmp_path, **tables) / 64, rel=0.1)
