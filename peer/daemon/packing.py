"""Between tensors and the bytes that travel: a message is its tensors one after the other, in name order."""

from dataclasses import dataclass

import torch
from torch import Tensor

from peer.algorithms.algorithm import Message


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
    """Return the message in these bytes, whose number is that of the form. Shares their memory on the CPU."""
    assert len(payload) == form.size_bytes
    message, offset = {}, 0
    for name, shape, dtype in form.fields:
        count = torch.Size(shape).numel()
        tensor = torch.frombuffer(payload, dtype=dtype, count=count, offset=offset) if count else torch.empty(0)
        message[name] = tensor.to(dtype).view(shape).to(device)
        offset += count * dtype.itemsize
    return message


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
