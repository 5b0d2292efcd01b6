"""The flat parameters: where each tensor of a model lies in the one vector that is gossiped.

The trainable parameters come first, then, where the policy is to average them, the floating-point buffers that
training changes: batch-norm statistics. Not part of it are

- frozen parameters, the same at every peer;
- integer buffers, counters that averaging would break;
- buffers that the model does not save (`persistent=False`) or that are not finite, such as an attention mask of -inf:
  constants that it works with.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain

import torch
from torch import Tensor, nn

from peer.errors import ConfigError

LINES_SHOWN = 200


@dataclass(frozen=True)
class Segment:
    """One tensor of the model: `size` numbers from `offset` on. `dtype` is the model's own.

    A tensor that has several names in the model, as tied weights do, is there once, under the first; `others` are the
    other ones.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    size: int
    others: tuple[str, ...] = ()


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

    def views(self, x: Tensor) -> list[Tensor]:
        """Return the segments of x, (d,) or the parameters alone, (trainable,), each in its shape; they share memory
        with x."""
        return [x[s.offset : s.offset + s.size].view(s.shape) for s in self.segments if s.offset < len(x)]


def plain_name(name: str) -> str:
    """Return the name of a tensor as it is without torch.compile around the module."""
    return name.replace("_orig_mod.", "")


def trainable_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (the module's name, parameter) of what is trained: each shared tensor once, none that holds no number."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.numel():
            yield name, parameter


def layout_of(module: nn.Module, dtype: torch.dtype, *, average_buffers: bool) -> Layout:
    """Lay out a model's flat parameters. Raises ConfigError when there is nothing to train."""
    parameters = {plain_name(name): parameter for name, parameter in trainable_parameters(module)}
    for name, parameter in parameters.items():
        if not parameter.is_floating_point():
            raise ConfigError(
                "task.model", f"parameter {name} is {parameter.dtype}; only real floating ones can be averaged"
            )
    trainable = sum(parameter.numel() for parameter in parameters.values())
    if not trainable:
        raise ConfigError("task.model", "nothing to train: the model has no parameter with requires_grad")
    buffers = dict(_statistics(module)) if average_buffers else {}
    segments = tuple(_laid_out(parameters | buffers, _all_names(module)))
    return Layout(segments, trainable, segments[-1].offset + segments[-1].size, dtype)


def vector_layout(size: int, dtype: torch.dtype) -> Layout:
    """The layout of a bare vector, for pure gossip."""
    return Layout((Segment("x", (size,), dtype, 0, size),), size, size, dtype)


def _statistics(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    saved = module.state_dict()
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point() and buffer.numel() and name in saved and bool(buffer.isfinite().all()):
            yield plain_name(name), buffer


def _all_names(module: nn.Module) -> dict[int, list[str]]:
    """Return the names of each tensor, by the tensor's identity."""
    names: dict[int, list[str]] = {}
    tensors = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    for name, tensor in chain(*tensors):
        names.setdefault(id(tensor), []).append(plain_name(name))
    return names


def _laid_out(tensors: dict[str, Tensor], names: dict[int, list[str]]) -> Iterator[Segment]:
    offset = 0
    for name, tensor in tensors.items():
        others = tuple(other for other in names[id(tensor)] if other != name)
        yield Segment(name, tuple(tensor.shape), tensor.dtype, offset, tensor.numel(), others)
        offset += tensor.numel()
