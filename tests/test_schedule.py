"""Topologies that change with the round: the independently computed values, and the theorems they have to obey."""

import json
import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from topology import (
    RULES,
    SCHEDULES,
    Cycle,
    Drawn,
    Mobile,
    TopologyError,
    build,
    contraction,
    graph_of,
    is_connected,
    measured_rounds_to_consensus,
    mixing_matrix,
    neighbours,
    overview,
    rounds_to_consensus,
    schedule,
    slem,
    stochasticity,
    union_graph,
)
from topology import mixing_speed as mixing_speed_module
from topology.random_rounds import _dealt, _subsets
from topology.weights import weighted

TRUTH = json.loads((Path(__file__).parent / "truth" / "truth.json").read_text(encoding="utf-8"))
ONE_PEER = TRUTH["topologies"]["one_peer_exponential"]
BASE_K = TRUTH["base_k_plus_1"]
EPIDEMIC = TRUTH["epidemic_learning"]["values"]
PAIRWISE = TRUTH["random_pairwise_gossip"]["values"]


def connected_share(made, rounds):
    seen = overview(made, rounds)
    return seen.connected / seen.rounds


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def numbers(text):
    """Return the numbers in "k=2,n=11" or "ring n=4"."""
    return [int(part.partition("=")[2]) for part in text.replace(" ", ",").split(",") if "=" in part]


def made(family, peers, **options):
    if family == "mobile":
        options = {"threshold": 0.4, **options}
    return schedule(family, peers, **options)


def disagreement(x):
    """D2 = sum_i (x_i - mean)^2."""
    return float(((x - x.mean()) ** 2).sum())


def product_of(made):
    full = np.eye(made.peers)
    for round in range(made.period):
        full = made.matrix(round) @ full
    return full


def within_chance(values, expected, deviations=5.0):
    """Whether the mean of independent values is as near its expectation as their own spread explains."""
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    return abs(np.mean(values) - expected) <= deviations * error + 1e-12


def refused(key, *words, family, peers=8, **options):
    with pytest.raises(TopologyError) as caught:
        schedule(family, peers, **options)
    text = str(caught.value)
    assert caught.value.key == key, text
    assert "\n" not in text
    for word in words:
        assert word in text


# --- what every schedule keeps to


@st.composite
def schedules(draw, largest=14):
    family = draw(st.sampled_from(SCHEDULES))
    peers = draw(st.integers(1, largest))
    options = {"seed": draw(st.integers(0, 2**40))}
    if family == "base_k":
        options["k"] = draw(st.integers(1, max(1, peers - 1)))
    elif family == "random_matching":
        options["pairs"] = draw(st.integers(0, max(1, peers // 2)))
        options["among"] = draw(st.sampled_from([None, nx.cycle_graph(peers), nx.empty_graph(peers)]))
    elif family == "epidemic":
        options["fanout"] = draw(st.integers(1, max(1, peers - 1)))
        options["variant"] = draw(st.sampled_from(["oracle", "local"]))
    elif family == "mobile":
        options["threshold"] = draw(st.floats(0.05, 1.5))
        options["speed"] = draw(st.floats(0.0, 1.0))
    rule = draw(st.sampled_from(["auto", *RULES] if family == "mobile" else ["auto", "push"]))
    return family, rule, options, schedule(family, peers, weights=rule, **options)


@given(schedules(), st.integers(0, 12))
@settings(deadline=None, max_examples=150)
def test_every_round_is_a_mixing_matrix(drawn, round):
    """Rows, under push columns, sum to 1; and where both do the mean is preserved."""
    _, rule, options, made = drawn
    W = made.matrix(round)
    n = made.peers
    assert W.shape == (n, n)
    assert W.dtype == np.float64
    assert W.has_sorted_indices
    assert isinstance(W, sparse.csr_array)
    own = [W.indices[W.indptr[i] : W.indptr[i + 1]].tolist().count(i) for i in range(n)]
    assert own == [1] * n
    assert (W.data > 0.0).all()
    summed = W.sum(axis=0) if rule == "push" else W.sum(axis=1)
    np.testing.assert_allclose(summed, 1.0, rtol=0, atol=1e-15 * n)
    if rule == "auto" and options.get("variant") != "local":
        assert stochasticity(W) == "doubly"
    if stochasticity(W) == "doubly":
        x = np.random.default_rng(round).standard_normal(n)
        assert (W @ x).mean() == pytest.approx(x.mean(), abs=1e-12)
    if not made.directed:
        assert ((W.toarray() != 0.0) == (W.T.toarray() != 0.0)).all()


@given(schedules(), st.lists(st.integers(0, 30), min_size=1, max_size=8))
@settings(deadline=None, max_examples=60)
def test_rounds_may_be_asked_for_in_any_order(drawn, rounds):
    family, rule, options, in_any_order = drawn
    in_turn = schedule(family, in_any_order.peers, weights=rule, **options)
    expected = [in_turn.matrix(round).toarray() for round in range(31)]
    for round in rounds:
        assert (in_any_order.matrix(round).toarray() == expected[round]).all()


@pytest.mark.parametrize("family", ["random_matching", "epidemic", "mobile"])
def test_the_seed_is_what_counts(family):
    one, same, other = (made(family, 12, seed=seed) for seed in (1, 1, 2))
    for round in range(5):
        assert (one.matrix(round) != same.matrix(round)).nnz == 0
        assert (one.matrix(round) != other.matrix(round)).nnz > 0
    assert one.period is None
    assert (one.matrix(0) != one.matrix(40)).nnz > 0


@pytest.mark.parametrize("family", SCHEDULES)
def test_one_peer_listens_to_itself(family):
    alone = made(family, 1)
    assert (alone.peers, alone.period, alone.directed) == (1, 1, False)
    assert alone.matrix(0).toarray().tolist() == alone.matrix(7).toarray().tolist() == [[1.0]]
    assert list(union_graph(alone, 5)) == [0]
    assert (measured_rounds_to_consensus(alone), contraction(alone, 5), connected_share(alone, 5)) == (1, 0.0, 1.0)


@pytest.mark.parametrize("family", SCHEDULES)
def test_two_peers_meet(family):
    pair = made(family, 2, **({"threshold": 2.0} if family == "mobile" else {}))
    assert not pair.directed
    assert pair.matrix(3).toarray().tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("family", ["one_peer_exponential", "base_k", "random_matching", "epidemic"])
def test_push_keeps_the_graphs(family):
    own, push = made(family, 9), made(family, 9, weights="push")
    assert (push.period, push.directed) == (own.period, own.directed)
    for round in range(4):
        arcs = graph_of(own.matrix(round), True)
        assert set(graph_of(push.matrix(round), True).edges) == set(arcs.edges)
        close(push.matrix(round).toarray(), mixing_matrix(arcs, "push").toarray())


# --- cycles, drawn rounds, graphs


def test_a_cycle_takes_its_matrices_in_turn():
    ring = mixing_matrix(build("ring", 4).graph)
    arcs = mixing_matrix(build("exponential", 4).graph)
    static, turns = Cycle((ring,)), Cycle((ring, arcs))
    assert (static.peers, static.period, static.directed) == (4, 1, False)
    assert (turns.period, turns.directed) == (2, True)
    assert static.matrix(9) is ring
    assert [turns.matrix(round) is arcs for round in range(4)] == [False, True, False, True]


def test_drawn_rounds_are_kept_for_a_while():
    asked = []

    def draw(round):
        asked.append(round)
        return sparse.csr_array(np.eye(3))

    drawn = Drawn(3, draw, directed=True)
    for round in (0, 1, 0, 1, 2):
        drawn.matrix(round)
    assert asked == [0, 1, 2]
    assert (drawn.peers, drawn.period, drawn.directed) == (3, None, True)


def test_graphs_of_matrices():
    W = sparse.csr_array(np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.3, 0.7]]))  # 0 and 2 hear 1
    W.data[W.indptr[2]] = 0.0  # stored, and not heard
    arcs = graph_of(W, True)
    assert (list(arcs), set(arcs.edges)) == ([0, 1, 2], {(1, 0)})
    assert set(graph_of(W, False).edges) == {(0, 1)}


def test_the_union_is_who_ever_hears_whom():
    assert set(union_graph(schedule("one_peer_exponential", 11), 1).edges) == set(build("exponential", 11).graph.edges)
    for n in range(2, 30):
        assert is_connected(union_graph(schedule("base_k", n), 1))
    pairs = schedule("random_matching", 10, pairs=1, seed=3)
    assert union_graph(pairs, 1).number_of_edges() == 1
    assert union_graph(pairs, 40).number_of_edges() > 20
    ring = nx.cycle_graph(6)
    assert union_graph(schedule("random_matching", 6, among=ring), 40).edges == ring.edges


# --- one-peer exponential


@pytest.mark.parametrize("size", ONE_PEER)
def test_one_peer_exponential_truth(size):
    entry = ONE_PEER[size]
    n, period = entry["n"], entry["period"]
    made = schedule("one_peer_exponential", n)
    assert made.period == period
    x = np.arange(n, dtype=float)
    for round, expected in enumerate(entry["D2_ramp_rounds_0_to_2tau"]):
        assert disagreement(x) == pytest.approx(expected, rel=1e-9, abs=1e-12 * n**3)
        x = made.matrix(round) @ x
    residual = np.linalg.norm(product_of(made) - 1 / n, 2)
    close(residual, entry["norm2_residual_after_one_period"])
    waves = np.pi * np.arange(1, n) / n
    close(residual, (abs(np.sin(waves * 2**period)) / (2**period * np.sin(waves))).max())
    exact = entry["exact_after_one_period"]
    assert (measured_rounds_to_consensus(made) == period) == exact
    assert contraction(made, 1) == (0.0 if exact else pytest.approx(residual ** (1 / period), rel=1e-6))


@pytest.mark.parametrize("size", [size for size in ONE_PEER if ONE_PEER[size].get("any_order_exact")])
def test_one_peer_exponential_is_exact_in_any_order(size):
    made = schedule("one_peer_exponential", ONE_PEER[size]["n"])
    for order in list(permutations(made.matrices))[:24]:
        close(product_of(Cycle(order)), 1 / made.peers)


def test_one_peer_exponential_row_by_row():
    first, second, third = schedule("one_peer_exponential", 5).matrices
    for W, offset in ((first, 1), (second, 2), (third, 4)):
        expected = np.eye(5) / 2 + np.roll(np.eye(5), offset, axis=1) / 2  # i hears i + offset
        assert (W.toarray() == expected).all()
    assert schedule("one_peer_exponential", 3).directed


# --- Base-(k+1)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_base_k_is_exact_within_its_bounds(k):
    for n in range(2, 101):
        made = schedule("base_k", n, k=k)
        assert made.period <= 2 * math.log(n, k + 1) + 2 + 1e-9
        assert not made.directed
        for W in made.matrices:
            full = W.toarray()
            assert (full == full.T).all()
            assert abs(full.sum(axis=0) - 1).max() <= 1e-15 * n
            assert (full >= 0).all()
            assert (np.diff(W.indptr) - 1).max() <= k
        assert abs(product_of(made) - 1 / n).max() <= 1e-12
        assert made.period == BASE_K["lengths"].get(f"k={k},n={n}", {}).get("base_len", made.period)


@pytest.mark.parametrize("size", BASE_K["lengths"])
def test_base_k_truth(size):
    entry = BASE_K["lengths"][size]
    k, n = numbers(size)
    made = schedule("base_k", n, k=k)
    assert made.period == entry["base_len"] <= entry["theorem_bound_2log_plus_2"]
    assert measured_rounds_to_consensus(made, 1e-12) == entry["first_exact_round"]
    assert contraction(made, 1) == 0.0
    assert max(np.diff(W.indptr).max() - 1 for W in made.matrices) <= max(entry["max_degree_per_round"])


@pytest.mark.parametrize("size", BASE_K["base2_matrices"])
def test_base_k_in_exact_fractions(size):
    """The reference pairs other peers; the weights, the length and the product are the same."""
    (n,) = numbers(size)
    theirs = [[[Fraction(entry) for entry in row] for row in W] for W in BASE_K["base2_matrices"][size]]
    ours = [
        [[Fraction(entry).limit_denominator(n) for entry in row] for row in W.toarray().tolist()]
        for W in schedule("base_k", n).matrices
    ]
    for W, rational in zip(schedule("base_k", n).matrices, ours, strict=True):
        close(W.toarray(), np.array(rational, dtype=float))
    for matrices in (ours, theirs):
        full = np.eye(n, dtype=int) + Fraction(0)
        for W in matrices:
            full = np.array(W) @ full
        assert (full == Fraction(1, n)).all()
    assert len(ours) == len(theirs)
    assert {entry for W in ours for row in W for entry in row} == {entry for W in theirs for row in W for entry in row}


def test_base_k_with_k_at_its_most_is_the_complete_graph():
    for n in (2, 3, 7, 11):
        made = schedule("base_k", n, k=n - 1)
        assert made.period == 1
        close(made.matrix(0).toarray(), 1 / n)


@pytest.mark.parametrize(("n", "k"), [(1023, 1), (1200, 4), (3001, 2)])
def test_base_k_on_many_peers(n, k):
    made = schedule("base_k", n, k=k)
    assert made.period <= 2 * math.log(n, k + 1) + 2
    x = np.random.default_rng(0).standard_normal(n)
    mean = x.mean()
    for W in made.matrices:
        x = W @ x
    np.testing.assert_allclose(x, mean, rtol=0, atol=1e-13)


# --- random matchings


def pairs_of(W):
    return {tuple(sorted(edge)) for edge in graph_of(W, False).edges}


@pytest.mark.parametrize("n", [2, 5, 8, 9])
def test_as_many_pairs_as_possible(n):
    made = schedule("random_matching", n, seed=1)
    for round in range(20):
        W = made.matrix(round)
        met = pairs_of(W)
        assert len(met) == n // 2
        assert len({peer for pair in met for peer in pair}) == 2 * (n // 2)
        assert all(W[i, i] == W[i, j] == W[j, i] == W[j, j] == 0.5 for i, j in met)
    assert (
        made.matrix(3).toarray().tolist()
        == schedule("random_matching", n, pairs=0, seed=1).matrix(3).toarray().tolist()
    )


@given(st.integers(2, 12), st.data())
@settings(deadline=None, max_examples=40)
def test_so_many_pairs_as_asked_for(n, data):
    pairs = data.draw(st.integers(1, n // 2))
    graph = data.draw(st.sampled_from([nx.star_graph(n - 1), nx.path_graph(n), nx.complete_graph(n)]))
    for among in (None, graph):
        met = pairs_of(schedule("random_matching", n, pairs=pairs, among=among).matrix(data.draw(st.integers(0, 99))))
        ends = [peer for pair in met for peer in pair]
        assert len(ends) == len(set(ends))
        if among is None:
            assert len(met) == pairs
            continue
        assert met <= {tuple(sorted(edge)) for edge in graph.edges}
        assert len(met) == pairs or nx.is_maximal_matching(graph, met)


@pytest.mark.parametrize("among", [None, nx.complete_graph(4)])
def test_each_perfect_matching_is_equally_likely(among):
    made = schedule("random_matching", 4, among=among, seed=5)
    counts = Counter(frozenset(pairs_of(made.matrix(round))) for round in range(900))
    assert len(counts) == 3
    deviation = math.sqrt(900 * 1 / 3 * 2 / 3)
    assert all(abs(count - 300) <= 4 * deviation for count in counts.values())


def test_among_does_not_depend_on_how_its_graph_was_made():
    forth, back = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 0)]), nx.Graph([(3, 2), (0, 3), (2, 1), (1, 0)])
    ours, theirs = (schedule("random_matching", 4, pairs=1, among=graph) for graph in (forth, back))
    assert all((ours.matrix(round) != theirs.matrix(round)).nnz == 0 for round in range(20))


@pytest.mark.parametrize("case", PAIRWISE)
def test_pairwise_gossip_truth(case):
    kind, (n,) = case.split()[0], numbers(case)
    expected = next(iter(PAIRWISE[case].values()))
    graph = build(kind, n).graph
    made = schedule("random_matching", n, pairs=1, among=None if kind == "complete" else graph, seed=11)
    events = 12 * graph.number_of_edges()
    drawn = [made.matrix(round) for round in range(events)]
    start = np.random.default_rng(n).standard_normal(n)
    if kind == "ring":
        start = np.cos(2 * np.pi * np.arange(n) / n)  # the slowest Fourier mode
    before = disagreement(start)

    # Over the edges, each once: exact. All have to have come.
    by_edge = {frozenset(pairs_of(W)): W for W in drawn}
    assert {edge for (edge,) in by_edge} == {tuple(sorted(edge)) for edge in graph.edges}
    close(np.mean([disagreement(W @ start) / before for W in by_edge.values()]), expected)
    average = sum(W.toarray() for W in by_edge.values()) / len(by_edge)  # of W, which is W'W as each is a projection
    close(np.sort(np.linalg.eigvalsh(average))[-2], expected)

    # Over rounds as they came: each edge is as likely.
    assert within_chance([disagreement(W @ start) / before for W in drawn], expected)


# --- epidemic learning


@pytest.mark.parametrize("variant", ["oracle", "local"])
@pytest.mark.parametrize("size", EPIDEMIC)
def test_epidemic_truth(size, variant):
    entry, (n, s) = EPIDEMIC[size], numbers(size)
    oracle = (1 / (s + 1)) * (1 - s / (n - 1))
    local = (1 / s) * (1 - (1 - s / (n - 1)) ** n) - 1 / (n - 1)
    close([oracle, local], [entry["oracle_factor"], entry["local_factor_about_initial_mean"]])
    made = schedule("epidemic", n, fanout=s, variant=variant, seed=7)
    x = np.random.default_rng(1).standard_normal(n)
    x -= x.mean()
    ratios = [float(((made.matrix(round) @ x) ** 2).sum() / (x @ x)) for round in range(300)]
    assert within_chance(ratios, oracle if variant == "oracle" else local)


@pytest.mark.parametrize("s", [1, 2])
def test_epidemic_factors_by_enumeration(s):
    """Of 4 peers: all sets that each may send to, and all offsets and orders on the circle."""
    n = 4
    entry = EPIDEMIC[f"n=4,s={s}"]
    x = np.array([3.0, -1.0, 0.5, -2.5])
    receivers_of = [list(combinations([j for j in range(n) if j != i], s)) for i in range(n)]
    local = [
        weighted(n, np.array(sent).ravel(), np.repeat(np.arange(n), s), "uniform") for sent in product(*receivers_of)
    ]

    class Lot:
        def __init__(self, offsets, order):
            self.choice = lambda count, size, replace: np.array(offsets) - 1
            self.permutation = lambda count: np.array(order)

    lots = [Lot(offsets, order) for offsets in combinations(range(1, n), s) for order in permutations(range(n))]
    oracle = [weighted(n, *_dealt(lot, n, s), "uniform") for lot in lots]
    for matrices, key in ((local, "local_factor_about_initial_mean"), (oracle, "oracle_factor")):
        close(np.mean([((W @ x) ** 2).sum() for W in matrices]) / (x @ x), entry[key])


@pytest.mark.parametrize(("count", "size"), [(3, 2), (4, 2), (5, 3), (4, 4)])
def test_every_subset_is_equally_likely(count, size):
    """All that the generator can say, once each."""
    draws = list(product(*(range(last + 1) for last in range(count - size, count))))

    class Lot:
        def integers(self, low, high, size):
            return np.array([draw[high - 1 - (count - len(draw))] for draw in draws])

    chosen = Counter(frozenset(row) for row in _subsets(Lot(), len(draws), count, size).tolist())
    assert {len(subset) for subset in chosen} == {size}
    assert len(chosen) == math.comb(count, size)
    assert len(set(chosen.values())) == 1


@given(st.integers(2, 20), st.data())
@settings(deadline=None, max_examples=50)
def test_epidemic_hears_and_is_heard(n, data):
    s = data.draw(st.integers(1, n - 1))
    round = data.draw(st.integers(0, 1000))
    oracle = graph_of(schedule("epidemic", n, fanout=s).matrix(round), True)
    assert {degree for _, degree in oracle.in_degree} == {degree for _, degree in oracle.out_degree} == {s}
    local = schedule("epidemic", n, fanout=s, variant="local").matrix(round)
    arcs = graph_of(local, True)
    assert {degree for _, degree in arcs.out_degree} == {s}
    close(local.diagonal(), [1 / (1 + degree) for _, degree in sorted(arcs.in_degree)])


def test_epidemic_by_default_sends_to_log_n():
    for n, fanout in ((2, 1), (3, 2), (8, 3), (9, 4), (100, 7)):
        assert np.diff(schedule("epidemic", n).matrix(0).indptr).tolist() == [fanout + 1] * n
    assert schedule("epidemic", 8).directed
    assert not schedule("epidemic", 8, fanout=7).directed


# --- mobile peers


def apart_in(made, round):
    places = made.positions(round)
    return np.linalg.norm(places[:, None] - places[None], axis=2)


@given(st.integers(1, 12), st.floats(0.05, 1.5), st.floats(0, 1), st.floats(0, 0.3), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_hysteresis_holds_in_every_round(n, threshold, share, speed, seed):
    """Near pairs hear each other, far ones do not, and those between go on as they were."""
    margin = 0.99 * share * threshold
    made = schedule("mobile", n, threshold=threshold, margin=margin, speed=speed, seed=seed)
    before = np.zeros((n, n), dtype=bool)
    for round in range(25):
        heard = nx.to_numpy_array(graph_of(made.matrix(round), False)).astype(bool)
        apart = apart_in(made, round)
        expected = (apart <= threshold - margin) | (before & (apart <= threshold))
        np.fill_diagonal(expected, False)
        sure = (abs(apart - threshold) > 1e-8) & (abs(apart - threshold + margin) > 1e-8)
        assert (heard == expected)[sure].all()
        before = heard


def test_a_pair_on_the_border_does_not_come_and_go():
    made = schedule("mobile", 12, threshold=0.3, seed=3)
    wavering = schedule("mobile", 12, threshold=0.3, margin=0.0, seed=3)

    def changes(of):
        heard = [pairs_of(of.matrix(round)) for round in range(300)]
        return sum(len(a ^ b) for a, b in pairwise(heard))

    assert changes(made) < changes(wavering)


@given(st.integers(1, 10), st.floats(0, 2), st.integers(0, 2**32))
@settings(deadline=None, max_examples=30)
def test_peers_walk_straight_within_the_square(n, speed, seed):
    made = Mobile(n, threshold=0.5, speed=speed, seed=seed)
    places = np.array([made.positions(round) for round in range(30)])
    assert (places >= 0.0).all()
    assert (places <= 1.0).all()
    steps = np.diff(places, axis=0)
    lengths = np.linalg.norm(steps, axis=2)
    assert (lengths <= speed + 1e-12).all()
    # Two whole steps in a row are on the same way: one that ends at a waypoint is shorter.
    full = lengths >= speed - 1e-9
    turned = abs(steps[1:, :, 0] * steps[:-1, :, 1] - steps[1:, :, 1] * steps[:-1, :, 0]) > 1e-9
    assert not (turned & full[1:] & full[:-1]).any()


def test_a_peer_that_arrives_in_every_round_is_anywhere():
    made = schedule("mobile", 2000, threshold=0.001, speed=2.0, seed=1)
    for round in (0, 1, 5):
        places = made.positions(round)
        assert abs(places.mean(axis=0) - 0.5).max() <= 5 * math.sqrt(1 / 12 / 2000)
        assert len(np.unique(np.floor(places * 10), axis=0)) == 100


def test_more_peers_do_not_change_where_the_others_go():
    few, many = (Mobile(n, threshold=0.2, seed=4) for n in (5, 50))
    for round in (0, 40, 200):
        assert (few.positions(round) == many.positions(round)[:5]).all()


def test_positions_are_the_start():
    places = [[0.0, 0.0], [0.3, 0.0], [0.65, 0.0], [1.0, 1.0]]
    made = schedule("mobile", 4, threshold=0.35, margin=0.0, speed=0.0, positions=places)
    assert made.positions(9).tolist() == places
    assert pairs_of(made.matrix(9)) == {(0, 1), (1, 2)}
    assert pairs_of(schedule("mobile", 4, threshold=0.35, speed=0.0, positions=places).matrix(9)) == {(0, 1)}


@pytest.mark.parametrize("rule", ["auto", *RULES])
def test_those_who_stand_still_are_a_geometric_graph(rule):
    net = build("geometric", 60, seed=2)
    made = schedule("mobile", 60, threshold=0.2, margin=0.0, speed=0.0, weights=rule, positions=net.positions)
    expected = mixing_matrix(neighbours(net, "position", 0.2), rule)
    assert (made.matrix(3) != expected).nnz == 0
    assert (made.matrix(3).indices == expected.indices).all()


def test_an_older_round_is_walked_to_again():
    made = schedule("mobile", 20, threshold=0.3, seed=9)
    early = [made.matrix(round).toarray() for round in range(3)]
    assert made.matrix(500).shape == (20, 20)
    assert (made.matrix(1).toarray() == early[1]).all()
    assert (made.positions(0) == schedule("mobile", 20, threshold=0.1, seed=9).positions(0)).all()


# --- how fast


def test_static_schedules_take_what_slem_says():
    for family in ("ring", "star", "grid", "complete"):
        W = mixing_matrix(build(family, 9).graph)
        static = Cycle((W,))
        assert measured_rounds_to_consensus(static) == rounds_to_consensus(slem(W))
        assert contraction(static, 1) == slem(W)
        assert connected_share(static, 1) == 1.0


def brute_rounds(made, tolerance=1e-6):
    full = np.eye(made.peers)
    for round in range(400):
        full = made.matrix(round) @ full
        if np.linalg.norm(full - 1 / made.peers, 2) <= tolerance:
            return round + 1
    return None


@given(st.integers(2, 9), st.integers(0, 99))
@settings(deadline=None, max_examples=12)
def test_measured_rounds_are_the_first(n, seed):
    for family in ("one_peer_exponential", "random_matching", "epidemic", "mobile"):
        drawn = made(family, n, seed=seed)
        assert measured_rounds_to_consensus(drawn, limit=400) == brute_rounds(drawn)


def test_what_never_agrees():
    apart = Cycle((mixing_matrix(nx.Graph([(0, 1), (2, 3)])),))
    assert measured_rounds_to_consensus(apart, limit=50) is None
    assert contraction(apart, 1) == 1.0
    assert connected_share(apart, 1) == 0.0
    resting = schedule("random_matching", 4, among=nx.Graph([(0, 1), (2, 3)]))
    assert measured_rounds_to_consensus(resting, limit=50) is None
    assert contraction(resting, 50) == pytest.approx(1.0, abs=0.02)
    assert measured_rounds_to_consensus(schedule("one_peer_exponential", 8), limit=2) is None


def test_rows_that_agree_on_something_else_than_the_mean():
    W = mixing_matrix(build("star", 6).graph, "uniform")
    rounds = measured_rounds_to_consensus(Cycle((W,)))
    spread = np.ptp(np.linalg.matrix_power(W.toarray(), rounds), axis=0).max()
    assert spread <= 1e-6 < np.ptp(np.linalg.matrix_power(W.toarray(), rounds - 1), axis=0).max()


def test_push_agrees_after_its_weights_are_divided_out():
    arcs = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2), (2, 3), (3, 0)])
    push = Cycle((mixing_matrix(arcs, "push"),))
    rounds = measured_rounds_to_consensus(push)
    x, w = np.array([1.0, 2.0, 3.0, 10.0]), np.ones(4)
    for round in range(rounds):
        x, w = push.matrix(round) @ x, push.matrix(round) @ w
    np.testing.assert_allclose(x / w, 4.0, rtol=0, atol=1e-4)
    assert contraction(push, 1) == pytest.approx(np.sort(abs(np.linalg.eigvals(push.matrix(0).toarray())))[-2])


@pytest.mark.parametrize("family", ["one_peer_exponential", "base_k", "random_matching", "epidemic", "mobile"])
@pytest.mark.parametrize("weights", ["auto", "push"])
def test_large_schedules_are_measured_over_random_starts(family, weights, monkeypatch):
    drawn = made(family, 24, weights=weights, seed=2)
    held = measured_rounds_to_consensus(drawn)
    monkeypatch.setattr(mixing_speed_module, "_HELD_UP_TO", 0)
    assert measured_rounds_to_consensus(drawn) == pytest.approx(held, rel=0.3, abs=1)


def test_contraction_of_rounds_in_turn():
    ring, star = (mixing_matrix(build(family, 7).graph) for family in ("ring", "star"))
    turns = Cycle((ring, star))
    eigenvalues = np.sort(abs(np.linalg.eigvals((star @ ring).toarray())))
    assert contraction(turns, 1) == pytest.approx(math.sqrt(eigenvalues[-2]))


def test_contraction_measured_is_what_the_period_says(monkeypatch):
    turns = schedule("one_peer_exponential", 11)
    exact = contraction(turns, 1)
    monkeypatch.setattr(mixing_speed_module, "_HELD_UP_TO", 0)
    assert contraction(turns, 400) == pytest.approx(exact, rel=0.02)
    assert contraction(schedule("one_peer_exponential", 16), 400) == 0.0
    assert contraction(schedule("base_k", 13), 400) == 0.0


def test_contraction_of_drawn_rounds():
    """E[D2 after] / D2 of oracle rounds bounds the typical factor from above (Jensen)."""
    factor = contraction(schedule("epidemic", 16, fanout=2, seed=1), 1000)
    assert 0.8 * EPIDEMIC["n=16,s=2"]["oracle_factor"] <= factor**2 <= 1.05 * EPIDEMIC["n=16,s=2"]["oracle_factor"]
    assert contraction(schedule("epidemic", 6, fanout=5), 10) == 0.0


def test_connected_share():
    assert connected_share(schedule("one_peer_exponential", 8), 1) == 1 / 3  # offset 1 is a ring; 2 and 4 are not
    assert connected_share(schedule("one_peer_exponential", 7), 1) == 1.0
    assert connected_share(schedule("random_matching", 5), 20) == 0.0
    mobile = schedule("mobile", 10, threshold=0.45, seed=1)
    share = sum(is_connected(graph_of(mobile.matrix(round), False)) for round in range(100)) / 100
    assert connected_share(mobile, 100) == share
    assert 0.0 < share < 1.0


# --- refusals


def test_refusals_of_families_and_their_parameters():
    refused("family", "no schedule 'base-k'", "did you mean 'base_k'", "random_matching", family="base-k")
    refused("peers", "peers = 0", family="base_k", peers=0)
    refused("seed", "seed = -1", family="epidemic", seed=-1)
    values = {"k": 1, "fanout": 1, "variant": "local", "pairs": 1, "among": nx.path_graph(8), "speed": 0.1, "margin": 0}
    takes = {
        "one_peer_exponential": (),
        "base_k": ("k",),
        "random_matching": ("pairs", "among"),
        "epidemic": ("fanout", "variant"),
        "mobile": ("speed", "margin"),
    }
    for family, (key, value) in product(SCHEDULES, values.items()):
        if key in takes[family]:
            made(family, 8, **{key: value})
        else:
            refused(key, f"{family} does not take {key}", family=family, **{key: value})


@pytest.mark.parametrize("family", [family for family in SCHEDULES if family != "mobile"])
def test_families_that_bring_their_own_weights(family):
    for rule in ("metropolis", "uniform", "lazy"):
        refused("weights", family, "brings its own", "leave topology.weights out", family=family, weights=rule)
    refused("weights", "no rule 'shove'", family=family, weights="shove")


def test_refusals_of_numbers():
    for k in (0, -1):
        refused("k", f"k = {k}", "1 at least", family="base_k", peers=8, k=k)
    for fanout in (0, 8, -1):
        refused("fanout", f"fanout = {fanout}", "at most 7", family="epidemic", fanout=fanout)
    refused("variant", "no variant 'global'", "oracle local", family="epidemic", variant="global")
    for pairs in (5, -1):
        refused("pairs", f"pairs = {pairs}", "1 to 4", family="random_matching", pairs=pairs)
    refused("among", "undirected", family="random_matching", among=build("exponential", 8).graph)
    refused("among", "7 nodes", "peers = 8", family="random_matching", among=nx.path_graph(7))


def test_refusals_of_mobile_peers():
    for threshold in (0.0, -1.0, math.nan, math.inf):
        refused("threshold", f"threshold = {threshold}", family="mobile", threshold=threshold)
    for speed in (-0.1, math.nan, math.inf):
        refused("speed", f"speed = {speed}", family="mobile", speed=speed)
    for margin in (-0.1, 0.2, 0.5, math.nan):
        refused("margin", f"margin = {margin}", "threshold = 0.2", family="mobile", threshold=0.2, margin=margin)
    refused("weights", "no rule 'shove'", family="mobile", weights="shove")
    inside = [[0.5, 0.5]] * 8
    refused("peers", "peer 7", "[0.5, 1.5]", "unit square", family="mobile", positions=[*inside[:7], [0.5, 1.5]])
    refused("peers", "3 positions for 8 peers", family="mobile", positions=inside[:3])
