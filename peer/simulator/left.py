"""What a run of daemons has left in its folder: the events it noted, the peers' models, who was lost."""

import json
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peer.errors import ConfigError
from peer.model_file import NAME, load_model
from peer.record import Ended, Row

KEY = "--replay"

Note = dict[str, Any]
Tensors = Mapping[str, Tensor]


def events_of(run: Path) -> Iterator[tuple[str, Note]]:
    """Yield where each event of a run stands, in words, and the event. Raises ConfigError for a line that is none."""
    path = run / "events.jsonl"
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                where = f"{path}, line {number}"
                yield where, _event_in(line, where)
    except OSError as error:
        raise ConfigError(KEY, f"cannot read {path}: {error.strerror}") from error


def not_an_event(where: str) -> ConfigError:
    """Return what is said of a line that is not one of a run's events."""
    return ConfigError(KEY, f"{where}: not a line of a run's events")


def _event_in(line: str, where: str) -> Note:
    try:
        note: object = json.loads(line)
    except ValueError as error:
        raise not_an_event(where) from error
    if not isinstance(note, dict) or not isinstance(note.get("event"), str):
        raise not_an_event(where)
    return note


@dataclass(frozen=True)
class Left:
    """What daemons have left: their models by name, and the summary, empty where there is none."""

    models: Mapping[str, Tensors]
    summary: Row = field(default_factory=dict)

    @property
    def lost(self) -> frozenset[str]:
        return frozenset(self.summary.get("lost", ()))

    def compare(self, found: Mapping[str, Tensors], ended: Ended, run: Path) -> list[str]:
        """Return whose models there are to compare with. A run whose parameters differ from those has failed."""
        compared = [name for name in found if name in self.models]
        others = [name for name in compared if not are_equal(found[name], self.models[name])]
        if others and ended.outcome == "finished":
            ended.outcome, ended.why = "failed", f"{', '.join(others)} ended with other parameters than in {run}"
        return compared


def left_by(run: Path) -> Left:
    """Read what there is."""
    models = {path.parent.name: load_model(path) for path in sorted(run.glob(f"peers/*/{NAME}"))}
    path = run / "summary.json"
    return Left(models, json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})


def only(tensors: Tensors, names: AbstractSet[str]) -> dict[str, Tensor]:
    """Return those of the tensors that have one of these names."""
    return {name: tensor for name, tensor in tensors.items() if name in names}


def are_equal(ours: Tensors, theirs: Tensors) -> bool:
    """Say whether two models are the same to the last bit, NaN included."""
    return ours.keys() == theirs.keys() and all(_bits_of(ours[name]) == _bits_of(theirs[name]) for name in ours)


def _bits_of(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
