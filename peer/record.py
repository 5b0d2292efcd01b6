"""One schema for what a run tells of itself, whichever way it ran: metrics, events, summary, run folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from peer.errors import ConfigError
from peer.experiment import Experiment

Row = dict[str, Any]

SUMMARY_NUMBERS = (
    "peers",
    "rounds",
    "seconds",
    "rounds_seconds",
    "simulated_seconds",
    "accuracy.mean",
    "accuracy.min",
    "accuracy.max",
    "own_accuracy.mean",
    "own_accuracy.min",
    "own_accuracy.max",
    "loss.mean",
    "loss.min",
    "loss.max",
    "own_loss.mean",
    "own_loss.min",
    "own_loss.max",
    "consensus_distance",
    "payload_bytes_sent",
    "wire_bytes_sent",
    "short_rounds",
    "staleness.mean",
    "staleness.max",
    "staleness.mean_s",
    "staleness.max_s",
    "staleness.mean_distance",
    "staleness.max_distance",
    "events",
    "gradients",
)
"""Names that `--require` knows: every number a summary may hold."""

ENTRY_NUMBERS = tuple(
    name
    for name in SUMMARY_NUMBERS
    if ("." in name and not name.startswith("staleness"))
    or name in ("consensus_distance", "payload_bytes_sent", "simulated_seconds")
)
"""Names that `stop_when` knows: the numbers of an evaluation."""


@dataclass(frozen=True)
class PeerScore:
    """One peer's figures at one evaluation; None where undefined."""

    loss: float | None
    accuracy: float | None
    rows: int
    own_loss: float | None = None
    own_accuracy: float | None = None
    own_rows: int = 0


NOT_FIGURES = ("round", "params", "coordinator", "seconds", "simulated_seconds", "payload_bytes_sent")
"""What an entry of the history has beside the figures of an evaluation."""


def finite(value: float | None) -> float | None:
    """Return the value, None where it is not finite: JSON has no NaN."""
    return value if value is not None and isfinite(value) else None


def spread(values: Sequence[float | None]) -> Row:
    """Return mean, min and max; null where any peer's value is undefined."""
    numbers = [finite(v) for v in values]
    if not numbers or any(v is None for v in numbers):
        return {"mean": None, "min": None, "max": None}
    array = np.array(numbers, dtype=np.float64)
    return {"mean": float(array.mean()), "min": float(array.min()), "max": float(array.max())}


def consensus_distance(params: NDArray[np.floating[Any]]) -> float:
    """Return how far the peers are from their mean, from parameters (n, d): 1/n sum_i |x_i - mean|^2.

    The square of the distance in Kong et al. 2021, "Consensus Control for Decentralized Deep Learning", section 3.
    """
    x = params.astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(((x - x.mean(axis=0)) ** 2).sum(axis=1).mean())


def farthest_from_mean(params: NDArray[np.floating[Any]]) -> int:
    """Return which of the peers, parameters (n, d), is farthest from their mean."""
    x = params.astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        return int(np.argmax(((x - x.mean(axis=0)) ** 2).sum(axis=1)))


def history_entry(
    round: int,
    scores: Sequence[PeerScore],
    consensus: float | None,
    params: Sequence[NDArray[np.floating[Any]]] | None = None,
    at: Row | None = None,
) -> Row:
    """Return one entry of a summary's history; `at` says when that was, and what it had cost until then."""
    entry: Row = {
        "round": round,
        **(at or {}),
        "accuracy": spread([s.accuracy for s in scores]),
        "loss": spread([s.loss for s in scores]),
        "consensus_distance": None if consensus is None else finite(consensus),
    }
    if scores and all(s.own_rows for s in scores):
        entry["own_accuracy"] = spread([s.own_accuracy for s in scores])
        entry["own_loss"] = spread([s.own_loss for s in scores])
    if params is not None:
        entry["params"] = listed(params)
    return entry


def listed(params: Sequence[NDArray[np.floating[Any]] | None]) -> list[list[float | None] | None]:
    """Return each peer's parameters, (d,), as lists for JSON; null where not finite, and for a peer without."""
    return [None if x is None else [finite(v) for v in x.astype(np.float64).tolist()] for x in params]


def metric_row(peer: str, round: int, score: PeerScore, seconds: float, payload_bytes: int | None) -> Row:
    """Return one line of metrics.jsonl: one peer at one evaluation."""
    row: Row = {
        "round": round,
        "peer": peer,
        "accuracy": finite(score.accuracy),
        "loss": finite(score.loss),
        "rows": score.rows,
        "seconds": round_seconds(seconds),
        "payload_bytes_sent": payload_bytes,
    }
    if score.own_rows:
        row |= {
            "own_accuracy": finite(score.own_accuracy),
            "own_loss": finite(score.own_loss),
            "own_rows": score.own_rows,
        }
    return row


def round_seconds(seconds: float) -> float:
    return round(seconds, 6)


# ---- Summaries


@dataclass
class Staleness:
    """How old what was mixed or learned had become: in rounds of whoever took it in, and in seconds.

    Beside a coordinator rounds are versions, and there is the distance that its parameters had gone meanwhile. The
    keys of `histogram` are texts, as JSON has them.
    """

    count: int = 0
    total: int = 0
    largest: int = 0
    total_s: float = 0.0
    largest_s: float = 0.0
    histogram: dict[str, int] = field(default_factory=dict)
    measured: int = 0  # of how many the distance is known
    total_distance: float = 0.0
    largest_distance: float = 0.0

    def add(self, rounds: int, seconds: float = 0.0, distance: float | None = None) -> None:
        self.count += 1
        self.total += rounds
        self.largest = max(self.largest, rounds)
        self.total_s += seconds
        self.largest_s = max(self.largest_s, seconds)
        self.histogram[str(rounds)] = self.histogram.get(str(rounds), 0) + 1
        if distance is not None:
            self.measured += 1
            self.total_distance += distance
            self.largest_distance = max(self.largest_distance, distance)

    def include(self, other: "Staleness") -> None:
        """Add another peer's."""
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        self.total_s += other.total_s
        self.largest_s = max(self.largest_s, other.largest_s)
        for rounds, count in other.histogram.items():
            self.histogram[rounds] = self.histogram.get(rounds, 0) + count
        self.measured += other.measured
        self.total_distance += other.total_distance
        self.largest_distance = max(self.largest_distance, other.largest_distance)

    def row(self) -> Row | None:
        """Return mean and largest, in rounds and in seconds, and how many there were of each number of rounds, from 0
        on; None where nothing was counted."""
        if not self.count:
            return None
        mean, mean_s = self.total / self.count, self.total_s / self.count
        row: Row = {"mean": mean, "max": self.largest, "mean_s": mean_s, "max_s": self.largest_s}
        row["histogram"] = [self.histogram.get(str(rounds), 0) for rounds in range(self.largest + 1)]
        if self.measured:
            row["mean_distance"] = finite(self.total_distance / self.measured)
            row["max_distance"] = finite(self.largest_distance)
        return row


Outcome = Literal["finished", "interrupted", "diverged", "alone", "failed"]


@dataclass(frozen=True)
class Divergence:
    """Where a run left all bounds: after how many rounds, and at which peer."""

    round: int
    peer: str


@dataclass
class Ended:
    """What a run of all peers came to. `params` are each peer's final parameters, (d,), None for a
    peer that was lost."""

    engine: Literal["rounds", "events", "daemons"]
    step: str
    peers: int
    outcome: Outcome = "finished"
    rounds: int = 0
    rounds_seconds: float = 0.0
    simulated_seconds: float | None = None
    history: list[Row] = field(default_factory=list)
    payload_bytes_sent: int = 0
    wire_bytes_sent: int | None = None
    short_rounds: int = 0
    lost: list[str] = field(default_factory=list)
    diverged: Divergence | None = None
    gradients: int = 0
    staleness: Staleness = field(default_factory=Staleness)
    events: int | None = None  # that the events engine has handed to the cores
    event_hash: str | None = None
    params: Sequence[NDArray[np.floating[Any]] | None] | None = None
    coordinator: NDArray[np.floating[Any]] | None = None  # the final parameters of a coordinator, (d,)
    why: str = ""  # in one line, where the outcome needs it
    details: str = ""  # the user's own traceback, where their code failed


def summarise(experiment: Experiment, ended: Ended, seconds: float, run_folder: Path | None) -> Row:
    """Return the summary document. Its figures are those of the last evaluation."""
    last = ended.history[-1] if ended.history else history_entry(0, [], None)
    summary: Row = {
        "name": experiment.name,
        "engine": ended.engine,
        "step": ended.step,
        "peers": ended.peers,
        "rounds": ended.rounds,
        "seconds": round_seconds(seconds),
        "rounds_seconds": round_seconds(ended.rounds_seconds),
        "simulated_seconds": ended.simulated_seconds,
        **{k: v for k, v in last.items() if k not in NOT_FIGURES},
        "payload_bytes_sent": ended.payload_bytes_sent,
        "wire_bytes_sent": ended.wire_bytes_sent,
        "short_rounds": ended.short_rounds,
        "lost": ended.lost,
        "outcome": ended.outcome,
        "diverged": None if ended.diverged is None else asdict(ended.diverged),
        "gradients": ended.gradients,
        **({} if (row := ended.staleness.row()) is None else {"staleness": row}),
        **({} if ended.events is None else {"events": ended.events, "event_hash": ended.event_hash}),
        "history": ended.history,
        "run_folder": None if run_folder is None else str(run_folder.absolute()),
    }
    if experiment.record.params != "none" and ended.params is not None:
        summary["params"] = listed(ended.params)
    if experiment.record.params != "none" and ended.coordinator is not None:
        summary["coordinator"] = listed([ended.coordinator])[0]
    if ended.why:
        summary["why"] = ended.why
    return summary


# ---- Run folders


class RunFolder:
    """Where a run writes. Made before the run starts, so that a place that cannot be written to costs nothing.

    `goes_on`: an earlier run wrote there, and what comes now follows.
    """

    def __init__(self, path: Path, experiment: Experiment, *, goes_on: bool = False) -> None:
        self.path = path
        if not goes_on:
            (path / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
        mode = "a" if goes_on else "w"
        self._metrics = (path / "metrics.jsonl").open(mode, encoding="utf-8")
        self._events = (path / "events.jsonl").open(mode, encoding="utf-8")

    def metric(self, row: Mapping[str, Any]) -> None:
        _write_line(self._metrics, row)

    def event(self, kind: str, **fields: Any) -> None:
        _write_line(self._events, {"at": utc_now().isoformat(timespec="milliseconds"), "event": kind, **fields})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary and close the files."""
        text = json.dumps(summary, indent=1, allow_nan=False)
        (self.path / "summary.json").write_text(text + "\n", encoding="utf-8")
        self._metrics.close()
        self._events.close()


def make_run_folder(experiment: Experiment, out: Path | None) -> RunFolder:
    """Make `out`, which must be new or empty; without it runs/<name>-<UTC time>[-n] here.

    Raises ConfigError when it cannot be made or written.
    """
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            if any(out.iterdir()):
                raise ConfigError("", f"--out {out}: the folder is not empty; name a new one, nothing was overwritten")
            return RunFolder(out, experiment)
        return RunFolder(_new_folder(Path("runs"), experiment.name), experiment)
    except OSError as error:
        where = f"--out {out}" if out is not None else "the folder runs/ here (choose another with --out)"
        raise ConfigError("", f"{where}: cannot be written: {error.strerror or error}") from error


def check_is_run(path: Path) -> None:
    """Raise ConfigError where this is not the folder of a run."""
    if not (path / "experiment.toml").is_file():
        raise ConfigError("--resume", f"{path} is not the folder of a run: it has no experiment.toml")


def outcome_of(path: Path) -> str | None:
    """Return how the run in this folder ended; None where it has not, or left no summary that can be read."""
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary.get("outcome") if isinstance(summary, dict) else None


def spent_until_now(path: Path, name: str) -> tuple[float, int]:
    """Return the seconds and the bytes of payload that a peer's last line in metrics.jsonl of this run has."""
    last = {"seconds": 0.0, "payload_bytes_sent": 0}
    try:
        lines = (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0, 0
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # a line that was being written when the process ended
            continue
        if isinstance(row, dict) and row.get("peer") == name:
            last = row
    return float(last["seconds"]), int(last["payload_bytes_sent"] or 0)


def resume_run_folder(path: Path, experiment: Experiment) -> RunFolder:
    """Go on in the folder of an earlier run. Raises ConfigError where there is none, or it cannot be written."""
    check_is_run(path)
    try:
        return RunFolder(path, experiment, goes_on=True)
    except OSError as error:
        raise ConfigError("--resume", f"{path}: cannot be written: {error.strerror or error}") from error


def _new_folder(parent: Path, name: str) -> Path:
    base = f"{name}-{utc_now():%Y%m%dT%H%M%SZ}"
    parent.mkdir(parents=True, exist_ok=True)
    n = 1
    while True:
        path = parent / (base if n == 1 else f"{base}-{n}")
        try:
            path.mkdir()
        except FileExistsError:
            n += 1
            continue
        return path


def utc_now() -> datetime:
    return datetime.now(UTC)


def _write_line(file: IO[str], row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row, allow_nan=False) + "\n")
    file.flush()
