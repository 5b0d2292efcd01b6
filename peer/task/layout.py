"""The flat parameters: where each tensor of a model lies in the one vector that is gossiped.

The trainable parameters come first, then the floating-point buffers (batch-norm statistics) where the policy is to
average them. Frozen parameters and integer buffers are not part of it: the first are the same everywhere, the second
are counters that averaging would break.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor, nn

from peer.errors import ConfigError

LINES_SHOWN = 200


@dataclass(frozen=True)
class Segment:
    """One tensor of the model: `size` numbers from `offset` on. `dtype` is the model's own."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    size: int


@dataclass(frozen=True)
class Layout:
    """Names, shapes, dtypes and offsets of the flat parameters.

    `size` is the length d of the vector, of which the first `trainable` are parameters and the rest float buffers.
    `dtype` is that of the vector: what a model holds in less is averaged in this.
    """

    segments: tuple[Segment, ...]
    trainable: int
    size: int
    dtype: torch.dtype

    def parameters(self) -> tuple[Segment, ...]:
        return tuple(s for s in self.segments if s.offset < self.trainable)

    def buffers(self) -> tuple[Segment, ...]:
        return tuple(s for s in self.segments if s.offset >= self.trainable)

    def lines(self) -> list[str]:
        """One line per tensor, for people and for greetings; a long list is cut."""
        lines = [f"{s.name} {list(s.shape)} {str(s.dtype).removeprefix('torch.')}" for s in self.segments]
        return lines if len(lines) <= LINES_SHOWN else [*lines[:LINES_SHOWN], f"and {len(lines) - LINES_SHOWN} more"]

    def digest(self) -> str:
        text = "\n".join(f"{s.name}{s.shape}{s.dtype}{s.offset}" for s in self.segments) + str(self.dtype)
        return sha256(text.encode()).hexdigest()


def plain_name(name: str) -> str:
    """Return the name of a tensor as it is without torch.compile around the module."""
    return name.replace("_orig_mod.", "")


def trainable_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (plain name, parameter) of what is trained, each shared tensor once."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            yield plain_name(name), parameter


def float_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (plain name, buffer) of the floating-point buffers."""
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            yield plain_name(name), buffer


def layout_of(module: nn.Module, dtype: torch.dtype, *, average_buffers: bool) -> Layout:
    """Lay out a model's flat parameters. Raises ConfigError when there is nothing to train."""
    segments: list[Segment] = []
    offset = 0

    def add(name: str, tensor: Tensor) -> None:
        nonlocal offset
        segments.append(Segment(name, tuple(tensor.shape), tensor.dtype, offset, tensor.numel()))
        offset += tensor.numel()

    for name, parameter in trainable_parameters(module):
        if not parameter.is_floating_point():
            raise ConfigError(
                "task.model",
                f"parameter {name} is {parameter.dtype}; only real floating ones can be averaged",
            )
        add(name, parameter)
    trainable = offset
    if not trainable:
        raise ConfigError("task.model", "nothing to train: the model has no parameter with requires_grad")
    if average_buffers:
        for name, buffer in float_buffers(module):
            add(name, buffer)
    return Layout(tuple(segments), trainable, offset, dtype)


def vector_layout(size: int, dtype: torch.dtype) -> Layout:
    """The layout of a bare vector, for pure gossip."""
    return Layout((Segment("x", (size,), dtype, 0, size),), size, size, dtype)
