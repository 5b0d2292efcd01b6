"""Local training at one peer: a model, a loss and an optimiser as functions of a flat vector.

One trainer serves one daemon, or all the peers of a simulator in turn: whatever belongs to a peer (momentum, kept
buffers) is in its `Memory`, and the model's own tensors are only a place to work in. So a daemon and the simulator
compute the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import cos, pi
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from peer.errors import ConfigError, EarshotError, TrainingError
from peer.seeds import stream, torch_seed
from peer.task.factory import own_traceback
from peer.task.layout import Layout, float_buffers, plain_name, trainable_parameters
from peer.task.models import BuiltModel, default_loss, pick_output

Kind = Literal["classification", "regression"]

EVALUATION_ROWS = 500
"""Rows per forward pass when evaluating; part of the result only through rounding."""


class Interrupted(Exception):  # noqa: N818 - not an error
    """The run is to end; raised between two local steps."""


def never() -> bool:
    return False


@dataclass(frozen=True)
class Schedule:
    """Stochastic gradient descent as the experiment describes it."""

    lr: float
    lr_schedule: str = "constant"  # constant | cosine | step
    warmup_rounds: int = 0
    rounds: int = 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal_mu: float = 0.0
    batch_size: int = 32
    local_steps: int = 1

    def lr_at(self, round: int) -> float:
        """Return the learning rate of a round.

        A linear warm-up, then: constant; cosine from lr to 0 at the last round (Loshchilov & Hutter 2017, without
        restarts); step, a tenth after half of the rounds and again after three quarters.
        """
        warm = min(1.0, (round + 1) / (self.warmup_rounds + 1))
        done = (round - self.warmup_rounds) / max(1, self.rounds - self.warmup_rounds) if self.rounds else 0.0
        done = min(max(done, 0.0), 1.0)
        match self.lr_schedule:
            case "cosine":
                return self.lr * warm * 0.5 * (1 + cos(pi * done))
            case "step":
                return self.lr * warm * (0.1 if done >= 0.75 else 1.0) * (0.1 if done >= 0.5 else 1.0)
        return self.lr * warm


@dataclass(frozen=True)
class Shard:
    """The rows on which one peer trains, and the test rows of its own if it has any. Tensors on the device."""

    x: Tensor
    y: Tensor
    rows: Tensor | None = None  # indices into x and y; None: all of them, in order
    x_test: Tensor | None = None
    y_test: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x) if self.rows is None else len(self.rows)

    def take(self, chosen: np.ndarray | None) -> tuple[Tensor, Tensor]:
        """Return the chosen rows of the shard, all of them for None."""
        if chosen is None:
            return (self.x, self.y) if self.rows is None else (self.x[self.rows], self.y[self.rows])
        index = torch.from_numpy(chosen).to(self.x.device)
        if self.rows is not None:
            index = self.rows[index]
        return self.x[index], self.y[index]


@dataclass
class Memory:
    """What local training keeps at one peer from round to round and never gossips."""

    momentum: Tensor | None = None
    buffers: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Learned:
    """The outcome of the local steps of one round: how far the parameters moved, (d,), at which learning rate."""

    delta: Tensor
    lr: float
    steps: int


@dataclass(frozen=True)
class Score:
    """Loss and accuracy over some rows; None where undefined."""

    loss: float | None
    accuracy: float | None
    rows: int


class Trainer(Protocol):
    """What the shells ask of a task."""

    layout: Layout
    step: str

    def memory(self) -> Memory: ...

    def train(
        self,
        x: Tensor,
        memory: Memory,
        shard: Shard | None,
        peer: int,
        round: int,
        stop: Callable[[], bool] = never,
    ) -> Learned: ...

    def evaluate(
        self, x: Tensor, memory: Memory, rows: tuple[Tensor, Tensor] | None, stop: Callable[[], bool] = never
    ) -> Score: ...

    def tensors(self, x: Tensor, memory: Memory) -> dict[str, Tensor]: ...


class Batches:
    """Which rows of its shard a peer takes in its `step`-th local step.

    An epoch is a shuffle of the shard cut into full batches; what is left over sits out that epoch, so that no batch
    is ever smaller than the others. A shard smaller than the batch is one batch, and so is every shard where
    `batch_size` is 0. The order is a function of (seed, peer, epoch); it is kept for as long as the epoch lasts.
    """

    def __init__(self, seed: int, batch_size: int) -> None:
        self.seed = seed
        self.batch_size = batch_size
        self._orders: dict[int, tuple[int, np.ndarray]] = {}

    def rows(self, peer: int, step: int, shard_rows: int) -> np.ndarray | None:
        """Return indices into the shard, (batch_size,); None means the whole shard in its own order."""
        if self.batch_size == 0 or shard_rows <= self.batch_size:
            return None
        epoch, place = divmod(step, shard_rows // self.batch_size)
        if self._orders.get(peer, (-1,))[0] != epoch:
            self._orders[peer] = (epoch, stream(self.seed, "batch", peer, epoch).permutation(shard_rows))
        return self._orders[peer][1][place * self.batch_size : (place + 1) * self.batch_size]


class PlainTrainer:
    """Any torch module: forward, backward and one SGD step at a time.

        g <- grad loss(x) + weight_decay x + proximal_mu (x - x_0)
        m <- momentum m + g
        x <- x - lr m

    The proximal term is FedProx's (Li et al. 2020, equation 2) around the parameters at which the round started.
    """

    step = "plain"

    def __init__(
        self,
        built: BuiltModel,
        layout: Layout,
        schedule: Schedule,
        *,
        kind: Kind,
        seed: int,
        device: torch.device,
    ) -> None:
        self.built = built
        self.layout = layout
        self.schedule = schedule
        self.kind = kind
        self.seed = seed
        self.device = device
        self.module = built.module.to(device)
        self._batches = Batches(seed, schedule.batch_size)
        self._work = torch.empty(layout.size, dtype=layout.dtype, device=device)
        self._gradient = torch.zeros(layout.trainable, dtype=layout.dtype, device=device)
        names = {s.name: s for s in layout.segments}
        self._parameters = [p for _, p in trainable_parameters(self.module)]
        self._buffers = [b for name, b in float_buffers(self.module) if name in names]
        self._kept = {plain_name(name): b for name, b in self.module.named_buffers() if plain_name(name) not in names}
        tensors = [*self._parameters, *self._buffers]
        self._views = [
            self._work[s.offset : s.offset + s.size].view(t.shape)
            for s, t in zip(layout.segments, tensors, strict=True)
        ]
        self._gradient_views = [self._gradient[s.offset : s.offset + s.size].view(s.shape) for s in layout.parameters()]
        self._first_buffers = {name: b.clone() for name, b in self._kept.items()}

    def start(self) -> Tensor:
        """Return the flat parameters of the model as it was built, (d,)."""
        self._read_model()
        return self._work.clone()

    def memory(self) -> Memory:
        momentum = torch.zeros_like(self._gradient) if self.schedule.momentum else None
        return Memory(momentum, {name: b.clone() for name, b in self._first_buffers.items()})

    def train(
        self,
        x: Tensor,
        memory: Memory,
        shard: Shard | None,
        peer: int,
        round: int,
        stop: Callable[[], bool] = never,
    ) -> Learned:
        """Do the local steps of a round from x, (d,). Changes `memory`; leaves x as it is.

        Raises TrainingError with the user's traceback where their code failed, Interrupted when `stop` says so.
        """
        assert shard is not None
        lr = self.schedule.lr_at(round)
        delta = torch.zeros_like(x)
        at = x.clone()
        p = self.layout.trainable
        self.module.train()
        with self._user_code(peer), self._kept_buffers(memory):
            for i in range(self.schedule.local_steps):
                if stop():
                    raise Interrupted
                step = round * self.schedule.local_steps + i
                chosen = self._batches.rows(peer, step, len(shard))
                self._seed_dropout(peer, step)
                self._write_model(at)
                self._gradient_of(*shard.take(chosen))
                self._sgd_step(at[:p], delta[:p], memory.momentum, lr)
                self._learn_buffers(x, delta)
                torch.add(x, delta, out=at)
        return Learned(delta, lr, self.schedule.local_steps)

    def evaluate(
        self, x: Tensor, memory: Memory, rows: tuple[Tensor, Tensor] | None, stop: Callable[[], bool] = never
    ) -> Score:
        """Return loss and accuracy of the parameters x, (d,), over the rows."""
        if rows is None or not len(rows[0]):
            return Score(None, None, 0)
        self.module.eval()
        losses, right, total = 0.0, 0, len(rows[0])
        with self._user_code(None), self._kept_buffers(memory), torch.no_grad():
            self._write_model(x)
            for bx, by in zip(*(torch.split(part, EVALUATION_ROWS) for part in rows), strict=True):
                if stop():
                    raise Interrupted
                output = self.module(bx)
                losses += float(self._loss(output, by)) * len(bx)
                if self.kind == "classification":
                    right += int((pick_output(output, self.built.spec).argmax(1) == by).sum())
        loss = losses / total
        return Score(
            loss if np.isfinite(loss) else None,
            right / total if self.kind == "classification" else None,
            total,
        )

    def tensors(self, x: Tensor, memory: Memory) -> dict[str, Tensor]:
        """Return the whole model at x, (d,), as its state dict on the CPU: what a model file holds."""
        with self._kept_buffers(memory):
            self._write_model(x)
            state = self.module.state_dict()
            return {plain_name(n): t.detach().cpu().clone().contiguous() for n, t in state.items()}

    # ---- One step

    def _gradient_of(self, x: Tensor, y: Tensor) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self._loss(self.module(x), y).backward()  # type: ignore[no-untyped-call]
        for view, parameter in zip(self._gradient_views, self._parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)

    def _sgd_step(self, at: Tensor, delta: Tensor, momentum: Tensor | None, lr: float) -> None:
        g, s = self._gradient, self.schedule
        if s.weight_decay:
            g.add_(at, alpha=s.weight_decay)
        if s.proximal_mu:
            g.add_(delta, alpha=s.proximal_mu)
        if momentum is not None:
            momentum.mul_(s.momentum).add_(g)
            g = momentum
        delta.add_(g, alpha=-lr)

    def _loss(self, output: object, y: Tensor) -> Tensor:
        if self.built.loss is not None:
            return self.built.loss(output, y)  # type: ignore[arg-type]
        return default_loss(self.kind)(pick_output(output, self.built.spec), y)

    def _seed_dropout(self, peer: int, step: int) -> None:
        """Give what is random inside the model (dropout) a stream of its own for each peer and step."""
        seed = torch_seed(self.seed, "dropout", peer, step)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    # ---- Between the flat vector and the model's tensors

    @torch.no_grad()
    def _write_model(self, x: Tensor) -> None:
        self._work.copy_(x)
        torch._foreach_copy_([*self._parameters, *self._buffers], self._views)

    @torch.no_grad()
    def _read_model(self) -> None:
        torch._foreach_copy_(self._views, [*self._parameters, *self._buffers])

    @torch.no_grad()
    def _learn_buffers(self, x: Tensor, delta: Tensor) -> None:
        """What the forward pass changed in the averaged buffers counts as learned."""
        if self._buffers:
            p = self.layout.trainable
            torch._foreach_copy_(self._views[len(self._parameters) :], self._buffers)
            torch.sub(self._work[p:], x[p:], out=delta[p:])

    def _kept_buffers(self, memory: Memory) -> "_KeptBuffers":
        return _KeptBuffers(self._kept, memory)

    def _user_code(self, peer: int | None) -> "_UserCode":
        return _UserCode(self.built.spec)


class _KeptBuffers:
    """Put a peer's own buffers into the model, and take them out again afterwards."""

    def __init__(self, kept: dict[str, Tensor], memory: Memory) -> None:
        self._kept, self._memory = kept, memory

    def __enter__(self) -> None:
        with torch.no_grad():
            for name, buffer in self._kept.items():
                buffer.copy_(self._memory.buffers[name])

    def __exit__(self, *_: object) -> None:
        for name, buffer in self._kept.items():
            self._memory.buffers[name].copy_(buffer)


class _UserCode:
    """Turn what the user's model or loss raises into one clear line with their own traceback."""

    def __init__(self, spec: str) -> None:
        self._spec = spec

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, EarshotError | Interrupted):
            return
        raise TrainingError(
            f"model {self._spec} raised {type(error).__name__}: {error}", own_traceback(error)
        ) from error


class PureGossip:
    """No training at all: the vectors given are only mixed."""

    step = "none"

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.device = device

    def memory(self) -> Memory:
        return Memory()

    def train(
        self,
        x: Tensor,
        memory: Memory,
        shard: Shard | None,
        peer: int,
        round: int,
        stop: Callable[[], bool] = never,
    ) -> Learned:
        if stop():
            raise Interrupted
        return Learned(torch.zeros_like(x), 0.0, 0)

    def evaluate(
        self, x: Tensor, memory: Memory, rows: tuple[Tensor, Tensor] | None, stop: Callable[[], bool] = never
    ) -> Score:
        return Score(None, None, 0)

    def tensors(self, x: Tensor, memory: Memory) -> dict[str, Tensor]:
        return {"x": x.detach().cpu().clone()}


def check_batch_norm(module: nn.Module, shard_rows: list[int], batch_size: int, names: list[str]) -> None:
    """Refuse a batch of one row under batch norm, which has no variance. Raises ConfigError naming the peer."""
    if not any(isinstance(m, _BatchNorm) for m in module.modules()):
        return
    if batch_size == 1:
        raise ConfigError("task.batch_size", "1 row has no variance, and the model has BatchNorm; take 2 or more")
    for name, rows in zip(names, shard_rows, strict=True):
        if rows == 1:
            raise ConfigError("task.partition", f"the shard of {name} is one row, which BatchNorm cannot train on")
