"""How far the events engine goes: peers on a geometric graph, softmax, lognormal steps, 1 % of the messages lost.

Prints a JSON line for each number of peers: seconds, events per second, and the memory that the run took beside what
the process had before, with the forecast that `simulate` gives. Each run is a process of its own.

    python bench/events.py                    250, 500 and 1,000 peers, 50 rounds, steps one by one
    python bench/events.py --step vmap        local steps of many peers at once
"""

import argparse
import json
import resource
import subprocess
import sys
from math import sqrt
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

KILOBYTE = 1 if sys.platform == "darwin" else 1024  # what ru_maxrss counts in


def experiment(peers: int, rounds: int, step: str) -> dict[str, Any]:
    """Return the tables of the file; the mean degree does not depend on the number of peers."""
    return {
        "rounds": rounds,
        "eval_every": 10,
        "task": {"model": "softmax", "partition": "sample", "rows_per_peer": 64, "step": step},
        "topology": {
            "family": "geometric",
            "peers": peers,
            "threshold": 0.07 * sqrt(1000 / peers),
            "allow_disconnected": True,
        },
        "network": {"latency_ms": 20.0, "loss": 0.01},
        "speed": {"distribution": "lognormal"},
    }


def run_one(peers: int, rounds: int, step: str) -> dict[str, Any]:
    """Run in this process."""
    from peer.assembly import assemble, prepare_task
    from peer.experiment import from_dict
    from peer.scripting import simulate
    from peer.simulator.footprint import memory_bytes

    e = from_dict(experiment(peers, rounds, step))
    assembly = assemble(e)
    forecast = memory_bytes(assembly, prepare_task(assembly), "events")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILOBYTE
    began_s = monotonic()
    summary = simulate(e, engine="events")
    return {
        "peers": peers,
        "rounds": summary.rounds,
        "step": summary.step,
        "seconds": round(monotonic() - began_s, 1),
        "simulated_seconds": round(summary.simulated_seconds, 1),
        "events": summary.events,
        "events_per_second": round(summary.events / summary.rounds_seconds),
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILOBYTE - before,
        "forecast_bytes": forecast,
        "accuracy": summary.accuracy.mean,
        "outcome": summary.outcome,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="*", default=[250, 500, 1000])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--step", choices=["plain", "vmap"], default="plain")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.one:
        print(json.dumps(run_one(wanted.one, wanted.rounds, wanted.step)))
        return
    lines = []
    for peers in wanted.peers:
        command = [sys.executable, __file__, "--one", str(peers), "--rounds", str(wanted.rounds), "--step", wanted.step]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
        lines.append(json.loads(done.stdout))
        print(json.dumps(lines[-1]), flush=True)
    per_peer = [line["memory_bytes"] / line["peers"] for line in lines]
    spread = (max(per_peer) - min(per_peer)) / median(per_peer)
    print(json.dumps({"memory_bytes_per_peer": [round(b) for b in per_peer], "spread": round(spread, 3)}))


if __name__ == "__main__":
    main()
