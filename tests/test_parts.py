"""Parts of the parameters: what is gossiped, what stays at the peer, and what is averaged apart from the algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.algorithms import dpsgd, gradient_tracking
from peer.algorithms.algorithm import Algorithm, Heard, Message, State
from peer.algorithms.combine import HeardMessages
from peer.algorithms.d2 import D2
from peer.algorithms.diloco import DiLoCo
from peer.algorithms.parts import Apart, Shared, Span, within
from peer.algorithms.push_sum import PushSum
from peer.learner import message_forms
from tests.four_peers import RING, TRACES, Matrix, check_rows_are_peers, numbers, random_rows, seeds, step

P: Matrix = np.array([numbers(row) for row in TRACES["push_sum_directed"]["P"]])
ALGORITHMS: dict[str, Algorithm] = {
    "dpsgd atc": dpsgd.AdaptThenCombine(),
    "dpsgd cta": dpsgd.CombineThenAdapt(),
    "gradient tracking atc": gradient_tracking.AdaptThenCombine(),
    "gradient tracking diging": gradient_tracking.Diging(),
    "d2": D2(),
    "diloco": DiLoCo(),
    "push-sum": PushSum(),
}
APART = {name: a for name, a in ALGORITHMS.items() if name != "dpsgd atc"}
EACH = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
EACH_APART = pytest.mark.parametrize("algorithm", APART.values(), ids=APART)

SIZE, ROUNDS = 6, 5
SPANS: list[tuple[Span, ...]] = [((2, 4),), ((0, 2),), ((4, 6),), ((0, 1), (2, 3), (5, 6)), ((1, 2), (3, 5)), ((0, 6),)]


def matrix_for(algorithm: Algorithm) -> Matrix:
    return P if algorithm.stochastic == "column" else RING


def rounds_of(algorithm: Algorithm, found: Tensor) -> list[Tensor]:
    """Return the parameters after each round, (n, d) each; `found` holds the start and then what is learned."""
    state, after = algorithm.init(found[0]), []
    for delta in found[1:]:
        torch.testing.assert_close(algorithm.at(state), algorithm.params(state), rtol=0, atol=0)
        state = step(algorithm, state, delta, 0.1, matrix_for(algorithm))
        after.append(algorithm.params(state))
    return after


def columns(x: Tensor, spans: Sequence[Span]) -> Tensor:
    return x[..., [i for a, b in spans for i in range(a, b)]]


def rest(spans: Sequence[Span]) -> list[int]:
    return [i for i in range(SIZE) if not any(a <= i < b for a, b in spans)]


# ---- What is gossiped, and what stays


@EACH
@pytest.mark.parametrize("spans", SPANS)
def test_the_shared_columns_are_the_algorithm_s_and_the_others_the_peer_s_own(
    algorithm: Algorithm, spans: tuple[Span, ...]
) -> None:
    found = random_rows(1, ROUNDS + 1, 4, SIZE)
    bare = rounds_of(algorithm, columns(found, spans))
    own = np.cumsum(found.numpy(), axis=0)[1:]  # a peer's own numbers have only its own steps
    for t, x in enumerate(rounds_of(Shared(algorithm, spans, SIZE), found)):
        torch.testing.assert_close(columns(x, spans), bare[t], rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(x.numpy()[:, rest(spans)], own[t][:, rest(spans)], rtol=1e-14)


@pytest.mark.parametrize("spans", SPANS)
def test_one_round_of_dpsgd_by_numpy(spans: tuple[Span, ...]) -> None:
    x, delta = random_rows(2, 2, 4, SIZE).numpy()
    expected = x + delta
    for a, b in spans:
        expected[:, a:b] = RING @ (x + delta)[:, a:b]
    [found] = rounds_of(Shared(dpsgd.AdaptThenCombine(), spans, SIZE), torch.from_numpy(np.stack([x, delta])))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)


@EACH
def test_nothing_personal_is_said(algorithm: Algorithm) -> None:
    """A message has the form that it has without the other columns."""
    spans, x = ((0, 1), (3, 5)), torch.arange(6.0)
    said, bare = (
        [{name: t.shape for name, t in form.items()} for form in message_forms(a, start)]
        for a, start in ((Shared(algorithm, spans, SIZE), x), (algorithm, x[[0, 3, 4]]))
    )
    assert said == bare


def test_a_message_of_shared_columns_says_the_parameters_in_them() -> None:
    algorithm = Shared(DiLoCo(), ((1, 2), (4, 6)), SIZE)
    _, said = algorithm.message(algorithm.init(torch.arange(6.0)), 0, None)
    found = algorithm.parameters_in(said, 0)
    assert found is not None
    assert found.tolist() == [1.0, 4.0, 5.0]


# ---- What is averaged apart


@EACH_APART
def test_parameters_follow_the_algorithm_and_statistics_are_averaged(algorithm: Algorithm) -> None:
    """s <- W (s + delta), or, where the columns of P sum to 1, s <- P (w (s + delta)) / w' with w' = P w."""
    found, W = random_rows(3, ROUNDS + 1, 4, SIZE), matrix_for(algorithm)
    bare = rounds_of(algorithm, found[..., :4])
    s, w = found[0, :, 4:].numpy(), np.ones((4, 1))
    for t, x in enumerate(rounds_of(Apart(algorithm, 4), found)):
        torch.testing.assert_close(x[:, :4], bare[t], rtol=1e-14, atol=1e-14)
        s, w = W @ (w * (s + found[t + 1, :, 4:].numpy())), W @ w
        s = s / w
        np.testing.assert_allclose(x[:, 4:].numpy(), s, rtol=1e-12)


@EACH_APART
@settings(deadline=None, max_examples=25)
@given(seed=seeds, count=st.integers(1, 5))
def test_statistics_never_leave_the_range_of_what_the_peers_held(algorithm: Algorithm, seed: int, count: int) -> None:
    assert not leaves_the_range(Apart(algorithm, 1), seed, count)


@EACH_APART
def test_without_that_they_would(algorithm: Algorithm) -> None:
    assert any(leaves_the_range(algorithm, seed, count=5) for seed in range(100))


def leaves_the_range(algorithm: Algorithm, seed: int, count: int) -> bool:
    """Say whether column 1 or 2 leaves what the peers held before they mixed, though W changes from round to round."""
    found, draws = random_rows(seed, ROUNDS + 1, count, 3), np.random.default_rng(seed)
    state = algorithm.init(found[0])
    for delta in found[1:]:
        held = (algorithm.at(state) + delta)[:, 1:]
        state = step(algorithm, state, delta, 0.1, random_matrix(algorithm, draws, count))
        mixed = algorithm.params(state)[:, 1:]
        above, below = mixed > held.max(dim=0).values + 1e-12, mixed < held.min(dim=0).values - 1e-12
        if bool((above | below).any()):
            return True
    return False


def random_matrix(algorithm: Algorithm, draws: np.random.Generator, count: int) -> Matrix:
    """Return columns that sum to 1, of which some keep nearly nothing, or a doubly stochastic matrix."""
    shares: Matrix = draws.uniform(0, 1, (count, count)) ** 4 + 1e-3 * np.eye(count)
    if algorithm.stochastic == "column":
        shares /= shares.sum(axis=0)
        return shares
    mean: Matrix = np.mean([np.eye(count)[draws.permutation(count)] for _ in range(3)], axis=0)
    return mean


def test_push_sum_divides_what_was_learned_by_a_weight_that_may_be_small() -> None:
    """A peer that has given all but a tenth away halves its variance: its z would fall by five times what it has."""
    tenth = np.array([[0.1, 0.0], [0.9, 1.0]])
    for algorithm, expected in ((PushSum(), 1.0 - 0.5 / 0.1), (Apart(PushSum(), 0), 0.5)):
        state = step(algorithm, algorithm.init(torch.ones(2, 1, dtype=torch.float64)), torch.zeros(2, 1), 0.1, tenth)
        state = algorithm.learned(state, torch.full((2, 1), -0.5, dtype=torch.float64), 0.1)
        assert algorithm.params(state)[0].item() == pytest.approx(expected)


@EACH_APART
@pytest.mark.parametrize("parameters", [0, 4])
def test_statistics_travel_once_a_round_and_no_message_is_empty(algorithm: Algorithm, parameters: int) -> None:
    forms = [numel(form) for form in message_forms(Apart(algorithm, parameters), torch.ones(SIZE))]
    assert min(forms) > 0
    if parameters:
        bare = [numel(form) for form in message_forms(algorithm, torch.ones(parameters))]
        bare[-1] += SIZE - parameters + (algorithm.stochastic == "column")
        assert forms == bare


def numel(message: Message) -> int:
    return sum(tensor.numel() for tensor in message.values())


@EACH_APART
def test_a_message_says_its_parameters_without_the_statistics(algorithm: Algorithm) -> None:
    apart, k = Apart(algorithm, 4), algorithm.exchanges - 1
    state = apart.init(torch.arange(6.0))
    for exchange in range(k):
        state, said = apart.message(state, exchange, None)
        state = apart.update(state, exchange, HeardMessages(((1.0, said, True),)))
    _, said = apart.message(state, k, None)
    found = apart.parameters_in(said, k)
    assert found is not None
    assert found.tolist() == [0.0, 1.0, 2.0, 3.0]


# ---- Both


@EACH_APART
def test_shared_parameters_and_shared_statistics(algorithm: Algorithm) -> None:
    """Columns 0 to 3 are trained; 1, 2 and 5 are gossiped, of which 5 is a statistic."""
    found, W = random_rows(4, ROUNDS + 1, 4, SIZE), matrix_for(algorithm)
    bare = rounds_of(algorithm, found[..., 1:3])
    own = np.cumsum(found.numpy(), axis=0)[1:]
    s, w = found[0, :, 5:].numpy(), np.ones((4, 1))
    for t, x in enumerate(rounds_of(within(algorithm, ((1, 3), (5, 6)), 4, SIZE), found)):
        s, w = W @ (w * (s + found[t + 1, :, 5:].numpy())), W @ w
        s = s / w
        torch.testing.assert_close(x[:, 1:3], bare[t], rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(x[:, 5:].numpy(), s, rtol=1e-12)
        np.testing.assert_allclose(x.numpy()[:, [0, 3, 4]], own[t][:, [0, 3, 4]], rtol=1e-14)


@pytest.mark.parametrize(
    ("spans", "parameters"), [(None, 4), (((1, 3),), 6), (((1, 3), (5, 6)), 4), (((3, 5),), 4), (((4, 6),), 4)]
)
@EACH
def test_rows_are_peers(algorithm: Algorithm, spans: tuple[Span, ...] | None, parameters: int) -> None:
    check_rows_are_peers(within(algorithm, spans, parameters, SIZE), matrix_for(algorithm), seed=5, size=SIZE)


# ---- Which of the two


@EACH
def test_what_needs_no_wrapper_has_none(algorithm: Algorithm) -> None:
    """So the bare algorithm's own bits come of it."""
    assert within(algorithm, None, SIZE, SIZE) is algorithm


def test_an_average_may_have_the_statistics_too() -> None:
    algorithm = ALGORITHMS["dpsgd atc"]
    assert within(algorithm, None, 4, SIZE) is algorithm
    assert within(algorithm, ((3, 5),), 4, SIZE) == Shared(algorithm, ((3, 5),), SIZE)


@EACH_APART
def test_what_may_leave_the_range_of_the_peers_gets_no_statistics(algorithm: Algorithm) -> None:
    assert within(algorithm, None, 4, SIZE) == Apart(algorithm, 4)
    assert within(algorithm, ((1, 3),), 4, SIZE) == Shared(algorithm, ((1, 3),), SIZE)
    assert within(algorithm, ((0, 4),), 4, SIZE) == Shared(algorithm, ((0, 4),), SIZE)
    assert within(algorithm, ((1, 3), (5, 6)), 4, SIZE) == Shared(Apart(algorithm, 2), ((1, 3), (5, 6)), SIZE)
    assert within(algorithm, ((2, 6),), 4, SIZE) == Shared(Apart(algorithm, 2), ((2, 6),), SIZE)
    assert within(algorithm, ((4, 5),), 4, SIZE) == Shared(Apart(algorithm, 0), ((4, 5),), SIZE)


@EACH
def test_a_wrapper_says_of_itself_what_the_algorithm_says(algorithm: Algorithm) -> None:
    for wrapped in (Shared(algorithm, ((1, 3),), SIZE), Apart(algorithm, 4)):
        for name in ("stochastic", "absent", "exchanges", "scope", "extrapolates"):
            assert getattr(wrapped, name) == getattr(algorithm, name)


# ---- Somebody's own algorithm


@dataclass(frozen=True)
class ByEdges:
    """x <- x + sum_j W_ij (x_j - x_i), from the edges, with names that others might think of too."""

    stochastic: Literal["doubly"] = "doubly"
    absent: Literal["keep_own"] = "keep_own"
    exchanges: int = 1
    scope: Literal["peer"] = "peer"
    extrapolates: bool = True

    def init(self, x: Tensor) -> State:
        return {"statistics": x}

    def at(self, state: State) -> Tensor:
        return self.params(state)

    def learned(self, state: State, delta: Tensor, lr: float) -> State:
        return {"statistics": state["statistics"] + delta}

    def message(self, state: State, k: int, noise: Tensor | None) -> tuple[State, Message]:
        return state, {"personal": state["statistics"]}

    def update(self, state: State, k: int, heard: Heard) -> State:
        edges = heard.edges()
        assert edges.own.keys() == edges.theirs.keys() == heard.sum().keys() == {"personal"}
        moved = (edges.weights * (edges.theirs["personal"] - edges.own["personal"])).sum(dim=0)
        return {"statistics": state["statistics"] + moved}

    def params(self, state: State) -> Tensor:
        return state["statistics"]

    def parameters_in(self, message: Message, k: int) -> Tensor | None:
        return message["personal"]


def test_an_algorithm_by_edges_sees_its_own_part_only_and_may_name_it_as_it_likes() -> None:
    algorithm = within(ByEdges(), ((0, 2), (3, 4)), 2, 4)
    starts = [torch.tensor(row, dtype=torch.float64) for row in ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0])]
    states = [algorithm.init(x) for x in starts]
    said = [algorithm.message(state, 0, None)[1] for state in states]
    heard = HeardMessages(((0.75, said[0], True), (0.25, said[1], False)))
    mixed = algorithm.params(algorithm.update(states[0], 0, heard))
    assert mixed.tolist() == [2.0, 3.0, 3.0, 5.0]
