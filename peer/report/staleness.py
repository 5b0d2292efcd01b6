"""The staleness of updates, drawn: how many were how old."""

from collections.abc import Sequence
from math import ceil
from typing import Any

from peer.report.look import Look, plain

BARS = 40
"""With more, several staleness values share one."""

BESIDE = 3
"""The bars of so many runs stand side by side; more are drawn as lines."""


def draw_staleness(axes: Any, counted: Sequence[tuple[str, int, list[float]]], look: Look) -> None:
    """Draw the share of each run's updates by staleness. `counted`: label, index of its looks, counts from 0 on."""
    longest = max(len(counts) for _, _, counts in counted)
    step = ceil(longest / BARS)
    for place, (label, index, counts) in enumerate(counted):
        shares = _shares(counts, step)
        if len(counted) > BESIDE:
            middles = [step * i + (step - 1) / 2 for i in range(len(shares))]
            axes.plot(middles, shares, label=plain(label), linewidth=1.4, markersize=4.5, **look.line(index))
            continue
        width = 0.82 * step / len(counted)
        lefts = [step * i + (step - 1) / 2 + width * (place - (len(counted) - 1) / 2) for i in range(len(shares))]
        axes.bar(lefts, shares, width, label=plain(label), color=look.line(index)["color"])
    if longest <= 20:
        axes.set_xticks(range(longest))
    axes.set_ylabel("share (%)")


def _shares(counts: Sequence[float], step: int) -> list[float]:
    """Return percentages of the whole, `step` counts together."""
    total = sum(counts)
    return [100 * sum(counts[i : i + step]) / total for i in range(0, len(counts), step)]
