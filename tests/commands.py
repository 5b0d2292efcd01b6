"""What the fixtures of conftest.py hand out, and the tables of an exact check."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        document: dict[str, Any] = json.loads(self.out, parse_constant=_no_nan)
        return document


Command = Callable[..., Outcome]
Write = Callable[..., Path]


def _no_nan(name: str) -> float:
    raise AssertionError(f"{name} in a document")


def inline(shards: Any, init: Any, **task: object) -> Mapping[str, object]:
    """The tables of an exact check: one weight vector, squared loss, whole shards, float64."""
    return {
        "task": {
            "model": "linear",
            "data": "inline",
            "shards": shards,
            "init": init,
            "batch_size": 0,
            "lr": 0.1,
            "dtype": "float64",
            **task,
        }
    }
