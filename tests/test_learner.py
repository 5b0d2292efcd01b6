"""One peer's tensors: what it mixes, what it refuses, and which rows it is judged on."""

from math import inf, nan

import pytest
import torch
from torch import Tensor, nn

from peer.algorithms.algorithm import Message
from peer.algorithms.dpsgd import AdaptThenCombine, CombineThenAdapt
from peer.learner import Learner, Said, judge, message_forms, parameter_norm
from peer.task.layout import layout_of
from peer.task.local import Interrupted, Memory, PlainTrainer, PureGossip, Schedule, Shard
from peer.task.models import BuiltModel
from peer.task.task import Task, Wish, prepare

torch.set_num_threads(1)

CPU = torch.device("cpu")


def message(*numbers: float) -> Message:
    return {"x": torch.tensor(numbers, dtype=torch.float64)}


def gossiper(*start: float, me: int = 0) -> Learner:
    """A peer that only mixes."""
    task = prepare(
        Wish(
            model="linear",
            data="none",
            names=["a", "b", "c"],
            seed=0,
            schedule=Schedule(lr=0.1),
            dtype=torch.float64,
            starts=[list(start)],
        )
    )
    return Learner(me, AdaptThenCombine(), task.trainer(CPU), task.start(me), None, None)


def line() -> Task:
    """The loss 0.5 (2 w - 6)^2 and nothing else, from w = 1."""
    schedule = Schedule(lr=0.1, batch_size=0)
    wish = Wish(
        model="linear",
        data="inline",
        names=["a"],
        seed=0,
        schedule=schedule,
        dtype=torch.float64,
        shards=[[[[2.0], 6.0]]],
        starts=[[1.0]],
    )
    return prepare(wish)


def student() -> Learner:
    task = line()
    return Learner(0, AdaptThenCombine(), task.trainer(CPU), task.start(0), task.shard(0, CPU), None)


def test_training_and_mixing_by_hand() -> None:
    """The gradient at 1 is 2 (2 - 6) = -8, so that w becomes 1.8; half of 1.8 and half of 3 is 2.4."""
    peer = student()
    said = peer.train(0)
    assert said["x"].item() == pytest.approx(1.8)
    assert peer.mix(0, [Said(0.5, 0, said), Said(0.5, 1, message(3.0))]) == (None, ())
    assert peer.params().item() == pytest.approx(2.4)
    assert peer.gradients == 1


def test_pure_gossip_takes_no_steps() -> None:
    peer = gossiper(1.0, 2.0)
    assert peer.train(0)["x"].tolist() == [1.0, 2.0]
    assert peer.gradients == 0
    assert peer.evaluate(0).score.loss is None
    assert peer.tensors()["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_who_sends_what_is_not_finite_is_named_and_its_weight_is_ones_own(bad: float) -> None:
    peer = gossiper(1.0, 2.0, me=1)
    said = [Said(0.25, 0, message(bad, 0.0)), Said(0.25, 1, peer.train(0)), Said(0.5, 2, message(5.0, 6.0))]
    assert peer.mix(0, said) == (None, (0,))
    assert peer.params().tolist() == [0.5 * 1.0 + 0.5 * 5.0, 0.5 * 2.0 + 0.5 * 6.0]


def test_all_that_are_not_finite_are_named_in_node_order() -> None:
    peer = gossiper(1.0, me=1)
    said = [Said(0.3, 0, message(nan)), Said(0.4, 1, peer.train(0)), Said(0.3, 2, message(inf))]
    assert peer.mix(0, said) == (None, (0, 2))
    assert peer.params().item() == 1.0


def test_a_peer_that_is_not_finite_itself_blames_nobody() -> None:
    peer = gossiper(nan)
    assert peer.mix(0, [Said(0.5, 0, peer.train(0)), Said(0.5, 1, message(1.0))]) == (None, ())
    assert peer.has_diverged()


def test_a_sum_that_overflows_blames_nobody() -> None:
    """The messages are finite each; what comes of them is not, and that is the peer's own divergence."""
    peer = gossiper(1.5e308)
    assert peer.mix(0, [Said(1.0, 0, peer.train(0)), Said(1.0, 1, message(1.5e308))]) == (None, ())
    assert peer.has_diverged()


def test_the_sum_is_computed_once_a_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    from peer.algorithms import combine

    sums: list[int] = []
    real = combine.weighted_sum
    monkeypatch.setattr(combine, "weighted_sum", lambda terms: (sums.append(1), real(terms))[1])
    peer = gossiper(1.0)
    peer.mix(0, [Said(0.5, 0, peer.train(0)), Said(0.5, 1, message(3.0))])
    assert len(sums) == 1


def test_a_norm_has_diverged_beyond_1e8_times_its_start() -> None:
    peer = gossiper(3.0, 4.0)
    for value, expected in ((5e8, False), (5.1e8, True)):
        peer.mix(0, [Said(0.0, 0, peer.train(0)), Said(1.0, 1, message(value, 0.0))])
        assert peer.norm() == value
        assert peer.has_diverged() is expected


def test_a_norm_is_computed_in_float64() -> None:
    assert parameter_norm(torch.full((4,), 1e30)) == pytest.approx(2e30, rel=1e-6)


def test_a_loss_that_is_not_finite_has_diverged() -> None:
    """The parameter is finite, 1e200; the loss, its square, is not."""
    peer = student()
    start = peer.evaluate(0)
    assert start.score.loss == 0.5 * 16
    assert not peer.loss_has_diverged(start)
    peer.mix(0, [Said(0.0, 0, message(0.0)), Said(1.0, 1, message(1e200))])
    assert peer.loss_has_diverged(peer.evaluate(1))


def test_a_stop_ends_training_and_evaluation() -> None:
    peer = student()
    with pytest.raises(Interrupted):
        peer.train(0, lambda: True)
    with pytest.raises(Interrupted):
        peer.evaluate(0, lambda: True)


@pytest.mark.parametrize(("dtype", "large"), [(torch.float16, 40000.0), (torch.bfloat16, 3e38)])
def test_half_precision_parameters_are_averaged_in_float32(dtype: torch.dtype, large: float) -> None:
    """40000 + 40000 is more than float16 holds."""
    module = nn.Linear(1, 1, bias=False).to(dtype)
    layout = layout_of(module, torch.float32, average_buffers=True)
    built = BuiltModel(module, None, "mine:net")
    trainer = PlainTrainer(built, layout, Schedule(lr=0.1), kind="regression", seed=0, device=CPU)
    value = torch.tensor([large], dtype=dtype)
    peer = Learner(0, AdaptThenCombine(), trainer, value.float(), None, None)
    peer.mix(0, [Said(0.5, 0, {"x": value.float()}), Said(0.5, 1, {"x": value.float()})])
    assert torch.equal(peer.tensors()["weight"], value.view(1, 1))


# ---- Which rows


def rows(x: float, y: float) -> tuple[Tensor, Tensor]:
    return torch.tensor([[x]], dtype=torch.float64), torch.tensor([y], dtype=torch.float64)


@pytest.mark.parametrize(
    ("common", "own", "loss", "own_loss"),
    [
        (None, None, 0.5 * (2 - 6) ** 2, None),
        (rows(1, 3), None, 0.5 * (1 - 3) ** 2, None),
        (None, rows(1, 5), 0.5 * (1 - 5) ** 2, None),
        (rows(1, 3), rows(1, 5), 0.5 * (1 - 3) ** 2, 0.5 * (1 - 5) ** 2),
    ],
)
def test_the_common_test_rows_come_first_then_the_own_ones_then_the_training_rows(
    common: tuple[Tensor, Tensor] | None, own: tuple[Tensor, Tensor] | None, loss: float, own_loss: float | None
) -> None:
    task = line()
    trainer = task.trainer(CPU)
    shard = Shard(*rows(2, 6), test=own)
    found = judge(trainer, task.start(0), trainer.memory(), shard, common, 3)
    assert (found.round, found.score.loss, found.score.rows) == (3, loss, 1)
    assert (None if found.own is None else found.own.loss) == own_loss


def test_nothing_to_judge_by() -> None:
    trainer = PureGossip(line().layout, CPU)
    assert judge(trainer, torch.zeros(1), Memory(), None, None, 0).score.rows == 0


def test_forms_of_the_messages() -> None:
    for algorithm in (AdaptThenCombine(), CombineThenAdapt()):
        [form] = message_forms(algorithm, torch.ones(3, dtype=torch.float64))
        assert {name: (t.shape, t.dtype) for name, t in form.items()} == {"x": ((3,), torch.float64)}
