"""Models of unusual kinds as a user's factories make them, and a topology, for tests.

Each factory seeds torch itself, so that a test has the same first parameters without asking the product for them.
"""

from collections import OrderedDict

import networkx as nx
import torch
from torch import Tensor, nn


def normed() -> nn.Module:
    """Batch norm between two layers."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=0.3), nn.Tanh(), nn.Linear(4, 1))


def frozen() -> nn.Module:
    """A frozen layer, a batch norm whose scale is frozen and whose statistics are not, and a frozen bias."""
    net = normed()
    for parameter in (net[0].weight, net[0].bias, net[1].weight, net[1].bias, net[3].bias):
        parameter.requires_grad_(False)
    return net


def split() -> nn.Module:
    """An encoder and a head, each with batch norm."""
    torch.manual_seed(2)
    encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
    head = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    return nn.Sequential(OrderedDict(encoder=encoder, head=head))


def bare_split() -> nn.Module:
    """An encoder and a head without buffers, which the rounds engine can vectorise."""
    torch.manual_seed(3)
    return nn.Sequential(OrderedDict(encoder=nn.Sequential(nn.Linear(3, 4), nn.Tanh()), head=nn.Linear(4, 1)))


def tied() -> nn.Module:
    """The first layer of the head has the weight of the encoder."""
    torch.manual_seed(8)
    encoder, head = nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1))
    head[1].weight = encoder.weight
    return nn.Sequential(OrderedDict(encoder=encoder, head=head))


class _Cast(nn.Module):
    """Casts what goes in and passes it on."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = inner
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x.to(self.dtype))
        return y


def half() -> nn.Module:
    """All of it in bfloat16."""
    torch.manual_seed(4)
    inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(torch.bfloat16)
    return _Cast(inner, torch.bfloat16)


def partly_half() -> nn.Module:
    """One layer in bfloat16; batch norm and head in float32."""
    torch.manual_seed(5)
    lower, upper = nn.Linear(3, 4).to(torch.bfloat16), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    return nn.Sequential(_Cast(lower, torch.bfloat16), _Cast(upper, torch.float32))


class _Late(nn.Module):
    """Buffers that are None until the first batch: the rows' running mean, which is taken off, and the last batch."""

    level: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("level", None)
        self.register_buffer("last", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean = x.detach().mean(dim=0)
            self.level = mean if self.level is None else (self.level + mean) / 2
            self.last = x.detach()
        y: Tensor = self.layer(x if self.level is None else x - self.level)
        return y


def late() -> nn.Module:
    torch.manual_seed(7)
    return _Late()


def images() -> nn.Module:
    """Convolutions and batch norm over rows of 2 x 4 x 4 numbers."""
    torch.manual_seed(6)
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 2, 2, stride=2)]
    return nn.Sequential(nn.Unflatten(1, (2, 4, 4)), *layers, nn.Flatten(), nn.Linear(8, 1))


def images_channels_last() -> nn.Module:
    return images().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def images_compiled() -> nn.Module:
    return torch.compile(images(), backend="eager")  # type: ignore[return-value]


def images_partly_compiled() -> nn.Module:
    net = images()
    net[1] = torch.compile(net[1], backend="eager")
    return net


def arcs() -> nx.DiGraph:
    """Four peers, 0 -> 1 -> 2 -> 3, each of which 0 hears: peer 3 holds less and less of the whole."""
    return nx.DiGraph([(0, 1), (1, 2), (2, 3), (1, 0), (2, 0), (3, 0)])


class _Spare(nn.Module):
    """Parameters that take no part in what it computes, beside one that does."""

    def __init__(self, spare: Tensor) -> None:
        super().__init__()
        self.spare = nn.Parameter(spare)
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


def every_bfloat16() -> nn.Module:
    """Every finite number of bfloat16, but for those whose square a float32 cannot hold."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return _Spare(numbers[numbers.abs() < 1e18])


def large_float16() -> nn.Module:
    """Numbers two of which add up to more than float16 holds."""
    return _Spare(torch.tensor([40000.0, -40000.0, 65504.0], dtype=torch.float16))
