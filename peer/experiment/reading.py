"""From a file, or from Python's own tables, to a checked experiment."""

import numbers
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from peer.errors import ConfigError
from peer.experiment.experiment import Experiment
from peer.experiment.refusal import first_of, problem_of
from peer.experiment.rules import problems_in
from peer.experiment.wording import brief, one_line

MAX_FILE_BYTES = 256 * 2**20


def load(path: str | Path, overrides: Mapping[str, object] | Sequence[str] = ()) -> Experiment:
    """The experiment in a TOML file, "-" for stdin, with some keys set otherwise.

    overrides: dotted keys and values, such as {"topology.peers": 64} (None takes the key out of the file), or
    texts such as "topology.peers=64", whose values are TOML or a bare word. A table is set key by key.
    Raises ConfigError: one line that names the key, or the file and its line.
    """
    path = Path(path)
    tables = _parse(path, _read(path))
    changes = _changes(overrides)
    for key, value in changes:
        _override(tables, key, value)
    experiment = from_dict(tables, folder=path.absolute().parent, path=path)
    experiment._overrides = dict(changes)
    return experiment


def from_dict(data: Mapping[str, object], *, folder: Path = Path("."), path: Path | None = None) -> Experiment:
    """The experiment of a parsed file: `data` holds its tables. Raises ConfigError."""
    raw = _plain(data)
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        raise first_of([problem_of(dict(details)) for details in error.errors(include_url=False)], raw) from None
    problems = list(problems_in(experiment))
    if problems:
        raise first_of(problems, raw)
    experiment._path, experiment._folder = path, Path(folder)
    return experiment


def _read(path: Path) -> bytes:
    shown = one_line(str(path), 300)
    if shown == "-":
        return sys.stdin.buffer.read(MAX_FILE_BYTES)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("", f"{shown}: no such file") from None
    except IsADirectoryError:
        raise ConfigError("", f"{shown}: is a folder, not an experiment file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError("", f"{shown}: cannot be read ({reason})") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError("", f"{shown}: larger than {MAX_FILE_BYTES // 2**20} MiB")
    return content


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    """The tables of the file, which is UTF-8 whatever the locale; a byte order mark is passed over."""
    shown = one_line(str(path), 300)
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError("", f"{shown}: not UTF-8 at line {line} (byte 0x{content[error.start]:02x})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("", f"{shown}: not valid TOML: {one_line(str(error), 200)}") from None


def _changes(overrides: Mapping[str, object] | Sequence[str]) -> list[tuple[str, object]]:
    if isinstance(overrides, Mapping):
        return list(overrides.items())
    texts = [overrides] if isinstance(overrides, str) else overrides
    return list(map(_change, texts))


def _change(text: str) -> tuple[str, object]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals and value):
        raise ConfigError("", f"{brief(text)} sets no key; write section.key=value, such as task.lr=0.1")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError) as error:
        if value[0] in "\"'[{":
            problem = f"{brief(value)} is not valid TOML: {one_line(str(error))}"
            raise ConfigError(one_line(key), problem) from None
        return key, value
    return key, parsed["value"] if len(parsed) == 1 else value


def _override(tables: dict[str, Any], key: str, value: object) -> None:
    """Sets one dotted key in the tables of a file; None takes it out."""
    if not isinstance(key, str) or not all(key.split(".")):
        raise ConfigError("", f"{brief(key)} is not a key such as task.lr")
    if isinstance(value, Mapping):
        for name, item in value.items():
            _override(tables, f"{key}.{name}", item)
        return
    *parents, last = key.split(".")
    holder: Any = tables
    for depth, name in enumerate(parents):
        holder = _within(holder, name, one_line(".".join(parents[: depth + 1])))
    if value is not None:
        holder[_place(holder, last, one_line(key))] = value
    elif isinstance(holder, dict):
        holder.pop(last, None)


def _within(holder: Any, name: str, key: str) -> Any:
    """What `holder`, a table or an array, holds under `name`; a table that is not there yet is made."""
    if isinstance(holder, dict):
        holder.setdefault(name, {})
    inner = holder[_place(holder, name, key)]
    if not isinstance(inner, dict | list):
        raise ConfigError(key, "is not a table")
    return inner


def _place(holder: dict[str, Any] | list[Any], name: str, key: str) -> Any:
    """`name` in a table; in an array the position that it spells."""
    if isinstance(holder, dict):
        return name
    if not (name.isascii() and name.isdigit() and int(name) < len(holder)):
        raise ConfigError(key, f"is not there: the array has {len(holder)} entries, counted from 0")
    return int(name)


def _plain(value: Any) -> Any:
    """The value with arrays as tuples, and numbers of other libraries as Python's own."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else value
