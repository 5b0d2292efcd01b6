"""Many peers at once: the same numbers as one after the other, or not at all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from peer.errors import TrainingError
from peer.task import rows as rows_module
from peer.task.layout import layout_of
from peer.task.local import Interrupted, PlainTrainer, Schedule, Shard
from peer.task.models import BuiltModel, Kind, Linear
from peer.task.rows import RowTrainer, has_convolutions

torch.set_num_threads(1)

CPU = torch.device("cpu")


def plain_trainer(
    module: nn.Module, schedule: Schedule, *, kind: Kind = "classification", loss: Any = None
) -> PlainTrainer:
    dtype = next(module.parameters()).dtype
    layout = layout_of(module, dtype, average_buffers=True)
    return PlainTrainer(BuiltModel(module, loss, "mine:net"), layout, schedule, kind=kind, seed=4, device=CPU)


def shards_of(sizes: Sequence[int], *, features: int = 3, classes: int = 3) -> list[Shard]:
    """Shards of one data set, as the simulator has them."""
    draw = torch.Generator().manual_seed(0)
    total = sum(sizes)
    x = torch.randn(total, features, generator=draw, dtype=torch.float64)
    y = torch.randint(classes, (total,), generator=draw)
    order = np.random.default_rng(0).permutation(total)
    return [Shard(x, y, part) for part in np.split(order, np.cumsum(sizes)[:-1])]


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def starts(trainer: PlainTrainer, peers: int) -> Tensor:
    draw = torch.Generator().manual_seed(2)
    return torch.randn(peers, trainer.layout.size, generator=draw, dtype=torch.float64)


SCHEDULES = [
    Schedule(lr=0.1),
    Schedule(lr=0.1, batch_size=0, local_steps=3),
    Schedule(lr=0.1, batch_size=4, local_steps=3, momentum=0.9),
    Schedule(lr=0.1, batch_size=4, local_steps=3, weight_decay=0.1),
    Schedule(lr=0.1, batch_size=4, local_steps=3, proximal_mu=0.5),
    Schedule(
        lr=0.1,
        batch_size=4,
        local_steps=2,
        momentum=0.5,
        weight_decay=0.1,
        proximal_mu=0.5,
        lr_schedule="cosine",
        rounds=4,
    ),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_row_is_what_the_plain_trainer_makes_of_it(schedule: Schedule) -> None:
    """Shards of unequal sizes: smaller than a batch, as large as one, larger; for several rounds."""
    shards = shards_of([1, 4, 9, 4, 13])
    plain = plain_trainer(net(), schedule)
    fast = RowTrainer(plain)
    x = starts(plain, 5)
    each = list(x)
    memories = [plain.memory() for _ in shards]
    for round in range(4):
        delta, lr = fast.train(x, shards, round)
        x = x + delta
        for i, shard in enumerate(shards):
            learned = plain.train(each[i], memories[i], shard, i, round)
            each[i] = each[i] + learned.delta
            assert learned.lr == lr
        torch.testing.assert_close(x, torch.stack(each), rtol=1e-12, atol=1e-12)


def test_the_peers_go_through_the_model_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = shards_of([4] * 7)
    plain = plain_trainer(net(), Schedule(lr=0.1, batch_size=0))
    x = starts(plain, 7)
    whole, _ = RowTrainer(plain).train(x, shards, 0)
    monkeypatch.setattr(rows_module, "CHUNK_NUMBERS", 3 * plain.layout.size)
    chunked = RowTrainer(plain)
    assert [len(peers) for peers, _, _ in chunked._chunks(shards, range(7), [0] * 7)] == [3, 3, 1]
    torch.testing.assert_close(chunked.train(x, shards, 0)[0], whole, rtol=1e-12, atol=1e-12)


def test_one_weight_by_hand() -> None:
    """g = x (x w - y): from w = (1, 2) with rows (2, 6) and (3, 3) to g = (-8, 9)."""
    x, y = torch.tensor([[2.0], [3.0]]).double(), torch.tensor([6.0, 3.0]).double()
    shards = [Shard(x, y, np.array([0])), Shard(x, y, np.array([1]))]
    fast = RowTrainer(plain_trainer(Linear(1).double(), Schedule(lr=0.1, batch_size=0), kind="regression"))
    delta, lr = fast.train(torch.tensor([[1.0], [2.0]]).double(), shards, 0)
    assert delta.flatten().tolist() == pytest.approx([0.8, -0.9])
    assert lr == 0.1


def test_frozen_and_tied_and_half_precision_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Linear(3, 3).requires_grad_(False)
            self.one = nn.Linear(3, 3, bias=False)
            self.two = nn.Linear(3, 3, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.two(torch.tanh(self.one(self.backbone(x))))

    torch.manual_seed(0)
    shards = shards_of([3, 5])
    plain = plain_trainer(Net().double(), Schedule(lr=0.1, batch_size=0))
    x = starts(plain, 2)
    assert RowTrainer(plain).can_vectorise(x, shards)
    delta, _ = RowTrainer(plain).train(x, shards, 0)
    for i, shard in enumerate(shards):
        expected = plain.train(x[i], plain.memory(), shard, i, 0).delta
        torch.testing.assert_close(delta[i], expected, rtol=1e-12, atol=1e-12)


def test_a_loss_of_the_users_is_vectorised_too() -> None:
    shards = shards_of([3, 5])
    loss = nn.CrossEntropyLoss(label_smoothing=0.2)
    plain = plain_trainer(net(), Schedule(lr=0.1, batch_size=0), loss=loss)
    x = starts(plain, 2)
    delta, _ = RowTrainer(plain).train(x, shards, 0)
    torch.testing.assert_close(
        delta[1], plain.train(x[1], plain.memory(), shards[1], 1, 0).delta, rtol=1e-12, atol=1e-12
    )


def test_the_model_is_in_training_mode_also_after_an_evaluation() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * (2.0 if self.training else 1.0)

    shards = shards_of([3, 5])
    plain = plain_trainer(Moody().double(), Schedule(lr=0.1, batch_size=0))
    x = starts(plain, 2)
    plain.evaluate(x[0], plain.memory(), shards[0].take(None))
    delta, _ = RowTrainer(plain).train(x, shards, 0)
    expected = plain.train(x[0], plain.memory(), shards[0], 0, 0).delta
    torch.testing.assert_close(delta[0], expected, rtol=1e-12, atol=1e-12)


# ---- Which models can be


class _Wrapped(nn.Module):
    """A linear layer with something in the way."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.hidden = (self.inner.weight,)  # out of torch.func's sight
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class _DataDependent(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > -1e9 else x


class _Item(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.inner.weight.detach().norm().item()


class _Unseen(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) @ self.hidden[0]


class _OfNumpy(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * float(np.random.default_rng().uniform(0.5, 1.5))


class _Particular(_Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        if self.inner.weight is not self.hidden[0]:
            raise KeyError("not the tensor that I was built with")
        return self.inner(x)


def can_vectorise(module: nn.Module) -> bool:
    torch.manual_seed(3)
    plain = plain_trainer(module.double(), Schedule(lr=0.1, batch_size=0))
    shards = shards_of([4, 6])
    return RowTrainer(plain).can_vectorise(starts(plain, 2), shards)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (net(), True),
        (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3)), True),
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), False),
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), False),
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0)), True),
        (_DataDependent(), False),
        (_Item(), False),
        (_Unseen(), False),
        (_OfNumpy(), False),
        (_Particular(), False),
    ],
)
def test_what_can_be_vectorised(module: nn.Module, expected: bool) -> None:
    assert can_vectorise(module) is expected


def test_a_model_that_raises_anyway_is_left_to_the_plain_trainer() -> None:
    assert not can_vectorise(nn.Sequential(nn.Linear(4, 3)))


def test_has_convolutions() -> None:
    assert has_convolutions(nn.Sequential(nn.Sequential(nn.Conv1d(1, 1, 1))))
    assert not has_convolutions(net())


# ---- Ends


def test_a_stop_ends_the_step() -> None:
    plain = plain_trainer(net(), Schedule(lr=0.1))
    with pytest.raises(Interrupted):
        RowTrainer(plain).train(starts(plain, 2), shards_of([3, 3]), 0, lambda: True)


def test_what_the_users_code_raises_is_a_training_error() -> None:
    calls = []

    def loss(output: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("enough")
        return nn.functional.cross_entropy(output, y)

    plain = plain_trainer(net(), Schedule(lr=0.1, batch_size=0), loss=loss)
    fast, x, shards = RowTrainer(plain), starts(plain, 2), shards_of([3, 3])
    fast.train(x, shards, 0)
    with pytest.raises(TrainingError, match="model mine:net raised ValueError: enough") as caught:
        fast.train(x, shards, 1)
    assert "in loss" in caught.value.details
