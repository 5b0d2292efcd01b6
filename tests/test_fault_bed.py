"""Random faults over the cores break no rule; rules that are broken on purpose are found, and shown in few lines."""

import sys
from dataclasses import replace

import pytest

from peer.assembly.faults import Fault
from tests.fault_bed import Failure, check, main, report, run, shrink
from tests.fault_mutants import MUTANTS
from tests.fault_schedule import Links, Schedule, schedule_of, size, smaller

SEEDS = 200
CHUNK = 10


def first_failure() -> tuple[Schedule, Failure]:
    outcomes = ((schedule_of(seed), run(schedule_of(seed))) for seed in range(SEEDS))
    return next((schedule, outcome) for schedule, outcome in outcomes if isinstance(outcome, Failure))


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_rule_is_broken_by_random_faults(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = check(schedule_of(seed))
        if isinstance(outcome, Failure):
            pytest.fail(report(seed, None, outcome), pytrace=False)


def test_the_seeds_try_every_kind_of_protocol_fault_and_link() -> None:
    schedules = [schedule_of(seed) for seed in range(SEEDS)]
    assert schedules == [schedule_of(seed) for seed in range(SEEDS)]
    assert {(s.core, s.conserves, s.exchanges, bool(s.round_deadline_s)) for s in schedules} >= {
        ("gossip", "rows", 1, False),
        ("gossip", "rows", 2, False),
        ("gossip", "rows", 1, True),
        ("gossip", "columns", 1, False),
        ("gossip", "columns", 1, True),
        ("gossip", "mean", 1, False),
        ("asynchronous", "rows", 1, False),
        ("pairwise", "rows", 1, False),
    }
    kinds = {fault.what for s in schedules for fault in s.faults}
    assert kinds == {"kill", "restart", "stop", "cut", "partition", "leave", "join"}
    assert {len(s.faults) for s in schedules} == set(range(9))
    assert {s.peers for s in schedules} == set(range(2, 9))
    for name in Links.__dataclass_fields__:
        assert any(getattr(s.links, name) for s in schedules)
    assert any(s.poisoned for s in schedules)
    assert any(s.core == "asynchronous" and s.max_staleness is not None for s in schedules)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("no_renormalisation", {"rows sum to 1", "columns sum to 1"}),
        ("unbounded_inbox", {"the inbox is bounded"}),
        ("unbounded_outbox", {"one message is unanswered"}),
        ("older_over_newer", {"the newest is mixed"}),
        ("always_fresh", {"staleness is true"}),
        ("last_round_again", {"what is mixed is of this round"}),
    ],
)
def test_a_bug_put_in_on_purpose_is_found_and_shrinks_to_few_peers_rounds_and_faults(
    name: str, rules: set[str]
) -> None:
    with MUTANTS[name]():
        schedule, failure = first_failure()
        shrunk, found = shrink(schedule, failure)
    assert found.rule == failure.rule
    assert failure.rule in rules
    assert shrunk.peers <= 3
    assert shrunk.rounds <= 3
    assert len(shrunk.faults) <= 1
    assert not isinstance(check(shrunk), Failure)  # it is the bug that fails, not the schedule


def test_nothing_can_be_left_out_of_a_schedule_that_was_shrunk() -> None:
    with MUTANTS["last_round_again"]():
        schedule, failure = first_failure()
        shrunk, _ = shrink(schedule, failure)
        for less in smaller(shrunk):
            outcome = check(less)
            assert not isinstance(outcome, Failure) or outcome.rule != failure.rule


def test_every_step_of_shrinking_makes_a_schedule_smaller_or_plainer() -> None:
    for seed in range(40):
        schedule = schedule_of(seed)
        for less in smaller(schedule):
            assert size(less) <= size(schedule)
            assert less != schedule


def test_a_peer_left_out_takes_its_faults_with_it_and_the_others_move_up() -> None:
    schedule = replace(
        schedule_of(0),
        steps_s=(0.1, 0.2, 0.3),
        arcs=((0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)),
        faults=(
            Fault("kill", (1,), at_s=1.0),
            Fault("cut", (0, 2), at_s=2.0, for_s=1.0),
            Fault("partition", groups=((0, 1), (2,)), at_s=3.0, for_s=1.0),
        ),
        links=Links(),
        poisoned=((1, 0), (2, 0)),
    )
    without_1 = [less for less in smaller(schedule) if less.steps_s == (0.1, 0.3)]
    assert [less.arcs for less in without_1] == [((0, 1), (1, 0))]
    assert without_1[0].poisoned == ((1, 0),)
    assert without_1[0].faults == (
        Fault("cut", (0, 1), at_s=2.0, for_s=1.0),
        Fault("partition", groups=((0,), (1,)), at_s=3.0, for_s=1.0),
    )


def test_the_command_prints_what_failed_and_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fault_bed", "--seed", "6", "--mutant", "always_fresh"])
    assert main() == 1
    printed = capsys.readouterr().out
    assert "staleness is true" in printed
    assert "asynchronous, 2 peers" in printed
    assert "again: python -m tests.fault_bed --seed 6 --mutant always_fresh" in printed


def test_the_command_says_that_a_seed_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fault_bed", "--seed", "6"])
    assert main() == 0
    assert "ends well" in capsys.readouterr().out
