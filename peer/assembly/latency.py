"""How long a message is on its way, by the [network] table: what the simulator's links have for a latency.

Its `file` is CSV with a header, as `topology.family = "file:links.csv"` takes it too, so that one file can say who is
linked and how far apart they are. Peers stand in it by name, or by number, from 0 in node order.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from peer.errors import ConfigError
from peer.experiment import Experiment
from peer.experiment.wording import brief, nearest, one_line

KEY = "network.file"
COLUMNS = ("from", "to", "latency_ms")
LATER = ("bandwidth_mbps", "loss")
"""Columns that are not built yet."""

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
    return Latencies(network.latency_ms, _read(experiment.folder / Path(network.file).expanduser(), names))


def _read(path: Path, names: Sequence[str]) -> dict[Pair, float]:
    index = {str(i): i for i in range(len(names))} | {name: i for i, name in enumerate(names)}
    found: dict[Pair, float] = {}
    for where, cells in _lines(path):
        pair = _node(cells["from"], index, names, where), _node(cells["to"], index, names, where)
        if pair in found:
            raise ConfigError(KEY, f"{where}: the link {cells['from']} to {cells['to']} stands in the file twice")
        found[pair] = _latency(cells, where)
    return found


# ---- Lines


def _lines(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each line after the first, by column, and where it stands. Empty lines and # comments are left out."""
    rows = csv.reader(StringIO(_text(path)), skipinitialspace=True, strict=True)
    columns: list[str] | None = None
    try:
        for row in rows:
            where, cells = f"{path}, line {rows.line_num}", [cell.strip() for cell in row]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if columns is None:
                columns = _columns(cells, where)
            elif len(cells) != len(columns):
                raise ConfigError(KEY, f"{where}: it has {len(cells)} cells, and the header has {len(columns)}")
            else:
                yield where, dict(zip(columns, cells, strict=True))
    except csv.Error as error:
        raise ConfigError(KEY, f"{path}, line {rows.line_num}: {error}") from error
    if columns is None:
        raise ConfigError(KEY, f"{path} is empty; it needs the header {','.join(COLUMNS)}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(KEY, f"{path}, line {line}: it is not UTF-8 text") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(KEY, f"cannot read {path}: {reason}") from error


def _columns(cells: Sequence[str], where: str) -> list[str]:
    columns = [cell.lower() for cell in cells]
    for name in COLUMNS:
        if name not in columns:
            raise ConfigError(KEY, f"{where}: the header must name {', '.join(COLUMNS)}, and {name} is not there")
    for name in columns:
        if columns.count(name) > 1:
            raise ConfigError(KEY, f"{where}: the header names {brief(name)} twice")
        if name not in (*COLUMNS, *LATER):
            raise ConfigError(KEY, f"{where}: a column {brief(name)} is not known; there are {', '.join(COLUMNS)}")
    return columns


# ---- Cells


def _node(name: str, index: Mapping[str, int], names: Sequence[str], where: str) -> int:
    if name in index:
        return index[name]
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else f"they are {one_line(', '.join(names))}"
    raise ConfigError(KEY, f"{where}: {brief(name)} is not a peer of this experiment; {hint}")


def _latency(cells: Mapping[str, str], where: str) -> float:
    for column in LATER:
        if cells.get(column) and _number(cells[column]) != 0.0:
            raise ConfigError(KEY, f"{where}: {column} is not built yet; leave it out or write 0")
    latency_ms = _number(cells["latency_ms"])
    if not 0.0 <= latency_ms < math.inf:
        raise ConfigError(KEY, f"{where}: latency_ms is {brief(cells['latency_ms'])}, not a number of 0 or more")
    return latency_ms


def _number(text: str) -> float:
    """Return what the text says, NaN where it is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
