"""How much delay gradient descent stands: on either side of the limit, by a fiftieth of it, for 20,000 updates.

One worker descends a quadratic whose curvature is 1, beside an asynchronous coordinator with a fixed `delay`: update t
takes the gradient of the parameters as they were so many updates before. With a gradient that old,

    w_{t+1} = w_t - lr (w_{t-delay} - w*)

the error follows the roots of z^(delay+1) - z^delay + lr, all of which lie in the unit circle for lr times curvature
below 2 sin(pi / (2 (2 delay + 1))): 2, 1, 0.618, 0.445, 0.347, 0.285 for a delay of 0 to 5. Levin and May 1976, "A note
on difference-delay equations". Nothing here is drawn, so there are no seeds.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from claims import Claim, conclude, json_line, screen, table
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from peer import simulate
from peer.algorithms.server import fixed_delay_limit
from peer.experiment import from_dict
from peer.report import COLOURS

UPDATES = 20_000
DELAYS = (0, 1, 2, 3, 4, 5)
BELOW, ABOVE = 0.98, 1.02
OPTIMUM, START = 1.0, 0.0
EXACT = 1e-9
"""What is left of the first error where a run has converged."""
EVERY = 13
"""Updates between two evaluations. Near the limit errors swing with a period of 2 (2 delay + 1) updates, 2 to 22, and
13 has no factor in common with any of them."""
WINDOW = 11
"""Of so many evaluations one is near a peak."""
LEVIN = "Levin and May 1976"
CIRCLE = "after " + LEVIN


@dataclass(frozen=True)
class Descent:
    """One run; `errors` are |w - w*| after 0, EVERY, 2 EVERY ... updates, as far as they are finite."""

    delay: int
    share: float  # of the limit
    outcome: str
    updates: int
    errors: list[float]

    @property
    def lr(self) -> float:
        return self.share * fixed_delay_limit(self.delay)

    @property
    def radius(self) -> float:
        """By how much the largest root multiplies the error with each update."""
        coefficients = [1.0, -1.0, *[0.0] * (self.delay - 1), self.lr] if self.delay else [1.0, self.lr - 1.0]
        return float(np.abs(np.roots(coefficients)).max())

    @property
    def peaks(self) -> list[float]:
        """The largest of each `WINDOW` errors that follow each other: without the swinging."""
        return [max(self.errors[i : i + WINDOW]) for i in range(len(self.errors) - WINDOW + 1)]

    @property
    def rate(self) -> float | None:
        """By how much the error was multiplied with each update: a straight line through the logarithm of its peaks, as
        far as they are above rounding. None where they are too few."""
        above = [(EVERY * i, peak) for i, peak in enumerate(self.peaks) if peak > 1e-12]
        if len(above) < 3:
            return None
        t, logarithms = np.array([t for t, _ in above]), np.log([peak for _, peak in above])
        return float(np.exp(np.polyfit(t, logarithms, 1)[0]))


# ---- Measuring


def descend(delay: int, share: float, updates: int) -> Descent:
    tables = {
        "rounds": updates,
        "eval_every": EVERY,
        "task": {
            "model": "linear",
            "data": "inline",
            "shards": [[[[1.0], OPTIMUM]]],
            "init": [START],
            "batch_size": 0,
            "lr": share * fixed_delay_limit(delay),
            "dtype": "float64",
        },
        "coordinator": {"mode": "async", "arrival": "round_robin", "delay": delay},
        "record": {"params": "every"},
    }
    summary = simulate(from_dict(tables))
    if summary.outcome not in ("finished", "diverged"):
        raise SystemExit(f"a run ended as {summary.outcome}; there is nothing to say of it")
    parameters = [entry.coordinator[0] for entry in summary.history if entry.round % EVERY == 0]
    errors = [abs(w - OPTIMUM) for w in parameters if w is not None]
    return Descent(delay, share, summary.outcome, summary.rounds, errors)


# ---- What is claimed


def claims_of(runs: Sequence[Descent], updates: int) -> list[Claim]:
    below, above = ([run for run in runs if run.share == share] for share in (BELOW, ABOVE))
    converged = [run.outcome == "finished" and run.errors[-1] <= EXACT * run.errors[0] for run in below]
    diverged = [run.outcome == "diverged" for run in above]
    measured = [(run, run.rate) for run in runs]
    apart = [abs(np.log(rate) / np.log(run.radius) - 1) for run, rate in measured if rate is not None]
    left = max(run.errors[-1] / run.errors[0] for run in below)
    return [
        Claim(
            LEVIN,
            f"At {BELOW:g} of the limit it converges, whatever the delay",
            f"{sum(converged)} of {len(below)} runs; at most {left:.0e} of the error is left after {updates:,} updates",
            all(converged),
        ),
        Claim(
            LEVIN,
            f"At {ABOVE:g} of the limit it diverges, whatever the delay",
            f"{sum(diverged)} of {len(above)} runs; the slowest took {max(run.updates for run in above):,} updates",
            all(diverged),
        ),
        Claim(
            CIRCLE,
            "Errors shrink and grow with the largest root of the characteristic polynomial",
            f"the logarithms of the rates of {len(apart)} runs differ by {max(apart, default=1.0):.2%} at most",
            len(apart) == len(runs) and bool(max(apart) <= 0.02),
        ),
    ]


# ---- Showing


def table_of(runs: Sequence[Descent]) -> Table:
    headings = ("delay", "limit", "of it", "lr", "outcome", "updates", "error left", "rate", "largest root")
    shown = table("A fixed delay on a quadratic of curvature 1", *headings)
    for run in runs:
        figures = (f"{fixed_delay_limit(run.delay):.6f}", f"{run.share:g}", f"{run.lr:.6f}", run.outcome)
        rate = "-" if run.rate is None else f"{run.rate:.5f}"
        left = f"{run.errors[-1] / run.errors[0]:.1e}"
        shown.add_row(f"{run.delay}", *figures, f"{run.updates:,}", left, rate, f"{run.radius:.5f}")
    return shown


def draw(runs: Sequence[Descent], path: Path) -> None:
    """Draw the errors below the limit, and above it."""
    figure = Figure(figsize=(11, 4.4), layout="constrained", dpi=130)
    panels = figure.subplots(1, 2)
    for axes, share in zip(panels, (BELOW, ABOVE), strict=True):
        mine = [run for run in runs if run.share == share]
        for run, colour in zip(mine, COLOURS, strict=False):
            t = EVERY * (np.arange(len(run.peaks)) + WINDOW // 2)
            axes.plot(t, np.maximum(run.peaks, 1e-17), color=colour, linewidth=1.4, label=f"delay {run.delay}")
        axes.set(yscale="log", xlabel="updates", ylabel="distance from the optimum, at its peaks")
        axes.set_title(f"lr at {share:g} of the limit", fontsize=10)
        axes.grid(alpha=0.25)
    panels[0].set_xlim(right=1.1 * max(_until_rounding(run) for run in runs if run.share == BELOW))
    panels[1].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _until_rounding(run: Descent) -> int:
    """Return after how many updates only rounding is left, or the run ends."""
    return EVERY * next((i for i, peak in enumerate(run.peaks) if peak <= 1e-14), len(run.errors) - 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=UPDATES, help="of each run, unless it diverges (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/delays.png"), help="the picture (%(default)s)")
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout; the tables go to stderr")
    options = parser.parse_args(arguments)
    began_s = perf_counter()
    console = screen(options.json)
    jobs = [(delay, share) for delay in DELAYS for share in (BELOW, ABOVE)]
    runs = []
    for job in track(jobs, "descending", console=Console(stderr=True), transient=True):
        runs.append(descend(*job, options.updates))
        if options.json:
            json_line("descent", figures_of(runs[-1]))
    console.print(table_of(runs))
    draw(runs, options.out)
    code = conclude(claims_of(runs, options.updates), console, options.json)
    console.print(f"Picture: {options.out}. {perf_counter() - began_s:.0f} s in all.", soft_wrap=True)
    return code


def figures_of(run: Descent) -> dict[str, Any]:
    """Return a run's figures, without its errors on the way."""
    figures = {name: value for name, value in asdict(run).items() if name != "errors"}
    return figures | {"lr": run.lr, "error_left": run.errors[-1] / run.errors[0], "rate": run.rate, "root": run.radius}


if __name__ == "__main__":
    sys.exit(main())
