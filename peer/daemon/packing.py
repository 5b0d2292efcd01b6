"""Between tensors and the bytes that travel: a message is its tensors one after the other, in name order."""

from dataclasses import dataclass

import torch
from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.errors import WireError


@dataclass(frozen=True)
class Form:
    """How the message of one exchange looks, by the own layout: (name, shape, dtype) in name order."""

    fields: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]

    @property
    def size_bytes(self) -> int:
        return sum(torch.Size(shape).numel() * dtype.itemsize for _, shape, dtype in self.fields)


def form_of(message: Message) -> Form:
    """Return the form of a message."""
    return Form(tuple((name, tuple(t.shape), t.dtype) for name, t in sorted(message.items())))


def pack(message: Message) -> memoryview:
    """Return the bytes of a message. They share memory with a tensor on the CPU, which must not change any more."""
    flat = [_as_bytes(tensor) for _, tensor in sorted(message.items())]
    joined = flat[0] if len(flat) == 1 else torch.cat(flat)
    return joined.numpy().data


def unpack(payload: bytearray | memoryview, form: Form, device: torch.device) -> Message:
    """Return the message in these bytes, sharing their memory on the CPU. Raises WireError for other sizes."""
    if len(payload) != form.size_bytes:
        raise WireError(f"{len(payload)} bytes instead of {form.size_bytes}")
    message, offset = {}, 0
    for name, shape, dtype in form.fields:
        count = torch.Size(shape).numel()
        tensor = torch.frombuffer(payload, dtype=dtype, count=count, offset=offset) if count else torch.empty(0)
        message[name] = tensor.to(dtype).view(shape).to(device)
        offset += count * dtype.itemsize
    return message


def ragged_bytes(form: Form, most: int) -> int:
    """Return how many bytes a message has at most whose parts vary in length: `most` numbers in all, and counts."""
    widest = max(dtype.itemsize for _, _, dtype in form.fields)
    return 8 * (len(form.fields) - 1) + widest * most


def unpack_ragged(payload: bytearray | memoryview, form: Form, device: torch.device) -> Message:
    """Return the message in these bytes, whose first part, in name order, says how long the others are.

    The form says names and dtypes. Raises WireError where the lengths are not those of the bytes.
    """
    (counts, _, _), *others = form.fields
    head = 8 * len(others)
    if len(payload) < head:
        raise WireError(f"{len(payload)} bytes are too few for {len(others)} counts")
    lengths = torch.frombuffer(payload, dtype=torch.int64, count=len(others)).clone()
    sizes = [int(length) * dtype.itemsize for length, (_, _, dtype) in zip(lengths, others, strict=True)]
    if min(sizes) < 0 or head + sum(sizes) != len(payload):
        raise WireError(f"lengths of {sum(sizes)} bytes in a message of {len(payload) - head}")
    message, offset = {counts: lengths}, head
    for (name, _, dtype), size in zip(others, sizes, strict=True):
        raw = torch.frombuffer(payload, dtype=torch.uint8, count=size, offset=offset) if size else torch.empty(0)
        message[name] = raw.clone().view(dtype).to(device) if size else torch.empty(0, dtype=dtype, device=device)
        offset += size
    return message


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
