"""What travels between workers and coordinators, cut and put together again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.algorithms.compress import Cast, Codec, Identity, SparseRows
from peer.daemon.packing import form_of, pack, ragged_bytes, unpack, unpack_ragged
from peer.errors import WireError
from peer.parcels import Parcels, even_spans
from peer.pieces import added, assembled, divided
from peer.protocol.ring import cut

CPU = torch.device("cpu")
TABLE = (3, 4, 2)  # from column 3 on, 4 rows of 2


def parcels(size: int, servers: int = 1, codec: Codec | None = None, *, sparse: bool = False) -> Parcels:
    own: Codec = codec or Identity()
    pushed: tuple[Codec, ...] = (SparseRows((TABLE,), own),) if sparse else (own,) * servers
    return Parcels(even_spans(size, servers), own, pushed, torch.float32)


@given(st.integers(1, 200), st.integers(1, 12))
def test_spans_cover_all_columns_once_and_differ_by_one_at_most(size: int, parts: int) -> None:
    spans = even_spans(size, parts)
    assert [column for a, b in spans for column in range(a, b)] == list(range(size))
    lengths = [b - a for a, b in spans]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_what_is_pushed_and_given_comes_back_whole(servers: int) -> None:
    u, some = torch.randn(7), parcels(7, servers)
    assert torch.equal(torch.cat([some.pushed_to(i, part) for i, part in enumerate(some.push(u))]), u)
    assert torch.equal(some.given_by_all([some.give(u[a:b]) for a, b in some.spans]), u)


def test_halves_travel_in_half_the_bytes() -> None:
    u, some = torch.randn(100), parcels(100, codec=Cast(torch.bfloat16))
    (part,) = some.push(u)
    assert pack(part).nbytes == 200
    assert torch.equal(some.pushed_to(0, part), u.bfloat16().float())


@pytest.mark.parametrize("touched", [[], [1], [0, 3], [0, 1, 2], [0, 1, 2, 3]])
def test_rows_of_a_table_travel_through_bytes_and_back(touched: list[int]) -> None:
    u, some = torch.zeros(15), parcels(15, sparse=True)
    u[:3], u[11:] = torch.randn(3), torch.randn(4)
    for row in touched:
        u[3 + 2 * row : 5 + 2 * row] = torch.randn(2)
    (part,) = some.push(u)
    payload = bytearray(pack(part))
    assert len(payload) <= ragged_bytes(form_of(part), 15)
    form = form_of(some.push(torch.zeros(15))[0])  # by the own layout, before anything has come
    assert torch.equal(some.pushed_to(0, unpack_ragged(payload, form, CPU)), u)


@given(st.binary(max_size=120), st.integers(0, 3))
def test_bytes_of_a_stranger_are_refused_in_words(garbage: bytes, wrong: int) -> None:
    """Whatever comes, it is a WireError or a vector of the right length."""
    some = parcels(15, sparse=True)
    (part,) = some.push(torch.ones(15))
    payload, form = bytearray(pack(part)), form_of(some.push(torch.zeros(15))[0])
    for i, byte in enumerate(garbage):
        payload[(i * 7 + wrong) % len(payload)] ^= byte
    try:
        u = some.pushed_to(0, unpack_ragged(payload, form, CPU))
    except WireError:
        return
    assert u.shape == (15,)


def test_a_push_that_is_too_short_is_no_push() -> None:
    form = form_of(parcels(15, sparse=True).push(torch.zeros(15))[0])
    with pytest.raises(WireError, match="too few"):
        unpack_ragged(bytearray(3), form, CPU)


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 9))
def test_pieces_of_a_ring_sum_to_the_mean(size: int, members: int, piece: int) -> None:
    segments = cut(size, members, piece)
    vectors = [torch.arange(size, dtype=torch.float64) * (k + 1) for k in range(members)]
    weights = [float(k + 1) for k in range(members)]
    total = divided(vectors[0], weights[0], segments)
    for x, w in zip(vectors[1:], weights[1:], strict=True):
        more = divided(x, w, segments)
        total = tuple(tuple(map(added, a, b)) for a, b in zip(total, more, strict=True))
    expected = sum(w * x for x, w in zip(vectors, weights, strict=True)) / sum(weights)
    assert torch.allclose(assembled(total, sum(weights)), torch.as_tensor(expected), rtol=1e-14)


def test_a_piece_of_another_length_is_not_stretched() -> None:
    with pytest.raises(AssertionError):
        added(torch.ones(1), torch.ones(4))


def test_a_message_of_fixed_size_is_unpacked_by_its_form() -> None:
    message = {"x": torch.randn(5)}
    assert torch.equal(unpack(bytearray(pack(message)), form_of(message), CPU)["x"], message["x"])
