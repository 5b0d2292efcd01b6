"""The peer's half beside a coordinator and in a ring: traces, what is pushed, and what is made of what is given."""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.algorithms.algorithm import State
from peer.algorithms.beside import Beside, ElasticWorker, Member, Pushing
from peer.algorithms.combine import HeardMessages, weighted_sum
from peer.algorithms.dpsgd import AdaptThenCombine
from peer.algorithms.easgd import Elastic
from peer.algorithms.server import Optimiser, Sgd, weights
from tests.four_peers import (
    COMPLETE,
    DIGITS,
    START,
    TRACES,
    after,
    gradient,
    learners,
    numbers,
    random_rows,
    seeds,
    starting,
)

ALPHA, LR = Fraction(1, 10), Fraction(1, 20)
EVERY: dict[str, Beside] = {"pushing": Pushing(), "elastic": ElasticWorker(0.1), "member": Member()}
ALL = pytest.mark.parametrize("algorithm", EVERY.values(), ids=EVERY.keys())


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def learn(algorithm: Beside, state: State, lr: float, local_steps: int = 1) -> State:
    """Return the state of the four peers after local steps on their losses."""
    x = start = algorithm.at(state)
    for _ in range(local_steps):
        x = x - lr * gradient(x)
    return algorithm.learned(state, x - start, lr)


def pushed(algorithm: Beside, state: State) -> list[Tensor]:
    """Return what each of the four pushes, (1,)."""
    return list(algorithm.message(state, 0, None)[1]["u"])


def combined(terms: Sequence[Tensor], by: Sequence[float]) -> Tensor:
    return weighted_sum([(weight, {"x": term}) for weight, term in zip(by, terms, strict=True)])["x"]


# ---- Pushing


def rounds_of(server: Optimiser, lr: float, by: Sequence[float], rounds: int, local_steps: int = 1) -> list[float]:
    """Return the parameters that the server gives at the start and after each round, which are those of all peers."""
    workers = Pushing()
    state, centre = starting(workers), server.init(vector(START))
    found = [START]
    for _ in range(rounds):
        state = learn(workers, state, lr, local_steps)
        centre = server.step(centre, combined(pushed(workers, state), by))
        state = workers.adopted(state, server.given(centre))
        assert len(set(workers.params(state)[:, 0].tolist())) == 1
        found.append(workers.params(state)[0].item())
    return found


def test_the_trace_of_the_mean_gradient() -> None:
    """Local steps of rate 1, so that a push is the gradient; the server's rate is 0.1."""
    truth = numbers(TRACES["sync_mean_gradient_lr0.1"]["exact"])
    found = rounds_of(Sgd(0.1), 1.0, [0.25] * 4, len(truth) - 1)
    assert found == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize(("name", "by"), [("equal", weights([1] * 4)), ("10/20/30/40", weights([10, 20, 30, 40]))])
@pytest.mark.parametrize("local_steps", [1, 2, 4, 8])
def test_federated_averaging(local_steps: int, name: str, by: list[float]) -> None:
    truth = TRACES["local_SGD_FedAvg_lr0.1"]["traces"][f"H={local_steps},weights={name}"]["w"]
    assert rounds_of(Sgd(1.0), 0.1, by, len(truth) - 1, local_steps) == pytest.approx(truth, rel=DIGITS)


def test_what_is_pushed_of_one_plain_step_of_rate_1_is_the_gradient_itself() -> None:
    workers = Pushing()
    g = random_rows(4, 2, 5)
    state = workers.learned(workers.init(torch.zeros(2, 5, dtype=torch.float64)), -g, 1.0)
    assert torch.equal(workers.message(state, 0, None)[1]["u"], g)


def test_before_anything_was_learned_zeros_are_pushed() -> None:
    """A coordinator and a daemon want to know what a push looks like before there is one."""
    workers = Pushing()
    state = workers.init(vector(1.0, 2.0))
    assert workers.message(state, 0, None)[1]["u"].tolist() == [0.0, 0.0]
    state = workers.adopted(workers.learned(state, vector(1.0, 1.0), 0.1), vector(5.0, 6.0))
    assert workers.message(state, 0, None)[1]["u"].tolist() == [0.0, 0.0]


def test_what_was_learned_does_not_move_a_worker_that_pushes() -> None:
    """Its parameters are the coordinator's: nobody but the coordinator applies a push."""
    workers = Pushing()
    state = workers.learned(workers.init(vector(1.0)), vector(0.5), 0.1)
    assert workers.params(state).item() == workers.at(state).item() == 1.0
    assert workers.params(workers.adopted(state, vector(3.0))).item() == 3.0


# ---- Elastic workers


def elastic_rounds(count: int) -> list[list[float]]:
    """Return the four workers and the centre at the start and after each synchronous round, the workers as rows."""
    workers, server = ElasticWorker(float(ALPHA)), Elastic(float(ALPHA))
    state, centre = starting(workers), server.init(vector(START))
    found = [[*workers.params(state)[:, 0].tolist(), START]]
    for _ in range(count):
        state = learn(workers, state, float(LR))
        terms = [server.params(centre) - x for x in pushed(workers, state)]
        centre = server.step(centre, combined(terms, [1.0] * 4))
        state = workers.adopted(state, server.given(centre))
        found.append([*workers.params(state)[:, 0].tolist(), server.params(centre).item()])
    return found


def elastic_turns(count: int) -> list[list[float]]:
    """Return the same at the start and after each turn of one worker, each with a state of its own."""
    workers, server = ElasticWorker(float(ALPHA)), Elastic(float(ALPHA))
    states, centre = [workers.init(vector(START)) for _ in range(4)], server.init(vector(START))
    found = [[START] * 5]
    for event in range(count):
        i = event % 4
        x = workers.at(states[i])
        state = workers.learned(states[i], -float(LR) * gradient(x.expand(4, 1))[i], float(LR))
        state, message = workers.message(state, 0, None)
        centre = server.step(centre, server.params(centre) - message["u"])
        states[i] = workers.adopted(state, server.given(centre))
        found.append([*(workers.params(s).item() for s in states), server.params(centre).item()])
    return found


def exactly(count: int, taking_turns: bool) -> list[list[float]]:
    """Return the same by fractions: the formulas of Zhang et al. on bare numbers."""
    h, slopes = [1, 4, 9, 16], [3, 10, 21, 36]
    x, c = [Fraction(3, 2)] * 4, Fraction(3, 2)
    found = [[*map(float, x), float(c)]]
    for event in range(count):
        who = [event % 4] if taking_turns else range(4)
        pulls = {i: ALPHA * (x[i] - c) for i in who}
        x = [x[i] - pulls[i] - LR * (h[i] * x[i] - slopes[i]) if i in pulls else x[i] for i in range(4)]
        c += sum(pulls.values())
        found.append([*map(float, x), float(c)])
    return found


@pytest.mark.parametrize(
    ("play", "taking_turns", "truth"),
    [
        (elastic_rounds, False, TRACES["EASGD_sync"]["w0_w1_w2_w3_center"]),
        (elastic_turns, True, TRACES["EASGD_async_round_robin"]["events_0_to_8"]),
    ],
    ids=["rounds", "turns"],
)
def test_the_traces_of_elastic_averaging(
    play: Callable[[int], list[list[float]]], taking_turns: bool, truth: list[list[float]]
) -> None:
    """The file has ten digits; by fractions the same comes out to all of them."""
    found = play(24)
    np.testing.assert_allclose(found[: len(truth)], truth, rtol=DIGITS, atol=0)
    np.testing.assert_allclose(found, exactly(24, taking_turns), rtol=1e-12, atol=0)


def test_elastic_rounds_end_at_the_fixed_point() -> None:
    assert elastic_rounds(4000)[-1] == pytest.approx(TRACES["EASGD_sync"]["fixed_point"], rel=DIGITS)


def test_an_elastic_worker_pushes_where_it_started_from() -> None:
    workers = ElasticWorker(0.5)
    state = workers.learned(workers.init(vector(3.0)), vector(0.25), 0.1)
    assert workers.message(state, 0, None)[1]["u"].item() == 3.0
    assert workers.params(state).item() == workers.at(state).item() == 3.0
    state = workers.adopted(state, vector(1.0))
    assert workers.params(state).item() == 2.25
    assert state.keys() == {"x"}, "what was learned is applied once"


def test_an_elastic_worker_that_has_pushed_nothing_stays_where_it_is() -> None:
    """What it is given at the start answers nothing; it starts from parameters of its own."""
    workers = ElasticWorker(0.5)
    assert workers.params(workers.adopted(workers.init(vector(3.0)), vector(1.0))).item() == 3.0


# ---- Members of a ring


def test_members_that_adopt_the_mean_are_d_psgd_on_a_complete_graph() -> None:
    members = Member()
    state = starting(members)
    for _ in range(10):
        state = learn(members, state, 0.05)
        said = list(members.message(state, 0, None)[1]["x"])
        state = members.adopted(state, combined(said, [0.25] * 4))
    expected = after(AdaptThenCombine(), 10, 0.05, COMPLETE)
    assert members.params(state)[:, 0].tolist() == pytest.approx(expected, rel=1e-13)


def test_a_member_says_what_it_was_trained_to() -> None:
    members = Member()
    state = members.learned(members.init(vector(1.0, 2.0)), vector(0.5, -0.5), 0.1)
    message = members.message(state, 0, None)[1]
    assert message["x"].tolist() == members.params(state).tolist() == [1.5, 1.5]
    assert members.params(members.adopted(state, vector(7.0, 8.0))).tolist() == [7.0, 8.0]


# ---- What all have in common


@ALL
@settings(deadline=None, max_examples=10)
@given(seed=seeds, count=st.integers(1, 4))
def test_rows_are_peers(algorithm: Beside, seed: int, count: int) -> None:
    """And what all are given, (d,), is what each is given."""
    found = random_rows(seed, 4, count, 3)
    together, single = algorithm.init(found[0]), [algorithm.init(x) for x in found[0]]
    for delta, to_each in ((found[1], found[2]), (found[2], found[3][0])):
        together = algorithm.learned(together, delta, 0.1)
        single = [algorithm.learned(state, d, 0.1) for state, d in zip(single, delta, strict=True)]
        together, message = algorithm.message(together, 0, None)
        each = [algorithm.message(state, 0, None)[1] for state in single]
        for name, tensor in message.items():
            assert torch.equal(tensor, torch.stack([m[name] for m in each]))
        rows = to_each.expand(count, 3)
        together = algorithm.adopted(together, to_each)
        single = [algorithm.adopted(state, given) for state, given in zip(single, rows, strict=True)]
        assert torch.equal(algorithm.params(together), torch.stack([algorithm.params(state) for state in single]))
        assert torch.equal(algorithm.at(together), torch.stack([algorithm.at(state) for state in single]))


@ALL
def test_a_learner_trains_beside_a_coordinator(algorithm: Beside) -> None:
    """The message of its round is what goes to the coordinator: at w = 1.5, of rate 0.1."""
    peers = learners(algorithm)
    x = torch.full((4, 1), START, dtype=torch.float64)
    expected = {
        "pushing": {"u": 0.1 * gradient(x)},
        "elastic": {"u": x},
        "member": {"x": x - 0.1 * gradient(x)},
    }[next(name for name, known in EVERY.items() if known is algorithm)]
    for peer in peers:
        message = peer.train(0)
        assert isinstance(message, dict)
        assert message.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(message[name], tensor[peer.me], rtol=1e-14, atol=0)


@ALL
def test_what_was_handed_over_stays(algorithm: Beside) -> None:
    """A daemon sends from a tensor's own memory, while the next step computes."""
    found = random_rows(9, 7, 4)
    state, kept = algorithm.init(found[0]), [(found, found.clone())]
    for delta, to_peer in zip(found[1:4], found[4:], strict=True):
        state = algorithm.learned(state, delta, 0.1)
        state, message = algorithm.message(state, 0, None)
        kept += [(t, t.clone()) for t in (*state.values(), *message.values())]
        state = algorithm.adopted(state, to_peer)
    assert all(torch.equal(t, then) for t, then in kept)


@ALL
def test_what_does_not_fit_is_not_adopted(algorithm: Beside) -> None:
    state = algorithm.learned(algorithm.init(torch.zeros(3)), torch.ones(3), 0.1)
    for wrong in (torch.zeros(3, dtype=torch.float64), torch.zeros(1), torch.zeros(2)):
        with pytest.raises(AssertionError):
            algorithm.adopted(state, wrong)


@ALL
def test_nothing_is_mixed_beside_a_coordinator(algorithm: Beside) -> None:
    state = algorithm.init(vector(1.0))
    with pytest.raises(AssertionError, match="adopted"):
        algorithm.update(state, 0, HeardMessages(((1.0, {"x": vector(1.0)}, True),)))


def test_which_parameters_a_message_tells_of() -> None:
    x = vector(1.0)
    assert Pushing().parameters_in({"u": x}, 0) is None
    assert ElasticWorker(0.1).parameters_in({"u": x}, 0) is x
    assert Member().parameters_in({"x": x}, 0) is x
