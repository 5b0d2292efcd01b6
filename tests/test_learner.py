"""One peer's tensors: what it mixes, what it refuses, and which rows it is judged on."""

from collections.abc import Mapping
from math import inf, nan

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from peer.algorithms import gradient_tracking
from peer.algorithms.algorithm import Algorithm, Message
from peer.algorithms.diloco import DiLoCo
from peer.algorithms.dpsgd import AdaptThenCombine, CombineThenAdapt
from peer.algorithms.push_sum import PushSum
from peer.learner import Learner, Outcome, Said, judge, message_forms, parameter_norm
from peer.protocol.messages import Neighbourhood, Shares
from peer.task.layout import layout_of
from peer.task.local import Interrupted, Memory, PlainTrainer, PureGossip, Schedule, Shard
from peer.task.models import BuiltModel
from peer.task.task import Task, Wish, prepare

torch.set_num_threads(1)

CPU = torch.device("cpu")


def message(*numbers: float) -> Message:
    return {"x": torch.tensor(numbers, dtype=torch.float64)}


def gossiper(
    *start: float,
    me: int = 0,
    algorithm: Algorithm | None = None,
    listeners: Mapping[int, float] | None = None,
    threshold: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> Learner:
    """A peer that only mixes. `listeners` are those that are given shares, and of what size."""
    task = prepare(
        Wish(
            model="linear",
            data="none",
            names=["a", "b", "c"],
            seed=0,
            schedule=Schedule(lr=0.1),
            dtype=dtype,
            starts=[list(start)],
        )
    )
    around = Neighbourhood({}, listeners or {})
    algorithm = algorithm or AdaptThenCombine()
    return Learner(me, algorithm, task.trainer(CPU), task.start(me), None, None, lambda _: around, threshold)


def plain(said: Message | Shares) -> Message:
    """The message that all listeners get."""
    assert not isinstance(said, Shares)
    return said


def shares(said: Message | Shares) -> Shares:
    """What differs from listener to listener."""
    assert isinstance(said, Shares)
    return said


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
    said = plain(peer.train(0))
    assert said["x"].item() == pytest.approx(1.8)
    assert peer.mix(0, [Said(0.5, 0, said), Said(0.5, 1, message(3.0))]) == Outcome(None)
    assert peer.params().item() == pytest.approx(2.4)
    assert peer.gradients == 1


def test_pure_gossip_takes_no_steps() -> None:
    peer = gossiper(1.0, 2.0)
    assert plain(peer.train(0))["x"].tolist() == [1.0, 2.0]
    assert peer.gradients == 0
    assert peer.evaluate(0).score.loss is None
    assert peer.tensors()["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_who_sends_what_is_not_finite_is_named_and_its_weight_is_ones_own(bad: float) -> None:
    peer = gossiper(1.0, 2.0, me=1)
    said = [Said(0.25, 0, message(bad, 0.0)), Said(0.25, 1, plain(peer.train(0))), Said(0.5, 2, message(5.0, 6.0))]
    assert peer.mix(0, said) == Outcome(None, rejected=(0,))
    assert peer.params().tolist() == [0.5 * 1.0 + 0.5 * 5.0, 0.5 * 2.0 + 0.5 * 6.0]


def test_all_that_are_not_finite_are_named_in_node_order() -> None:
    peer = gossiper(1.0, me=1)
    said = [Said(0.3, 0, message(nan)), Said(0.4, 1, plain(peer.train(0))), Said(0.3, 2, message(inf))]
    assert peer.mix(0, said) == Outcome(None, rejected=(0, 2))
    assert peer.params().item() == 1.0


def test_a_peer_that_is_not_finite_itself_blames_nobody() -> None:
    peer = gossiper(nan)
    assert peer.mix(0, [Said(0.5, 0, plain(peer.train(0))), Said(0.5, 1, message(1.0))]) == Outcome(None)
    assert peer.has_diverged()


def test_a_sum_that_overflows_blames_nobody() -> None:
    """The messages are finite each; what comes of them is not, and that is the peer's own divergence."""
    peer = gossiper(1.5e308)
    assert peer.mix(0, [Said(1.0, 0, plain(peer.train(0))), Said(1.0, 1, message(1.5e308))]) == Outcome(None)
    assert peer.has_diverged()


def test_the_sum_is_computed_once_a_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    from peer.algorithms import combine

    sums: list[Message] = []
    real = combine.weighted_sum

    def noted(terms: list[tuple[float, Message]]) -> Message:
        sums.append(real(terms))
        return sums[-1]

    monkeypatch.setattr(combine, "weighted_sum", noted)
    peer = gossiper(1.0)
    peer.mix(0, [Said(0.5, 0, plain(peer.train(0))), Said(0.5, 1, message(3.0))])
    assert len(sums) == 1


def test_a_norm_has_diverged_beyond_1e8_times_its_start() -> None:
    peer = gossiper(3.0, 4.0)
    for value, expected in ((5e8, False), (5.1e8, True)):
        peer.mix(0, [Said(0.0, 0, plain(peer.train(0))), Said(1.0, 1, message(value, 0.0))])
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


# ---- Who is too far, under the metric "model"


def test_who_is_beyond_the_threshold_is_named_and_its_weight_is_ones_own() -> None:
    """At (0, 0) with the threshold 5, (3, 4) is just near enough and (3, 4.1) is not."""
    peer = gossiper(0.0, 0.0, me=1, threshold=5.0)
    said = [Said(0.25, 0, message(3.0, 4.1)), Said(0.25, 1, plain(peer.train(0))), Said(0.5, 2, message(3.0, 4.0))]
    assert peer.mix(0, said) == Outcome(None, far=(0,))
    assert peer.params().tolist() == [1.5, 2.0]


def test_without_a_threshold_all_are_mixed() -> None:
    peer = gossiper(0.0)
    assert peer.mix(0, [Said(0.5, 0, plain(peer.train(0))), Said(0.5, 1, message(1e6))]) == Outcome(None)
    assert peer.params().item() == 5e5


def test_two_peers_find_the_same_of_each_other() -> None:
    """So a symmetric W stays symmetric, and the mean stays what it is, also where rounding decides."""
    draws = np.random.default_rng(3)
    for _ in range(50):
        a, b = draws.standard_normal(3), draws.standard_normal(3)
        threshold = float(np.linalg.norm(a - b)) * float(draws.choice([1 - 2**-52, 1.0, 1 + 2**-52]))
        one, other = (gossiper(*x, me=i, threshold=threshold) for i, x in enumerate((a, b)))
        said = [Said(0.5, 0, plain(one.train(0))), Said(0.5, 1, plain(other.train(0)))]
        assert (one.mix(0, said).far == (1,)) is (other.mix(0, said).far == (0,))
        np.testing.assert_allclose(one.params() + other.params(), a + b, rtol=1e-14)


def test_one_that_is_not_finite_and_one_that_is_far_are_each_named_as_what_they_are() -> None:
    """Both weights go to oneself: 0.1 + 0.4 + 0.2 of 1, and 0.3 of 2."""
    peer = gossiper(1.0, me=1, threshold=3.0)
    said = [
        Said(0.4, 0, message(nan)),
        Said(0.1, 1, plain(peer.train(0))),
        Said(0.2, 2, message(9.0)),
        Said(0.3, 3, message(2.0)),
    ]
    assert peer.mix(0, said) == Outcome(None, rejected=(0,), far=(2,))
    assert peer.params().item() == pytest.approx(0.7 * 1.0 + 0.3 * 2.0, rel=1e-15)


def test_what_is_compared_is_what_was_said_after_the_local_steps() -> None:
    """w becomes 1.8 by training from 1: of 2.7 the peer is 0.9 away, and was 1.7."""
    task = line()
    peer = Learner(0, AdaptThenCombine(), task.trainer(CPU), task.start(0), task.shard(0, CPU), None, threshold=1.0)
    assert peer.mix(0, [Said(0.5, 0, plain(peer.train(0))), Said(0.5, 1, message(2.7))]) == Outcome(None)
    assert peer.params().item() == pytest.approx(2.25)


def test_with_diloco_among_neighbours_the_parameters_are_compared_too() -> None:
    peer = gossiper(0.0, threshold=1.0, algorithm=DiLoCo(lr=1.0, momentum=0.0))
    said = [Said(0.5, 0, plain(peer.train(0))), Said(0.25, 1, message(2.0)), Said(0.25, 2, message(1.0))]
    assert peer.mix(0, said) == Outcome(None, far=(1,))
    assert peer.params().item() == 0.25


# ---- How far the neighbours are


def test_the_mean_squared_distance_to_what_the_neighbours_said() -> None:
    """Of (3, 4) and (0, 1) from (0, 0): 25 and 1. By what was said, before it was mixed."""
    peer = gossiper(0.0, 0.0, me=1)
    assert peer.neighbour_distance() is None
    said = [Said(0.5, 0, message(3.0, 4.0)), Said(0.25, 1, plain(peer.train(0))), Said(0.25, 2, message(0.0, 1.0))]
    peer.mix(0, said)
    assert peer.neighbour_distance() == peer.evaluate(1).neighbour_distance == 13.0


def test_one_that_is_far_counts_and_one_that_is_not_finite_does_not() -> None:
    peer = gossiper(0.0, threshold=1.0)
    peer.mix(0, [Said(0.5, 0, plain(peer.train(0))), Said(0.25, 1, message(3.0)), Said(0.25, 2, message(nan))])
    assert peer.neighbour_distance() == 9.0


def test_a_peer_that_hears_nobody_knows_no_distance() -> None:
    peer = gossiper(0.0)
    peer.mix(0, [Said(1.0, 0, plain(peer.train(0)))])
    assert peer.neighbour_distance() is None


def test_between_two_exchanges_the_distance_is_that_of_the_last_round() -> None:
    """Gradient tracking says gradients first, and a run may end before it says parameters."""
    peer = gossiper(0.0, algorithm=gradient_tracking.AdaptThenCombine())
    for round in (0, 1):
        own = plain(peer.train(round))
        outcome = peer.mix(0, [Said(0.5, 0, own), Said(0.5, 1, {"y": torch.zeros(1, dtype=torch.float64)})])
        assert outcome.message is not None
        if round == 0:
            peer.mix(1, [Said(0.5, 0, plain(outcome.message)), Said(0.5, 1, message(2.0))])
    peer.drop_unfinished()
    assert peer.neighbour_distance() == 4.0
    assert peer.params().item() == 1.0


# ---- Shares, where the columns of the mixing matrix sum to 1


def pushed(*numbers: float, w: float) -> Message:
    return message(*numbers) | {"w": torch.tensor([w], dtype=torch.float64)}


def test_each_listener_is_told_a_counter_of_its_own() -> None:
    """Half of 8 and an eighth of 8; the own message is whole, and is weighed by the one who mixes."""
    peer = gossiper(8.0, algorithm=PushSum(), listeners={1: 0.5, 4: 0.125})
    said = shares(peer.train(0))
    assert {name: x.item() for name, x in said.own.items()} == {"x": 8.0, "w": 1.0}
    assert {to: {name: x.item() for name, x in m.items()} for to, m in said.to.items()} == {
        1: {"x": 4.0, "w": 0.5},
        4: {"x": 1.0, "w": 0.125},
    }


def test_counters_add_up_from_round_to_round_and_so_does_what_is_taken() -> None:
    """The peer keeps half of 8, then is given 3 and 1: 8 again; it gives half of that, and 8 is what it gave in all."""
    peer = gossiper(8.0, algorithm=PushSum(), listeners={1: 0.5})
    first = shares(peer.train(0))
    peer.mix(0, [Said(0.5, 0, first.own), Said(1.0, 1, pushed(3.0, w=0.25)), Said(1.0, 2, pushed(1.0, w=0.25))])
    assert peer.params().item() == 8.0
    second = shares(peer.train(1))
    assert second.to[1]["x"].item() == 4.0 + 4.0
    peer.mix(0, [Said(0.5, 0, second.own), Said(1.0, 1, pushed(5.0, w=0.5)), Said(1.0, 2, pushed(1.0, w=0.25))])
    assert peer.params().item() == (4.0 + 2.0 + 0.0) / (0.5 + 0.25 + 0.0)


def test_a_share_that_was_lost_comes_with_the_next() -> None:
    giver, taker = gossiper(8.0, algorithm=PushSum(), listeners={1: 0.5}), gossiper(2.0, me=1, algorithm=PushSum())
    giver.mix(0, [Said(0.5, 0, shares(giver.train(0)).own)])
    taker.mix(0, [Said(1.0, 1, shares(taker.train(0)).own)])
    assert taker.params().item() == 2.0
    said = shares(giver.train(1))
    taker.mix(0, [Said(1.0, 0, said.to[1]), Said(1.0, 1, shares(taker.train(1)).own)])
    assert taker.params().item() == (2.0 + 4.0 + 2.0) / (1.0 + 0.5 + 0.25)


def test_a_share_that_is_not_finite_is_dropped_and_made_up_for_by_nobody() -> None:
    """A listener that gave itself its weight would make mass of nothing: it keeps a quarter of 4, and is given 2."""
    peer = gossiper(4.0, me=1, algorithm=PushSum())
    own = shares(peer.train(0)).own
    said = [Said(1.0, 0, pushed(nan, w=0.5)), Said(0.25, 1, own), Said(1.0, 2, pushed(2.0, w=0.5))]
    assert peer.mix(0, said) == Outcome(None, rejected=(0,))
    assert peer.params().item() == (1.0 + 2.0) / (0.25 + 0.5)
    again = shares(peer.train(1)).own
    assert {name: x.item() for name, x in again.items()} == {"x": 3.0, "w": 0.75}


def test_under_push_sum_the_distance_is_between_what_the_peers_stand_for() -> None:
    """Shares of 5 at weight 0.5 and of 1 at 0.25 stand for 10 and 4; the peer itself for 8, and then 2."""
    peer = gossiper(8.0, algorithm=PushSum(), listeners={1: 0.5})
    own = shares(peer.train(0)).own
    peer.mix(0, [Said(0.5, 0, own), Said(1.0, 1, pushed(5.0, w=0.5)), Said(1.0, 2, pushed(1.0, w=0.25))])
    assert peer.neighbour_distance() == ((10 - 8) ** 2 + (4 - 8) ** 2) / 2


def test_parameters_in_float32_are_told_in_float64_and_mixed_in_float32() -> None:
    peer = gossiper(8.0, algorithm=PushSum(), listeners={1: 0.5}, dtype=torch.float32)
    said = shares(peer.train(0))
    assert {x.dtype for x in said.own.values()} == {torch.float32}
    assert {x.dtype for x in said.to[1].values()} == {torch.float64}
    peer.mix(0, [Said(0.5, 0, said.own), Said(1.0, 1, pushed(1.0, w=0.5))])
    assert peer.params().dtype is torch.float32
    assert peer.params().item() == 5.0


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
