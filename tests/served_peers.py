"""Peers beside a coordinator, as experiments: the four of four_peers.py, unless a test has others.

Every version is in the history, unless a test says otherwise: `centres` are the coordinator's parameters in them. A
local step takes 1 s and there is no latency, so that in the events engine [speed] alone says who comes when.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from peer.experiment import Experiment, from_dict
from peer.scripting import Document
from tests.commands import inline
from tests.four_peers import SHARDS, START

Shards = Sequence[Sequence[Sequence[Any]]]

BY_SAMPLES: Shards = [shard * count for shard, count in zip(SHARDS, (10, 20, 30, 40), strict=True)]
"""The four shards with 10, 20, 30 and 40 equal rows: the same gradients, and weights 0.1, 0.2, 0.3 and 0.4."""


def served(
    rounds: int,
    coordinator: Mapping[str, Any],
    task: Mapping[str, Any] | None = None,
    *,
    shards: Shards = SHARDS,
    init: Sequence[float] = (START,),
    **tables: Any,
) -> Experiment:
    """Return an experiment beside a coordinator, evaluated after each version; the model is linear unless `task` says
    otherwise."""
    common = {"rounds": rounds, "eval_every": 1, "record": {"params": "every"}, "coordinator": dict(coordinator)}
    return from_dict({**common, **inline(shards, list(init), **(task or {})), **tables})


def centres(summary: Document) -> list[list[float]]:
    """Return the coordinator's parameters after each version, (versions + 1, d)."""
    assert summary.outcome == "finished", getattr(summary, "why", summary.outcome)
    return [entry.coordinator for entry in summary.history]


def centre(summary: Document) -> list[float]:
    """Return the coordinator's one parameter after each version."""
    return [w for (w,) in centres(summary)]
