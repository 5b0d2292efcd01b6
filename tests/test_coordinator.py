"""Workers and coordinators of every discipline, many of them, in any order of what happens."""

from collections.abc import Callable
from random import Random

import pytest

from peer.protocol.by_arrival import ByArrival
from peer.protocol.by_rounds import ByRounds
from peer.protocol.coordinator import Coordinator, Present
from peer.protocol.messages import Finish, PeerId, Tick
from tests.coordinator_bed import CoordinatorBed, History

BEDS, BEDS_WITH_TROUBLE = 60, 200  # of each discipline

Discipline = Callable[[PeerId, int, int, Present], Coordinator]


def half(version: int, workers: int) -> set[PeerId]:
    return {(version + k) % workers for k in range((workers + 1) // 2)}


DISCIPLINES: dict[str, Discipline] = {
    "sync": lambda me, n, rounds, at: ByRounds(me, range(n), rounds, at),
    "fraction": lambda me, n, rounds, at: ByRounds(me, range(n), rounds, at, chosen=lambda version: half(version, n)),
    "quorum": lambda me, n, rounds, at: ByRounds(me, range(n), rounds, at, count=max(1, n - 1)),
    "quorum, stale": lambda me, n, rounds, at: ByRounds(me, range(n), rounds, at, count=max(1, n - 1), late="stale"),
    "timer": lambda me, n, rounds, at: ByRounds(me, range(n), rounds, at, timer_s=15.0, late="stale"),
    "async": lambda me, n, rounds, at: ByArrival(me, range(n), rounds, at),
    "bound": lambda me, n, rounds, at: ByArrival(me, range(n), rounds, at, max_staleness=2),
    "round robin": lambda me, n, rounds, at: ByArrival(me, range(n), rounds, at, arrival="round_robin"),
    "delay": lambda me, n, rounds, at: ByArrival(me, range(n), rounds, at, arrival="round_robin", delay=2),
    "buffered": lambda me, n, rounds, at: ByArrival(me, range(n), rounds, at, size=3),
}


SEVERAL = ["sync", "fraction", "async", "round robin", "buffered"]
"""What may be split over several coordinators. The others are refused: who waits at one could wait for another."""

CASES = [(name, 1) for name in DISCIPLINES] + [(name, hubs) for name in SEVERAL for hubs in (2, 3)]

IN_A_CIRCLE = ["fraction", "round robin"]
"""With several coordinators, one that was cut off from one of them may leave all waiting for each other."""

CASES_WITH_TROUBLE = [(name, hubs) for name, hubs in CASES if hubs == 1 or name not in IN_A_CIRCLE]


def bed_of(name: str, seed: int, *, hubs: int = 1, workers: int = 0, stores_every: int = 1) -> CoordinatorBed:
    random = Random(f"{name} {hubs} {seed}")
    n, rounds = workers or random.choice([1, 2, 3, 5]), random.choice([1, 4, 9])
    doubles = random.choice([0.0, 0.3])
    discipline = DISCIPLINES[name]
    return CoordinatorBed(
        n,
        rounds,
        lambda me, at: discipline(me, n, rounds, at),
        random,
        hubs=hubs,
        doubles=doubles,
        stores_every=stores_every,
    )


def staleness(history: History) -> list[int]:
    return [version - token.version for version, update in enumerate(history) for token in update]


@pytest.mark.parametrize(("name", "hubs"), CASES)
def test_everybody_finishes_in_any_order_of_what_happens(name: str, hubs: int) -> None:
    for seed in range(BEDS // hubs):
        bed = bed_of(name, seed, hubs=hubs)
        bed.run_to_the_end([])
        assert set(bed.finished.values()) == {"finished"}
        assert not bed.alerts
        for hub in bed.hubs:
            check_one_without_trouble(bed, hub, name)
        if name in ("sync", "fraction"):
            first = [{token.serial for token in update} for update in bed.histories[0]]
            for other in bed.histories:
                assert [{token.serial for token in update} for update in other] == first


def check_one_without_trouble(bed: CoordinatorBed, hub: PeerId, name: str) -> None:
    n, history = len(bed.workers), bed.history(hub)
    assert len(history) == bed.rounds
    if name not in ("quorum", "quorum, stale", "timer"):
        assert bed.cores[hub].dropped == 0  # type: ignore[attr-defined]
    if name == "sync":
        assert all({token.peer for token in update} == set(bed.workers) for update in history)
    if name == "fraction":
        assert [{token.peer for token in update} for update in history] == [half(k, n) for k in range(bed.rounds)]
    if name in ("sync", "fraction", "quorum"):
        assert set(staleness(history)) == {0}
    if name == "bound":
        assert max(staleness(history)) <= 2
    if name == "delay":
        assert staleness(history) == [min(k, 2) for k in range(bed.rounds)]
    if name in ("round robin", "delay"):
        assert [update[0].peer for update in history] == [k % n for k in range(bed.rounds)]
    if name == "buffered":
        assert {len(update) for update in history} == {3}


@pytest.mark.parametrize(("name", "hubs"), CASES_WITH_TROUBLE)
def test_with_losses_returns_and_falls_nothing_is_applied_twice_and_all_come_to_an_end(name: str, hubs: int) -> None:
    kinds = ["cut", "mend", "renew", "kill", "restart", "restart"]
    outcomes = []
    for seed in range(BEDS_WITH_TROUBLE // hubs):
        bed = bed_of(name, seed, hubs=hubs, stores_every=1 + seed % 2 * 2)
        random = Random(f"troubles {name} {hubs} {seed}")
        bed.run_to_the_end([(random.randrange(120), random.choice(kinds)) for _ in range(random.choice([1, 4, 9]))])
        for hub in bed.hubs:
            outcomes.append(bed.finished[hub])
            assert (len(bed.history(hub)) == bed.rounds) == (outcomes[-1] == "finished")
            if name == "bound":
                assert max(staleness(bed.history(hub)), default=0) <= 2
    assert outcomes.count("finished") > len(outcomes) / 2


@pytest.mark.parametrize("hubs", [1, 2])
def test_a_coordinator_that_falls_changes_nothing_of_a_synchronous_run(hubs: int) -> None:
    """Each update has exactly one push of each worker, made from the version before it, as without a fall."""
    falls = 0
    for seed in range(BEDS_WITH_TROUBLE // hubs):
        bed = bed_of("sync", seed, hubs=hubs, workers=3, stores_every=1 + seed % 2 * 2)
        random = Random(f"falls {hubs} {seed}")
        for _ in range(random.choice([1, 3])):
            for _ in range(random.randrange(60)):
                if moves := bed.possible():
                    bed.do(random.choice(moves))
            hub = random.choice(bed.hubs)
            is_known = all((peer, hub) in bed.sees for peer in bed.workers)
            if is_known and not bed.finished:
                bed.kill(hub)
                bed.restart(hub)
        bed.run_to_the_end([])
        falls += bed.falls
        assert set(bed.finished.values()) == {"finished"}
        for history in bed.histories:
            for version, update in enumerate(history):
                assert [(token.peer, token.version) for token in update] == [(peer, version) for peer in range(3)]
    assert falls > BEDS_WITH_TROUBLE / hubs / 2


def test_who_stops_in_the_middle_leaves_nobody_waiting() -> None:
    for name, hubs in CASES:
        for seed in range(6):
            bed = bed_of(name, seed, hubs=hubs)
            bed.run_to_the_end([(Random(seed).randrange(40), "stop"), (Random(seed).randrange(80), "stop")])


def test_the_bed_sees_a_push_that_is_applied_twice() -> None:
    bed = bed_of("async", 0)
    bed.run_to_the_end([])
    [hub] = bed.hubs
    bed.state[hub] = (*bed.history(hub), bed.history(hub)[0])
    with pytest.raises(AssertionError, match="twice"):
        bed.check_histories()


def test_the_bed_sees_a_worker_that_does_not_end_with_the_last_version() -> None:
    bed = bed_of("async", 0, hubs=2)
    bed.run_to_the_end([])
    bed.state[0] = (bed.state[0][0], bed.state[0][1][:-1])
    with pytest.raises(AssertionError):
        bed.check(0, Tick(), [Finish("finished")])
