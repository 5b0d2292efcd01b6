"""Models by name, and what users bring as models: each works, or is refused early and in one line."""

import hashlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from peer.errors import ConfigError
from peer.task.data import load_data
from peer.task.dataset import DataSet
from peer.task.factory import call_factory, load_factory, own_traceback, source_hash
from peer.task.models import BuiltModel, build_model, default_loss, pick_output

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_imports() -> Iterator[None]:
    """Leave sys.path and sys.modules as they were."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("mine"):
            del sys.modules[name]


def rows(shape: tuple[int, ...] = (1, 28, 28), classes: int | None = 10, **others: Any) -> DataSet:
    y = torch.zeros(4) if classes is None else torch.tensor([0, 1, 2, classes - 1])
    fields: dict[str, Any] = {"x": torch.rand(4, *shape), "y": y, "x_test": None, "y_test": None}
    fields |= {"source": "rows.npz", "blocks": None, "classes": classes}
    return DataSet(**(fields | others))


def build(spec: str, data: DataSet | None = None, folder: Path = Path(), **others: Any) -> BuiltModel:
    settings: dict[str, Any] = {"seed": 3, "dtype": torch.float32} | others
    return build_model(spec, data=data or rows(), folder=folder, **settings)


def mine(folder: Path, text: str, name: str = "mine") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(f"import torch\nfrom torch import nn\n{text}\n", encoding="utf-8")
    return folder


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# --- models by name


@pytest.mark.parametrize(("spec", "parameters"), [("cnn", 9_098), ("mlp", 784 * 64 + 64 + 650), ("softmax", 7_850)])
def test_classifiers_of_the_digits(spec: str, parameters: int) -> None:
    built = build(spec)
    assert parameter_count(built.module) == parameters
    assert built.module(torch.rand(5, 1, 28, 28)).shape == (5, 10)
    assert (built.loss, built.spec) == (None, spec)


def test_cnn_follows_the_size_of_the_images() -> None:
    assert build("cnn", rows((3, 33, 7), 5)).module(torch.rand(2, 3, 33, 7)).shape == (2, 5)


def test_linear_is_one_vector_from_zero(tmp_path: Path) -> None:
    shards = [[[[1.0, 2.0], 3.0]], [[[4.0, 5.0], 6.0]]]
    data = load_data("inline", folder=tmp_path, dtype=torch.float64, shards=shards)
    built = build("linear", data, dtype=torch.float64)
    [weight] = built.module.parameters()
    assert weight.tolist() == [0.0, 0.0]
    assert weight.dtype is torch.float64
    loss = default_loss("regression")(built.module(data.x), data.y)
    assert loss.item() == (0.5 * 9 + 0.5 * 36) / 2
    loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.tolist() == [-(3 * 1 + 6 * 4) / 2, -(3 * 2 + 6 * 5) / 2]


@given(seed=st.integers(0, 2**63 - 1))
def test_the_seed_gives_every_peer_the_same_start(seed: int) -> None:
    torch.rand(1)
    one = build("softmax", rows((3,), 4), seed=seed).module.state_dict()
    random.random()
    two = build("softmax", rows((3,), 4), seed=seed).module.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(
        one["output.weight"],
        build("softmax", rows((3,), 4), seed=seed ^ 1).module.state_dict()["output.weight"],
    )


def test_the_callers_generators_are_left_alone(tmp_path: Path) -> None:
    draws = "random.random(), numpy.random.rand()"
    mine(tmp_path, f"import random, numpy\ndef net():\n    {draws}\n    return nn.Linear(2, 2)")
    data = rows()

    def state() -> tuple[Any, ...]:
        numpy_state: Any = np.random.get_state()
        return torch.get_rng_state().tolist(), random.getstate(), numpy_state[2]

    before = state()
    build("cnn", data)
    build("mine:net", data, tmp_path)
    assert state() == before


def test_a_float64_start_is_the_float32_one() -> None:
    narrow, wide = build("mlp"), build("mlp", dtype=torch.float64)
    for a, b in zip(narrow.module.parameters(), wide.module.parameters(), strict=True):
        assert (a.dtype, b.dtype) == (torch.float32, torch.float64)
        assert torch.equal(a.double(), b)


def test_labels_that_came_as_floats_are_classes() -> None:
    data = rows((3,), None, y=torch.tensor([0.0, 4.0, 1.0, 1.0]))
    assert build("softmax", data).module(data.x).shape == (4, 5)


@pytest.mark.parametrize(
    ("spec", "data", "key", "words"),
    [
        ("cnnn", rows(), "task.model", "did you mean cnn"),
        ("cnn", rows((28, 28)), "task.model", r"rows of shape \(28, 28\); add an axis for the channel"),
        ("cnn", rows((784,)), "task.model", r"rows.npz has rows of shape \(784,\)"),
        ("cnn", rows((1, 3, 9)), "task.model", "at least 4 x 4, but those of rows.npz are 3 x 9"),
        (
            "mlp",
            rows((3,), None, y=torch.rand(4)),
            "task.data",
            "mlp needs class labels. rows.npz: y .float32",
        ),
        (
            "softmax",
            rows((3,), None, y=torch.tensor([-1, 0])),
            "task.data",
            "min -1, max 0.: labels start at 0",
        ),
        ("mlp", rows(x=torch.zeros(4, 5, dtype=torch.int64)), "task.model", "tokens of dtype int64"),
    ],
)
def test_data_that_do_not_suit_the_model(spec: str, data: DataSet, key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        build(spec, data)
    assert caught.value.key == key


# --- losses and outputs


def test_squared_error_is_half_the_sum_over_a_row() -> None:
    loss = default_loss("regression")
    output, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 4.0]])
    assert loss(output, targets).item() == 0.5 * (1 + 4 + 16) / 2
    assert loss(torch.tensor([1.0, 3.0]), torch.tensor([2, 3])).item() == 0.25
    assert loss(torch.ones(2), torch.ones(2, dtype=torch.float64)).dtype is torch.float32


def test_squared_error_never_broadcasts() -> None:
    with pytest.raises(ConfigError, match=r"shape \(4,\), but the targets \(4, 1\)"):
        default_loss("regression")(torch.zeros(4), torch.zeros(4, 1))


def test_losses_are_vmappable() -> None:
    output, y = torch.rand(3, 4, 2), torch.randint(2, (3, 4))
    each = torch.vmap(default_loss("classification"))(output, y)
    torch.testing.assert_close(each[1], nn.functional.cross_entropy(output[1], y[1]))
    squares = torch.vmap(default_loss("regression"))(output, torch.zeros(3, 4, 2))
    torch.testing.assert_close(squares, 0.5 * output.square().sum(2).mean(1))


def test_outputs_that_are_no_tensor_are_named() -> None:
    tensor = torch.zeros(1)
    assert pick_output(tensor, "mine:net") is tensor
    for output, words in [
        ({"logits": tensor, "hidden": tensor}, "a dict with keys logits, hidden"),
        ((tensor, None), "a tuple of Tensor, NoneType"),
        (object(), "a object"),
    ]:
        with pytest.raises(ConfigError, match=rf"mine:net: the model returns {words}; .*\(module, loss\)") as caught:
            pick_output(output, "mine:net")
        assert caught.value.key == "task.model"


# --- a user's own model


def test_a_factory_is_offered_what_it_asks_for(tmp_path: Path) -> None:
    mine(
        tmp_path,
        """
seen = {}
def none(): return nn.Linear(2, 3)
def some(*, classes, seed): seen.update(classes=classes, seed=seed); return nn.Linear(2, classes)
def all_(**given): seen.update(given); return nn.Linear(2, 3)
def with_default(input_shape, width=7): return nn.Linear(input_shape[0], width)
class Net(nn.Sequential):
    def __init__(self, classes): super().__init__(nn.Flatten(), nn.Linear(2, classes))
class Zoo:
    @staticmethod
    def small(): return nn.Linear(1, 1)
def hooked(): return nn.Linear(2, 3), lambda output, y: output.sum()
def scripted(): return torch.jit.script(nn.Linear(2, 3))
def compiled(): return torch.compile(nn.Linear(2, 3))
def half(): return nn.Linear(2, 3).to(torch.bfloat16)
def frozen_backbone():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    net[0].requires_grad_(False)
    return net
""",
    )
    data = rows((2,), 5)
    for name in ("none", "some", "all_", "with_default", "Net", "Zoo.small", "frozen_backbone"):
        built = build(f"mine:{name}", data, tmp_path)
        assert built.loss is None
    seen = sys.modules["mine"].seen
    assert seen == {"classes": 5, "seed": 3, "input_shape": (2,)}
    hooked = build("mine:hooked", data, tmp_path)
    assert hooked.loss is not None
    assert hooked.loss(torch.ones(2), torch.ones(2)).item() == 2.0
    assert build("mine:none", rows((2,), None), tmp_path).loss is None
    for name in ("scripted", "compiled"):
        assert parameter_count(build(f"mine:{name}", data, tmp_path).module) == 9
    for dtype, kept in ((torch.float32, torch.bfloat16), (torch.float64, torch.float64)):
        half = build("mine:half", data, tmp_path, dtype=dtype)
        assert next(half.module.parameters()).dtype is kept


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def net(): return {'a': 1}", "returns a dict; return a torch.nn.Module"),
        ("def net(): return None", "returns a NoneType"),
        ("def net(): return nn.Linear(1, 1), 3", "the loss it returns is a int"),
        ("net = nn.Linear(1, 1)", "is a Module already made; name a function"),
        ("def net(): return nn.LazyLinear(3)", "weight is lazy and has no shape yet"),
        ("def net(): return nn.LazyBatchNorm1d()", "is lazy"),
        (
            "def net(): return nn.Linear(1, 1).requires_grad_(False)",
            "nothing to train: all 2 parameters are frozen",
        ),
        ("def net(): return nn.ReLU()", "nothing to train: the model has no parameters"),
        ("def net(): return nn.Linear(1, 1, device='meta')", "weight is on the meta device"),
        ("def net(): return nn.Linear(1, 1, dtype=torch.complex64)", "weight is of dtype torch.complex64"),
        (
            "def net(width): return nn.Linear(1, width)",
            "missing a required argument: 'width'; what it can be given is",
        ),
        ("def net(classes, /): return nn.Linear(1, classes)", "missing a required"),
        ("net = 3", "is of type int, not a function"),
        ("def nett(): pass", "has no 'net'; did you mean 'nett'"),
    ],
)
def test_a_factory_that_gives_no_model(tmp_path: Path, body: str, words: str) -> None:
    mine(tmp_path, body)
    with pytest.raises(ConfigError, match=words) as caught:
        build("mine:net", folder=tmp_path)
    assert caught.value.key == "task.model"
    assert "\n" not in caught.value.problem
    assert "mine:net" in caught.value.problem


# --- the factory itself


def test_a_factory_that_raises_shows_the_users_traceback_alone(tmp_path: Path) -> None:
    mine(tmp_path, "def inner(): raise ValueError('first line\\nsecond')\ndef net(): inner()")
    with pytest.raises(ConfigError) as caught:
        build("mine:net", folder=tmp_path)
    assert caught.value.problem == "mine:net raised ValueError: first line"
    details = caught.value.details.splitlines()
    assert details[0] == "Traceback (most recent call last):"
    assert f'File "{tmp_path / "mine.py"}", line 4, in net' in details[1]
    assert details[-2:] == ["ValueError: first line", "second"]
    assert "factory.py" not in caught.value.details


def test_exits_and_empty_errors_are_errors_too(tmp_path: Path) -> None:
    mine(tmp_path, "def out():\n    raise SystemExit(0)\ndef bare():\n    assert False")
    for name, words in (("out", "raised SystemExit: 0"), ("bare", "raised AssertionError")):
        with pytest.raises(ConfigError, match=words):
            call_factory(load_factory(f"mine:{name}", "task.model", tmp_path), f"mine:{name}", "task.model")


def test_a_module_that_does_not_import(tmp_path: Path) -> None:
    def load(spec: str) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            load_factory(spec, "task.data", tmp_path)
        assert caught.value.key == "task.data"
        return caught.value

    missing = load("mine_absent:net")
    assert missing.problem.startswith(f"mine_absent:net: no module named 'mine_absent' in {tmp_path}")
    mine(tmp_path, "import mine_no_such_thing", "mine_needs")
    needs = load("mine_needs:net")
    assert needs.problem == "mine_needs:net raised ModuleNotFoundError: No module named 'mine_no_such_thing'"
    assert needs.details.splitlines()[1].endswith("line 3, in <module>")
    assert "importlib" not in needs.details
    mine(tmp_path, "def net(:", "mine_wrong")
    wrong = load("mine_wrong:net")
    assert wrong.problem.startswith("mine_wrong:net raised SyntaxError: ")
    assert "def net(:" in wrong.details
    mine(tmp_path / "mine_package", "", "__init__")
    assert "no module named 'mine_package.sub'" in load("mine_package.sub:net").problem


@pytest.mark.parametrize("spec", ["mine", "mine:", ":net", "mine:net()", "mi ne:net", "mine.:net"])
def test_a_spec_of_another_form(tmp_path: Path, spec: str) -> None:
    with pytest.raises(ConfigError, match=r'is not of the form "package\.module:factory"'):
        load_factory(spec, "task.model", tmp_path)


def test_a_file_name_in_place_of_a_module(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'write the module, as in "models\.mine:net"'):
        load_factory("./models/mine.py:net", "task.model", tmp_path)


def test_two_experiments_with_a_module_of_one_name(tmp_path: Path) -> None:
    one, two = tmp_path / "with space", tmp_path / "two"
    for folder, number in ((one, 1), (two, 2)):
        mine(folder, f"import mine_part\ndef net(): return mine_part.number + {number}")
        mine(folder, f"number = {number}0", "mine_part")
    found = [
        call_factory(load_factory("mine:net", "task.model", folder), "mine:net", "task.model")
        for folder in (one, two, two, one)
    ]
    assert found == [11, 22, 22, 11]
    assert sys.path.count(str(one)) == 1
    assert sys.path[0] == str(one)


def test_a_module_named_like_one_that_is_loaded(tmp_path: Path) -> None:
    mine(tmp_path, "def net(): return 1", "random")
    with pytest.raises(ConfigError, match="already has the name 'random'; rename the one in"):
        load_factory("random:net", "task.model", tmp_path)
    assert random.randint(1, 1) == 1


def test_what_a_factory_prints_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine(tmp_path, "print('importing')\ndef net():\n    print('building')\n    return nn.Linear(1, 1)")
    build("mine:net", folder=tmp_path)
    assert capsys.readouterr() == ("", "importing\nbuilding\n")


def test_source_hash(tmp_path: Path) -> None:
    mine(tmp_path, "def net(): return 1")
    source = (tmp_path / "mine.py").read_bytes()
    assert source_hash("mine:net", tmp_path) == hashlib.sha256(source).hexdigest()
    (tmp_path / "mine.py").write_bytes(source.replace(b"\n", b"\r\n"))
    assert source_hash("mine:net", tmp_path) == hashlib.sha256(source).hexdigest()
    for spec in ("cnn", "mnist5k", "none", "npz:rows.npz", "torchvision:MNIST"):
        assert source_hash(spec, tmp_path) == ""


def test_the_traceback_of_a_model_starts_at_the_users_frame(tmp_path: Path) -> None:
    mine(
        tmp_path,
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
    def forward(self, x):
        return self.inner(x)
def net(): return Net()
def plain(): return nn.Linear(2, 2)
""",
    )

    def fail(spec: str) -> str:
        module = build(spec, folder=tmp_path).module
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
            module(torch.ones(1, 3))
        # Of this test's own frame, which a trainer would have in peer/, nothing is to be told.
        error: Any = caught.value
        return own_traceback(error.with_traceback(error.__traceback__.tb_next))

    lines = fail("mine:net").splitlines()
    assert "mine.py" in lines[1]
    assert "in forward" in lines[1]
    assert "linear.py" in fail("mine:plain")


def test_pick_output_types() -> None:
    class Output(dict[str, Tensor]):
        pass

    with pytest.raises(ConfigError, match="a Output with keys loss"):
        pick_output(Output(loss=torch.zeros(1)), "mine:net")
