"""Random faults over the protocol cores: do the rules hold under so many seeds, and how long does that take?

JSON lines: one per seed that fails, with the smallest schedule that does, then one of all seeds. Ends with 1 if any
failed.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))  # the bed lives with the tests

from tests.fault_bed import Failure, check, report
from tests.fault_schedule import schedule_of


def outcome_of(seed: int) -> tuple[int, str | None]:
    """Run the schedule of a seed twice; returns how many events one run took, and in words what failed."""
    outcome = check(schedule_of(seed))
    if isinstance(outcome, Failure):
        return 0, report(seed, None, outcome)
    return outcome.events, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    began_s = perf_counter()
    events, failures = 0, 0
    seeds = range(options.first, options.first + options.seeds)
    with ProcessPoolExecutor(options.processes) as pool:
        for seed, (seen, failure) in zip(seeds, pool.map(outcome_of, seeds, chunksize=10), strict=True):
            events += seen
            if failure is not None:
                failures += 1
                print(json.dumps({"seed": seed, "failure": failure}), flush=True)
    seconds = perf_counter() - began_s
    figures = {
        "seeds": len(seeds),
        "failures": failures,
        "seconds": round(seconds, 1),
        "events": events,
        "events_per_s": round(2 * events / seconds),  # each schedule runs twice at least
    }
    print(json.dumps(figures))
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
