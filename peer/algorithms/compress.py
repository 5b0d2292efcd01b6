"""Codecs: what a message looks like on its way, and what its receiver makes of it.

    Identity      as it is
    Cast          floating numbers in 16 bits: fp16 keeps 11 binary digits up to 65504, bf16 8 of them up to 3.4e38
    SparseRows    of tables such as embeddings, of which a gradient touches few rows, only those rows; lossless

What is encoded has the same names and dtypes, in one dimension after SparseRows, whatever the numbers are. Its sizes
depend on the numbers in SparseRows alone. No codec changes what it is handed, but it may hand on the same tensors.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.errors import ConfigError, WireError


class Codec(Protocol):
    """A pair of functions of messages."""

    def encode(self, message: Message) -> Message:
        """Return the message as it travels."""
        ...

    def decode(self, message: Message, like: torch.dtype) -> Message:
        """Return what has arrived as a message again, its floating numbers in the dtype `like`."""
        ...


@dataclass(frozen=True)
class Identity:
    """Messages travel as they are."""

    def encode(self, message: Message) -> Message:
        return dict(message)

    def decode(self, message: Message, like: torch.dtype) -> Message:
        return _floating_as(message, like)


@dataclass(frozen=True)
class Cast:
    """Floating numbers travel in this dtype, rounded to nearest; what is too large for it becomes infinite."""

    dtype: torch.dtype

    def encode(self, message: Message) -> Message:
        return _floating_as(message, self.dtype)

    def decode(self, message: Message, like: torch.dtype) -> Message:
        return _floating_as(message, like)


Table = tuple[int, int, int]
"""A part of a vector that is a matrix: the offset of its first number, rows, columns."""


@dataclass(frozen=True)
class SparseRows:
    """For pushes {"u": (d,)}: of each segment that is a table, only rows with a number that is not 0 travel.

    "rest" is what is in no table; of the I-th one, "rows-I" are the numbers of these rows, ascending, in int32, and
    "values-I" what they hold, row after row. Where these are more than half of the rows, the table travels whole:
    no numbers of rows, and all values. What `inner` does, it does to the values and the rest. A zero comes out as +0.
    """

    segments: tuple[Table, ...]
    inner: Codec

    def __post_init__(self) -> None:
        ends = 0
        for offset, rows, columns in self.segments:
            assert offset >= ends, "tables are in order and apart"
            assert 0 < rows < 2**31, rows
            assert columns > 0, columns
            ends = offset + rows * columns

    def encode(self, message: Message) -> Message:
        assert message.keys() == {"u"}
        u = message["u"]
        assert u.dim() == 1, tuple(u.shape)
        parts = {"rest": torch.cat([u[a:b] for a, b in self._gaps(len(u))])}
        for i, (offset, rows, columns) in enumerate(self.segments):
            table = u[offset : offset + rows * columns].view(rows, columns)
            touched = (table != 0).any(dim=1).nonzero().view(-1)
            whole = 2 * len(touched) > rows
            parts[f"rows-{i}"] = (touched[:0] if whole else touched).to(torch.int32)
            parts[f"values-{i}"] = (table if whole else table[touched]).reshape(-1)
        return self.inner.encode(parts)

    def decode(self, message: Message, like: torch.dtype) -> Message:
        """Return {"u": (d,)}. Raises WireError where what has arrived cannot be of these tables."""
        parts = self.inner.decode(message, like)
        rest = parts["rest"]
        size = len(rest) + sum(rows * columns for _, rows, columns in self.segments)
        if self.segments and size < _end(self.segments[-1]):
            raise WireError(f"a push of {size} numbers ends before its last table")
        u, taken = rest.new_zeros(size), 0
        for a, b in self._gaps(size):
            u[a:b] = rest[taken : taken + b - a]
            taken += b - a
        for i, (offset, rows, columns) in enumerate(self.segments):
            table = u[offset : offset + rows * columns].view(rows, columns)
            _fill(table, parts[f"rows-{i}"], parts[f"values-{i}"])
        return {"u": u}

    def _gaps(self, size: int) -> list[tuple[int, int]]:
        """Return where, in a vector of this size, no table is: before each of them, and behind the last."""
        starts = [0, *(_end(table) for table in self.segments)]
        return list(zip(starts, [*(offset for offset, _, _ in self.segments), size], strict=True))


def codec_of(name: str) -> Codec:
    """Return the codec that an experiment file names."""
    codecs: dict[str, Codec] = {"none": Identity(), "fp16": Cast(torch.float16), "bf16": Cast(torch.bfloat16)}
    if name not in codecs:
        raise ConfigError("compression.name", f"there is no {name}; there are {', '.join(codecs)}")
    return codecs[name]


def _floating_as(message: Message, dtype: torch.dtype) -> Message:
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in message.items()}


def _end(table: Table) -> int:
    offset, rows, columns = table
    return offset + rows * columns


def _fill(table: Tensor, numbers: Tensor, values: Tensor) -> None:
    """Put what has arrived of a table, rows as numbered or all of them, into zeros (rows, columns)."""
    rows, columns = table.shape
    if not len(numbers) and len(values) == rows * columns:
        table.copy_(values.view(rows, columns))
        return
    if len(values) != len(numbers) * columns:
        raise WireError(f"{len(values)} numbers are not {len(numbers)} rows of {columns}")
    ascending = bool((numbers[1:] > numbers[:-1]).all())
    if len(numbers) and not (ascending and int(numbers[0]) >= 0 and int(numbers[-1]) < rows):
        raise WireError(f"rows of a table of {rows} that are not ascending, or not in it")
    table[numbers.to(torch.int64)] = values.view(len(numbers), columns)
