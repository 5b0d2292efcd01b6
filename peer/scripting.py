"""Experiments from Python, for scripted convergence tests: `load`, `explain`, `simulate`, `up`."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from peer import ways
from peer.errors import ConfigError, EarshotError
from peer.experiment import Experiment, load
from peer.explanation import explain as describe

__all__ = ["Document", "explain", "load", "simulate", "up"]


class Document(SimpleNamespace):
    """A JSON document as an object: `summary.accuracy.mean`. `as_dict()` returns it as it was."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(**{name: _as_object(value) for name, value in fields.items()})
        self._fields = dict(fields)

    def as_dict(self) -> dict[str, Any]:
        return self._fields


def explain(experiment: Experiment, *, matrix: bool = False) -> Document:
    """Return the document of `earshot explain`; `neighbours` stays a dict of names. Raises ConfigError."""
    document = describe(experiment, matrix=matrix).document
    explained = Document({name: value for name, value in document.items() if name != "neighbours"})
    explained.neighbours = document["neighbours"]
    explained._fields = document
    return explained


def simulate(experiment: Experiment, *, engine: ways.Engine | None = None, out: str | Path | None = None) -> Document:
    """Run an experiment in this process and return its summary. Writes nothing unless `out` names a folder.

    Without an `engine` it is "rounds", and "events" where the experiment asks for links, speeds, faults or peers that
    do not wait. Raises ConfigError when the
    experiment is wrong; a run that diverges returns with its outcome.
    """
    options = ways.Options(writes=False, out=None if out is None else Path(out))
    return Document(ways.simulate(experiment, engine or ways.engine_of(experiment), options).summary)


def up(experiment: Experiment, *, out: str | Path | None = None) -> Document:
    """Run every peer as a daemon of its own on this host, and return the summary.

    The daemons are started by a fresh process, since a process that has threads must not fork. Its messages go to
    stderr. Raises ConfigError when the experiment is wrong.
    """
    command = [sys.executable, "-P", "-m", "peer", "up", "-", "--json"]
    command += ["--no-folder"] if out is None else ["--out", str(Path(out).absolute())]
    done = subprocess.run(
        command, input=experiment.to_toml().encode(), stdout=subprocess.PIPE, cwd=experiment.folder, check=False
    )
    try:
        document = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise EarshotError(f"earshot up ended with exit code {done.returncode} and no document") from None
    if "error" in document:
        raise ConfigError("", document["error"])
    return Document(document)


def _as_object(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Document(value)
    if isinstance(value, list) and value and isinstance(value[0], Mapping | list):  # parameters are many numbers
        return [_as_object(item) for item in value]
    return value
