"""Codecs: what comes back, what is lost, what travels, and what is refused."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.algorithms.combine import is_finite
from peer.algorithms.compress import Cast, Codec, Identity, SparseRows, Table, codec_of
from peer.errors import ConfigError, WireError
from tests.four_peers import random_rows, seeds

FP16, BF16 = Cast(torch.float16), Cast(torch.bfloat16)
TABLES: tuple[Table, ...] = ((2, 4, 3), (14, 5, 1), (21, 6, 2))
SIZE = 35  # the tables, and beside them columns 0, 1, 19, 20, 33 and 34
SPARSE = SparseRows(TABLES, Identity())


def numbers(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def round_trip(codec: Codec, x: Tensor, name: str = "x") -> Tensor:
    return codec.decode(codec.encode({name: x}), x.dtype)[name]


def forms(message: Message) -> dict[str, Any]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in message.items()}


# ---- Identity and Cast


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_identity_brings_everything_back(dtype: torch.dtype) -> None:
    x = random_rows(1, 3, 7).to(dtype)
    assert round_trip(Identity(), x).dtype == dtype
    assert torch.equal(round_trip(Identity(), x), x)


@pytest.mark.parametrize("like", [torch.float32, torch.float64])
@pytest.mark.parametrize("codec", [FP16, BF16], ids=["fp16", "bf16"])
def test_what_16_bits_hold_comes_back(codec: Cast, like: torch.dtype) -> None:
    x = numbers(0.0, -0.0, 1.0, -1.5, 2.0**-14, 96.0, 1 / 128, dtype=like)
    found = round_trip(codec, x)
    assert found.dtype == like
    assert torch.equal(found, x)
    assert torch.equal(found.signbit(), x.signbit())


@pytest.mark.parametrize(("codec", "digits"), [(FP16, 11), (BF16, 8)], ids=["fp16", "bf16"])
@given(seed=seeds)
def test_what_is_lost_is_half_a_unit_of_the_last_binary_digit(codec: Cast, digits: int, seed: int) -> None:
    x = random_rows(seed, 2, 50).sign() * random_rows(seed, 2, 50).abs().clamp(0.01, 100)
    assert bool(((round_trip(codec, x) - x).abs() <= 2.0**-digits * x.abs()).all())


def test_casting_rounds_to_even_by_hand() -> None:
    """From 1 on, fp16 has steps of 2^-10 and bf16 of 2^-7; from the middle it goes to the even one."""
    assert round_trip(FP16, numbers(1 + 2**-11, 1 + 3 * 2**-11)).tolist() == [1.0, 1 + 2 * 2**-10]
    assert round_trip(BF16, numbers(1 + 2**-8, 1 + 3 * 2**-8)).tolist() == [1.0, 1 + 2 * 2**-7]


@pytest.mark.parametrize("like", [torch.float32, torch.float64])
def test_what_is_too_large_for_fp16_becomes_infinite_and_can_be_screened(like: torch.dtype) -> None:
    """65504 is the largest; from 65520 on it is rounded away. bf16 reaches as far as float32."""
    x = numbers(65504.0, 65519.0, 65520.0, -1e6, dtype=like)
    assert is_finite({"x": x})
    decoded = FP16.decode(FP16.encode({"x": x}), like)
    assert decoded["x"].tolist() == [65504.0, 65504.0, float("inf"), float("-inf")]
    assert not is_finite(decoded)
    assert is_finite({"x": round_trip(BF16, x)})


@pytest.mark.parametrize("codec", [Identity(), FP16, BF16], ids=["none", "fp16", "bf16"])
def test_what_is_not_finite_stays_so(codec: Codec) -> None:
    x = numbers(float("inf"), float("-inf"), float("nan"))
    found = round_trip(codec, x)
    assert found[:2].tolist() == [float("inf"), float("-inf")]
    assert bool(found[2].isnan())


@pytest.mark.parametrize("codec", [Identity(), FP16, BF16], ids=["none", "fp16", "bf16"])
def test_rows_are_messages(codec: Codec) -> None:
    x = random_rows(3, 4, 6)
    assert torch.equal(round_trip(codec, x), torch.stack([round_trip(codec, row) for row in x]))


@pytest.mark.parametrize(
    ("codec", "dtype"), [(Identity(), torch.float32), (FP16, torch.float16), (BF16, torch.bfloat16)]
)
@given(seed=seeds, factor=st.sampled_from([0.0, 1e-30, 1.0, 1e30]))
def test_the_form_does_not_depend_on_the_numbers(codec: Codec, dtype: torch.dtype, seed: int, factor: float) -> None:
    message = {"u": (factor * random_rows(seed, 5)).to(torch.float32), "n": torch.tensor([3])}
    assert forms(codec.encode(message)) == {"u": (dtype, (5,)), "n": (torch.int64, (1,))}


def test_whole_numbers_are_not_cast() -> None:
    n = torch.tensor([2**40 + 1])
    assert torch.equal(round_trip(BF16, n, "n"), n)


@pytest.mark.parametrize(("name", "codec"), [("none", Identity()), ("fp16", FP16), ("bf16", BF16)])
def test_codecs_have_the_names_of_the_experiment_file(name: str, codec: Codec) -> None:
    assert codec_of(name) == codec


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"compression\.name: there is no top_k; there are none, fp16, bf16"):
        codec_of("top_k")


# ---- SparseRows


@st.composite
def pushes(draw: st.DrawFn) -> Tensor:
    """Return a push of which, at random, few or many rows of the tables are touched, in some or all columns."""
    u = random_rows(draw(seeds), SIZE)
    kept = torch.tensor(draw(st.lists(st.booleans(), min_size=SIZE, max_size=SIZE)))
    u = torch.where(kept, u, torch.zeros_like(u))
    for offset, rows, columns in TABLES:
        touched = torch.tensor(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
        u[offset : offset + rows * columns].view(rows, columns)[~touched] = 0
    return u


@given(u=pushes())
def test_sparse_rows_lose_nothing(u: Tensor) -> None:
    assert torch.equal(round_trip(SPARSE, u, "u"), u)


@given(u=pushes())
def test_of_a_table_at_most_half_of_the_rows_or_all_travel(u: Tensor) -> None:
    message = SPARSE.encode({"u": u})
    for i, (offset, rows, columns) in enumerate(TABLES):
        touched = (u[offset : offset + rows * columns].view(rows, columns) != 0).any(dim=1)
        count = int(touched.sum())
        is_whole = count > rows / 2
        assert message[f"rows-{i}"].tolist() == ([] if is_whole else touched.nonzero().view(-1).tolist())
        assert len(message[f"values-{i}"]) == columns * (rows if is_whole else count)


@given(u=pushes())
def test_names_and_dtypes_of_sparse_rows_do_not_depend_on_the_numbers(u: Tensor) -> None:
    message = SparseRows(TABLES, FP16).encode({"u": u.to(torch.float32)})
    expected = {"rest": torch.float16}
    for i in range(len(TABLES)):
        expected |= {f"rows-{i}": torch.int32, f"values-{i}": torch.float16}
    assert {name: tensor.dtype for name, tensor in message.items()} == expected
    assert all(tensor.dim() == 1 for tensor in message.values())


def test_sparse_rows_by_hand() -> None:
    """A table of 4 rows and 2 columns behind one number and before another; then one row more than half of it."""
    codec = SparseRows(((1, 4, 2),), Identity())
    u = numbers(9, 0, 0, 0, 5, 0, 0, 6, 7, 8)
    message = codec.encode({"u": u})
    assert {name: tensor.tolist() for name, tensor in message.items()} == {
        "rest": [9, 8],
        "rows-0": [1, 3],
        "values-0": [0, 5, 6, 7],
    }
    u[1] = 1
    assert {name: tensor.tolist() for name, tensor in codec.encode({"u": u}).items()} == {
        "rest": [9, 8],
        "rows-0": [],
        "values-0": [1, 0, 0, 5, 0, 0, 6, 7],
    }
    assert torch.equal(round_trip(codec, u, "u"), u)


def test_an_untouched_embedding_costs_nothing() -> None:
    """Also where the push was turned around, -delta: minus zero is zero."""
    u = -torch.zeros(1000 * 64 + 3)
    assert bool(u.signbit().all())
    message = SparseRows(((3, 1000, 64),), Identity()).encode({"u": u})
    assert {name: len(tensor) for name, tensor in message.items()} == {"rest": 3, "rows-0": 0, "values-0": 0}


def test_a_row_that_is_not_finite_travels() -> None:
    u = torch.zeros(SIZE)
    u[5], u[22] = float("nan"), float("inf")
    found = round_trip(SPARSE, u, "u")
    assert bool(found[5].isnan())
    assert found[22] == float("inf")
    assert not is_finite({"u": found})


@given(u=pushes())
def test_what_is_inside_sparse_rows_does_the_same_to_all_numbers(u: Tensor) -> None:
    assert torch.equal(round_trip(SparseRows(TABLES, BF16), u, "u"), round_trip(BF16, u))


def test_without_tables_all_is_rest() -> None:
    u = random_rows(2, 5)
    message = SparseRows((), Identity()).encode({"u": u})
    assert forms(message) == {"rest": (torch.float64, (5,))}
    assert torch.equal(round_trip(SparseRows((), Identity()), u, "u"), u)


@pytest.mark.parametrize("wrong", [torch.zeros(2, SIZE), torch.zeros(())])
def test_sparse_rows_are_for_one_peer_s_push(wrong: Tensor) -> None:
    with pytest.raises(AssertionError):
        SPARSE.encode({"u": wrong})
    with pytest.raises(AssertionError):
        SPARSE.encode({"x": torch.zeros(SIZE)})


@pytest.mark.parametrize("tables", [((4, 2, 2), (0, 2, 2)), ((0, 2, 2), (3, 2, 2)), ((0, 0, 2),), ((0, 2, 0),)])
def test_tables_are_in_order_and_apart(tables: tuple[Table, ...]) -> None:
    with pytest.raises(AssertionError):
        SparseRows(tables, Identity())


HALF = {"rest": torch.zeros(6), "rows-1": torch.tensor([], dtype=torch.int32), "values-1": torch.tensor([])}
HALF |= {"rows-2": torch.tensor([], dtype=torch.int32), "values-2": torch.tensor([])}


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        ([0, 4], 6),  # not in the table
        ([-1, 2], 6),
        ([2, 1], 6),  # not ascending
        ([1, 1], 6),
        ([0, 1], 5),  # not what two rows hold
        ([0, 1], 9),
        ([], 3),  # neither nothing nor all
        ([], 13),
        ([0, 1, 2, 3, 4], 15),
    ],
)
def test_what_cannot_be_of_these_tables_is_refused(rows: list[int], values: int) -> None:
    """Another machine has sent it."""
    message = HALF | {"rows-0": torch.tensor(rows, dtype=torch.int32), "values-0": torch.ones(values)}
    with pytest.raises(WireError):
        SPARSE.decode(message, torch.float32)


def test_a_push_that_ends_before_its_tables_is_refused() -> None:
    none = {"rows-0": torch.tensor([], dtype=torch.int32), "values-0": torch.tensor([])}
    assert len(SPARSE.decode(HALF | none, torch.float32)["u"]) == SIZE
    with pytest.raises(WireError, match="ends before"):
        SPARSE.decode(HALF | none | {"rest": torch.zeros(3)}, torch.float32)


# ---- What all have in common


@pytest.mark.parametrize(
    "codec", [Identity(), FP16, BF16, SPARSE, SparseRows(TABLES, FP16)], ids=["none", "fp16", "bf16", "rows", "both"]
)
@given(u=pushes())
def test_nothing_that_is_handed_over_is_changed(codec: Codec, u: Tensor) -> None:
    u = u.to(torch.float32)
    message = {"u": u}
    kept = u.clone()
    encoded = codec.encode(message)
    assert message == {"u": u}
    assert torch.equal(u, kept)
    then = {name: tensor.clone() for name, tensor in encoded.items()}
    codec.decode(encoded, torch.float32)
    assert encoded.keys() == then.keys()
    assert all(torch.equal(tensor, then[name]) for name, tensor in encoded.items())
