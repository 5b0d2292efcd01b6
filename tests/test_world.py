"""The links of a virtual world: when what is sent arrives, and what is drawn for it.

A message of 61 bytes makes 125 with its header, which is 1 ms on a link of 1 Mb/s.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from peer.assembly.links import HEADER_BYTES, RESEND_S, Link, LinkTable
from peer.experiment import Network
from peer.simulator.world import World

MILLISECOND = 125 - HEADER_BYTES
"""A payload that takes 1 ms on a link of 1 Mb/s."""


def world(
    link: Link | None = None,
    *,
    own: Mapping[tuple[int, int], Link] | None = None,
    seed: int = 0,
    resends: bool = True,
    **network: Any,
) -> World:
    return World(LinkTable(link or Link(), own or {}), Network(**network), seed, resends)


def send(
    world: World, a: int = 0, b: int = 1, now_s: float = 0.0, payload_bytes: int = MILLISECOND, **how: bool
) -> list[float]:
    return world.arrivals_s(a, b, payload_bytes, now_s, **({"insists": False, "is_last": False} | how))


def series(world: World, a: int = 0, b: int = 1, count: int = 400, every_s: float = 0.01) -> list[list[float]]:
    """Send one message after another."""
    return [send(world, a, b, i * every_s) for i in range(count)]


def delays(world: World, a: int = 0, b: int = 1, count: int = 400, every_s: float = 10.0) -> list[float]:
    """How long each of some messages is on its way that are so far apart that none is held up by another."""
    return [min(arrivals) - i * every_s for i, arrivals in enumerate(series(world, a, b, count, every_s))]


def alike(found: list[float], expected: list[float]) -> bool:
    return found == pytest.approx(expected, abs=1e-12)


# ---- Latency and bandwidth


def test_without_anything_to_slow_it_a_message_is_there_at_once() -> None:
    assert send(world(), now_s=3.0, payload_bytes=10**9) == [3.0]


def test_a_message_takes_its_transmission_and_the_latency() -> None:
    assert alike(send(world(Link(latency_ms=20, bandwidth_mbps=1)), now_s=3.0), [3.021])


def test_the_second_of_two_messages_waits_until_the_first_has_left() -> None:
    slow = world(Link(latency_ms=20, bandwidth_mbps=1))
    assert alike(send(slow), [0.021])
    assert alike(send(slow), [0.022])
    assert alike(send(slow, payload_bytes=10 * 125 - HEADER_BYTES), [0.032])
    assert alike(send(slow, now_s=0.05), [0.071])  # the queue has been empty for long


def test_the_other_direction_and_another_link_have_queues_of_their_own() -> None:
    slow = world(Link(latency_ms=20, bandwidth_mbps=1))
    send(slow, payload_bytes=10**6)
    assert alike(send(slow, 1, 0), [0.021])
    assert alike(send(slow, 0, 2), [0.021])
    assert alike(send(slow, 2, 1), [0.021])
    assert send(slow)[0] > 8.0


def test_a_link_of_its_own_has_figures_of_its_own() -> None:
    own = {(0, 1): Link(latency_ms=5), (1, 0): Link(latency_ms=70)}
    here = world(Link(latency_ms=20), own=own)
    assert alike(send(here), [0.005])
    assert alike(send(here, 1, 0), [0.070])
    assert alike(send(here, 0, 2), [0.020])
    assert here.round_trip_s(0, 1) == here.round_trip_s(1, 0) == pytest.approx(0.075)


def test_a_new_connection_begins_with_an_empty_queue_both_ways() -> None:
    slow = world(Link(bandwidth_mbps=1))
    for a, b in ((0, 1), (1, 0), (0, 2)):
        send(slow, a, b, payload_bytes=10**6)
    slow.new_connection(1, 0)
    assert alike(send(slow), [0.001])
    assert alike(send(slow, 1, 0), [0.001])
    assert send(slow, 0, 2)[0] > 8.0


# ---- The lines of machines


LINE: dict[str, Any] = {"node_mbps": 1}
"""A line on which a message takes 1 ms, each way."""


def test_one_sender_has_one_line_for_all_that_it_sends() -> None:
    here = world(Link(latency_ms=20), **LINE)
    assert alike([send(here, 0, b)[0] for b in (1, 2, 3)], [0.021, 0.022, 0.023])


def test_one_receiver_has_one_line_for_all_that_it_is_sent() -> None:
    here = world(Link(latency_ms=20), **LINE)
    assert alike([send(here, a, 0)[0] for a in (1, 2, 3)], [0.021, 0.022, 0.023])


def test_in_a_ring_each_sends_and_receives_at_once() -> None:
    here = world(**LINE)
    for step in range(3):
        assert alike([send(here, i, (i + 1) % 4, step / 1000)[0] for i in range(4)], [(step + 1) / 1000] * 4)


def test_all_to_all_takes_what_one_line_has_to_carry_whatever_the_order() -> None:
    here = world(**LINE)
    arrivals = [send(here, a, b)[0] for a in range(5) for b in range(5) if a != b]
    assert max(arrivals) == pytest.approx(0.004, abs=1e-12)


def test_a_line_that_was_idle_is_free_and_one_that_was_not_is_waited_for() -> None:
    here = world(**LINE)
    send(here, 0, 1)
    assert alike(send(here, 0, 2, 0.0005), [0.002])
    assert alike(send(here, 0, 3, 0.5), [0.501])
    assert alike(send(here, 4, 5, 0.5), [0.501])


def test_a_link_of_its_own_may_be_slower_than_the_lines_and_then_it_counts() -> None:
    here = world(own={(0, 1): Link(bandwidth_mbps=0.25)}, **LINE)
    assert alike([send(here, 0, b)[0] for b in (1, 2)], [0.004, 0.002])
    assert alike(send(here, 3, 1), [0.002])  # the slow one has been through the receiver's line, too


def test_lines_keep_the_order_of_each_link() -> None:
    here = world(Link(bandwidth_mbps=2), jitter_ms=3, **LINE)
    found: dict[tuple[int, int], list[float]] = {}
    for i in range(200):
        pair = (i % 3, 3 + i * i % 4)
        found.setdefault(pair, []).extend(send(here, *pair, i * 0.0007))
    assert len(found) > 4
    assert all(arrivals == sorted(arrivals) for arrivals in found.values())


def test_a_new_connection_does_not_free_the_lines_of_its_machines() -> None:
    here = world(Link(bandwidth_mbps=1), **LINE)
    send(here, payload_bytes=10**6)
    here.new_connection(0, 1)
    assert send(here)[0] > 8.0
    assert send(here, 0, 2)[0] > 8.0


def test_two_in_one_process_hear_each_other_at_once_and_share_nothing() -> None:
    local = Link(is_local=True)
    wild: dict[str, Any] = {"jitter_ms": 50, "duplicate": 0.5, "reorder": 0.5}
    here = world(Link(latency_ms=20, loss=0.5), own={(0, 1): local, (1, 0): local}, **LINE, **wild)
    assert [send(here, 0, 1, 2.0, 10**9) for _ in range(50)] == [[2.0]] * 50
    assert [send(here, 1, 0, 2.0, 10**9, is_last=True) for _ in range(50)] == [[2.0]] * 50
    assert min(send(here, 0, 2, 2.0, insists=True)) < 3.0


# ---- Jitter


def test_jitter_is_between_nothing_and_its_bound() -> None:
    found = delays(world(Link(latency_ms=20), jitter_ms=50))
    assert all(0.020 <= delay < 0.070 for delay in found)
    assert min(found) < 0.025
    assert max(found) > 0.065


def test_jitter_lets_no_message_overtake_another() -> None:
    arrivals = [at_s for (at_s,) in series(world(jitter_ms=500))]
    assert arrivals == sorted(arrivals)
    assert len(set(arrivals)) < len(arrivals)  # some have had to wait for the one before


# ---- Loss


def test_a_lost_message_is_sent_again_a_round_trip_and_a_while_later() -> None:
    found = delays(world(own={(0, 1): Link(latency_ms=20, loss=0.3), (1, 0): Link(latency_ms=30)}))
    times = [(delay - 0.020) / (0.050 + RESEND_S) for delay in found]
    assert times == pytest.approx([round(t) for t in times], abs=1e-6)
    lost = [round(t) for t in times]
    assert {0, 1, 2} <= set(lost)
    assert sum(lost) / len(lost) == pytest.approx(0.3 / 0.7, abs=0.12)  # 0.039 is its standard deviation


@pytest.mark.parametrize("resends", [True, False])
def test_a_message_that_is_insisted_on_is_never_lost(resends: bool) -> None:
    lossy = world(Link(loss=0.5), resends=resends)
    assert all(len(send(lossy, now_s=float(i), insists=True)) == 1 for i in range(300))


def test_what_is_not_sent_again_is_lost_for_good() -> None:
    lossy = world(Link(latency_ms=20, loss=0.3), resends=False)
    arrivals = series(lossy, every_s=10.0)
    arrived = [found for found in arrivals if found]
    assert len(arrived) / len(arrivals) == pytest.approx(0.7, abs=0.07)
    for i, found in enumerate(arrivals):
        assert found in ([], [pytest.approx(i * 10.0 + 0.020)])


def test_without_a_deadline_all_messages_are_sent_again() -> None:
    assert all(len(found) == 1 for found in series(world(Link(loss=0.5))))


def test_messages_after_a_lost_one_wait_for_it() -> None:
    arrivals = [at_s for (at_s,) in series(world(Link(loss=0.3)))]
    assert arrivals == sorted(arrivals)


# ---- Duplicates and order


def test_a_duplicate_comes_after_the_message_itself() -> None:
    arrivals = series(world(Link(latency_ms=20), duplicate=0.25), every_s=10.0)
    twice = [found for found in arrivals if len(found) == 2]
    assert all(len(found) in (1, 2) for found in arrivals)
    assert len(twice) / len(arrivals) == pytest.approx(0.25, abs=0.07)
    assert all(0.0 <= again - first <= 0.040 + RESEND_S for first, again in twice)


def test_a_reordered_message_is_overtaken() -> None:
    arrivals = [at_s for (at_s,) in series(world(reorder=0.2))]
    late = [i for i in range(len(arrivals) - 1) if arrivals[i + 1] < arrivals[i]]
    assert 40 < len(late) < 120
    kept = [at_s for i, at_s in enumerate(arrivals) if at_s == i * 0.01]
    assert len(kept) / len(arrivals) == pytest.approx(0.8, abs=0.07)  # who overtakes is not held up itself


def test_nothing_that_was_said_before_comes_after_a_goodbye() -> None:
    for seed in range(60):
        wild = world(Link(latency_ms=5, loss=0.3), seed=seed, jitter_ms=200, duplicate=0.5, reorder=0.5)
        before = [at_s for found in series(wild, count=20, every_s=0.001) for at_s in found]
        last = send(wild, now_s=0.02, insists=True, is_last=True)
        assert len(last) == 1
        assert last[0] >= max(before)


# ---- Seeds


WILD: dict[str, Any] = {"jitter_ms": 50, "duplicate": 0.2, "reorder": 0.2}


def test_the_same_seed_gives_the_same_arrivals_and_another_one_others() -> None:
    first, again, other = (series(world(Link(loss=0.2), seed=seed, **WILD)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_what_is_drawn_for_a_link_does_not_depend_on_other_links() -> None:
    alone = series(world(Link(loss=0.2), **WILD))
    busy, found = world(Link(loss=0.2), **WILD), []
    for i in range(400):
        send(busy, 1, 0, i * 0.01)
        found.append(send(busy, now_s=i * 0.01))
        send(busy, 0, 2, i * 0.01)
    assert found == alone


def test_links_and_directions_are_drawn_apart() -> None:
    here = world(jitter_ms=50)
    assert len({tuple(delays(here, a, b, count=5)) for a, b in ((0, 1), (1, 0), (0, 2), (2, 1))}) == 4


# ---- Cuts


def open_pairs(world: World, peers: int) -> set[tuple[int, int]]:
    """Return the pairs that can hear each other, having seen that both of each say the same."""
    pairs = [(a, b) for a in range(peers) for b in range(a + 1, peers)]
    assert all(world.is_open(a, b) == world.is_open(b, a) for a, b in pairs)
    return {(a, b) for a, b in pairs if world.is_open(a, b)}


def test_a_cut_parts_two_peers_until_it_is_healed() -> None:
    here = world()
    assert open_pairs(here, 3) == {(0, 1), (0, 2), (1, 2)}
    here.cut(2, 0)
    assert open_pairs(here, 3) == {(0, 1), (1, 2)}
    here.heal(0, 2)
    assert open_pairs(here, 3) == {(0, 1), (0, 2), (1, 2)}


def test_a_partition_parts_groups_and_peers_that_none_names_are_one_more() -> None:
    here = world()
    here.part(((0, 1), (2,)), 6)
    assert open_pairs(here, 6) == {(0, 1), (3, 4), (3, 5), (4, 5)}
    here.unite()
    assert len(open_pairs(here, 6)) == 15


def test_the_end_of_a_partition_heals_no_cut() -> None:
    here = world()
    here.cut(0, 1)
    here.part(((0, 1), (2,)), 3)
    here.unite()
    assert open_pairs(here, 3) == {(0, 2), (1, 2)}


def test_healing_two_peers_ends_no_partition() -> None:
    here = world()
    here.cut(0, 1)
    here.part(((0,), (1, 2)), 3)
    here.heal(0, 1)
    assert open_pairs(here, 3) == {(1, 2)}


def test_everything_can_be_healed_at_once() -> None:
    here = world()
    here.cut(0, 1)
    here.cut(1, 2)
    here.part(((0,), (1, 2)), 3)
    here.heal_all()
    assert len(open_pairs(here, 3)) == 3


def test_a_later_partition_takes_the_place_of_one_before() -> None:
    here = world()
    here.part(((0,), (1, 2)), 3)
    here.part(((0, 1), (2,)), 3)
    assert open_pairs(here, 3) == {(0, 1)}
