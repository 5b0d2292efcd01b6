"""A torch module as a function of a flat vector: parameters in, gradient out."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from peer.task.layout import Layout, plain_name

Place = tuple[nn.Module, str]
"""Where a buffer is: whose it is, and the name of the attribute."""

Kept = dict[str, Tensor | None]
"""Buffers by name."""


class FlatModel:
    """A module, the vector `at` of what its tensors hold, (d,), and the gradient there, (trainable,).

    The module's own tensors keep their dtype, memory format and device: between them and the vectors values are
    copied. Buffers are looked up each time, since a module may replace them: `self.count = self.count + 1`. Those that
    are not part of the layout may be None, and change their shape, as one does that holds the last batch.
    """

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.module = module.to(device)
        self.layout = layout
        self.at = torch.empty(layout.size, dtype=layout.dtype, device=device)
        self.gradient = torch.zeros(layout.trainable, dtype=layout.dtype, device=device)
        parameters = {plain_name(name): p for name, p in module.named_parameters()}
        places = dict(_buffer_places(module))
        for place in places.values():
            _put(place, _at(place))  # one that is expanded gets memory of its own
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

    def write_kept(self, values: Kept) -> None:
        """Give the module these values of the buffers that are not part of the layout."""
        for name, value in values.items():
            _put(self._kept[name], value)

    def read_kept(self) -> Kept:
        """Return a copy of the buffers that are not part of the layout."""
        buffers = {name: _at(place) for name, place in self._kept.items()}
        return {name: None if buffer is None else buffer.detach().clone() for name, buffer in buffers.items()}

    def gradient_of(self, loss: Tensor) -> Tensor:
        """Go backward from a loss of the module's, (); returns `gradient`, 0 where a parameter has no part in it."""
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        torch._foreach_copy_(self._gradient_views, [_gradient(parameter) for parameter in self._parameters])
        return self.gradient


def _buffer_places(module: nn.Module) -> Iterator[tuple[str, Place]]:
    """Yield the name and the place of every buffer: a shared tensor once, and also those that are None for now."""
    tensors = {name for name, _ in module.named_buffers()}
    for path, owner in module.named_modules():
        for attribute, buffer in owner._buffers.items():
            name = f"{path}.{attribute}" if path else attribute
            if buffer is None or name in tensors:
                yield plain_name(name), (owner, attribute)


def _at(place: Place) -> Tensor | None:
    owner, attribute = place
    buffer: Tensor | None = getattr(owner, attribute)
    return buffer


@torch.no_grad()
def _put(place: Place, value: Tensor | None) -> None:
    """Copy a value to a buffer, into the tensor that is there if it has room for it."""
    there = _at(place)
    if value is not None and there is not None and _is_room(there, value):
        there.copy_(value)
    else:
        setattr(*place, None if value is None else value.contiguous().clone())


def _is_room(there: Tensor, value: Tensor) -> bool:
    """Say whether a tensor is one like the value and has memory for each of its numbers: `expand` gives it none."""
    is_expanded = any(stride == 0 and size > 1 for stride, size in zip(there.stride(), there.shape, strict=True))
    return (there.shape, there.dtype) == (value.shape, value.dtype) and not is_expanded


def _buffers_at(places: Iterable[Place]) -> list[Tensor]:
    return [getattr(owner, attribute) for owner, attribute in places]


def _gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient
