"""How long until something happens: `earshot --help`, and eight daemons from `earshot up` to their first round.

JSON lines: one per measurement, interleaved, then the medians. Nothing is compared, so nothing else is measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

EARSHOT = [sys.executable, "-m", "peer"]
EXPERIMENT = "rounds = 1\neval_every = 1\n[topology]\npeers = {peers}\n"


def help_s() -> float:
    """Return how long `earshot --help` takes."""
    began_s = perf_counter()
    subprocess.run([*EARSHOT, "--help"], stdout=subprocess.DEVNULL, check=True)
    return perf_counter() - began_s


def first_round_s(peers: int, folder: Path) -> float:
    """Return the time from the start of `earshot up` until every peer has finished its first round."""
    file = folder / "first_round.toml"
    file.write_text(EXPERIMENT.format(peers=peers))
    began_s = perf_counter()
    command = [*EARSHOT, "up", str(file), "--no-folder"]
    took_s = None
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("round 1/1"):
                took_s = perf_counter() - began_s
    if process.returncode or took_s is None:
        raise SystemExit(f"earshot up ended with exit code {process.returncode}")
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    figures: dict[str, list[float]] = {"help_s": [], "first_round_s": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeats):
            for name, measure in (
                ("help_s", help_s),
                ("first_round_s", lambda: first_round_s(options.peers, Path(folder))),
            ):
                seconds = measure()
                figures[name].append(seconds)
                print(json.dumps({"measured": name, "seconds": round(seconds, 3)}), flush=True)
    for name, values in figures.items():
        row = {"median": name, "peers": options.peers, "seconds": round(statistics.median(values), 3)}
        print(json.dumps(row | {"min": round(min(values), 3), "max": round(max(values), 3)}))


if __name__ == "__main__":
    main()
