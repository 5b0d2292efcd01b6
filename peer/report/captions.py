"""What is said below pictures, and on their axes: what is in them, and what is not, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from peer.experiment import Experiment
from peer.report.curves import Line, scaled
from peer.report.runs import Recorded

Named = tuple[str, Recorded]
"""A run with its label."""


def listed(labels: Sequence[str], most: int) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ("; " if any("," in label for label in labels) else ", ").join(labels[:most]) + more


@dataclass
class Absent:
    """Runs that are not in a picture, by the reason why."""

    labels: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, label: str) -> None:
        self.labels.setdefault(reason, []).append(label)

    def notes(self) -> tuple[str, ...]:
        return tuple(f"{reason}: {listed(labels, 6)}." for reason, labels in self.labels.items())


# ---- Axes


def axis_label(lines: list[Line], kinds: dict[str, str]) -> tuple[str, list[str]]:
    """Return what the horizontal axis says; seconds of two kinds are told apart in words."""
    keys = set(kinds.values())
    if len(keys) == 1:
        return scaled(lines, keys.pop()), []
    real = [label for label, key in kinds.items() if key == "seconds"]
    return "time (s), simulated or real", [f"Real seconds, where those of the others are simulated: {listed(real, 6)}."]


def whose_bytes(axis_label: str, named: Sequence[Named]) -> tuple[str, list[str]]:
    """Say on the axis of bytes whose they are, where runs are what one daemon tells."""
    own = [label for label, run in named if run.is_one_daemons]
    if not own:
        return axis_label, []
    if len(own) == len(named):
        return axis_label.replace("all peers", "one daemon"), ["What one daemon has sent, not all of them."]
    note = f"Of one daemon alone, where those of the others are of all peers: {listed(own, 6)}."
    return axis_label.replace(" by all peers", ""), [note]


def rounds_apart(named: Sequence[Named]) -> list[str]:
    """Say what a round is, where it is not the same work in all runs."""
    of: dict[str, list[str]] = {}
    for label, run in named:
        of.setdefault(_work_of_a_round(run.experiment), []).append(label)
    if len(of) == 1:
        return []
    rest = of.pop(OF_ALL, [])
    words = [f"Of {listed(labels, 6)} it is {work}." for work, labels in of.items()]
    words += [f"Of {listed(rest, 2) if len(rest) <= 2 else 'the others'} it is {OF_ALL}."] if rest else []
    steps = "How many local steps each took in all stands among the figures, as gradients."
    return [f"A round is not the same work everywhere. {' '.join(words)} {steps}"]


OF_ALL = "that of all peers"


def _work_of_a_round(e: Experiment) -> str:
    c = e.coordinator
    if c.mode == "buffered":
        return f"{c.buffer} pushes" if c.buffer > 1 else "one push"
    if c.mode == "async":
        return "one push"
    if c.mode == "quorum":
        return (
            f"the first {c.quorum} pushes"
            if isinstance(c.quorum, int)
            else f"the first pushes of a share {c.quorum:g} of the peers"
        )
    if c.mode == "sync" and c.fraction < 1 and not e.is_elastic:
        return f"that of a share {c.fraction:g} of the peers"
    return OF_ALL


def why_not(run: Recorded, axis: str) -> str:
    if axis == "seconds":
        return f"The engine {run.summary['engine']} has no time in its history"
    return "No bytes in the history"


# ---- Networks


def who(labels: Sequence[str], runs: int) -> list[str]:
    return [] if runs == 1 else ["All runs." if len(labels) == runs else f"{listed(labels, 6)}."]


def unused(those: Sequence[Named]) -> list[str]:
    """Say of runs whose algorithm does not use the topology what they do instead."""
    gossiping = [run.experiment for _, run in those if run.experiment.coordinator.mode == "none"]
    names = dict.fromkeys(experiment.algorithm.name for experiment in gossiping)
    words = {"local": "nobody hears anybody", "exact": "everybody hears everybody"}
    return [f"Under {name} {words[name]}, whatever the topology." for name in names if name in words]
