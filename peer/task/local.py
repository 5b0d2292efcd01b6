"""Local training at one peer: a model, a loss and an optimiser as functions of a flat vector.

One trainer serves one daemon, or all the peers of a simulator in turn: whatever belongs to a peer (momentum, kept
buffers) is in its `Memory`, and the model's own tensors are only a place to work in. So a daemon and the simulator
compute the same bits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import cos, pi
from threading import RLock
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from peer.errors import EarshotError, TrainingError
from peer.seeds import torch_seed
from peer.task.batches import Batches
from peer.task.factory import own_traceback
from peer.task.flat import FlatModel, Kept
from peer.task.layout import Layout, plain_name
from peer.task.models import BuiltModel, Kind, loss_of, pick_output

EVALUATION_ROWS = 500
"""Rows per forward pass when evaluating; part of the result only through rounding."""


_GENERATORS = RLock()
"""torch has one generator for all threads of a process: a peer's and that of a coordinator beside it take turns."""


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

        A linear warm-up, then: constant; cosine from lr down to 0, which the round after the last would have
        (Loshchilov & Hutter 2017, equation 5, without restarts); step, a tenth after half of the rounds that follow
        the warm-up, a hundredth after three quarters of them.
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


@dataclass(frozen=True, eq=False)
class Shard:
    """The rows on which one peer trains, and the test rows of its own if it has any. Tensors on the device."""

    x: Tensor
    y: Tensor
    rows: np.ndarray | None = None  # indices into x and y; None: all of them, in order
    test: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.x) if self.rows is None else len(self.rows)

    def take(self, chosen: np.ndarray | None) -> tuple[Tensor, Tensor]:
        """Return the chosen rows of the shard, all of them for None."""
        if self.rows is not None:
            chosen = self.rows if chosen is None else self.rows[chosen]
        if chosen is None:
            return self.x, self.y
        index = torch.from_numpy(chosen).to(self.x.device)
        return self.x.index_select(0, index), self.y.index_select(0, index)  # ten times as fast as x[index]


@dataclass
class Memory:
    """What local training keeps at one peer from round to round and never gossips."""

    momentum: Tensor | None = None
    buffers: Kept = field(default_factory=dict)


@dataclass(frozen=True)
class Learned:
    """The outcome of the local steps of one round: how far the parameters moved, (d,), at which learning rate."""

    delta: Tensor
    lr: float
    steps: int


@dataclass(frozen=True)
class Score:
    """Loss and accuracy over some rows; None where undefined. A loss may be infinite or NaN: then it has diverged."""

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
        lr_round: int | None = None,
    ) -> Learned: ...

    def evaluate(
        self, x: Tensor, memory: Memory, rows: tuple[Tensor, Tensor] | None, stop: Callable[[], bool] = never
    ) -> Score: ...

    def tensors(self, x: Tensor, memory: Memory) -> dict[str, Tensor]: ...


class PlainTrainer:
    """Any torch module: forward, backward and one SGD step at a time.

        g <- grad loss(x) + weight_decay x + proximal_mu (x - x_0)
        m <- momentum m + g
        x <- x - lr m

    The proximal term is FedProx's (Li et al. 2020, equation 2) around the parameters at which the round started. What
    is random inside the model has a stream of its own for each peer and step, if it draws from torch's generator.
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
        self.module = built.module
        self._model = FlatModel(built.module, layout, device)
        self._loss = loss_of(built, kind)
        self._batches = Batches(seed, schedule.batch_size)
        self._first_kept = self._model.read_kept()
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[device.index or 0])

    def memory(self) -> Memory:
        momentum = torch.zeros_like(self._model.gradient) if self.schedule.momentum else None
        return Memory(momentum, {name: None if b is None else b.clone() for name, b in self._first_kept.items()})

    def train(
        self,
        x: Tensor,
        memory: Memory,
        shard: Shard | None,
        peer: int,
        round: int,
        stop: Callable[[], bool] = never,
        lr_round: int | None = None,
    ) -> Learned:
        """Do the local steps of a round from x, (d,). Changes `memory`; leaves x as it is.

        `lr_round` is the one whose learning rate it has, where that is another: a coordinator counts on its own.
        Raises TrainingError with the user's traceback where their code failed, Interrupted when `stop` says so.
        """
        assert shard is not None
        s, model, p = self.schedule, self._model, self.layout.trainable
        lr = s.lr_at(round if lr_round is None else lr_round)
        delta = torch.zeros_like(x)
        if not self.module.training:
            self.module.train()
        with self.user_code(gradients=True):
            model.write_kept(memory.buffers)
            for step in range(round * s.local_steps, (round + 1) * s.local_steps):
                if stop():
                    raise Interrupted
                bx, by = shard.take(self._batches.rows(peer, step, len(shard)))
                self._seed("dropout", peer, step)
                torch.add(x, delta, out=model.at)
                model.write()
                gradient = model.gradient_of(self._loss(self.module(bx), by))
                self._descend(gradient, model.at[:p], delta[:p], memory.momentum, lr)
                if p < len(x):  # what the forward pass did to the averaged buffers
                    torch.sub(model.read_statistics(), x[p:], out=delta[p:])
            memory.buffers = model.read_kept()
        return Learned(delta, lr, s.local_steps)

    def evaluate(
        self, x: Tensor, memory: Memory, rows: tuple[Tensor, Tensor] | None, stop: Callable[[], bool] = never
    ) -> Score:
        """Return loss and accuracy of the parameters x, (d,), over the rows. Leaves `memory` as it is."""
        if rows is None or not len(rows[0]):
            return Score(None, None, 0)
        self.module.eval()
        losses, right, total = 0.0, 0, len(rows[0])
        with self.user_code(gradients=False):
            self._write(x, memory)
            self._seed("evaluation")
            for bx, by in zip(*(torch.split(part, EVALUATION_ROWS) for part in rows), strict=True):
                if stop():
                    raise Interrupted
                output = self.module(bx)
                losses += float(self._loss(output, by)) * len(bx)
                if self.kind == "classification":
                    right += int((pick_output(output, self.built.spec).argmax(1) == by).sum())
        return Score(losses / total, right / total if self.kind == "classification" else None, total)

    def tensors(self, x: Tensor, memory: Memory) -> dict[str, Tensor]:
        """Return the whole model at x, (d,), as its state dict on the CPU: what a model file holds."""
        self._write(x, memory)
        state = self.module.state_dict()
        return {plain_name(n): t.detach().cpu().clone().contiguous() for n, t in state.items() if isinstance(t, Tensor)}

    def gradient_at(self, x: Tensor, bx: Tensor, by: Tensor) -> Tensor:
        """Return the gradient of the loss over a batch, (trainable,), at x, (d,) and with the first kept buffers."""
        with self.user_code(gradients=True):
            self._write(x, self.memory())
            return self._model.gradient_of(self._loss(self.module(bx), by)).clone()

    @contextmanager
    def user_code(self, *, gradients: bool) -> Iterator[None]:
        """Run what the user wrote, whatever the caller's gradient mode, without a trace in the caller's generators.

        What it raises becomes one clear line with the user's own traceback.
        """
        with _GENERATORS:
            states = [generator.get_state() for generator in self._generators]
            try:
                with torch.set_grad_enabled(gradients):
                    yield
            except (EarshotError, Interrupted):
                raise
            except (Exception, SystemExit) as error:
                first, *_ = str(error).splitlines() or [""]
                problem = f"model {self.built.spec} raised {type(error).__name__}: {first}"
                raise TrainingError(problem, own_traceback(error)) from error
            finally:
                for generator, state in zip(self._generators, states, strict=True):
                    generator.set_state(state)

    # ---- Inside

    def _write(self, x: Tensor, memory: Memory) -> None:
        self._model.write_kept(memory.buffers)
        self._model.at.copy_(x)
        self._model.write()

    def _descend(self, g: Tensor, at: Tensor, delta: Tensor, momentum: Tensor | None, lr: float) -> None:
        """Add one step from `at` to `delta`. Changes g and the momentum."""
        s = self.schedule
        if s.weight_decay:
            g.add_(at, alpha=s.weight_decay)
        if s.proximal_mu:
            g.add_(delta, alpha=s.proximal_mu)
        if momentum is not None:
            g = momentum.mul_(s.momentum).add_(g)
        delta.add_(g, alpha=-lr)

    def _seed(self, purpose: str, *counters: int) -> None:
        seed = torch_seed(self.seed, purpose, *counters)
        for generator in self._generators:
            generator.manual_seed(seed)


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
        lr_round: int | None = None,
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
