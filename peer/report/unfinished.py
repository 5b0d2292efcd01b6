"""Runs that have no summary, or not yet: what their metrics.jsonl tells."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.record import Row, history_entry, spread
from peer.report.checks import is_number
from peer.report.files import refuse, text_of

UNFINISHED = "unfinished"
"""The outcome of a run without a summary: it goes on, or it was killed."""


def from_metrics(experiment: Experiment, folder: Path) -> Row:
    """Return what metrics.jsonl says of a run that has not written its summary, or not yet.

    There is no consensus distance, and nothing that only the end knows: those figures are None. The bytes are there
    where it is certain what a line's are: all peers' in the simulator's virtual time, a daemon's own in a daemon's.
    Raises ConfigError where not even one evaluation is complete.
    """
    file = folder / "metrics.jsonl"
    mend = "wait for the run to end, or run it again"
    if not file.exists():
        raise ConfigError("", f"{folder / 'summary.json'}: is missing, and so is metrics.jsonl; {mend}")
    rounds: dict[int, list[Row]] = {}
    for row in _lines_of(file):
        rounds.setdefault(row["round"], []).append(row)
    judged = [rounds[round] for round in sorted(rounds)]
    if len(judged) > 1 and len(judged[-1]) < len(judged[-2]):
        judged.pop()  # cut off in the middle of an evaluation
    if not judged:
        raise ConfigError("", f"{folder / 'summary.json'}: is missing, and metrics.jsonl has no evaluation yet; {mend}")
    is_virtual = all("simulated_seconds" in row for rows in judged for row in rows)
    engine = "events" if is_virtual else "daemons" if _has_daemons(folder / "events.jsonl") else "rounds"
    history = [_entry(rows, engine) for rows in judged]
    last = history[-1]
    return {
        "name": experiment.name,
        "engine": engine,
        "peers": len(judged[0]),
        "rounds": last["round"],
        "seconds": None,
        "rounds_seconds": None,
        "simulated_seconds": last.get("simulated_seconds"),
        "accuracy": last["accuracy"],
        "loss": last["loss"],
        "consensus_distance": None,
        "payload_bytes_sent": last.get("payload_bytes_sent"),
        "gradients": None,
        "lost": [],
        "outcome": UNFINISHED,
        "history": history,
    }


def _lines_of(file: Path) -> list[Row]:
    """Return the rows of a file of JSON lines. The last line may be cut off: who wrote it may have been killed."""
    lines = text_of(file).splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line, parse_constant=refuse)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            text = f"{file}: line {number} is not valid JSON ({error}); remove that line"
            raise ConfigError("", text) from error
        if problem := _row_problem(row):
            raise ConfigError("", f"{file}: line {number} {problem}; remove that line")
        rows.append(row)
    return rows


def _row_problem(row: Any) -> str:
    if not isinstance(row, dict) or not isinstance(row.get("round"), int) or not isinstance(row.get("peer"), str):
        return "is not one peer at one evaluation"
    for key in ("accuracy", "loss", "seconds", "simulated_seconds", "payload_bytes_sent"):
        if row.get(key) is not None and not is_number(row[key]):
            return f"has a {key} that is not a number"
    return ""


def _has_daemons(events: Path) -> bool:
    """Say whether daemons wrote the events: each tells which neighbours join it."""
    if not events.exists():
        return False
    with events.open(encoding="utf-8", errors="replace") as file:
        return any('"neighbour"' in line for line in file)


def _entry(rows: Sequence[Row], engine: str) -> Row:
    entry = history_entry(rows[0]["round"], [], None)
    entry |= {key: spread([row.get(key) for row in rows]) for key in ("accuracy", "loss")}
    sent = [row["payload_bytes_sent"] for row in rows if row.get("payload_bytes_sent") is not None]
    if engine == "events":
        entry["simulated_seconds"] = max(row["simulated_seconds"] for row in rows)
    if engine == "daemons":
        entry["seconds"] = max(row["seconds"] for row in rows)
    if len(sent) == len(rows) and engine != "rounds":
        entry["payload_bytes_sent"] = max(sent) if engine == "events" else sum(sent)
    return entry
