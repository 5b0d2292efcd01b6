"""Models by name, a user's own models, and what the loss does with their output."""

import contextlib
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from peer.errors import ConfigError
from peer.task.dataset import DataSet
from peer.task.factory import call_factory, load_factory
from peer.task.labels import count_classes

Kind = Literal["classification", "regression"]
Loss = Callable[[Any, Tensor], Tensor]

CLASSIFIERS = ("cnn", "mlp", "softmax")
BUILT_IN = (*CLASSIFIERS, "linear")
_KEY = "task.model"


@dataclass(frozen=True, eq=False)
class BuiltModel:
    """A module with its first parameters, on the CPU.

    `loss` maps the module's whole output and the targets to a scalar; None stands for the
    default_loss of what the model does.
    """

    module: nn.Module
    loss: Loss | None
    spec: str


class Linear(nn.Module):
    """f(x) = w . x: one weight vector (f,), no bias, started at zero; (n, f) -> (n,)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight


class ChannelsLast(nn.Module):
    """Images (n, c, h, w) as they are, laid out in memory as (n, h, w, c): on a CPU that makes torch's convolution and
    pooling about a third faster."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)


def build_model(spec: str, *, data: DataSet, seed: int, dtype: torch.dtype, folder: Path) -> BuiltModel:
    """Return the model that `spec` names, with the first parameters that `seed` gives on every peer.

    "cnn" | "mlp" | "softmax" | "linear" | "package.module:factory", which returns a Module or (Module, loss)
    and is offered `classes` (None: no labels), `input_shape` (of one row) and `seed`. With float64 the whole
    model becomes float64; otherwise a factory's own dtypes stay. The caller's global generators are left as
    they were. Raises ConfigError: "task.model", or "task.data" where the data do not suit the model.
    """
    loss: Loss | None = None
    with _seeded(seed):
        if ":" in spec:
            module, loss = _from_factory(spec, data, seed, folder)
        else:
            module = _built_in(spec, data)
    _check(module, spec)
    module = module.cpu()  # a factory may have put it elsewhere
    if dtype is torch.float64:
        module = module.double()
    return BuiltModel(module, loss, spec)


def default_loss(kind: Kind) -> Callable[[Tensor, Tensor], Tensor]:
    """Return cross_entropy for a classification, squared_error for a regression."""
    return cross_entropy if kind == "classification" else squared_error


def loss_of(built: BuiltModel, kind: Kind) -> Loss:
    """Return what maps the module's whole output and the targets to the loss: the model's own, else the default."""
    if built.loss is not None:
        return built.loss
    default = default_loss(kind)
    return lambda output, y: default(pick_output(output, built.spec), y)


def cross_entropy(output: Tensor, labels: Tensor) -> Tensor:
    """Mean over rows of -log softmax(output)[label]: (n, classes), int64 (n,) -> ()."""
    return nn.functional.cross_entropy(output, labels)


def squared_error(output: Tensor, targets: Tensor) -> Tensor:
    """Mean over rows of 0.5 * sum (output - target)^2, for scalars 0.5 (f - y)^2: (n, ...), (n, ...) -> ().

    Raises ConfigError("task.data") where the shapes differ: broadcasting would compare each row with every
    other.
    """
    if output.shape != targets.shape:
        shapes = f"{tuple(output.shape)}, but the targets {tuple(targets.shape)}"
        raise ConfigError("task.data", f"the outputs have shape {shapes}")
    gap = output - targets.to(output.dtype)
    return 0.5 * (gap * gap).sum() / output.shape[0]


def pick_output(output: object, spec: str) -> Tensor:
    """Return `output` where it is a tensor. Raises ConfigError("task.model") that names what else it is."""
    if isinstance(output, Tensor):
        return output
    found = f"a {type(output).__name__}"
    if isinstance(output, dict):
        found += f" with keys {', '.join(str(name) for name in output)}"
    elif isinstance(output, tuple | list):
        found += f" of {', '.join(type(item).__name__ for item in output)}"
    mend = "return a tensor, or let the factory return (module, loss): the loss is then given the whole output"
    raise ConfigError(_KEY, f"{spec}: the model returns {found}; {mend}")


def _built_in(spec: str, data: DataSet) -> nn.Module:
    if spec not in BUILT_IN:
        close = get_close_matches(spec, BUILT_IN, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(
            _KEY,
            f'unknown model {spec!r}; there are {", ".join(BUILT_IN)} and "package.module:factory"{hint}',
        )
    shape = tuple(data.x.shape[1:])
    if not data.x.dtype.is_floating_point:
        raise ConfigError(_KEY, f"{spec} takes numbers, but x of {data.source} are tokens of dtype int64")
    if spec == "linear":
        return Linear(math.prod(shape))
    classes = _classes(spec, data)
    if spec == "cnn":
        return _cnn(shape, classes, data.source)
    return _mlp(math.prod(shape), classes) if spec == "mlp" else _softmax(math.prod(shape), classes)


def _classes(spec: str, data: DataSet) -> int:
    try:
        return count_classes(data)
    except ConfigError as error:
        raise ConfigError(error.key, f"{spec} needs class labels. {error.problem}") from error


def _cnn(shape: tuple[int, ...], classes: int, source: str) -> nn.Module:
    if len(shape) != 3:
        hint = "; add an axis for the channel, x[:, None]" if len(shape) == 2 else ""
        raise ConfigError(_KEY, f"cnn needs images (n, c, h, w), but x of {source} has rows of shape {shape}{hint}")
    channels, height, width = shape
    if min(height, width) < 4:
        raise ConfigError(_KEY, f"cnn needs images of at least 4 x 4, but those of {source} are {height} x {width}")
    return nn.Sequential(
        OrderedDict(
            channels_last=ChannelsLast(),
            conv1=nn.Conv2d(channels, 8, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(8, 16, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            output=nn.Linear(16 * (height // 4) * (width // 4), classes),
        )
    )


def _mlp(features: int, classes: int) -> nn.Module:
    layers = OrderedDict(
        flatten=nn.Flatten(), hidden=nn.Linear(features, 64), relu=nn.ReLU(), output=nn.Linear(64, classes)
    )
    return nn.Sequential(layers)


def _softmax(features: int, classes: int) -> nn.Module:
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), output=nn.Linear(features, classes)))


def _from_factory(spec: str, data: DataSet, seed: int, folder: Path) -> tuple[nn.Module, Loss | None]:
    factory = load_factory(spec, _KEY, folder)
    if isinstance(factory, nn.Module):
        raise ConfigError(_KEY, f"{spec} is a Module already made; name a function that makes one")
    made = call_factory(factory, spec, _KEY, classes=data.classes, input_shape=tuple(data.x.shape[1:]), seed=seed)
    module, loss = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        found = type(made).__name__
        raise ConfigError(_KEY, f"{spec} returns a {found}; return a torch.nn.Module, or (module, loss)")
    if loss is not None and not callable(loss):
        problem = f"the loss it returns is a {type(loss).__name__}; a loss is called as loss(output, targets)"
        raise ConfigError(_KEY, f"{spec}: {problem}")
    return module, loss


def _check(module: nn.Module, spec: str) -> None:
    """Refuse what cannot be trained or averaged."""
    named = [*module.named_parameters(), *module.named_buffers()]
    lazy = [name for name, tensor in named if is_lazy(tensor)]
    if lazy:
        mend = "run one batch through it in the factory"
        raise ConfigError(_KEY, f"{spec}: {lazy[0]} is lazy and has no shape yet; {mend}")
    for name, tensor in named:
        if tensor.is_meta or tensor.is_complex():
            found = "on the meta device, without values" if tensor.is_meta else f"of dtype {tensor.dtype}"
            raise ConfigError(_KEY, f"{spec}: {name} is {found}; real numbers are needed")
    parameters = list(module.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        why = f"all {len(parameters)} parameters are frozen" if parameters else "the model has no parameters"
        raise ConfigError(_KEY, f"{spec}: nothing to train: {why}")


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, which initialisers draw from, and put them back afterwards."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
