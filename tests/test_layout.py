"""Where each tensor lies in the flat vector, and which are not part of it."""

import pytest
import torch
from torch import Tensor, nn

from peer.errors import ConfigError
from peer.task.flat import FlatModel
from peer.task.layout import LINES_SHOWN, Layout, layout_of, vector_layout


def lay_out(module: nn.Module, *, average_buffers: bool = True, dtype: torch.dtype = torch.float32) -> Layout:
    return layout_of(module, dtype, average_buffers=average_buffers)


def places(layout: Layout) -> list[tuple[str, tuple[int, ...], int]]:
    return [(s.name, s.shape, s.offset) for s in layout.segments]


def test_parameters_lie_in_the_models_own_order() -> None:
    layout = lay_out(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, bias=False)))
    assert places(layout) == [("0.weight", (2, 3), 0), ("0.bias", (2,), 6), ("1.weight", (1, 2), 8)]
    assert (layout.trainable, layout.size, layout.dtype) == (10, 10, torch.float32)
    assert layout.lines()[0] == "0.weight [2, 3] float32"


def test_statistics_come_behind_all_parameters_and_counters_not_at_all() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    layout = lay_out(net)
    assert (layout.trainable, layout.size) == (7, 11)
    assert [s.name for s in layout.buffers()] == ["0.running_mean", "0.running_var"]
    kept = lay_out(net, average_buffers=False)
    assert kept.segments == layout.parameters()
    assert (kept.trainable, kept.size) == (7, 7)


def test_frozen_parameters_are_not_sent_and_with_all_frozen_there_is_nothing_to_train() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    net[0].requires_grad_(False)
    assert [s.name for s in lay_out(net).segments] == ["1.weight", "1.bias"]
    net[1].requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing to train") as caught:
        lay_out(net)
    assert caught.value.key == "task.model"


def test_a_tied_parameter_is_there_once() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    assert places(lay_out(net)) == [("0.weight", (2, 2), 0)]


def test_tied_tensors_are_known_by_all_their_names() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    net[2].weight = net[1].weight
    net[3].running_var = net[0].running_var
    for module in (net, nn.Sequential(*net[:2], torch.compile(net[2], backend="eager"), net[3])):
        others = {s.name: s.others for s in lay_out(module).segments if s.others}
        assert others == {"1.weight": ("2.weight",), "0.running_var": ("3.running_var",)}
        kept = FlatModel(module, lay_out(module), torch.device("cpu")).read_kept()
        assert kept.keys() == {"0.num_batches_tracked", "3.num_batches_tracked"}


def test_a_compiled_model_has_the_layout_of_the_plain_one() -> None:
    """Also where a part of it is compiled: peers of either kind gossip with each other."""
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    part = nn.Sequential(torch.compile(net[0], backend="eager"), net[1])
    for compiled in (torch.compile(net, backend="eager"), part):
        assert lay_out(compiled) == lay_out(net)
        assert lay_out(compiled).digest() == lay_out(net).digest()


class _Masked(nn.Module):
    """Buffers that are constants of the model: a mask with -inf, a table that is not saved; and a statistic."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(0))
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        self.register_buffer("table", torch.ones(5), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("nothing", None)
        self.register_buffer("level", torch.zeros(1))


def test_masks_and_tables_are_no_statistics() -> None:
    """A mask of -inf in the vector would make every message of the peer one that is not finite."""
    assert places(lay_out(_Masked())) == [("scale", (1,), 0), ("level", (1,), 1)]


def test_the_digest_tells_names_shapes_dtypes_and_the_vectors_dtype_apart() -> None:
    class One(nn.Module):
        def __init__(self, name: str, tensor: Tensor) -> None:
            super().__init__()
            self.register_parameter(name, nn.Parameter(tensor))

    layouts = [
        lay_out(One("a", torch.ones(4))),
        lay_out(One("b", torch.ones(4))),
        lay_out(One("a", torch.ones(2, 2))),
        lay_out(One("a", torch.ones(4, dtype=torch.bfloat16))),
        lay_out(One("a", torch.ones(4)), dtype=torch.float64),
    ]
    assert len({layout.digest() for layout in layouts}) == 5
    assert layouts[0].digest() == lay_out(One("a", torch.zeros(4))).digest()


def test_a_long_list_is_cut_for_people_and_not_in_the_digest() -> None:
    deep = nn.ModuleList(nn.Linear(1, 1) for _ in range(LINES_SHOWN))
    lines = lay_out(deep).lines()
    assert len(lines) == LINES_SHOWN + 1
    assert lines[-1] == f"and {LINES_SHOWN} more"
    deep[-1] = nn.Linear(1, 2)
    assert lay_out(deep).lines() == lines
    assert lay_out(deep).digest() != lay_out(nn.ModuleList(nn.Linear(1, 1) for _ in range(LINES_SHOWN))).digest()


def test_a_bare_vector() -> None:
    layout = vector_layout(3, torch.float64)
    assert places(layout) == [("x", (3,), 0)]
    assert (layout.trainable, layout.size) == (3, 3)


def test_views_share_memory_with_the_vector() -> None:
    layout = lay_out(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))
    x = torch.arange(7.0)
    views = layout.views(x)
    assert [view.tolist() for view in views] == [[[0.0, 1.0]], [2.0], [3.0], [4.0], [5.0], [6.0]]
    views[0][0, 1] = 9.0
    assert x[1].item() == 9.0
    assert len(layout.views(x[: layout.trainable])) == 4


def test_a_flat_model_writes_and_reads_back_whatever_the_module_holds_it_in() -> None:
    """Half precision, channels-last, in parts: the numbers are those of the vector."""
    module = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Linear(4, 2).to(torch.bfloat16))
    module = module.to(memory_format=torch.channels_last)
    flat = FlatModel(module, lay_out(module), torch.device("cpu"))
    numbers = torch.arange(float(flat.layout.size))
    flat.at.copy_(numbers)
    flat.write()
    assert module[0].weight[1, 0, 1, 0].item() == 8 + 2
    assert module[0].weight.is_contiguous(memory_format=torch.channels_last)
    flat.at.zero_()
    assert torch.equal(flat.read(), numbers)
    assert flat.read_statistics().tolist() == numbers[-6:].tolist()


class _Expanded(nn.Module):
    """Buffers whose numbers are one number in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("scale", torch.ones(1).expand(3))
        self.register_buffer("places", torch.arange(2).expand(3, 2))


def test_expanded_buffers_are_buffers_like_others() -> None:
    """torch copies nothing to a tensor that has one memory for several numbers."""
    module = _Expanded()
    flat = FlatModel(module, lay_out(module), torch.device("cpu"))
    assert flat.read().tolist() == [1.0, 1.0, 1.0, 1.0]
    flat.at.copy_(torch.arange(4.0))
    flat.write()
    assert module.scale.tolist() == [1.0, 2.0, 3.0]
    assert flat.read_kept()["places"].tolist() == [[0, 1]] * 3
    flat.write_kept({"places": torch.arange(6).view(3, 2)})
    assert module.places.tolist() == [[0, 1], [2, 3], [4, 5]]


class _Shifting(nn.Module):
    """Buffers that are not in the layout."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.inner = nn.Module()
        self.inner.register_buffer("cache", None)
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("compiled", [False, True])
def test_kept_buffers_may_come_and_go_and_take_other_shapes_and_dtypes(compiled: bool) -> None:
    inside = _Shifting()
    module = torch.compile(inside, backend="eager") if compiled else inside
    flat = FlatModel(module, lay_out(module), torch.device("cpu"))
    start = flat.read_kept()
    assert start["inner.cache"] is None
    inside.inner.cache = torch.ones(3, 1)
    inside.count = torch.full((2,), 0.5)
    later = flat.read_kept()
    flat.write_kept(start)
    assert inside.inner.cache is None
    assert (inside.count.tolist(), inside.count.dtype) == ([0, 0], torch.int64)
    flat.write_kept(later)
    assert inside.inner.cache.tolist() == [[1.0], [1.0], [1.0]]
    assert inside.count.tolist() == [0.5, 0.5]


def test_kept_values_are_copies() -> None:
    """What one peer's forward pass does to a buffer in place must not reach what was kept."""
    module = _Shifting()
    flat = FlatModel(module, lay_out(module), torch.device("cpu"))
    flat.write_kept(kept := {"inner.cache": torch.ones(1), "count": torch.ones(2, dtype=torch.int64)})
    module.inner.cache.add_(1)
    module.count.add_(1)
    assert (kept["inner.cache"].tolist(), kept["count"].tolist()) == ([1.0], [1, 1])
    read = flat.read_kept()
    module.count.add_(1)
    assert read["count"].tolist() == [2, 2]
