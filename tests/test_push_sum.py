"""Push-sum and stochastic gradient push: exact fractions on a directed graph, and what theory says."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from peer.algorithms.dpsgd import AdaptThenCombine
from peer.algorithms.push_sum import PushSum
from peer.protocol.messages import Shares
from peer.simulator.gossiping import HeardRows, Rows
from tests.four_peers import (
    DIGITS,
    RING,
    TRACES,
    Matrix,
    check_rows_are_peers,
    check_the_distance_shrinks_by_slem,
    check_the_mean_moves_by_the_mean_step,
    check_what_was_sent_stays,
    descend,
    doubly_stochastic,
    heard_by,
    learners,
    numbers,
    play,
    random_rows,
    seeds,
    starting,
    step,
    symmetric,
)

GOSSIP = TRACES["push_sum_directed"]
P: Matrix = np.array([numbers(row) for row in GOSSIP["P"]])


@st.composite
def column_stochastic(draw: st.DrawFn) -> Matrix:
    """Return P of a random directed graph in which each peer shares itself out at random, and keeps some."""
    count = draw(st.integers(1, 6))
    seed = draw(seeds)
    draws = np.random.default_rng(seed)
    arcs = draws.random((count, count)) < draw(st.floats(0, 1))
    shares = draws.uniform(0.1, 1, (count, count)) * (arcs | np.eye(count, dtype=bool))
    columns: Matrix = shares / shares.sum(axis=0)
    return columns


# ---- The traces


def test_pure_gossip_on_a_directed_graph() -> None:
    """x, w and z = x / w in exact fractions; x and w are what each peer shares out next."""
    peers = learners(PushSum(), W=P, lr=0.0, starts=[1.0, 2.0, 3.0, 4.0])
    for round, truth in enumerate(GOSSIP["trace"]):
        shares = [peer.train(round) for peer in peers]
        own = [said.own for said in shares if isinstance(said, Shares)]
        assert [said["x"].item() for said in own] == pytest.approx(numbers(truth["x"]), rel=1e-12)
        assert [said["w"].item() for said in own] == pytest.approx(numbers(truth["w"]), rel=1e-12)
        assert [peer.params().item() for peer in peers] == pytest.approx(truth["z"], rel=DIGITS)
        for peer in peers:
            peer.mix(0, heard_by(peer.me, shares, P))


def test_the_limit_is_the_mean_where_x_alone_has_another() -> None:
    """x and w tend to the stationary distribution of P times their sums; what they have in common is the mean."""
    state = PushSum().init(torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64))
    for _ in range(100):
        state = step(PushSum(), state, torch.zeros(4, 1, dtype=torch.float64), 0.0, P)
    assert PushSum().params(state)[:, 0].tolist() == pytest.approx([GOSSIP["limit_z"]] * 4, rel=1e-12)
    assert state["x"][:, 0].tolist() == pytest.approx(numbers(GOSSIP["limit_x_without_weights"]), rel=1e-12)
    assert state["w"][:, 0].tolist() == pytest.approx(numbers(GOSSIP["limit_w"]), rel=1e-12)
    assert state["w"][:, 0].tolist() == pytest.approx([4 * share for share in numbers(GOSSIP["stationary"])])


def test_stochastic_gradient_push_on_a_directed_graph() -> None:
    peers = learners(PushSum(), W=P, lr=0.05)
    for round, expected in enumerate(TRACES["SGP_directed"]["z"]["0.05"][1:]):
        assert play(peers, round, P) == pytest.approx(expected, rel=DIGITS)


# ---- Theorems


@settings(deadline=None, max_examples=60)
@given(data=st.data(), W=column_stochastic(), seed=seeds)
def test_sums_are_conserved_and_weights_stay_positive(data: st.DataObject, W: Matrix, seed: int) -> None:
    """Whatever the peers find by themselves, and though P changes from round to round."""
    count = len(W)
    found = random_rows(seed, 6, count, 3)
    state = PushSum().init(found[0])
    for round, delta in enumerate(found[1:], start=1):
        order = data.draw(st.permutations(range(count)))
        state = step(PushSum(), state, delta, 0.1, W[np.ix_(order, order)])
        torch.testing.assert_close(state["x"].sum(dim=0), found[: round + 1].sum(dim=(0, 1)), rtol=1e-12, atol=1e-12)
        assert state["w"].sum().item() == pytest.approx(count, rel=1e-12)
        assert bool((state["w"] > 0).all())


@settings(deadline=None, max_examples=40)
@given(W=doubly_stochastic(), seed=seeds)
def test_on_a_doubly_stochastic_matrix_it_is_dpsgd(W: Matrix, seed: int) -> None:
    push, dpsgd = PushSum(), AdaptThenCombine()
    found = random_rows(seed, 6, len(W), 3)
    one, other = push.init(found[0]), dpsgd.init(found[0])
    for delta in found[1:]:
        one, other = step(push, one, delta, 0.1, W), step(dpsgd, other, delta, 0.1, W)
        torch.testing.assert_close(push.params(one), dpsgd.params(other), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one["w"], torch.ones(len(W), 1, dtype=torch.float64), rtol=1e-12, atol=0)


@settings(deadline=None, max_examples=20)
@given(W=doubly_stochastic(), seed=seeds)
def test_the_mean_moves_by_the_mean_step(W: Matrix, seed: int) -> None:
    check_the_mean_moves_by_the_mean_step(PushSum(), W, seed)


@settings(deadline=None, max_examples=20)
@given(W=symmetric(), seed=seeds)
def test_without_learning_the_distance_shrinks_by_slem(W: Matrix, seed: int) -> None:
    check_the_distance_shrinks_by_slem(PushSum(), W, seed)


@settings(deadline=None, max_examples=40)
@given(W=column_stochastic(), seed=seeds)
def test_rows_are_peers(W: Matrix, seed: int) -> None:
    check_rows_are_peers(PushSum(), W, seed)


# ---- What travels


@pytest.mark.parametrize("W", [P, RING], ids=["directed", "ring"])
def test_shares_that_travel_as_counters_come_to_the_same_as_the_matrix(W: Matrix) -> None:
    """The learners hear what their counters have grown by; the rows hear W @ x."""
    peers, state = learners(PushSum(), W=W, lr=0.05), starting(PushSum())
    for round in range(20):
        state = descend(PushSum(), state, 0.05, W)
        assert play(peers, round, W) == pytest.approx(PushSum().params(state)[:, 0].tolist(), rel=1e-12)


def test_messages_that_get_lost_delay_the_mean_and_do_not_move_it() -> None:
    """Half of them, at random, for twenty rounds; the same peers without counters would lose what was in them."""
    draws = np.random.default_rng(8)
    peers = learners(PushSum(), W=P, lr=0.0, starts=[1.0, 2.0, 3.0, 4.0])
    for round in range(100):
        shares = [peer.train(round) for peer in peers]
        for peer in peers:
            said = heard_by(peer.me, shares, P)
            arrived = [s for s in said if s.sender == peer.me or round >= 20 or draws.random() < 0.5]
            peer.mix(0, arrived)
    assert [peer.params().item() for peer in peers] == pytest.approx([2.5] * 4, rel=1e-12)


def test_a_message_says_the_ratio() -> None:
    said = {"x": torch.tensor([[1.0, 2.0], [3.0, 6.0]]), "w": torch.tensor([[0.5], [1.5]])}
    found = PushSum().parameters_in(said, 0)
    assert found is not None
    assert found.tolist() == [[2.0, 4.0], [2.0, 4.0]]


def test_what_was_sent_stays() -> None:
    check_what_was_sent_stays(PushSum())


def test_as_rows_the_message_of_one_that_is_not_finite_is_lost_as_a_whole() -> None:
    """Its x and its w: either alone would bias z. A row that is topped up instead would make mass of nothing."""
    x = torch.tensor([[1.0], [float("nan")], [3.0], [4.0]], dtype=torch.float64)
    heard = HeardRows(Rows(csr_array(P), keeps_sum=False), {"x": x, "w": torch.ones(4, 1, dtype=torch.float64)})
    among = [0, 2, 3]
    for name, said in (("x", [1.0, 3.0, 4.0]), ("w", [1.0, 1.0, 1.0])):
        assert heard.sum()[name][among, 0].tolist() == pytest.approx((P[np.ix_(among, among)] @ said).tolist())
