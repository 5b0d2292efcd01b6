"""Six peers on a ring with one row of data each, or of pure gossip: the same with a learning rate of 0.

A local step takes 1 s and there is no latency unless a test says so, so a round ends at each full second.
"""

from collections.abc import Mapping
from typing import Any

from peer import ways
from peer.experiment import Experiment, from_dict
from peer.scripting import Document, simulate
from tests.commands import inline

PEERS = 6
STARTS = [float(i * i) for i in range(PEERS)]
MEAN = sum(STARTS) / PEERS
SOFTMAX = {"model": "softmax", "partition": "dirichlet", "alpha": 0.5, "lr": 0.1}
RING_OF_FIVE = {"family": "ring", "peers": 5}
WAYS: dict[str, dict[str, str]] = {"in step": {}, "asynchronous": {"mode": "async"}, "adpsgd": {"name": "adpsgd"}}


def experiment(*, lr: float = 0.05, **tables: Any) -> Experiment:
    shards = [[[[1.0 + i / 5], 2.0 + i]] for i in range(PEERS)]
    task = inline(shards, [[x] for x in STARTS], lr=lr)["task"]
    return from_dict({"rounds": 30, "eval_every": 5, "task": task, "record": {"params": "final"}} | tables)


def run(*, lr: float = 0.05, **tables: Any) -> Document:
    """Run six peers with one row of data each, on a ring unless `tables` say otherwise."""
    return simulate(experiment(lr=lr, **tables), engine="events")


def run_softmax(**tables: Any) -> Document:
    defaults = {"rounds": 6, "eval_every": 3, "task": SOFTMAX, "topology": RING_OF_FIVE, "record": {"params": "final"}}
    return simulate(from_dict(defaults | tables), engine="events")


def with_faults(*schedule: Mapping[str, object], **tables: Any) -> Document:
    return run(faults={"schedule": list(schedule)}, **tables)


def said(**tables: Any) -> list[str]:
    """Return the words of a run, in the order in which they were said."""
    notes: list[str] = []
    ways.simulate(experiment(**tables), "events", ways.Options(writes=False, listener=ways.Listener(note=notes.append)))
    return notes


def values(summary: Document) -> list[float]:
    """Return the one parameter of each peer that is there."""
    return [row[0] for row in summary.params if row is not None]


def seen(summary: Document) -> list[tuple[object, ...]]:
    """Return what the evaluations found, without when that was and what it had cost."""
    figures = ("round", "accuracy", "loss", "consensus_distance")
    return [tuple(entry[figure] for figure in figures) for entry in summary.as_dict()["history"]]


def times(summary: Document) -> list[float]:
    return [entry.simulated_seconds for entry in summary.history]


def distances(summary: Document) -> dict[int, float]:
    return {entry.round: entry.consensus_distance for entry in summary.history}
