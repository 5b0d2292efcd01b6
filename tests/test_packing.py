"""Between tensors and bytes: exact, whatever the dtypes and shapes, and without a copy where there need be none."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from peer.algorithms.algorithm import Message
from peer.daemon.packing import form_of, pack, unpack
from peer.errors import WireError

CPU = torch.device("cpu")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool]


@st.composite
def tensors(draw: Any) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = torch.Size(shape).numel() * dtype.itemsize
    bits = torch.frombuffer(
        bytearray(draw(st.binary(min_size=count, max_size=count))) or bytearray(1), dtype=torch.uint8
    )
    if dtype is torch.bool:
        bits = bits & 1
    return bits[:count].clone().view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


def bits_of(tensor: Tensor) -> list[int]:
    bits: list[int] = tensor.contiguous().view(-1).view(torch.uint8).tolist()
    return bits


@given(st.dictionaries(st.text("abcxyz", min_size=1, max_size=3), tensors(), min_size=1, max_size=4))
def test_a_message_comes_back_bit_for_bit(message: Message) -> None:
    """NaNs and negative zeros too; the names' order is nobody's business."""
    form = form_of(message)
    payload = pack(message)
    assert len(payload) == form.size_bytes
    back = unpack(bytearray(payload), form, CPU)
    assert back.keys() == message.keys()
    for name, tensor in message.items():
        assert (back[name].shape, back[name].dtype) == (tensor.shape, tensor.dtype)
        assert bits_of(back[name]) == bits_of(tensor)


@given(st.permutations(["x", "y", "z"]))
def test_the_bytes_do_not_depend_on_the_order_of_the_names(names: list[str]) -> None:
    values = {"x": torch.ones(2), "y": torch.zeros(1, dtype=torch.int8), "z": torch.arange(3)}
    message = {name: values[name] for name in names}
    assert bytes(pack(message)) == bytes(pack(values))
    assert form_of(message) == form_of(values)


def test_one_tensor_is_not_copied() -> None:
    x = torch.zeros(3)
    payload = pack({"x": x})
    x[1] = 1.0
    assert unpack(payload, form_of({"x": x}), CPU)["x"].tolist() == [0.0, 1.0, 0.0]


def test_what_arrives_is_not_copied_either() -> None:
    payload = bytearray(8)
    [x] = unpack(payload, form_of({"x": torch.zeros(1, dtype=torch.float64)}), CPU).values()
    payload[:] = bytes(pack({"x": torch.tensor([2.5], dtype=torch.float64)}))
    assert x.item() == 2.5


def test_the_bytes_are_little_endian_numbers_in_order() -> None:
    assert bytes(pack({"x": torch.tensor([1, -2], dtype=torch.int16)})) == b"\x01\x00\xfe\xff"


@pytest.mark.parametrize("x", [torch.arange(12.0).view(3, 4).t(), torch.arange(6.0)[::2], torch.ones(1).expand(4)])
def test_tensors_that_lie_otherwise_in_memory(x: Tensor) -> None:
    message = {"x": x, "y": x.clone().requires_grad_()}
    back = unpack(bytearray(pack(message)), form_of(message), CPU)
    assert torch.equal(back["x"], x)
    assert torch.equal(back["y"], x)


def test_a_payload_of_another_size_is_refused() -> None:
    with pytest.raises(WireError, match="7 bytes instead of 8"):
        unpack(bytearray(7), form_of({"x": torch.zeros(2)}), CPU)
