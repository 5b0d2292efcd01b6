"""Pictures of runs, and the report: a page with curves, networks and tables. Files, each importing those above it:

look        how pictures look, in light and dark
curves      accuracy, loss and consensus distance
network     who talks with whom
staleness   how old what was applied had become
files, checks, unfinished, runs   reading run folders
effects, labels, figures   which keys count, what runs are called, and their figures in tables
captions, grounds, pictures   which pictures there are for these runs, and what is said below them
style, page, making   the page
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from peer.assembly import Assembly
from peer.report.curves import Against, Run, draw_curves
from peer.report.look import COLOURS
from peer.report.making import Report, make_report
from peer.report.network import draw_network, network_of

__all__ = ["COLOURS", "Against", "Report", "Run", "draw", "draw_curves", "draw_topology", "make_report"]


def draw(runs: Sequence[Run], assembly: Assembly, path: Path, against: Against = "round") -> None:
    """Draw the runs' accuracy (loss where there is none) beside the topology, into an image file.

    `against` is the horizontal axis. Raises ValueError as `draw_curves` does.
    """
    figure = Figure(figsize=(11, 4.6), layout="constrained", dpi=130)
    curves, network = figure.subplots(1, 2, width_ratios=(1.35, 1))
    draw_curves(curves, runs, against)
    draw_topology(network, assembly)
    figure.savefig(path)


def draw_topology(axes: Any, assembly: Assembly) -> None:
    """Draw who hears whom, in round 0 where that changes; peers stand where they are, if they have positions."""
    draw_network(axes, network_of(assembly.experiment, assembly.ground))
