"""Local training at one peer: by hand, against torch.optim, and with all that people bring as models."""

import copy
import sys
from collections.abc import Callable, Iterator
from math import cos, inf, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from peer.errors import TrainingError
from peer.task.batches import Batches
from peer.task.dataset import DataSet
from peer.task.layout import layout_of
from peer.task.local import EVALUATION_ROWS, Interrupted, Memory, PlainTrainer, Schedule, Shard
from peer.task.models import BuiltModel, Kind, Linear, build_model

torch.set_num_threads(1)

CPU = torch.device("cpu")


def trainer_of(
    module: nn.Module,
    schedule: Schedule,
    *,
    kind: Kind = "regression",
    loss: Callable[[Any, Tensor], Tensor] | None = None,
    average_buffers: bool = True,
    seed: int = 0,
) -> PlainTrainer:
    dtype = torch.float64 if next(module.parameters()).dtype is torch.float64 else torch.float32
    layout = layout_of(module, dtype, average_buffers=average_buffers)
    return PlainTrainer(BuiltModel(module, loss, "mine:net"), layout, schedule, kind=kind, seed=seed, device=CPU)


def start_of(module: nn.Module, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.cat([p.detach().flatten().to(dtype) for p in module.parameters()])


def flat(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def one_row(x: float, y: float) -> Shard:
    return Shard(flat([x]).view(1, 1), flat([y]))


def random_rows(count: int, features: int, classes: int, seed: int = 0) -> Shard:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=draw, dtype=torch.float64)
    return Shard(x, torch.randint(classes, (count,), generator=draw))


# ---- One step by hand


def test_one_step_on_one_row() -> None:
    """The loss is 0.5 (2 w - 6)^2, its gradient at w = 1 is 2 (2 - 6) = -8."""
    trainer = trainer_of(Linear(1).double(), Schedule(lr=0.1, batch_size=0))
    x = flat([1.0])
    learned = trainer.train(x, trainer.memory(), one_row(2.0, 6.0), 0, 0)
    assert learned.delta.tolist() == [pytest.approx(0.8)]
    assert (learned.lr, learned.steps) == (0.1, 1)
    assert x.tolist() == [1.0]


def test_weight_decay_momentum_and_the_proximal_term_by_hand() -> None:
    """Two steps at lr 0.1, decay 0.5, momentum 0.9, mu 2, from w = 1, with g(w) = 4 w - 12.

    g = -8 + 0.5 = -7.5, m = -7.5, w = 1.75;  g = -5 + 0.875 + 2 x 0.75 = -2.625, m = -9.375, w = 2.6875.
    """
    schedule = Schedule(lr=0.1, batch_size=0, local_steps=2, weight_decay=0.5, momentum=0.9, proximal_mu=2.0)
    trainer = trainer_of(Linear(1).double(), schedule)
    memory = trainer.memory()
    learned = trainer.train(flat([1.0]), memory, one_row(2.0, 6.0), 0, 0)
    assert learned.delta.tolist() == [pytest.approx(1.6875)]
    assert memory.momentum is not None
    assert memory.momentum.tolist() == [pytest.approx(-9.375)]


FEDPROX = {  # truth/traces.json, FedProx_lr0.05_H4 and local_SGD_FedAvg_lr0.1
    (0.05, 1.0, 4, (1, 2, 3, 4)): [1.5, 2.128315, 2.281639568, 2.319054596, 2.328184798, 2.330412795],
    (0.05, 0.1, 4, (1, 2, 3, 4)): [1.5, 2.167938625, 2.299484587, 2.325391668, 2.330493891, 2.331498739],
    (0.05, 0.0, 4, (1, 2, 3, 4)): [1.5, 2.1725475, 2.301315126, 2.325969297, 2.330689647, 2.331593416],
    (0.1, 0.0, 2, (1, 1, 1, 1)): [1.5, 2.0575, 2.2721375, 2.354772937, 2.386587581, 2.398836219],
    (0.1, 0.0, 8, (1, 1, 1, 1)): [1.5, 2.352059807, 2.450911428, 2.462379687, 2.463710176, 2.463864533],
}


@pytest.mark.parametrize("case", FEDPROX)
def test_fedavg_and_fedprox_traces(case: tuple[float, float, int, tuple[int, ...]]) -> None:
    """Four workers with one row each take H steps from the common w, and their results are averaged."""
    lr, mu, steps, weights = case
    trainer = trainer_of(Linear(1).double(), Schedule(lr=lr, proximal_mu=mu, local_steps=steps, batch_size=0))
    shards = [one_row(1.0, 3.0), one_row(2.0, 5.0), one_row(3.0, 7.0), one_row(4.0, 9.0)]
    w = flat([1.5])
    for round, expected in enumerate(FEDPROX[case]):
        assert w.item() == pytest.approx(expected, rel=1e-9)
        deltas = [trainer.train(w, trainer.memory(), shard, i, round).delta for i, shard in enumerate(shards)]
        w = w + sum(p * delta for p, delta in zip(weights, deltas, strict=True)) / sum(weights)


# ---- Against torch.optim


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.9, 0.01)])
def test_rounds_of_local_steps_are_a_loop_of_torch_optim_sgd(momentum: float, weight_decay: float) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    rows = random_rows(20, 3, 4)
    schedule = Schedule(lr=0.3, momentum=momentum, weight_decay=weight_decay, batch_size=6, local_steps=4)
    trainer = trainer_of(net, schedule, kind="classification", seed=5)
    x, memory = start_of(net, torch.float64), trainer.memory()

    theirs = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    theirs.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.3, momentum=momentum, weight_decay=weight_decay)
    batches = Batches(5, 6)
    for round in range(5):
        x = x + trainer.train(x, memory, rows, 2, round).delta
        for step in range(4 * round, 4 * round + 4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                theirs(rows.take(batches.rows(2, step, 20))[0]), _labels(rows, 2, step)
            ).backward()
            optimizer.step()
        torch.testing.assert_close(x, start_of(theirs, torch.float64), rtol=1e-12, atol=1e-12)


def _labels(rows: Shard, peer: int, step: int) -> Tensor:
    return rows.take(Batches(5, 6).rows(peer, step, 20))[1]


def test_one_trainer_serves_many_peers_in_turn() -> None:
    """Interleaved, two peers come to the same bits as each with a trainer of its own."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    schedule = Schedule(lr=0.1, momentum=0.9, batch_size=4, local_steps=2)
    shards = [_float(random_rows(9, 3, 3, seed)) for seed in range(2)]

    def fresh() -> PlainTrainer:
        return trainer_of(copy.deepcopy(net), schedule, kind="classification", average_buffers=False)

    def play(trainers: list[PlainTrainer]) -> list[Tensor]:
        x = [start_of(net) for _ in shards]
        memories = [trainer.memory() for trainer in trainers]
        for round in range(3):
            for i, trainer in enumerate(trainers):
                x[i] = x[i] + trainer.train(x[i], memories[i], shards[i], i, round).delta
        return x

    shared = fresh()
    for ours, theirs in zip(play([shared, shared]), play([fresh(), fresh()]), strict=True):
        assert torch.equal(ours, theirs)


def _float(shard: Shard) -> Shard:
    return Shard(shard.x.float(), shard.y)


# ---- Learning rates


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(lr=0.4), {0: 0.4, 10_000: 0.4}),
        (Schedule(lr=0.4, warmup_rounds=3), {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.4}),
        (
            Schedule(lr=0.4, lr_schedule="cosine", rounds=4),
            {0: 0.4, 1: 0.2 * (1 + cos(pi / 4)), 2: 0.2, 4: 0.0, 9: 0.0},
        ),
        (Schedule(lr=0.4, lr_schedule="cosine", rounds=6, warmup_rounds=2), {0: 0.4 / 3, 2: 0.4, 4: 0.2, 6: 0.0}),
        (Schedule(lr=0.4, lr_schedule="step", rounds=8), {0: 0.4, 3: 0.4, 4: 0.04, 5: 0.04, 6: 0.004, 7: 0.004}),
        (Schedule(lr=0.4, lr_schedule="step", rounds=10, warmup_rounds=2), {1: 0.8 / 3, 5: 0.4, 6: 0.04, 8: 0.004}),
        (Schedule(lr=0.4, lr_schedule="step", rounds=0), {0: 0.4, 100: 0.4}),
    ],
)
def test_learning_rates(schedule: Schedule, expected: dict[int, float]) -> None:
    assert {round: schedule.lr_at(round) for round in expected} == pytest.approx(expected, abs=1e-16)


def test_a_round_trains_at_its_learning_rate() -> None:
    trainer = trainer_of(Linear(1).double(), Schedule(lr=0.1, lr_schedule="step", rounds=2, batch_size=0))
    learned = trainer.train(flat([1.0]), trainer.memory(), one_row(2.0, 6.0), 0, 1)
    assert learned.lr == pytest.approx(0.01)
    assert learned.delta.item() == pytest.approx(0.08)


# ---- Batches


@given(rows=st.integers(2, 60), batch=st.integers(1, 20), peer=st.integers(0, 5), epoch=st.integers(0, 5))
def test_an_epoch_visits_every_row_at_most_once_in_full_batches(rows: int, batch: int, peer: int, epoch: int) -> None:
    per_epoch = max(1, rows // batch)
    batches = Batches(3, batch)
    taken = [batches.rows(peer, epoch * per_epoch + i, rows) for i in range(per_epoch)]
    if rows <= batch:
        assert taken == [None]
        return
    seen = np.concatenate([part for part in taken if part is not None])
    assert [len(part) for part in taken if part is not None] == [batch] * per_epoch
    assert len(set(seen.tolist())) == len(seen) == rows - rows % batch
    assert set(seen.tolist()) <= set(range(rows))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=20))
def test_the_order_is_a_function_of_seed_peer_and_step_alone(calls: list[tuple[int, int]]) -> None:
    """Whoever asks in another order, or for other peers between, gets the same rows."""
    asked = Batches(7, 4)
    for peer, step in calls:
        assert np.array_equal(asked.rows(peer, step, 10), Batches(7, 4).rows(peer, step, 10))  # type: ignore[arg-type]


def test_peers_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [
        Batches(seed, 50).rows(peer, 2 * epoch, 100).tolist()  # type: ignore[union-attr]
        for seed in (0, 1)
        for peer in (0, 1)
        for epoch in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 8


@pytest.mark.parametrize(("rows", "batch"), [(5, 0), (5, 5), (5, 6), (1, 1)])
def test_a_shard_no_larger_than_the_batch_is_one_batch_in_its_own_order(rows: int, batch: int) -> None:
    assert Batches(0, batch).rows(0, 9, rows) is None


def test_a_shard_of_rows_takes_from_the_common_data() -> None:
    x = torch.arange(10.0).view(10, 1)
    shard = Shard(x, torch.arange(10), np.array([7, 3, 5]))
    assert len(shard) == 3
    assert shard.take(None)[0].flatten().tolist() == [7.0, 3.0, 5.0]
    assert shard.take(np.array([2, 0]))[1].tolist() == [5, 7]


# ---- What is random


def _with_dropout() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 40), nn.Dropout(0.5), nn.Linear(40, 3))


def test_dropout_is_reproducible_and_another_one_for_each_peer_step_and_seed() -> None:
    net = _with_dropout()
    rows = _float(random_rows(6, 3, 3))
    schedule = Schedule(lr=0.1, batch_size=0)

    def delta(peer: int, round: int, seed: int = 0) -> Tensor:
        trainer = trainer_of(net, schedule, kind="classification", seed=seed)
        torch.rand(round + peer)  # whatever was drawn before
        return trainer.train(x, trainer.memory(), rows, peer, round).delta

    x = start_of(net)
    assert torch.equal(delta(0, 0), delta(0, 0))
    different = [delta(0, 0), delta(1, 0), delta(0, 1), delta(0, 0, seed=1)]
    assert not any(torch.equal(a, b) for i, a in enumerate(different) for b in different[:i])


def test_the_steps_of_a_round_have_dropout_of_their_own() -> None:
    masks: list[Tensor] = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            masks.append(nn.functional.dropout(torch.ones(64), 0.5, self.training))
            return x @ self.weight[:1]

    trainer = trainer_of(Watched(), Schedule(lr=0.0, batch_size=0, local_steps=3))
    trainer.train(torch.ones(64), trainer.memory(), Shard(torch.ones(2, 1), torch.ones(2)), 0, 0)
    assert len({tuple(mask.tolist()) for mask in masks}) == 3


def test_evaluation_has_no_dropout_and_is_reproducible_where_a_model_is_random_all_the_same() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, 0] * self.weight + torch.rand(len(x))

    rows = (torch.ones(5, 1), torch.ones(5))
    trainer = trainer_of(Noisy(), Schedule(lr=0.1))
    losses = [trainer.evaluate(torch.ones(1), trainer.memory(), rows).loss for _ in range(2)]
    assert losses[0] == losses[1]


def test_the_callers_generator_and_gradient_mode_are_left_alone() -> None:
    net = _with_dropout()
    rows = _float(random_rows(6, 3, 3))
    trainer = trainer_of(net, Schedule(lr=0.1, batch_size=0), kind="classification")
    before = torch.get_rng_state()
    with torch.no_grad():
        learned = trainer.train(start_of(net), trainer.memory(), rows, 0, 0)
        assert not torch.is_grad_enabled()
    trainer.evaluate(start_of(net), trainer.memory(), (rows.x, rows.y))
    assert bool(learned.delta.any())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()


# ---- Evaluation


@pytest.mark.parametrize(
    "rows", [1, EVALUATION_ROWS - 1, EVALUATION_ROWS, EVALUATION_ROWS + 1, 2 * EVALUATION_ROWS + 7]
)
def test_the_parts_of_an_evaluation_count_by_their_rows(rows: int) -> None:
    torch.manual_seed(rows)
    net = nn.Linear(3, 4).double()
    shard = random_rows(rows, 3, 4)
    score = trainer_of(net, Schedule(lr=0.1), kind="classification").evaluate(
        start_of(net, torch.float64), Memory(), (shard.x, shard.y)
    )
    outputs = net(shard.x)
    assert score.loss == pytest.approx(nn.functional.cross_entropy(outputs, shard.y).item(), rel=1e-12)
    assert score.accuracy == (outputs.argmax(1) == shard.y).sum().item() / rows
    assert score.rows == rows


def test_a_regression_has_a_loss_and_no_accuracy() -> None:
    trainer = trainer_of(Linear(1).double(), Schedule(lr=0.1))
    score = trainer.evaluate(flat([2.0]), trainer.memory(), (flat([1.0, 2.0]).view(2, 1), flat([2.0, 2.0])))
    assert (score.loss, score.accuracy, score.rows) == (1.0, None, 2)


@pytest.mark.parametrize("rows", [None, (torch.ones(0, 1).double(), torch.ones(0).double())])
def test_no_rows_no_score(rows: tuple[Tensor, Tensor] | None) -> None:
    score = trainer_of(Linear(1).double(), Schedule(lr=0.1)).evaluate(flat([2.0]), Memory(), rows)
    assert (score.loss, score.accuracy, score.rows) == (None, None, 0)


def test_a_loss_beyond_all_numbers_is_told_as_it_is() -> None:
    trainer = trainer_of(Linear(1).double(), Schedule(lr=0.1))
    score = trainer.evaluate(flat([1e200]), trainer.memory(), (flat([1.0]).view(1, 1), flat([0.0])))
    assert score.loss == inf


def test_a_stop_comes_between_two_steps() -> None:
    answers = iter([False, False, True])
    trainer = trainer_of(Linear(1).double(), Schedule(lr=0.1, batch_size=0, local_steps=9))
    with pytest.raises(Interrupted):
        trainer.train(flat([1.0]), trainer.memory(), one_row(2.0, 6.0), 0, 0, lambda: next(answers))
    assert next(answers, None) is None


# ---- Batch norm


def normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(1, momentum=0.5, affine=False), nn.Linear(1, 1, bias=False))


BATCH = Shard(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [0.0]]))


def test_averaged_statistics_are_part_of_the_vector_and_the_counter_is_not() -> None:
    """The batch has mean 2 and variance 2 (of a sample): from (0, 1) halfway to (1, 1.5)."""
    trainer = trainer_of(normed(), Schedule(lr=0.0, batch_size=0))
    assert [s.name for s in trainer.layout.segments] == ["1.weight", "0.running_mean", "0.running_var"]
    x, memory = torch.tensor([1.0, 0.0, 1.0]), trainer.memory()
    x = x + trainer.train(x, memory, BATCH, 0, 0).delta
    assert x.tolist() == [1.0, 1.0, 1.5]
    counter = memory.buffers["0.num_batches_tracked"]
    assert (counter.item(), counter.dtype, counter.shape) == (1, torch.int64, ())
    x = torch.tensor([1.0, 4.0, 9.0])  # what mixing has made of them
    assert trainer.train(x, memory, BATCH, 0, 1).delta.tolist() == [0.0, -1.0, -3.5]
    assert memory.buffers["0.num_batches_tracked"].item() == 2
    assert trainer.tensors(x, memory)["0.running_mean"].tolist() == [4.0]
    assert trainer.tensors(x, memory)["0.num_batches_tracked"].item() == 2


def test_statistics_learned_in_one_step_are_there_in_the_next() -> None:
    trainer = trainer_of(normed(), Schedule(lr=0.0, batch_size=0, local_steps=3))
    learned = trainer.train(torch.tensor([1.0, 0.0, 1.0]), trainer.memory(), BATCH, 0, 0)
    assert learned.delta.tolist() == [0.0, 1.75, 0.875]


def test_kept_statistics_stay_with_their_peer() -> None:
    trainer = trainer_of(normed(), Schedule(lr=0.0, batch_size=0), average_buffers=False)
    assert [s.name for s in trainer.layout.segments] == ["1.weight"]
    far = Shard(BATCH.x + 98, BATCH.y)
    x, one, other = torch.ones(1), trainer.memory(), trainer.memory()
    for round in range(2):
        trainer.train(x, one, BATCH, 0, round)
        trainer.train(x, other, far, 1, round)
    assert one.buffers["0.running_mean"].tolist() == [1.5]
    assert other.buffers["0.running_mean"].tolist() == [75.0]
    assert trainer.tensors(x, one)["0.running_mean"].tolist() == [1.5]
    assert trainer.memory().buffers["0.running_mean"].tolist() == [0.0]


def test_evaluation_uses_the_peers_statistics_and_changes_none() -> None:
    trainer = trainer_of(normed(), Schedule(lr=0.0, batch_size=0), average_buffers=False)
    memory = trainer.memory()
    memory.buffers["0.running_mean"].fill_(1.0)
    memory.buffers["0.running_var"].fill_(4.0 - 1e-5)
    score = trainer.evaluate(torch.ones(1), memory, (torch.tensor([[5.0]]), torch.tensor([[0.0]])))
    assert score.loss == pytest.approx(0.5 * 2.0**2)
    assert memory.buffers["0.num_batches_tracked"].item() == 0


def test_buffers_that_a_module_replaces_are_followed() -> None:
    """`self.seen = self.seen + 1` makes a new tensor; `add_` would change the old one."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.register_buffer("level", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.seen + len(x)
            self.level = 0.5 * self.level + 0.5 * x.mean(0)
            return x @ self.weight

    trainer = trainer_of(Counting(), Schedule(lr=0.0, batch_size=0))
    x, one, other = torch.tensor([1.0, 0.0]), trainer.memory(), trainer.memory()
    shard = Shard(torch.tensor([[2.0], [6.0]]), torch.zeros(2))
    for round in range(2):
        assert trainer.train(x, one, shard, 0, round).delta.tolist() == [0.0, 2.0]
    trainer.train(x, other, shard, 1, 0)
    assert (one.buffers["seen"].item(), other.buffers["seen"].item()) == (4, 2)


def test_a_buffer_that_holds_the_last_batch_fits_every_batch() -> None:
    """Batches of two and of three rows, an evaluation of one, and a model file, peer by peer."""

    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("last", None)
            self.register_buffer("passing", torch.zeros(0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.passing = x.detach()[:, 0]
            return x @ self.weight

    trainer = trainer_of(Remembers(), Schedule(lr=0.0, batch_size=0))
    assert [s.name for s in trainer.layout.segments] == ["weight"]
    x, memories = torch.ones(1), [trainer.memory(), trainer.memory()]
    assert trainer.tensors(x, memories[0]).keys() == {"weight"}
    shards = [Shard(torch.tensor([[1.0], [2.0]]), torch.zeros(2)), Shard(torch.full((3, 1), 5.0), torch.zeros(3))]
    for round in range(2):
        for i, shard in enumerate(shards):
            trainer.train(x, memories[i], shard, i, round)
            trainer.evaluate(x, memories[i], (torch.zeros(1, 1), torch.zeros(1)))
    assert [trainer.tensors(x, memory)["last"].tolist() for memory in memories] == [[1.0, 2.0], [5.0, 5.0, 5.0]]
    assert trainer.memory().buffers["last"] is None


def test_what_is_kept_holds_no_graph() -> None:
    """A buffer made of what depends on parameters would keep every batch's graph alive."""

    class Follows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("output", torch.zeros(2), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            y = x @ self.weight
            self.output = y
            return y

    trainer = trainer_of(Follows(), Schedule(lr=0.0, batch_size=0))
    memory = trainer.memory()
    trainer.train(torch.ones(1), memory, Shard(torch.ones(2, 1), torch.zeros(2)), 0, 0)
    assert memory.buffers["output"].tolist() == [1.0, 1.0]
    assert not memory.buffers["output"].requires_grad


# ---- What people bring


def test_half_precision_models_are_trained_from_float32() -> None:
    """Steps too small for the model's own dtype add up in the vector: 1 + 2^-12 is 1 in bfloat16."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))

        def forward(self, x: Tensor) -> Tensor:
            return (x.bfloat16() * self.weight).sum(1).float()

    trainer = trainer_of(Half(), Schedule(lr=2.0**-12, batch_size=0, local_steps=8))
    learned = trainer.train(torch.ones(1), trainer.memory(), Shard(torch.ones(1, 1), torch.tensor([2.0])), 0, 0)
    assert learned.delta.dtype is torch.float32
    assert learned.delta.tolist() == [8 * 2.0**-12]
    assert trainer.tensors(torch.tensor([1.5]), trainer.memory())["weight"].dtype is torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_parameters_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    class Half(nn.Module):
        def __init__(self, values: Tensor) -> None:
            super().__init__()
            self.weight = nn.Parameter(values)

    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = bits.view(dtype)
    values = values[values.isfinite()]
    trainer = trainer_of(Half(values.clone()), Schedule(lr=0.1))
    assert torch.equal(trainer.tensors(values.float(), trainer.memory())["weight"], values)


def _images() -> tuple[nn.Module, Shard]:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(8, 3)).double()
    return net, Shard(torch.rand(5, 3, 6, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1]))


def test_channels_last_parameters_give_the_values_of_contiguous_ones() -> None:
    net, rows = _images()
    x = start_of(net, torch.float64)
    schedule = Schedule(lr=0.1, batch_size=0, local_steps=3)
    deltas, files = [], []
    for module in (net, copy.deepcopy(net).to(memory_format=torch.channels_last)):
        trainer = trainer_of(module, schedule, kind="classification")
        deltas.append(trainer.train(x, trainer.memory(), rows, 0, 0).delta)
        files.append(trainer.tensors(x + deltas[0], trainer.memory()))
    torch.testing.assert_close(deltas[1], deltas[0], rtol=1e-12, atol=1e-14)
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])
    assert all(tensor.is_contiguous() for tensor in files[1].values())


def test_a_compiled_model_trains_as_the_plain_one_and_its_names_stay_plain() -> None:
    net, rows = _images()
    x = start_of(net, torch.float64)
    schedule = Schedule(lr=0.1, batch_size=0)
    plain, compiled = (
        trainer_of(module, schedule, kind="classification")
        for module in (net, torch.compile(copy.deepcopy(net), backend="eager"))
    )
    assert plain.layout == compiled.layout
    deltas = [t.train(x, t.memory(), rows, 0, 0).delta for t in (plain, compiled)]
    torch.testing.assert_close(deltas[1], deltas[0], rtol=1e-12, atol=1e-14)
    assert plain.tensors(x, Memory()).keys() == compiled.tensors(x, Memory()).keys()


def test_a_frozen_backbone_stays_as_it_is() -> None:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    net[0].requires_grad_(False)
    trainer = trainer_of(net, Schedule(lr=0.1, batch_size=0, weight_decay=0.1), kind="classification")
    assert trainer.layout.size == 8
    before = net[0].weight.clone()
    trainer.train(torch.ones(8), trainer.memory(), _float(random_rows(4, 2, 2)), 0, 0)
    assert torch.equal(net[0].weight, before)
    assert torch.equal(trainer.tensors(torch.ones(8), trainer.memory())["0.weight"], before)


def test_tied_parameters_are_one() -> None:
    """f(x) = w (w x) with loss 0.5 (f - y)^2: at w = 2, x = 1, y = 0 the gradient is 4 x 2 w = 16."""
    one, two = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    two.weight = one.weight
    trainer = trainer_of(nn.Sequential(one, two), Schedule(lr=0.125, batch_size=0))
    assert trainer.layout.size == 1
    learned = trainer.train(torch.tensor([2.0]), trainer.memory(), Shard(torch.ones(1, 1), torch.zeros(1, 1)), 0, 0)
    assert learned.delta.tolist() == [-2.0]
    assert trainer.tensors(torch.tensor([3.0]), trainer.memory())["1.weight"].tolist() == [[3.0]]


def test_a_parameter_that_takes_no_part_in_the_loss_stays() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Parameter(torch.ones(2))
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    trainer = trainer_of(Spare(), Schedule(lr=0.5, batch_size=0))
    learned = trainer.train(torch.ones(3), trainer.memory(), Shard(torch.ones(1, 1), torch.zeros(1)), 0, 0)
    assert learned.delta.tolist() == [0.0, 0.0, -0.5]


def test_sparse_gradients_are_gradients() -> None:
    deltas = []
    for sparse in (False, True):
        torch.manual_seed(6)
        net = nn.Sequential(nn.Embedding(4, 2, sparse=sparse), nn.Flatten(), nn.Linear(4, 3))
        trainer = trainer_of(net, Schedule(lr=0.1, batch_size=0), kind="classification")
        shard = Shard(torch.tensor([[0, 1], [1, 3]]), torch.tensor([0, 2]))
        deltas.append(trainer.train(start_of(net), trainer.memory(), shard, 0, 0).delta)
    assert torch.equal(deltas[0], deltas[1])


def test_a_loss_of_the_users_is_given_the_whole_output() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a": x[:, 0] * self.weight, "b": x[:, 0]}

    trainer = trainer_of(Two(), Schedule(lr=0.1, batch_size=0), loss=lambda output, y: (output["a"] - y).abs().mean())
    shard = Shard(torch.tensor([[4.0]]), torch.tensor([1.0]))
    assert trainer.train(torch.ones(1), trainer.memory(), shard, 0, 0).delta.tolist() == [pytest.approx(-0.4)]
    assert trainer.evaluate(torch.ones(1), trainer.memory(), shard.take(None)).loss == 3.0


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Callable[[str], nn.Module]]:
    """Make the module that a user's file of this text returns."""
    path, modules = list(sys.path), set(sys.modules)

    def make(text: str) -> nn.Module:
        (tmp_path / "mine_local.py").write_text(f"import torch\nfrom torch import nn\n{text}\n", encoding="utf-8")
        rows = random_rows(4, 2, 2)
        data = DataSet(rows.x.float(), rows.y, None, None, "rows", None, 2)
        return build_model("mine_local:net", data=data, seed=0, dtype=torch.float32, folder=tmp_path).module

    yield make
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("mine"):
            del sys.modules[name]


RAISES_IN_TRAINING = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
    def forward(self, x):
        return self.check(self.inner(x))
    def check(self, x):
        if self.training:
            raise ValueError("no training today\\nnor tomorrow")
        return x
def net(): return nn.Sequential(Net())
"""


def test_what_a_model_raises_in_training_is_one_line_with_the_users_own_traceback(
    mine: Callable[[str], nn.Module],
) -> None:
    trainer = trainer_of(mine(RAISES_IN_TRAINING), Schedule(lr=0.1, batch_size=0), kind="classification")
    rows = _float(random_rows(4, 2, 2))
    with pytest.raises(TrainingError) as caught:
        trainer.train(torch.zeros(6), trainer.memory(), rows, 0, 0)
    assert str(caught.value) == "model mine:net raised ValueError: no training today"
    lines = caught.value.details.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "mine_local.py" in lines[1]
    assert lines[1].endswith("in forward")
    assert lines[-2:] == ["ValueError: no training today", "nor tomorrow"]
    assert 'local.py", line' not in caught.value.details.replace("mine_local.py", "")
    assert trainer.evaluate(torch.zeros(6), trainer.memory(), (rows.x, rows.y)).rows == 4


def test_what_a_loss_raises_is_told_likewise() -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        raise KeyError("reduction")

    trainer = trainer_of(nn.Linear(2, 2), Schedule(lr=0.1, batch_size=0), loss=loss)
    with pytest.raises(TrainingError, match="model mine:net raised KeyError: 'reduction'") as caught:
        trainer.train(torch.zeros(6), trainer.memory(), _float(random_rows(4, 2, 2)), 0, 0)
    assert "in loss" in caught.value.details
