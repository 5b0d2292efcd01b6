"""Curves of runs: accuracy or loss, and consensus distance, against rounds, time or bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from peer.record import Row
from peer.report.look import LIGHT, Look, dress, plain

Against = Literal["round", "simulated_seconds", "payload_bytes_sent"]
Measure = Literal["accuracy", "loss"]

SCALES = {
    "round": "rounds",
    "simulated_seconds": "simulated time (s)",
    "seconds": "time (s)",
    "payload_bytes_sent": "payload sent by all peers",
}
"""What the horizontal axis says."""

BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))

FEW = 6
BANDS = 4
"""Of so many runs the bands from worst to best are drawn; those of more would hide each other."""


STRETCHED = 50
"""Where the longest run is more than so many times as long as the shortest, the other would be a stroke at the left."""


@dataclass(frozen=True)
class Run:
    """A summary with a name for it in the picture."""

    label: str
    summary: Row


@dataclass(frozen=True)
class Line:
    """One run in one picture: where its points are, (places, mean), and the band around them if there is one.

    `index` chooses its looks, so that a run looks the same in every picture. `ended_badly` puts a cross at its end.
    """

    label: str
    index: int
    places: list[float]
    mean: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    ended_badly: bool = False


def draw_curves(axes: Any, runs: Sequence[Run], against: Against = "round") -> None:
    """Draw each run's mean over the peers, with a band from the worst peer to the best.

    `against` is the horizontal axis: rounds, simulated seconds (of runs that have none: their seconds), or the bytes of
    payload that all peers have sent. Raises ValueError where the runs' histories do not have it.
    """
    measure: Measure = "accuracy" if all(judged(run.summary, "accuracy") for run in runs) else "loss"
    key = _known_of(against, [judged(run.summary, measure) for run in runs])
    lines = [line_of(run.label, i, run.summary, measure, key) for i, run in enumerate(runs)]
    label = scaled(lines, key)
    draw_lines(axes, lines)
    dress(axes, LIGHT)
    axes.set_xlabel(label)
    name_measure(axes, measure, lines)
    axes.set_ylabel(f"{measure} on the common test rows")
    axes.set_title("mean over the peers, band from worst to best", fontsize=10)
    axes.legend(loc="lower right" if measure == "accuracy" else "upper right")


def _known_of(against: Against, histories: Sequence[Sequence[Row]]) -> str:
    """Return the key that stands for an axis in all entries."""
    for key in ("simulated_seconds", "seconds") if against == "simulated_seconds" else (against,):
        if all(entry.get(key) is not None for history in histories for entry in history):
            return key
    raise ValueError(f"a history of these runs has no {against}")


# ---- From summaries to lines


def judged(summary: Row, measure: Measure) -> list[Row]:
    """Return the entries of a history that have a measure."""
    return [entry for entry in summary["history"] if entry[measure]["mean"] is not None]


def line_of(label: str, index: int, summary: Row, measure: Measure, key: str) -> Line:
    """Return a run's measure against a key of its entries; each entry that has the measure must have the key."""
    history = judged(summary, measure)
    low, mean, high = ([entry[measure][which] for entry in history] for which in ("min", "mean", "max"))
    places = [float(entry[key]) for entry in history]
    return Line(label, index, places, mean, low, high, summary.get("outcome") in ("diverged", "failed", "alone"))


def scaled(lines: list[Line], key: str) -> str:
    """Bring places of bytes to a unit in which they are short, in place; returns what the axis says."""
    if key != "payload_bytes_sent":
        return SCALES[key]
    most = max((max(line.places, default=0.0) for line in lines), default=0.0)
    unit, size = next((u for u in BYTES if most >= u[1]), BYTES[-1])
    for line in lines:
        line.places[:] = [place / size for place in line.places]
    return f"{SCALES[key]} ({unit})"


# ---- Drawing


def draw_lines(axes: Any, lines: Sequence[Line], look: Look = LIGHT) -> None:
    """Draw lines with their bands; the last point of a run that ended badly is a cross."""
    for order, line in enumerate(lines):
        style = look.line(line.index)
        # Of a few lines those below are thicker, so that lines on each other are seen.
        under = (len(lines) - 1 - order) / max(len(lines), 3) if len(lines) <= FEW else 0.0
        axes.plot(
            line.places,
            line.mean,
            label=plain(line.label),
            linewidth=1.5 + 2.0 * under,
            markersize=4.0 + 3.0 * under,
            markevery=max(1, len(line.places) // 8),
            **style,
        )
        if line.low is not None and line.high is not None and len(lines) <= BANDS:
            axes.fill_between(line.places, line.low, line.high, color=style["color"], alpha=0.16, linewidth=0)
        if line.ended_badly and line.places:
            axes.scatter(
                line.places[-1:], line.mean[-1:], marker="x", s=70, linewidths=2.4, color=style["color"], zorder=3
            )


def spread_wide(lines: Sequence[Line]) -> bool:
    """Say whether some runs are so short beside others that their curves need a logarithmic horizontal axis."""
    ends = [max(line.places) for line in lines if line.places and max(line.places) > 0]
    return bool(ends) and max(ends) > STRETCHED * min(ends)


def name_measure(axes: Any, measure: Measure, lines: Sequence[Line]) -> None:
    """Say what stands on the vertical axis, and choose its scale: logarithmic for a loss that is never negative."""
    axes.set_ylabel(measure)
    if measure == "accuracy":
        axes.set_ylim(0, 1)
    else:
        _logarithmic(axes, [value for line in lines for value in line.mean])


def name_distance(axes: Any, name: str, lines: Sequence[Line]) -> None:
    """Say that it is a distance, on a logarithmic scale."""
    axes.set_ylabel(name)
    _logarithmic(axes, [value for line in lines for value in line.mean])


def _logarithmic(axes: Any, values: Sequence[float]) -> None:
    if min(values, default=-inf) >= 0 and max(values) > 0:
        axes.set_yscale("log", nonpositive="mask")
