"""Partitions: no row is lost or repeated, whatever the numbers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import ConfigError
from peer.task.partition import partition

TEN = np.repeat(np.arange(10), 20)


def cut(kind: str, peers: int, labels: Any = TEN, seed: int = 0, **arguments: Any) -> list[Any]:
    return partition(kind, labels=labels, rows=len(labels), peers=peers, seed=seed, **arguments)


def assert_each_row_once(shards: list[Any], rows: int) -> None:
    assert sorted(np.concatenate(shards).tolist()) == list(range(rows))
    assert {shard.dtype for shard in shards} == {np.dtype(np.int64)}


label_arrays = st.lists(st.integers(0, 6), min_size=1, max_size=80).map(np.array)


@given(labels=label_arrays, peers=st.integers(1, 80), seed=st.integers(0, 2**63 - 1))
def test_iid_parts_are_equal_to_within_one(labels: Any, peers: int, seed: int) -> None:
    peers = min(peers, len(labels))
    shards = cut("iid", peers, labels, seed)
    assert_each_row_once(shards, len(labels))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(
    labels=label_arrays,
    peers=st.integers(1, 80),
    alpha=st.floats(1e-6, 1e6) | st.sampled_from([5e-324, 1e308]),
    seed=st.integers(0, 99),
)
def test_dirichlet_leaves_no_peer_empty(labels: Any, peers: int, alpha: float, seed: int) -> None:
    peers = min(peers, len(labels))
    shards = cut("dirichlet", peers, labels, seed, alpha=alpha)
    assert len(shards) == peers
    assert_each_row_once(shards, len(labels))
    assert min(len(shard) for shard in shards) >= 1


@given(labels=label_arrays, peers=st.integers(1, 20), each=st.integers(1, 7), seed=st.integers(0, 99))
def test_by_class_gives_each_peer_its_number_of_classes(labels: Any, peers: int, each: int, seed: int) -> None:
    try:
        shards = cut("by_class", peers, labels, seed, classes_per_peer=each)
    except ConfigError:
        classes, counts = np.unique(labels, return_counts=True)
        holders = -(-peers * each // len(classes))
        assert each > len(classes) or peers * each < len(classes) or peers > len(labels) or min(counts) < holders
        return
    assert_each_row_once(shards, len(labels))
    assert [len(set(labels[shard].tolist())) for shard in shards] == [each] * peers


def test_by_class_splits_a_class_evenly_among_its_holders() -> None:
    shards = cut("by_class", 8, classes_per_peer=5)
    assert {len(shard) for shard in shards} == {25}
    for label in range(10):
        assert sorted(int((TEN[shard] == label).sum()) for shard in shards) == [0] * 4 + [5] * 4


def test_sizes() -> None:
    shards = cut("sizes", 3, sizes=[150, 0, 50])
    assert [len(shard) for shard in shards] == [150, 0, 50]
    assert_each_row_once(shards, 200)


def test_sample_draws_with_replacement_from_a_stream_per_peer() -> None:
    few = partition("sample", labels=None, rows=5, peers=3, seed=1, rows_per_peer=40)
    more = partition("sample", labels=None, rows=5, peers=9, seed=1, rows_per_peer=40)
    assert [len(shard) for shard in few] == [40, 40, 40]
    assert {int(row) for row in few[0]} == {0, 1, 2, 3, 4}
    for mine, same in zip(few, more, strict=False):
        np.testing.assert_array_equal(mine, same)
    assert not np.array_equal(few[0], few[1])


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("iid", {}),
        ("dirichlet", {"alpha": 0.3}),
        ("by_class", {"classes_per_peer": 2}),
        ("sizes", {"sizes": [40] * 5}),
        ("sample", {"rows_per_peer": 9}),
    ],
)
def test_the_seed_decides(kind: str, arguments: dict[str, Any]) -> None:
    one, again, other = (cut(kind, 5, seed=seed, **arguments) for seed in (7, 7, 8))
    assert [shard.tolist() for shard in one] == [shard.tolist() for shard in again]
    assert [shard.tolist() for shard in one] != [shard.tolist() for shard in other]


def test_a_small_alpha_skews_and_a_large_one_does_not() -> None:
    def classes_held(alpha: float) -> float:
        shards = cut("dirichlet", 5, np.repeat(np.arange(10), 400), alpha=alpha)
        return float(np.mean([np.max(np.bincount(np.arange(10).repeat(400)[s])) / len(s) for s in shards]))

    assert classes_held(0.05) > 0.3
    assert classes_held(1000.0) < 0.13


REFUSED: list[tuple[str, int, dict[str, Any], str, str]] = [
    ("iid", 201, {}, "topology.peers", "201 peers, but only 200 training rows"),
    ("dirichlet", 4, {"alpha": 0.0}, "task.alpha", "above 0"),
    ("dirichlet", 4, {"alpha": float("nan")}, "task.alpha", "above 0"),
    ("by_class", 4, {}, "task.classes_per_peer", "needs it"),
    ("by_class", 4, {"classes_per_peer": 11}, "task.classes_per_peer", "only 10"),
    ("by_class", 4, {"classes_per_peer": 2}, "task.classes_per_peer", "leave out 2 of the 10"),
    ("by_class", 60, {"classes_per_peer": 10}, "task.classes_per_peer", "20 rows for the 60 peers"),
    ("sizes", 4, {}, "task.sizes", "needs it"),
    ("sizes", 4, {"sizes": [100, 100]}, "task.sizes", "2 sizes for 4 peers"),
    ("sizes", 2, {"sizes": [100, 99]}, "task.sizes", "add up to 199, but there are 200"),
    ("sizes", 2, {"sizes": [300, -100]}, "task.sizes", "negative"),
    ("sample", 2, {}, "task.rows_per_peer", "needs it"),
    ("sample", 2, {"rows_per_peer": 0}, "task.rows_per_peer", "at least 1"),
    ("random", 2, {}, "task.partition", "iid, dirichlet, by_class, sizes, sample"),
]


@pytest.mark.parametrize(("kind", "peers", "arguments", "key", "words"), REFUSED)
def test_what_cannot_be_is_refused(kind: str, peers: int, arguments: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        cut(kind, peers, **arguments)
    assert caught.value.key == key


@pytest.mark.parametrize("kind", ["dirichlet", "by_class"])
def test_regression_data_have_no_classes_to_deal_by(kind: str) -> None:
    with pytest.raises(ConfigError, match="no class labels"):
        partition(kind, labels=None, rows=10, peers=2, seed=0, classes_per_peer=1)


def test_no_rows_at_all() -> None:
    with pytest.raises(ConfigError, match="no training rows"):
        partition("iid", labels=None, rows=0, peers=1, seed=0)
