"""How long a message is on its way, by the [network] table: what the simulator's links have for a latency."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peer.errors import ConfigError
from peer.experiment import Experiment

KEY = "network.file"
LATER = ("bandwidth_mbps", "loss")
"""Columns of the file that are not built yet."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class Latencies:
    """One-way latencies in ms, of each link that has one of its own and of all others."""

    all_ms: float = 0.0
    own_ms: Mapping[Pair, float] = field(default_factory=dict)

    def one_way_ms(self, sender: int, receiver: int) -> float:
        """Return the latency of a link; a line of the file for the other direction counts where this has none."""
        found = self.own_ms.get((sender, receiver))
        return self.own_ms.get((receiver, sender), self.all_ms) if found is None else found

    def round_trip_ms(self, a: int, b: int) -> float:
        """Return how long it takes from one peer to the other and back."""
        return self.one_way_ms(a, b) + self.one_way_ms(b, a)


def latencies_of(experiment: Experiment, names: Sequence[str]) -> Latencies:
    """Read the latencies of an experiment. Raises ConfigError for what is wrong in the file, with its line."""
    network = experiment.network
    if not network.file:
        return Latencies(network.latency_ms)
    return Latencies(network.latency_ms, _read(experiment.folder / network.file, names))


def _read(path: Path, names: Sequence[str]) -> dict[Pair, float]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(KEY, f"cannot read {path}: {reason}") from error
    lines = csv.DictReader(text.splitlines(), skipinitialspace=True)
    columns = lines.fieldnames or []
    if not {"from", "to", "latency_ms"} <= set(columns):
        raise ConfigError(KEY, f"{path}: the first line must name the columns from, to, latency_ms; it has {columns}")
    index = {name: i for i, name in enumerate(names)}
    found: dict[Pair, float] = {}
    for row in lines:
        pair = _pair(row, index, path, lines.line_num)
        if pair in found:
            raise ConfigError(KEY, f"{path}, line {lines.line_num}: {row['from']} to {row['to']} stands there twice")
        found[pair] = _latency(row, path, lines.line_num)
    return found


def _pair(row: Mapping[str, str], index: Mapping[str, int], path: Path, line: int) -> Pair:
    for end in ("from", "to"):
        if row[end] not in index:
            raise ConfigError(
                KEY, f"{path}, line {line}: {row[end]!r} is not a peer; they are {', '.join(index)[:200]}"
            )
    return index[row["from"]], index[row["to"]]


def _latency(row: Mapping[str, str], path: Path, line: int) -> float:
    for column in LATER:
        if row.get(column) not in (None, "", "0", "0.0"):
            raise ConfigError(KEY, f"{path}, line {line}: {column} is not built yet; leave it out")
    try:
        latency_ms = float(row["latency_ms"])
    except (TypeError, ValueError):
        latency_ms = math.nan
    if not 0 <= latency_ms < math.inf:
        raise ConfigError(KEY, f"{path}, line {line}: the latency {row['latency_ms']!r} is not a number of 0 or more")
    return latency_ms
