"""A task made ready: data, model, flat layout, and who trains on which rows.

Everything is checked here, once, before anything trains: labels against the model's outputs, targets against their
shape, rows against peers.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from peer.errors import ConfigError
from peer.seeds import torch_seed
from peer.task.data import load_data
from peer.task.dataset import DataSet
from peer.task.factory import source_hash
from peer.task.fit import check_shards, fit, fit_own
from peer.task.flat import FlatModel
from peer.task.layout import Layout, layout_of, vector_layout
from peer.task.local import PlainTrainer, PureGossip, Schedule, Shard
from peer.task.models import BuiltModel, Kind, build_model
from peer.task.partition import partition


@dataclass(frozen=True)
class Partition:
    """How the rows are dealt out; `own` has one data set per peer, None for those of other machines."""

    kind: str = "iid"
    alpha: float = 0.3
    classes_per_peer: int | None = None
    sizes: Sequence[int] | None = None
    rows_per_peer: int | None = None
    own: Sequence[str | None] = ()


@dataclass(frozen=True)
class Wish:
    """What the experiment asks for, in plain values."""

    model: str
    data: str
    names: Sequence[str]
    seed: int
    schedule: Schedule
    partition: Partition = field(default_factory=Partition)
    dtype: torch.dtype = torch.float32
    average_buffers: bool = True
    shards: Sequence[Sequence[Sequence[object]]] | None = None
    starts: Sequence[Sequence[float]] = ()
    folder: Path = Path()


@dataclass(frozen=True, eq=False)
class Task:
    """A task on the CPU, ready to be trained anywhere. `rows[i]` are the training rows of peer i.

    `own[i]`, for the partition "own", is the data set of peer i, None where it is another machine's business.
    `starts` holds one flat vector for all peers or one for each.
    """

    wish: Wish
    layout: Layout
    starts: tuple[Tensor, ...]
    code: str
    built: BuiltModel | None = None
    kind: Kind = "regression"
    data: DataSet | None = None
    rows: tuple[np.ndarray, ...] | None = None
    own: tuple[DataSet | None, ...] | None = None

    @property
    def peers(self) -> int:
        return len(self.wish.names)

    def start(self, peer: int) -> Tensor:
        """Return a copy of the parameters with which a peer begins, (d,), on the CPU."""
        return self.starts[peer if len(self.starts) > 1 else 0].clone()

    def apart(self) -> "Task":
        """Return the same task with a model of its own, for another thread of this process.

        Raises ConfigError where the model cannot be copied.
        """
        try:
            return self if self.built is None else replace(self, built=deepcopy(self.built))
        except Exception as error:  # a user's module may raise anything
            problem = f"cannot be copied for a coordinator beside a peer ({type(error).__name__}: {error})"
            raise ConfigError("task.model", f"{problem}; give the coordinator a process of its own") from error

    def trainer(self, device: torch.device) -> PlainTrainer | PureGossip:
        """Return what does the local steps on this device. It uses the model's own tensors: one at a time."""
        if self.built is None:
            return PureGossip(self.layout, device)
        return PlainTrainer(
            self.built, self.layout, self.wish.schedule, kind=self.kind, seed=self.wish.seed, device=device
        )

    def shards(self, device: torch.device) -> list[Shard | None]:
        """Return every peer's shard; where the rows are dealt out, all look into one copy of the data."""
        if self.data is None:
            return [None] * self.peers
        if self.own is not None:
            return [None if data is None else _whole(data, device) for data in self.own]
        assert self.rows is not None
        x, y = self.data.x.to(device), self.data.y.to(device)
        return [Shard(x, y, rows) for rows in self.rows]

    def shard(self, peer: int, device: torch.device) -> Shard | None:
        """Return one peer's shard, holding no more than its rows."""
        if self.data is None:
            return None
        if self.own is not None:
            mine = self.own[peer]
            assert mine is not None
            return _whole(mine, device)
        assert self.rows is not None
        x, y = Shard(self.data.x, self.data.y, self.rows[peer]).take(None)
        return Shard(x.to(device), y.to(device))

    def test_rows(self, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Return the common test rows, None if there are none."""
        return None if self.data is None else _test_rows(self.data, device)


def prepare(wish: Wish, only: int | None = None) -> Task:
    """Load, build and check. `only` is the one peer whose own data are needed, None for all.

    Raises ConfigError naming the key at fault.
    """
    if wish.data == "none":
        return _pure_gossip(wish)
    data = load_data(wish.data, folder=wish.folder, dtype=wish.dtype, shards=wish.shards)
    seed = torch_seed(wish.seed, "model")
    built = build_model(wish.model, data=data, seed=seed, dtype=wish.dtype, folder=wish.folder)
    kind, data = fit(built, data)
    layout = layout_of(built.module, wish.dtype, average_buffers=wish.average_buffers)
    task = Task(wish, layout, _starts(wish, layout, built), _code_hash(wish), built, kind, data)
    if wish.partition.kind == "own":
        own = tuple(_own_data(wish, i, built, data) if only in (None, i) else None for i in range(task.peers))
        task = replace(task, own=own)
    else:
        task = replace(task, rows=tuple(_dealt_out(wish, data)))
    _check_shards(task, built)
    return task


def _pure_gossip(wish: Wish) -> Task:
    starts = tuple(torch.tensor(list(row), dtype=wish.dtype) for row in wish.starts)
    if not starts:
        raise ConfigError("task.init", 'data = "none" is pure gossip and needs the vectors to gossip')
    return Task(wish, vector_layout(len(starts[0]), wish.dtype), starts, code="")


def _code_hash(wish: Wish) -> str:
    return "".join(source_hash(spec, wish.folder) for spec in (wish.model, wish.data))


def _starts(wish: Wish, layout: Layout, built: BuiltModel) -> tuple[Tensor, ...]:
    """Return the model's own first parameters, or the given ones with the model's buffers behind them."""
    model = FlatModel(built.module, layout, torch.device("cpu")).read()
    if not wish.starts:
        return (model,)
    for row in wish.starts:
        if len(row) != layout.trainable:
            raise ConfigError("task.init", f"{len(row)} numbers, but the model has {layout.trainable:,} parameters")
    return tuple(
        torch.cat([torch.tensor(list(row), dtype=layout.dtype), model[layout.trainable :]]) for row in wish.starts
    )


def _dealt_out(wish: Wish, data: DataSet) -> Sequence[np.ndarray]:
    """Return each peer's rows."""
    if data.blocks is not None:
        return np.split(np.arange(len(data.x)), np.cumsum(data.blocks)[:-1])
    how = wish.partition
    return partition(
        how.kind,
        labels=data.y.numpy() if data.labelled else None,
        rows=len(data.x),
        peers=len(wish.names),
        seed=wish.seed,
        alpha=how.alpha,
        classes_per_peer=how.classes_per_peer,
        sizes=how.sizes,
        rows_per_peer=how.rows_per_peer,
    )


def _own_data(wish: Wish, peer: int, built: BuiltModel, common: DataSet) -> DataSet:
    """Load the data of one machine, in the form of the common ones."""
    spec = wish.partition.own[peer]
    assert spec is not None, "the experiment says that each peer has its data"
    own = load_data(spec, folder=wish.folder, dtype=wish.dtype, key=f"peers.{wish.names[peer]}.data")
    return fit_own(built, common, own)


def _check_shards(task: Task, built: BuiltModel) -> None:
    shards = task.shards(torch.device("cpu"))
    here = {name: len(shard) for name, shard in zip(task.wish.names, shards, strict=True) if shard is not None}
    check_shards(built.module, list(here.values()), task.wish.schedule.batch_size, list(here))


def _whole(data: DataSet, device: torch.device) -> Shard:
    return Shard(data.x.to(device), data.y.to(device), None, _test_rows(data, device))


def _test_rows(data: DataSet, device: torch.device) -> tuple[Tensor, Tensor] | None:
    if data.x_test is None or data.y_test is None:
        return None
    return data.x_test.to(device), data.y_test.to(device)
