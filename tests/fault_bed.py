"""The fault bed: random faults over the real cores on the real clockwork, with plain numbers for parameters.

    python -m tests.fault_bed --seed N [--mutant NAME]

runs the schedule of a seed, checks every event, and makes a schedule that fails as small as it gets.
"""

import argparse
import sys
from dataclasses import dataclass, replace

from tests.fault_checks import Broken
from tests.fault_mutants import MUTANTS, nothing_wrong
from tests.fault_schedule import Links, Schedule, schedule_of, smaller
from tests.fault_shell import Bed, Result


@dataclass(frozen=True)
class Failure:
    """Which rule a run has broken, and how."""

    rule: str
    text: str


def run(schedule: Schedule) -> Result | Failure:
    """Run a schedule; returns how it ended, or which rule it broke."""
    try:
        return Bed(schedule).run()
    except Broken as broken:
        return Failure(broken.rule, str(broken))
    except Exception as error:  # noqa: BLE001  (whatever a core trips over is a finding)
        return Failure(type(error).__name__, f"{type(error).__name__}: {error}")


def check(schedule: Schedule) -> Result | Failure:
    """Run a schedule twice: the second time all must be as the first, and where peers wait for each other and nothing
    goes wrong, the numbers the same on links that take no time."""
    first = run(schedule)
    if isinstance(first, Failure):
        return first
    second = run(schedule)
    if second != first:
        return Failure("equal seeds, equal runs", f"{first} became {second}")
    if schedule.core == "gossip" and not schedule.faults and not schedule.round_deadline_s:
        plain = run(replace(schedule, links=Links()))
        if isinstance(plain, Failure) or plain.numbers != first.numbers:
            return Failure("links change no number", f"{first} is {plain} without delays")
    return first


def shrink(schedule: Schedule, failure: Failure, most_runs: int = 600) -> tuple[Schedule, Failure]:
    """Return a schedule that breaks the same rule, and of which nothing can be left out; the greedy way."""
    runs = 0
    found = True
    while found and runs < most_runs:
        found = False
        for candidate in smaller(schedule):
            runs += 1
            outcome = check(candidate)
            if isinstance(outcome, Failure) and outcome.rule == failure.rule:
                schedule, failure, found = candidate, outcome, True
                break
    return schedule, failure


def report(seed: int, mutant: str | None, failure: Failure) -> str:
    """Say what failed, in the smallest schedule that does."""
    shrunk, failure = shrink(schedule_of(seed), failure)
    command = f"python -m tests.fault_bed --seed {seed}" + (f" --mutant {mutant}" if mutant else "")
    return f"{failure.text}\n{shrunk}\nagain: {command}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    asked = parser.parse_args()
    with MUTANTS.get(asked.mutant, nothing_wrong)():
        outcome = check(schedule_of(asked.seed))
        if isinstance(outcome, Failure):
            print(report(asked.seed, asked.mutant, outcome))
            return 1
    print(schedule_of(asked.seed), f"ends well after {outcome.events} events", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
