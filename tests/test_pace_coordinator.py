"""What a round beside coordinators, or around a ring, will take: by hand, and as the events engine finds it.

A message carries a megabyte, which takes a second on lines and links of MBPS.
"""

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from peer.assembly import assemble
from peer.assembly.coordination import chosen_of
from peer.assembly.links import HEADER_BYTES
from peer.assembly.pace import seconds_per_round
from peer.assembly.pace_ring import piece_sizes
from peer.scripting import simulate
from tests.test_pace import SLOW, experiment

MEGABYTE = 10**6
MBPS = (MEGABYTE + HEADER_BYTES) * 8 / 1e6
EACH_WAY = (MEGABYTE, MEGABYTE)

SHARED = {"node_mbps": MBPS}
APART = {"bandwidth_mbps": MBPS, "latency_ms": 250}


def pace_of(count: int, mode: str, payload_bytes: tuple[int, ...] = EACH_WAY, **tables: Any) -> float:
    coordinator = {"mode": mode, **tables.pop("coordinator", {})}
    found = seconds_per_round(assemble(experiment(count, coordinator=coordinator, **tables)), payload_bytes)
    assert found is not None
    return found


def alike(seconds: float) -> Any:
    return pytest.approx(seconds, rel=1e-9)


# ---- A parameter server, by hand


def test_without_anything_to_slow_it_a_synchronous_round_takes_the_step_of_the_slowest() -> None:
    assert pace_of(4, "sync") == alike(1.0)
    assert pace_of(4, "sync", speed=SLOW) == alike(4.0)


def test_parameters_go_down_and_pushes_up() -> None:
    assert pace_of(4, "sync", network=APART) == alike(1.25 + 1.0 + 1.25)
    assert pace_of(4, "sync", (MEGABYTE, 0), network={"bandwidth_mbps": MBPS}) == pytest.approx(2.0, rel=1e-4)
    assert pace_of(4, "sync", speed=SLOW, network=APART) == alike(1.25 + 4.0 + 1.25)


def test_over_one_line_the_hub_gives_to_one_after_another() -> None:
    """The k-th of n has its parameters after k s, and its push comes in over the line the other way."""
    assert pace_of(4, "sync", network=SHARED) == alike(4 + 1 + 1)
    for factors in ([4, 1, 1, 1], [1, 1, 1, 4]):
        found = pace_of(4, "sync", speed={"factors": factors}, network=SHARED)
        assert found == alike(4 + 4 + 1), "who pushed last is given last"


def test_two_servers_give_their_halves_over_two_lines() -> None:
    half = (MEGABYTE - HEADER_BYTES) // 2
    found = pace_of(4, "sync", (2 * half, 2 * half), coordinator={"servers": 2}, network=SHARED)
    transmission_s = (half + HEADER_BYTES) * 8 / (MBPS * 1e6)
    assert found == pytest.approx(4 * transmission_s + 1 + 2 * transmission_s, rel=1e-3)


def test_a_peer_that_is_the_coordinator_too_shares_no_line_with_itself() -> None:
    found = pace_of(4, "sync", coordinator={"name": "peer-0"}, network=SHARED)
    assert found == alike(3 + 1 + 1), "three to be given their parameters over the line, not four"
    assert pace_of(1, "sync", coordinator={"name": "peer-0"}, network=SHARED) == alike(1.0)


def test_with_a_fraction_it_is_the_mean_over_those_who_are_drawn() -> None:
    tables: dict[str, Any] = {"speed": {"factors": [1, 1, 1, 1, 1, 9]}, "rounds": 32}
    found = pace_of(6, "sync", coordinator={"fraction": 0.5}, **tables)
    chosen = chosen_of(experiment(6, coordinator={"mode": "sync", "fraction": 0.5}, **tables), 6)
    assert chosen is not None
    assert found == alike(fmean(9.0 if 5 in chosen(version) else 1.0 for version in range(16, 32)))


def test_a_quorum_does_not_wait_for_the_straggler() -> None:
    assert pace_of(4, "quorum", coordinator={"quorum": 3}, speed=SLOW) == alike(1.0)
    assert pace_of(4, "quorum", coordinator={"quorum": 0.75}, speed=SLOW) == alike(1.0)
    assert pace_of(4, "quorum", coordinator={"quorum": 4}, speed=SLOW) == alike(4.0)
    assert pace_of(4, "quorum", coordinator={"quorum": 3}, speed={"factors": [1, 2, 3, 9]}, rounds=2) == alike(3.0)


def test_a_timer_closes_a_round_before_its_quorum_is_met() -> None:
    tables: dict[str, Any] = {"speed": {"factors": [1, 1, 40, 40]}, "rounds": 8}
    assert pace_of(4, "quorum", coordinator={"quorum": 4, "timer_s": 2.5}, **tables) == alike(2.5)


def test_who_is_alone_too_slow_for_the_timer_is_waited_for() -> None:
    assert pace_of(1, "quorum", coordinator={"quorum": 1.0, "timer_s": 0.5}) == alike(1.0)


def test_an_asynchronous_round_is_one_update_from_whoever_is_ready() -> None:
    assert pace_of(4, "async") == alike(1 / 4)
    assert pace_of(4, "async", speed=SLOW, rounds=130) == pytest.approx(1 / 3.25, rel=0.02)
    assert pace_of(4, "async", network=APART) == alike(3.5 / 4)


def test_the_line_of_an_asynchronous_server_is_the_limit_of_its_updates() -> None:
    assert pace_of(8, "async", network=SHARED) == alike(1.0)
    assert pace_of(2, "async", network=SHARED) == alike(3 / 2), "each goes round in 1 + 1 + 1 s, out of step"


def test_by_turns_everybody_is_as_slow_as_the_slowest() -> None:
    assert pace_of(4, "async", coordinator={"arrival": "round_robin"}, speed=SLOW) == alike(1.0)


def test_a_bound_on_staleness_makes_workers_wait() -> None:
    free = pace_of(4, "async", speed=SLOW, rounds=120)
    assert pace_of(4, "async", coordinator={"max_staleness": 1}, speed=SLOW, rounds=120) > 1.5 * free


def test_a_buffered_round_is_so_many_pushes() -> None:
    assert pace_of(4, "buffered", coordinator={"buffer": 2}) == alike(2 / 4)
    assert pace_of(4, "buffered", coordinator={"buffer": 6}) == alike(6 / 4)


def test_easgd_goes_at_the_pace_of_its_mode() -> None:
    elastic: dict[str, Any] = {"algorithm": {"name": "easgd"}, "network": APART}
    assert pace_of(4, "sync", **elastic) == alike(3.5)
    assert pace_of(4, "async", **elastic) == alike(3.5 / 4)


def test_what_would_take_too_long_to_say_is_not_said() -> None:
    many = assemble(experiment(4, coordinator={"mode": "sync"}))
    many = replace(many, ground=replace(many.ground, names=tuple(f"peer-{i}" for i in range(2001))))
    assert seconds_per_round(many, EACH_WAY) is None


# ---- A ring, by hand


def ring_of(count: int, payload_bytes: int, **tables: Any) -> float:
    return pace_of(count, "ring", (payload_bytes,), **tables)


def test_the_pieces_are_those_of_the_core() -> None:
    sizes = piece_sizes(4 * (3 * 131072 * 2 + 1), 3, 4)
    assert sizes.sum() == 4 * (3 * 131072 * 2 + 1)
    assert sizes.shape == (3, 3)
    assert sizes.max() <= 512 * 1024
    assert (piece_sizes(8, 4, 4) == [[4], [4], [0], [0]]).all()


def test_a_ring_of_one_only_trains() -> None:
    assert ring_of(1, MEGABYTE, network=SHARED) == alike(1.0)


@pytest.mark.parametrize("wires", ["bandwidth_mbps", "node_mbps"])
def test_around_a_ring_each_sends_2_n_less_1_segments(wires: str) -> None:
    found = ring_of(4, 4 * 400_000, network={wires: 8, "latency_ms": 50})
    assert found == alike(1 + 6 * ((400_000 + HEADER_BYTES) * 8 / 8e6 + 0.05))


def test_everybody_waits_for_the_slowest_part() -> None:
    found = ring_of(4, 4 * 400_000, speed=SLOW, network={"bandwidth_mbps": 8})
    transmission_s = (400_000 + HEADER_BYTES) * 8 / 8e6
    assert 4 + 3 * transmission_s <= found <= 4 + 6 * transmission_s


def test_pieces_of_a_segment_follow_each_other_without_waiting() -> None:
    """While one is added and handed on others are under way: latency counts once a step only where lines run dry."""
    piece = 512 * 1024
    found = ring_of(3, 3 * 8 * piece, network={"bandwidth_mbps": 8, "latency_ms": 100})
    transmission_s = (piece + HEADER_BYTES) * 8 / 8e6
    assert found == alike(1 + 4 * 8 * transmission_s + 0.1)


def test_where_latency_is_longer_than_a_segment_lines_run_dry() -> None:
    piece = 512 * 1024
    found = ring_of(3, 3 * 2 * piece, network={"bandwidth_mbps": 8, "latency_ms": 2000})
    transmission_s = (piece + HEADER_BYTES) * 8 / 8e6
    assert found == alike(1 + 4 * (transmission_s + 2.0) + transmission_s)


# ---- As the events engine finds it


def in_events_s(count: int, rounds: int, folder: Path, **tables: Any) -> float:
    """Return the seconds of a round in the later half of so many."""
    ends_s = [
        simulate(experiment(count, folder, rounds=r, **tables), engine="events").simulated_seconds
        for r in (rounds // 2, rounds)
    ]
    found: float = (ends_s[1] - ends_s[0]) / (rounds - rounds // 2)
    return found


SLOW_LINKS = {"bandwidth_mbps": 68 * 8 / 0.3e6, "latency_ms": 50}
"""On which a message of one weight, 68 bytes, takes 0.3 s."""

SLOW_LINES = {"node_mbps": 68 * 8 / 0.3e6, "latency_ms": 50}

EXACT: dict[str, dict[str, Any]] = {
    "sync": {"coordinator": {"mode": "sync"}, "network": SLOW_LINKS},
    "sync, lines": {"coordinator": {"mode": "sync"}, "network": SLOW_LINES},
    "a straggler": {"coordinator": {"mode": "sync"}, "network": SLOW_LINES, "speed": SLOW},
    "hosted": {"coordinator": {"mode": "sync", "name": "peer-1"}, "network": SLOW_LINES},
    "fraction": {"coordinator": {"mode": "sync", "fraction": 0.5}, "network": SLOW_LINES, "speed": SLOW},
    "quorum": {"coordinator": {"mode": "quorum", "quorum": 3}, "network": SLOW_LINES, "speed": SLOW},
    "late ones count": {"coordinator": {"mode": "quorum", "quorum": 3, "late": "stale"}, "network": SLOW_LINES},
    "timer": {"coordinator": {"mode": "quorum", "quorum": 4, "timer_s": 3.0}, "network": SLOW_LINES, "speed": SLOW},
    "async": {"coordinator": {"mode": "async"}, "network": SLOW_LINES, "speed": SLOW},
    "by turns": {"coordinator": {"mode": "async", "arrival": "round_robin"}, "network": SLOW_LINKS, "speed": SLOW},
    "delay": {"coordinator": {"mode": "async", "arrival": "round_robin", "delay": 2}, "network": SLOW_LINKS},
    "bound": {"coordinator": {"mode": "async", "max_staleness": 1}, "network": SLOW_LINKS, "speed": SLOW},
    "buffered": {"coordinator": {"mode": "buffered", "buffer": 3}, "network": SLOW_LINES, "speed": SLOW},
    "easgd": {"coordinator": {"mode": "sync"}, "algorithm": {"name": "easgd"}, "network": SLOW_LINES},
    "easgd async": {"coordinator": {"mode": "async"}, "algorithm": {"name": "easgd"}, "network": SLOW_LINES},
    "ring": {"coordinator": {"mode": "ring"}, "network": SLOW_LINKS},
    "ring, lines": {"coordinator": {"mode": "ring"}, "network": SLOW_LINES, "speed": SLOW},
}


@pytest.mark.parametrize("what", EXACT)
def test_it_is_what_the_events_engine_takes_for_the_later_rounds(what: str, tmp_path: Path) -> None:
    tables = EXACT[what]
    payload_bytes = (4,) if tables["coordinator"]["mode"] == "ring" else (4, 4)
    predicted = seconds_per_round(assemble(experiment(4, rounds=16, **tables)), payload_bytes)
    assert predicted == pytest.approx(in_events_s(4, 16, tmp_path, **tables), rel=1e-9)


DRAWN: dict[str, dict[str, Any]] = {
    "jitter": {"coordinator": {"mode": "sync"}, "network": {"latency_ms": 50, "jitter_ms": 500}},
    "loss": {"coordinator": {"mode": "sync"}, "network": {"latency_ms": 50, "loss": 0.1}},
    "lognormal steps": {"coordinator": {"mode": "async"}, "speed": {"distribution": "lognormal"}},
    "ring": {"coordinator": {"mode": "ring"}, "network": {"latency_ms": 50, "jitter_ms": 200, "loss": 0.02}},
}


@pytest.mark.parametrize("what", DRAWN)
def test_what_is_drawn_comes_within_a_tenth_of_the_events_engine(what: str, tmp_path: Path) -> None:
    tables = DRAWN[what]
    payload_bytes = (4,) if tables["coordinator"]["mode"] == "ring" else (4, 4)
    predicted = seconds_per_round(assemble(experiment(6, rounds=128, **tables)), payload_bytes)
    assert predicted == pytest.approx(in_events_s(6, 128, tmp_path, **tables), rel=0.1)


def test_two_servers_are_what_they_are_in_the_events_engine(tmp_path: Path) -> None:
    tables: dict[str, Any] = {"coordinator": {"mode": "sync", "servers": 2}, "network": SLOW_LINES, "weights": 2}
    predicted = seconds_per_round(assemble(experiment(4, rounds=8, **tables)), (8, 8))
    assert predicted == pytest.approx(in_events_s(4, 8, tmp_path, **tables), rel=1e-9)
