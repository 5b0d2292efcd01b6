"""Data sets: what comes in, what is converted, what is refused and in which words."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import ConfigError
from peer.task.data import load_data
from peer.task.dataset import DataSet
from peer.task.labels import count_classes, with_labels

torch.set_num_threads(1)

SaveNpz = Callable[..., DataSet]


@pytest.fixture
def npz(tmp_path: Path) -> SaveNpz:
    """Write the arrays given to a file and load it."""

    def load(dtype: torch.dtype = torch.float32, **arrays: Any) -> DataSet:
        np.savez(tmp_path / "my rows.npz", **arrays)
        return load_data("npz:my rows.npz", folder=tmp_path, dtype=dtype)

    return load


# --- mnist5k and inline


def test_mnist5k_has_the_fixed_split(tmp_path: Path) -> None:
    data = load_data("mnist5k", folder=tmp_path, dtype=torch.float32)
    assert data.x_test is not None
    assert data.y_test is not None
    assert data.x.shape == (4000, 1, 28, 28)
    assert data.x_test.shape == (1000, 1, 28, 28)
    assert data.x.dtype is torch.float32
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
    assert data.y.tolist() == [digit for digit in range(10) for _ in range(400)]
    assert data.y_test.tolist() == [digit for digit in range(10) for _ in range(100)]
    assert data.classes == 10
    file = np.load(Path(__file__).parents[1] / "peer/task/mnist5k.npz")
    np.testing.assert_array_equal((data.x[400:800, 0] * 255).round().numpy(), file["images"][500:900])
    np.testing.assert_array_equal((data.x_test[:100, 0] * 255).round().numpy(), file["images"][400:500])
    assert data.conversions[0] == "x: uint8 divided by 255, to float32"


def test_inline_shards_are_blocks() -> None:
    shards = [[[[1.0, 2.0], 3.0]], [], [[[0.1, 5], 9.0], [[6.0, 7.0], 8]]]
    data = load_data("inline", folder=Path(), dtype=torch.float64, shards=shards)
    assert data.x.tolist() == [[1.0, 2.0], [0.1, 5.0], [6.0, 7.0]]
    assert data.y.tolist() == [3.0, 9.0, 8.0]
    assert data.y.dtype is torch.float64
    assert (data.blocks, data.classes, data.x_test) == ((1, 0, 2), None, None)


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        (None, "needs it"),
        ([[], []], "needs it"),
        ([[[[1.0], 2.0]], [[[1.0, 2.0], 2.0]]], "peer 1, row 0: 2 features, but the first row has 1"),
        ([[[1.0, 2.0]]], r"peer 0, row 0: write \[features, target\]"),
        ([[[[], 2.0]]], "peer 0, row 0"),
        ([[[["a"], 2.0]]], "peer 0, row 0"),
    ],
)
def test_inline_shards_that_make_no_sense(shards: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_data("inline", folder=Path(), dtype=torch.float64, shards=shards)
    assert caught.value.key == "task.shards"


# --- npz


def test_npz_dtypes_become_one_dtype_by_stated_conversions(npz: SaveNpz) -> None:
    x = np.array([[0.5, 1.0], [2.0, -4.0]])
    for kind in ("<f8", ">f8", ">f4", "<f2", ">f2"):
        data = npz(x=x.astype(kind), y=np.array([0, 1], dtype=">i2"))
        assert data.x.dtype is torch.float32
        assert data.x.tolist() == x.tolist()
        assert data.y.tolist() == [0, 1]
        assert f"x: {np.dtype(kind)} to float32" in data.conversions
        assert data.y_dtype == ">i2"
    assert npz(x=x.astype("f4"), y=np.array([0, 1])).conversions == ()
    images = npz(torch.float64, x=np.full((2, 4, 4), 51, np.uint8), y=np.array([0, 1]))
    assert images.x.dtype is torch.float64
    assert images.x[0, 0, 0].item() == 0.2
    assert images.conversions == ("x: uint8 divided by 255, to float64",)
    counts = npz(x=np.array([[7, 300]], dtype=">u2"), y=np.array([0]))
    assert counts.x.tolist() == [[7.0, 300.0]]
    column = npz(x=np.array([1.0, 2.0], dtype=np.float32), y=np.array([0.5, 1.5], dtype=np.float32))
    assert column.x.shape == (2, 1)
    assert column.conversions == ("x: float32 to float32, as shape (2, 1)",)
    flipped = npz(x=x[::-1, ::-1], y=np.array([0, 1]))
    assert flipped.x.tolist() == [[-4.0, 2.0], [1.0, 0.5]]


@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", "?"])
def test_whole_number_labels_become_int64(npz: SaveNpz, kind: str) -> None:
    for y in (np.array([1, 0, 1], dtype=kind), np.array([[1], [0], [1]], dtype=kind)):
        data = npz(x=np.ones((3, 2)), y=y)
        assert data.y.dtype is torch.int64
        assert data.y.tolist() == [1, 0, 1]
        assert data.classes == 2
    one_hot = npz(x=np.ones((2, 2)), y=np.array([[0, 1, 0], [1, 0, 0]], dtype=kind))
    assert one_hot.y.tolist() == [1, 0]
    assert one_hot.classes == 3


def test_classes_count_the_test_rows_too(npz: SaveNpz) -> None:
    data = npz(x=np.ones((2, 3)), y=np.array([0, 1]), x_test=np.ones((1, 3)), y_test=np.array([4]))
    assert data.classes == 5


def test_floats_are_targets_until_a_model_classifies(npz: SaveNpz) -> None:
    data = npz(x=np.ones((3, 2)), y=np.array([0.0, 2.0, 1.0]))
    assert data.y.dtype is torch.float32
    assert data.classes is None
    assert count_classes(data) == 3
    assert with_labels(data, 3).y.tolist() == [0, 2, 1]
    with pytest.raises(ConfigError, match=r"y \(float64, min 0.0, max 2.0\): labels go up to 2, .* 2 outputs"):
        with_labels(data, 2)


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"y": np.zeros(2)}, "no array 'x'; the file holds y"),
    ({"x": np.zeros((2, 2)), "labels": np.zeros(2)}, "no array 'y'; the file holds x, labels"),
    ({"x": np.array([[1], "a"], dtype=object), "y": np.zeros(2)}, "array x cannot be read: Object arrays"),
    ({"x": np.array([["a"], ["b"]]), "y": np.zeros(2)}, "x has dtype <U1"),
    ({"x": np.ones((2, 1)) * 1j, "y": np.zeros(2)}, "x has dtype complex128"),
    ({"x": np.ones((2, 1)), "y": np.array(["cat", "dog"])}, "y has dtype <U3"),
    ({"x": np.ones((3, 1)), "y": np.zeros(2)}, "x has 3 rows, but y has 2"),
    ({"x": np.ones((0, 1)), "y": np.zeros(0)}, r"x is empty: shape \(0, 1\)"),
    ({"x": np.ones((2, 0)), "y": np.zeros(2)}, r"x is empty: shape \(2, 0\)"),
    ({"x": np.array(1.0), "y": np.zeros(2)}, r"x is empty: shape \(\)"),
    (
        {"x": np.array([[1.0], [np.nan]]), "y": np.zeros(2)},
        "x is NaN or infinite in 1 of 2 rows, first in row 1",
    ),
    (
        {"x": np.ones((2, 1)), "y": np.array([np.inf, 0])},
        "y is NaN or infinite in 1 of 2 rows, first in row 0",
    ),
    ({"x": np.array([[1e300], [1]]), "y": np.zeros(2)}, "x is too large for float32 in 1 of 2 rows"),
    (
        {"x": np.ones((2, 1)), "y": np.array([0, 2**63], dtype=np.uint64)},
        "y .uint64. goes up to 9223372036854775808",
    ),
    ({"x": np.ones((2, 1)), "y": np.zeros(2), "x_test": np.ones((2, 1))}, "x_test without y_test"),
    ({"x": np.ones((2, 1)), "y": np.zeros(2), "y_test": np.ones(2)}, "y_test without x_test"),
    (
        {"x": np.ones((2, 1)), "y": np.zeros(2), "x_test": np.ones((2, 1)), "y_test": np.zeros(3)},
        "x_test has 2 rows, but y_test has 3",
    ),
    (
        {"x": np.ones((2, 1)), "y": np.zeros(2), "x_test": np.ones((2, 4)), "y_test": np.zeros(2)},
        r"a row of x has shape \(1,\), but one of x_test \(4,\)",
    ),
    (
        {"x": np.ones((2, 3)), "y": np.zeros(2), "x_test": np.ones((2, 3), np.uint8), "y_test": np.zeros(2)},
        "x has dtype float64, but x_test uint8",
    ),
    (
        {"x": np.ones((2, 3)), "y": np.zeros(2), "x_test": np.ones((2, 3)), "y_test": np.zeros(2, int)},
        "y has dtype float64, but y_test int64",
    ),
]


@pytest.mark.parametrize(("arrays", "words"), FAULTS)
def test_npz_faults_name_file_and_array(npz: SaveNpz, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        npz(**arrays)
    assert caught.value.key == "task.data"
    assert "my rows.npz" in caught.value.problem
    assert "\n" not in caught.value.problem


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    def load(name: str) -> None:
        load_data(f"npz:{name}", folder=tmp_path, dtype=torch.float32, key="peers.data")

    with pytest.raises(ConfigError, match=r"missing\.npz: no such file") as caught:
        load("missing.npz")
    assert caught.value.key == "peers.data"
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    with pytest.raises(ConfigError, match=r"text\.npz: not an npz file"):
        load("text.npz")
    (tmp_path / "empty.npz").touch()
    with pytest.raises(ConfigError, match=r"empty\.npz: not an npz file"):
        load("empty.npz")
    np.save(tmp_path / "single.npy", np.ones(3))
    with pytest.raises(ConfigError, match="a single array"):
        load("single.npy")
    np.savez(tmp_path / "cut.npz", x=np.ones((500, 500)), y=np.ones(500))
    whole = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:1000])
    with pytest.raises(ConfigError, match=r"cut\.npz: not an npz file"):
        load("cut.npz")
    (tmp_path / "cut.npz").write_bytes(whole[:5000] + b"\xff" * 100 + whole[5100:])
    with pytest.raises(ConfigError, match="array x cannot be read"):
        load("cut.npz")


@pytest.mark.parametrize("spec", ["mnist", "npz:", "torchvision:", "digits:", "a/b.npz"])
def test_unknown_data(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"mnist5k|of the form|names a file"):
        load_data(spec, folder=Path(), dtype=torch.float32)


def test_none_is_not_data() -> None:
    with pytest.raises(AssertionError):
        load_data("none", folder=Path(), dtype=torch.float32)


def test_the_message_has_the_dtype_of_the_file(npz: SaveNpz) -> None:
    data = npz(x=np.ones((3, 2)), y=np.array([-1, 0, 1], dtype=np.int16))
    assert data.classes is None
    with pytest.raises(ConfigError, match=r"my rows\.npz: y \(int16, min -1, max 1\): labels start at 0"):
        count_classes(data)


# --- a user's factory


def write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text, encoding="utf-8")


FACTORY = """
import numpy as np, torch
def arrays(folder, dtype): return [[1, 2], [3, 4]], np.array([0.5, 1.5], dtype=">f8")
def tokens(): return torch.tensor([[1, 2], [3, 4]], dtype=torch.int32), torch.tensor([[2, 3], [4, 5]])
def images():
    pixels = torch.ones(2, 1, 4, 4, dtype=torch.uint8)
    return pixels, [0, 1], pixels[:1], [1]
def half():
    return torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True), torch.zeros(2, dtype=torch.bool)
def nan(): return torch.tensor([[torch.nan], [1.0]]), torch.zeros(2)
def three(): return 1, 2, 3
def single(): return torch.ones(3)
def ragged(): return [[1, 2], [3]], [0, 1]
def complex_(): return torch.ones(2, 1) * 1j, [0, 1]
def wide(): return torch.ones(2, 1), torch.tensor([1, 2], dtype=torch.uint16)
"""


def test_a_factory_gives_arrays_or_tensors(tmp_path: Path) -> None:
    write(tmp_path, "rows_of_mine", FACTORY)

    def load(name: str) -> DataSet:
        return load_data(f"rows_of_mine:{name}", folder=tmp_path, dtype=torch.float32)

    tokens = load("tokens")
    assert tokens.x.dtype is torch.int64
    assert tokens.y.tolist() == [[2, 3], [4, 5]]
    assert load("arrays").y.tolist() == [0.5, 1.5]
    images = load("images")
    assert images.x_test is not None
    assert images.x_test.max().item() == pytest.approx(1 / 255)
    assert images.classes == 2
    half = load("half")
    assert half.x.dtype is torch.float32
    assert not half.x.requires_grad
    assert half.y.tolist() == [0, 0]
    assert bool(load("nan").x.isnan().any())
    assert load("wide").y_dtype == "uint16"
    for name, words in [
        ("three", r"returns 3 values; return \(x, y\)"),
        ("single", "returns a Tensor"),
        ("ragged", "x is not an array"),
        ("complex_", "x is of dtype complex64"),
    ]:
        with pytest.raises(ConfigError, match=f"rows_of_mine:{name}: {words}"):
            load(name)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from([np.float32, np.float64, np.int16, np.uint8]), st.integers(1, 4), st.integers(1, 3))
def test_loading_keeps_rows_in_order(tmp_path_factory: Any, kind: type, rows: int, features: int) -> None:
    folder = tmp_path_factory.mktemp("rows")
    x: Any = np.arange(rows * features, dtype=kind).reshape(rows, features)
    np.savez(folder / "a.npz", x=x, y=np.arange(rows))
    data = load_data("npz:a.npz", folder=folder, dtype=torch.float64)
    scale = 255 if kind is np.uint8 else 1
    np.testing.assert_allclose(data.x.numpy() * scale, x)
    assert data.y.tolist() == list(range(rows))


def test_the_digits_are_the_file_the_licence_speaks_of() -> None:
    folder = Path(__file__).parents[1] / "peer" / "task"
    assert "CC BY-SA 3.0" in (folder / "MNIST5K.md").read_text(encoding="utf-8")
    digest = hashlib.sha256((folder / "mnist5k.npz").read_bytes()).hexdigest()
    assert digest == "246e0c30eeea57c8d0037d3f38c8e00651ec204cc61b8022563e9aeeb9d756f4"
