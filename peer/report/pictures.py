"""The pictures of a report: which there are for these runs, and in words what is not in them."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from math import ceil
from typing import Any

from matplotlib.figure import Figure

from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.report.captions import Absent, Named, axis_label, listed, rounds_apart, unused, who, whose_bytes, why_not
from peer.report.curves import (
    SCALES,
    Line,
    Measure,
    draw_lines,
    judged,
    line_of,
    name_distance,
    name_measure,
    spread_wide,
)
from peer.report.grounds import ground_to_draw
from peer.report.look import DARK, LIGHT, Look, dress, plain
from peer.report.network import Network, draw_network, network_of
from peer.report.runs import Recorded
from peer.report.staleness import draw_staleness
from peer.report.unfinished import UNFINISHED

WIDTH, HEIGHT = 5.6, 3.6
DOTS_PER_INCH = 190
NETWORKS = 9
"""So many different networks are drawn."""


@dataclass(frozen=True)
class Picture:
    """A picture as PNG, for a light page and a dark one. `notes` say in words what is not in it, and why."""

    file: str
    title: str
    light: bytes
    dark: bytes
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Words:
    """What takes the place of a picture that there is nothing for."""

    title: str
    notes: tuple[str, ...]


NETWORK_FILES = ("topology.png", *(f"topology-{number}.png" for number in range(2, NETWORKS + 1)))

FILES = tuple(
    [f"{measure}-{axis}.png" for measure in ("accuracy", "loss") for axis in ("rounds", "seconds", "bytes")]
    + ["consensus-distance.png", "staleness.png", *NETWORK_FILES]
)
"""The names that a report's pictures may have."""


def pictures_of(runs: Sequence[Recorded], labels: Sequence[str]) -> Iterator[Picture | Words]:
    """Yield the pictures of a report, in the order in which it shows them."""
    named = list(zip(labels, runs, strict=True))
    for measure in _measures(runs):
        for axis in ("rounds", "seconds", "bytes"):
            yield _curves(named, measure, axis)
    yield _distances(named)
    yield from _staleness(named)
    yield from _networks(named)


def _measures(runs: Sequence[Recorded]) -> list[Measure]:
    """Return what is drawn: accuracy, but where there are runs that have none, loss; both where some have."""
    known: list[Measure] = ["accuracy", "loss"]
    has: dict[Measure, list[bool]] = {m: [bool(judged(run.summary, m)) for run in runs] for m in known}
    if all(has["accuracy"]):
        return ["accuracy"]
    return [measure for measure in known if any(has[measure])] or ["loss"]


# ---- Curves


def _curves(named: Sequence[Named], measure: Measure, axis: str) -> Picture | Words:
    title, lines, kinds, absent = f"{measure.capitalize()} against {axis}", [], {}, Absent()
    for i, (label, run) in enumerate(named):
        entries = judged(run.summary, measure)
        key = next((k for k in KEYS[axis] if all(entry.get(k) is not None for entry in entries)), None)
        if not entries:
            absent.add(f"No {measure}", label)
        elif key is None:
            absent.add(why_not(run, axis), label)
        else:
            kinds[label] = key
            lines.append(replace(line_of(label, i, run.summary, measure, key), label=_with_outcome(label, run)))
    if not lines:
        return Words(title, absent.notes())
    across, notes = axis_label(lines, kinds)
    drawn = [(label, run) for label, run in named if label in kinds]
    if axis == "bytes":
        across, notes = whose_bytes(across, drawn)
    if axis == "rounds":
        notes += rounds_apart(drawn)
    is_wide = spread_wide(lines)
    if is_wide:
        notes.append("The runs' lengths differ so much that the axis is logarithmic, and points at 0 are left out.")

    def draw(figure: Figure, look: Look) -> None:
        axes = figure.subplots()
        draw_lines(axes, lines, look)
        axes.set_xlabel(across)
        name_measure(axes, measure, lines)
        if is_wide:
            axes.set_xscale("log", nonpositive="mask")
        dress(axes, look)
        _put_legend(figure, axes, look)

    return _picture(f"{measure}-{axis}.png", title, draw, [*notes, *absent.notes()], _height(lines))


KEYS = {"rounds": ("round",), "seconds": ("simulated_seconds", "seconds"), "bytes": ("payload_bytes_sent",)}
"""What of an entry stands on an axis: the first of these that all entries of a run have."""


def _with_outcome(label: str, run: Recorded) -> str:
    return label if run.outcome == "finished" else f"{label}: {run.outcome}"


DISTANCE_NOTE = "The mean squared distance of the peers' parameters from their average; points at 0 are left out."
OWN_DISTANCE_NOTE = (
    "The mean squared distance of one daemon's parameters from those of the neighbours that it heard last."
)


def _distances(named: Sequence[Named]) -> Picture | Words:
    """The consensus distance; a daemon that ran by itself knows only that to its neighbours."""
    title, own, lines, absent = "Consensus distance against rounds", list[str](), list[Line](), Absent()
    notes = [DISTANCE_NOTE]
    for i, (label, run) in enumerate(named):
        history = run.summary["history"]
        key = next((k for k in ("consensus_distance", "neighbour_distance") if _has(history, k)), None)
        entries = [entry for entry in history if key and entry.get(key) is not None]
        if key is None:
            absent.add("Not known before the end" if run.outcome == UNFINISHED else "No consensus distance", label)
            continue
        if run.has_one_model:
            absent.add("One model, the coordinator's, and so no distance", label)
            continue
        if not any(entry[key] > 0 for entry in entries):
            absent.add("0 throughout, for all peers have the same parameters", label)
            continue
        if key == "neighbour_distance":
            own.append(label)
        places, values = [float(entry["round"]) for entry in entries], [float(entry[key]) for entry in entries]
        lines.append(Line(_with_outcome(label, run), i, places, values))
    if not lines:
        return Words(title, absent.notes())
    name = "consensus distance"
    if len(own) == len(lines):
        title, name, notes = "Distance to neighbours against rounds", "distance to neighbours", [OWN_DISTANCE_NOTE]
    elif own:
        notes.append(f"One daemon's, to the neighbours that it heard last: {listed(own, 6)}.")

    def draw(figure: Figure, look: Look) -> None:
        axes = figure.subplots()
        draw_lines(axes, lines, look)
        axes.set_xlabel(SCALES["round"])
        name_distance(axes, name, lines)
        dress(axes, look)
        _put_legend(figure, axes, look)

    return _picture("consensus-distance.png", title, draw, [*notes, *absent.notes()], _height(lines))


def _has(history: Sequence[dict[str, Any]], key: str) -> bool:
    return any(entry.get(key) is not None for entry in history)


# ---- Staleness, and networks


def _staleness(named: Sequence[Named]) -> Iterator[Picture]:
    counted = [
        (label, i, [float(count) for count in run.summary["staleness"]["histogram"]])
        for i, (label, run) in enumerate(named)
        if (run.summary.get("staleness") or {}).get("histogram") and sum(run.summary["staleness"]["histogram"])
    ]
    if counted:
        served = [named[i][1].experiment.coordinator.mode != "none" for _, i, _ in counted]
        unit = "versions" if all(served) else "rounds, or versions of a coordinator" if any(served) else "rounds"
        notes = [f"How old what was mixed or applied had become, in {unit}."]

        def draw(figure: Figure, look: Look) -> None:
            axes = figure.subplots()
            draw_staleness(axes, counted, look)
            axes.set_xlabel(f"staleness ({unit})")
            dress(axes, look)
            _put_legend(figure, axes, look)

        yield _picture("staleness.png", "Staleness", draw, notes, HEIGHT + 0.2 * len(counted))


def _networks(named: Sequence[Named]) -> Iterator[Picture | Words]:
    """Yield each network once, with the names of the runs on it where there are several."""
    on: dict[str, list[Named]] = {}
    for label, run in named:
        on.setdefault(_network_key(run.experiment), []).append((label, run))
    notes, drawn = [], 0
    for those in on.values():
        labels, (_, run) = [label for label, _ in those], those[0]
        try:
            network = network_of(run.experiment, ground_to_draw(run))
        except ConfigError as error:
            notes.append(f"Not drawn, {error}: {listed(labels, 6)}.")
            continue
        drawn += 1
        if drawn <= NETWORKS:
            yield _network(network, drawn, [*who(labels, len(named)), *unused(those)])
    if drawn > NETWORKS:
        notes.append(f"{drawn - NETWORKS} further networks are not drawn.")
    if notes:
        yield Words("Who talks with whom", tuple(notes))


def _network(network: Network, number: int, notes: Sequence[str]) -> Picture:
    def draw(figure: Figure, look: Look) -> None:
        draw_network(figure.subplots(), network, look)

    file = NETWORK_FILES[number - 1]
    return _picture(file, "Who talks with whom", draw, notes, 4.0)


def _network_key(e: Experiment) -> str:
    """Return a text that is the same for experiments with the same network."""
    counts = (e.stated_counts(), [(peer.name, peer.position) for peer in e.peers])
    if e.coordinator.mode != "none":
        kind = "ring" if e.coordinator.mode == "ring" else "star"
        return repr((kind, e.coordinator.name, e.coordinator.servers, e.topology.peers, counts))
    return repr((e.topology.model_dump(), e.seed, e.network.file if e.topology.metric == "rtt" else "", counts))


# ---- Figures to PNG


def _picture(
    file: str,
    title: str,
    draw: Callable[[Figure, Look], None],
    notes: Sequence[str],
    height: float = HEIGHT,
    width: float = WIDTH,
) -> Picture:
    light, dark = (_png(draw, look, width, height) for look in (LIGHT, DARK))
    return Picture(file, title, light, dark, tuple(notes))


def _png(draw: Callable[[Figure, Look], None], look: Look, width: float, height: float) -> bytes:
    figure = Figure(figsize=(width, height), layout="constrained", dpi=DOTS_PER_INCH, facecolor=look.paper)
    draw(figure, look)
    content = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name in a script that the font does not have
        figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def _height(lines: Sequence[Line]) -> float:
    """Return the height, in inches, with the legend below the curves."""
    return HEIGHT + 0.2 * ceil(len(lines) / _legend_columns([plain(line.label) for line in lines]))


def _legend_columns(labels: Sequence[str]) -> int:
    longest = max(map(len, labels), default=0)
    return 3 if longest <= 18 else 2 if longest <= 32 else 1


def _put_legend(figure: Figure, axes: Any, look: Look) -> None:
    """Put the legend below the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=_legend_columns(labels),
        frameon=False,
        fontsize=8.5,
        handlelength=2.6,
        labelcolor=look.ink,
    )
