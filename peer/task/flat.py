"""A torch module as a function of a flat vector: parameters in, gradient out."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from peer.task.layout import Layout, plain_name

Place = tuple[nn.Module, str]
"""Where a buffer is: whose it is, and the name of the attribute."""


class FlatModel:
    """A module, the vector `at` of what its tensors hold, (d,), and the gradient there, (trainable,).

    The module's own tensors keep their dtype, memory format and device: between them and the vectors values are
    copied. Buffers are looked up each time, since a module may replace them: `self.count = self.count + 1`.
    """

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.module = module.to(device)
        self.layout = layout
        self.at = torch.empty(layout.size, dtype=layout.dtype, device=device)
        self.gradient = torch.zeros(layout.trainable, dtype=layout.dtype, device=device)
        parameters = {plain_name(name): p for name, p in module.named_parameters()}
        places = dict(_buffer_places(module))
        self._parameters = [parameters[s.name] for s in layout.parameters()]
        self._statistics = [places.pop(s.name) for s in layout.buffers()]
        self._kept = places
        self._views = layout.views(self.at)
        self._gradient_views = layout.views(self.gradient)

    @torch.no_grad()
    def write(self) -> None:
        """Give the module the values of `at`."""
        torch._foreach_copy_([*self._parameters, *_buffers_at(self._statistics)], self._views)

    @torch.no_grad()
    def read(self) -> Tensor:
        """Take the module's values into `at`, and return it."""
        torch._foreach_copy_(self._views, [*self._parameters, *_buffers_at(self._statistics)])
        return self.at

    @torch.no_grad()
    def read_statistics(self) -> Tensor:
        """Take the averaged buffers, which a forward pass changes, into `at`; returns them, (d - trainable,)."""
        torch._foreach_copy_(self._views[len(self._parameters) :], _buffers_at(self._statistics))
        return self.at[self.layout.trainable :]

    @torch.no_grad()
    def write_kept(self, values: dict[str, Tensor]) -> None:
        """Give the module the buffers that are not part of the layout."""
        for name, buffer in zip(self._kept, _buffers_at(self._kept.values()), strict=True):
            buffer.copy_(values[name])

    def read_kept(self) -> dict[str, Tensor]:
        """Return a copy of the buffers that are not part of the layout."""
        return {name: b.clone() for name, b in zip(self._kept, _buffers_at(self._kept.values()), strict=True)}

    def gradient_of(self, loss: Tensor) -> Tensor:
        """Go backward from a loss of the module's, (); returns `gradient`, 0 where a parameter has no part in it."""
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        torch._foreach_copy_(self._gradient_views, [_gradient(parameter) for parameter in self._parameters])
        return self.gradient


def _buffer_places(module: nn.Module) -> Iterator[tuple[str, Place]]:
    for name, _ in module.named_buffers():
        path, _, attribute = name.rpartition(".")
        yield plain_name(name), (module.get_submodule(path), attribute)


def _buffers_at(places: Iterable[Place]) -> list[Tensor]:
    return [getattr(owner, attribute) for owner, attribute in places]


def _gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient
