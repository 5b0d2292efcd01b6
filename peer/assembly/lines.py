"""The lines of a CSV file with a header, each with where it stands, and what is wrong with one in words."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path

from peer.errors import ConfigError
from peer.experiment.wording import brief, nearest, one_line

Line = tuple[str, dict[str, str]]
"""Where it stands, "links.csv, line 3", and its cells by column."""


def lines_of(path: Path, key: str, needed: Sequence[str], others: Sequence[str] = ()) -> Iterator[Line]:
    """Yield each line after the header, which names at least the `needed` columns. Empty lines and # comments are left
    out. `key` is that of the experiment file which names this one. Raises ConfigError."""
    rows = csv.reader(StringIO(_text(path, key)), skipinitialspace=True, strict=True)
    columns: list[str] | None = None
    try:
        for row in rows:
            where, cells = f"{path}, line {rows.line_num}", [cell.strip() for cell in row]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if columns is None:
                columns = _columns(cells, where, key, needed, others)
            elif len(cells) != len(columns):
                raise ConfigError(key, f"{where}: it has {len(cells)} cells, and the header has {len(columns)}")
            else:
                yield where, dict(zip(columns, cells, strict=True))
    except csv.Error as error:
        raise ConfigError(key, f"{path}, line {rows.line_num}: {error}") from error
    if columns is None:
        raise ConfigError(key, f"{path} is empty; it needs the header {','.join((*needed, *others))}")


def _text(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(key, f"{path}, line {line}: it is not UTF-8 text") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(key, f"cannot read {path}: {reason}") from error


def _columns(cells: Sequence[str], where: str, key: str, needed: Sequence[str], others: Sequence[str]) -> list[str]:
    columns = [cell.lower() for cell in cells]
    for name in needed:
        if name not in columns:
            raise ConfigError(key, f"{where}: the header must name {', '.join(needed)}, and {name} is not there")
    for name in columns:
        if columns.count(name) > 1:
            raise ConfigError(key, f"{where}: the header names {brief(name)} twice")
        if name not in (*needed, *others):
            known = ", ".join((*needed, *others))
            raise ConfigError(key, f"{where}: a column {brief(name)} is not known; there are {known}")
    return columns


# ---- Peers and numbers


def numbered(names: Sequence[str]) -> dict[str, int]:
    """Return what a peer may be called in a file: its name, or its number in node order. Names go first."""
    return {str(i): i for i in range(len(names))} | {name: i for i, name in enumerate(names)}


def unknown_peer(name: str, names: Sequence[str]) -> str:
    """Say that there is no such peer, and who may have been meant."""
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else f"they are {one_line(', '.join(names))}"
    return f"{brief(name)} is not a peer of this experiment; {hint}"


def number_in(cells: Mapping[str, str], column: str) -> float:
    """Return what a cell says, NaN where it is no number."""
    try:
        return float(cells[column])
    except ValueError:
        return math.nan
