"""The figures of runs in tables: what came of them, where their experiments differ, what was predicted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peer.record import Row
from peer.report.labels import differing
from peer.report.runs import Recorded

MISSING = "-"
ONE_MODEL = "one model\nthe coordinator's"


@dataclass(frozen=True)
class Table:
    """Cells by row and column. What explains a cell stands in it below the first line. `corner` is what stands above
    the names of the rows."""

    corner: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]

    def turned(self, corner: str) -> "Table":
        """Return the table with rows and columns changed over."""
        names = [name for name, _ in self.rows]
        cells = [(column, [row[j] for _, row in self.rows]) for j, column in enumerate(self.columns)]
        return Table(corner, names, cells)


def outcome_table(runs: Sequence[Recorded], labels: Sequence[str]) -> Table:
    """Return what came of each run. What stands in `same_in_all` is left out, and a figure that none of them has."""
    same = same_in_all(runs)
    rows = [(name, [cell(run) for run in runs]) for name, cell in FIGURES.items() if name not in same]
    kept = [(name, cells) for name, cells in rows if any(cell != MISSING for cell in cells)]
    return _readable(Table("", list(labels), kept), "run")


def same_in_all(runs: Sequence[Recorded]) -> dict[str, str]:
    """Return of several runs the figures that need no column, for they are the same in all: name -> cell."""
    cells = {name: {FIGURES[name](run) for run in runs} for name in MAY_BE_SAME}
    return {
        name: found.pop() for name, found in cells.items() if len(runs) > 1 and len(found) == 1 != (MISSING in found)
    }


def difference_table(runs: Sequence[Recorded], labels: Sequence[str]) -> Table | None:
    """Return the keys in which the experiments differ, None where they do not."""
    keys = differing(runs)
    return _readable(Table("key", list(labels), list(keys.items())), "run") if keys else None


def prediction_table(runs: Sequence[Recorded], labels: Sequence[str]) -> Table | None:
    """Return what was predicted of the runs beside what was measured, None where nothing was."""
    rows = [
        (label, _prediction_cells(run.summary))
        for label, run in zip(labels, runs, strict=True)
        if run.summary.get("prediction") is not None
    ]
    columns = [
        *("seconds per round, predicted", "measured", "measured / predicted"),
        *("speed-up, predicted", "efficiency, predicted", "bottleneck"),
    ]
    return Table("run", columns, rows) if rows else None


def _readable(table: Table, corner: str) -> Table:
    """Turn a table of a column per run, where there are so many runs that rows are easier to read."""
    return table.turned(corner) if len(table.columns) > 3 and len(table.columns) >= len(table.rows) / 3 else table


# ---- Cells


def measured_seconds_per_round(summary: Row) -> tuple[float, str] | None:
    """Return the seconds of a round, and whose they are: simulated, or real; None where they are not known."""
    rounds = summary["rounds"]
    for key, kind in (("simulated_seconds", "simulated"), ("rounds_seconds", "real")):
        if rounds and summary.get(key) is not None:
            return summary[key] / rounds, kind
    return None


def _prediction_cells(summary: Row) -> list[str]:
    prediction = summary["prediction"]
    predicted, measured = prediction.get("seconds_per_round"), measured_seconds_per_round(summary)
    ratio = measured[0] / predicted if measured and predicted else None
    efficiency = prediction.get("efficiency")
    return [
        _number(predicted),
        MISSING if measured is None else f"{measured[0]:.4g}\n{measured[1]}",
        MISSING if ratio is None else f"{ratio:.3f}",
        _number(prediction.get("speed_up")),
        MISSING if efficiency is None else f"{efficiency:.0%}",
        prediction.get("bottleneck") or MISSING,
    ]


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"


def _spread(key: str) -> Callable[[Recorded], str]:
    def cell(run: Recorded) -> str:
        values = run.summary[key]
        if values["mean"] is None:
            return MISSING
        mean, low, high = (f"{values[which]:.4g}" for which in ("mean", "min", "max"))
        return mean if low == high else f"{mean}\n{low} to {high}"

    return cell


def _of(key: str) -> Callable[[Recorded], str]:
    return lambda run: _number(run.summary.get(key))


def _count(key: str) -> Callable[[Recorded], str]:
    return lambda run: MISSING if run.summary.get(key) is None else f"{run.summary[key]:,.0f}"


def _distance(run: Recorded) -> str:
    return ONE_MODEL if run.has_one_model else _number(run.summary.get("consensus_distance"))


def _outcome(run: Recorded) -> str:
    summary = run.summary
    where = summary.get("diverged")
    words = [f"after round {where.get('round')}, at {where.get('peer')}"] if isinstance(where, dict) else []
    words += [str(summary["why"])] if summary.get("why") else []
    return "\n".join([str(summary["outcome"]), "; ".join(words)]).rstrip()


def _seconds(run: Recorded) -> str:
    summary = run.summary
    for key, kind in (("simulated_seconds", "simulated"), ("rounds_seconds", "real")):
        if summary.get(key) is not None:
            return f"{summary[key]:.4g}\n{kind}"
    return MISSING


def _sent(run: Recorded) -> str:
    sent = run.summary.get("payload_bytes_sent")
    by = "\nby this daemon" if run.is_one_daemons else ""
    return MISSING if sent is None else f"{amount(sent)}{by}"


def _peers(run: Recorded) -> str:
    """Return how many there are; what one daemon tells counts itself alone."""
    count = run.experiment.known_peers() if run.is_one_daemons else run.summary["peers"]
    return MISSING if count is None else f"{count:,.0f}"


def amount(count: float) -> str:
    """Return a number of bytes for people: 1.2 MB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def _staleness(run: Recorded) -> str:
    old = run.summary.get("staleness")
    return MISSING if not old else f"{old['mean']:.3g}\nat most {old['max']:g}"


def _lost(run: Recorded) -> str:
    names = run.summary["lost"]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more if names else MISSING


FIGURES: dict[str, Callable[[Recorded], str]] = {
    "outcome": _outcome,
    "accuracy": _spread("accuracy"),
    "loss": _spread("loss"),
    "consensus distance": _distance,
    "neighbour distance": _of("neighbour_distance"),
    "peers": _peers,
    "rounds": _count("rounds"),
    "seconds": _seconds,
    "payload sent": _sent,
    "gradients": _count("gradients"),
    "staleness": _staleness,
    "lost": _lost,
    "short rounds": lambda run: _count("short_rounds")(run) if run.summary.get("short_rounds") else MISSING,
    "engine": lambda run: str(run.summary["engine"]),
}
"""What the table shows of a run, in this order."""

MAY_BE_SAME = ("outcome", "consensus distance", "peers", "rounds", "gradients", "lost", "engine")
"""What need not stand in every row where it is the same."""
