"""A task made ready: whatever does not fit is said before anything trains, and in whose words."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from peer.errors import ConfigError
from peer.task.dataset import DataSet
from peer.task.fit import check_shards, fit
from peer.task.local import Schedule
from peer.task.models import BuiltModel
from peer.task.task import Partition, Task, Wish, prepare

torch.set_num_threads(1)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_imports() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("mine"):
            del sys.modules[name]


@pytest.fixture
def ready(tmp_path: Path) -> Callable[..., Task]:
    """Prepare a task of two peers in `tmp_path`, with these arrays as the common data."""

    def prepare_it(only: int | None = None, arrays: dict[str, Any] | None = None, **others: Any) -> Task:
        fields: dict[str, Any] = {"model": "softmax", "data": "npz:rows.npz", "names": ["a", "b"], "seed": 0}
        fields |= {"schedule": Schedule(lr=0.1), "folder": tmp_path}
        if arrays is not None:
            np.savez(tmp_path / "rows.npz", **arrays)
        return prepare(Wish(**(fields | others)), only)

    return prepare_it


def rows(count: int = 6, features: int = 2, **others: Any) -> dict[str, Any]:
    x = np.arange(count * features, dtype=np.float32).reshape(count, features)
    return {"x": x, "y": np.arange(count) % 3} | others


def mine(folder: Path, text: str) -> None:
    (folder / "mine_task.py").write_text(f"import torch\nfrom torch import nn\n{text}\n", encoding="utf-8")


# ---- Labels and targets


def test_labels_stay_labels(ready: Callable[..., Task]) -> None:
    task = ready(arrays=rows())
    assert task.kind == "classification"
    assert task.data is not None
    assert (task.data.y.dtype, task.data.classes) == (torch.int64, 3)
    assert task.layout.size == 2 * 3 + 3


@pytest.mark.parametrize("y", [np.array([0.0, 2.0, 1.0, 0.0]), np.eye(3, dtype=np.float64)[[0, 2, 1, 0]]])
def test_labels_that_came_as_floats_are_labels_of_a_classifier(ready: Callable[..., Task], y: Any) -> None:
    task = ready(arrays=rows(4, y=y))
    assert task.data is not None
    assert task.kind == "classification"
    assert task.data.y.tolist() == [0, 2, 1, 0]


def test_a_single_class_is_a_class(ready: Callable[..., Task]) -> None:
    task = ready(arrays=rows(4, y=np.zeros(4, dtype=np.int64)))
    assert (task.kind, task.layout.size) == ("classification", 3)


def test_labels_beyond_the_models_outputs(ready: Callable[..., Task], tmp_path: Path) -> None:
    mine(tmp_path, "def net(): return nn.Linear(2, 2)")
    with pytest.raises(ConfigError, match=r"rows.npz: y \(int64, min 0, max 2\): labels go up to 2.* 2 outputs"):
        ready(arrays=rows(), model="mine_task:net")


def test_test_labels_are_named_as_such_with_the_dtype_of_the_file(ready: Callable[..., Task], tmp_path: Path) -> None:
    mine(tmp_path, "def net(): return nn.Linear(2, 3)")
    arrays = rows(x_test=np.zeros((2, 2), np.float32), y_test=np.array([0, 7], dtype=np.int16))
    with pytest.raises(ConfigError, match=r"y_test \(int16, min 0, max 7\): labels go up to 7"):
        ready(arrays=arrays, model="mine_task:net")


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
@pytest.mark.parametrize("outputs", ["nn.Linear(2, 1)", "nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))"])
def test_targets_take_the_shape_of_the_outputs(
    ready: Callable[..., Task], tmp_path: Path, shape: tuple[int, ...], outputs: str
) -> None:
    mine(tmp_path, f"def net(): return {outputs}")
    y = np.arange(6.0).reshape(shape)
    task = ready(arrays=rows(y=y, x_test=np.zeros((6, 2), np.float32), y_test=y), model="mine_task:net")
    assert task.kind == "regression"
    assert task.data is not None
    assert task.data.y_test is not None
    tail = (6, 1) if outputs == "nn.Linear(2, 1)" else (6,)
    assert task.data.y.shape == task.data.y_test.shape == tail
    assert task.data.y.dtype is torch.float32


def test_whole_numbers_are_targets_of_a_model_with_one_output(ready: Callable[..., Task]) -> None:
    task = ready(arrays=rows(), model="linear")
    assert task.data is not None
    assert (task.kind, task.data.y.dtype) == ("regression", torch.float32)


def test_several_targets_a_row(ready: Callable[..., Task], tmp_path: Path) -> None:
    mine(tmp_path, "def net(): return nn.Linear(2, 3)")
    task = ready(arrays=rows(y=np.random.default_rng(0).random((6, 3))), model="mine_task:net")
    assert task.kind == "regression"
    with pytest.raises(ConfigError, match="neither one label a row nor one-hot"):
        ready(arrays=rows(y=np.random.default_rng(0).random((6, 2))), model="mine_task:net")


# ---- What a model gives


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return x, x", "the model returns a tuple of Tensor, Tensor; return a tensor, or let the factory return"),
        ("return {'logits': x}", "the model returns a dict with keys logits"),
        ("return x.sum()", r"2 rows in gave outputs of shape \(\)"),
        ("return x[:1]", r"2 rows in gave outputs of shape \(1, 2\)"),
        ("return x[:, :, None]", r"outputs of shape \(rows, 2, 1\); give a loss"),
        ("raise ValueError('no\\nway')", r"mine_task:net raised ValueError on rows of shape \(2,\).*: no$"),
        ("return self.inner(x[:, :1])", "raised RuntimeError"),
    ],
)
def test_outputs_that_no_loss_takes(ready: Callable[..., Task], tmp_path: Path, body: str, words: str) -> None:
    net = f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
    def forward(self, x):
        {body}
def net(): return Net()
"""
    mine(tmp_path, net)
    with pytest.raises(ConfigError, match=words) as caught:
        ready(arrays=rows(), model="mine_task:net")
    assert caught.value.key == "task.model"
    if "raised" in words:
        assert "mine_task.py" in caught.value.details
        assert "fit.py" not in caught.value.details


WITH_LOSS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 3)
    def forward(self, x):
        return {"logits": self.inner(x)}
def net(): return Net(), lambda output, y: nn.functional.cross_entropy(output["logits"], y)
def rows_of_it(): return Net(), lambda output, y: nn.functional.cross_entropy(output["logits"], y, reduction="none")
def number(): return Net(), lambda output, y: 1.0
def wrong(): return Net(), lambda output, y: output["logit"].mean()
def scores(): return nn.Linear(2, 3), lambda output, y: nn.functional.cross_entropy(output, y)
"""


def test_a_loss_makes_any_output_good(ready: Callable[..., Task], tmp_path: Path) -> None:
    mine(tmp_path, WITH_LOSS)
    task = ready(arrays=rows(), model="mine_task:net", partition=Partition("by_class", classes_per_peer=2))
    shard = task.shard(0, CPU)
    trainer = task.trainer(CPU)
    before = trainer.evaluate(task.start(0), trainer.memory(), shard.take(None) if shard else None)
    assert before.accuracy is None
    delta = trainer.train(task.start(0), trainer.memory(), shard, 0, 0).delta
    after = trainer.evaluate(task.start(0) + delta, trainer.memory(), shard.take(None) if shard else None)
    assert before.loss is not None
    assert after.loss is not None
    assert after.loss < before.loss
    assert ready(arrays=rows(), model="mine_task:scores").kind == "classification"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rows_of_it", r"its loss returns torch.float32 numbers of shape \(2,\); return one floating-point number"),
        ("number", "its loss returns a float"),
        ("wrong", "its loss raised KeyError .*'logit'"),
    ],
)
def test_a_loss_that_is_none(ready: Callable[..., Task], tmp_path: Path, name: str, words: str) -> None:
    mine(tmp_path, WITH_LOSS)
    with pytest.raises(ConfigError, match=words):
        ready(arrays=rows(), model=f"mine_task:{name}")


def test_data_and_model_and_loss_of_the_users_own(ready: Callable[..., Task], tmp_path: Path) -> None:
    text = """
def data(folder, dtype):
    tokens = torch.arange(24, dtype=torch.int64).view(6, 4) % 5
    return tokens, tokens.roll(-1, 1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
    def forward(self, x):
        return self.out(self.embed(x))
def net(): return Net(), lambda output, y: nn.functional.cross_entropy(output.flatten(0, 1), y.flatten())
"""
    mine(tmp_path, text)
    task = ready(model="mine_task:net", data="mine_task:data")
    assert (task.kind, len(task.code)) == ("regression", 128)
    assert task.start(0).isfinite().all()
    trainer = task.trainer(CPU)
    assert trainer.train(task.start(0), trainer.memory(), task.shard(1, CPU), 1, 0).delta.isfinite().all()


def test_images_may_be_viewed_as_rows(ready: Callable[..., Task], tmp_path: Path) -> None:
    """mnist5k's one channel once counted as channels-last, and `view` after a convolution failed."""
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(2 * 28 * 28, 10)
    def forward(self, x):
        return self.out(self.conv(x).view(x.shape[0], -1))
def net(): return Net()
"""
    mine(tmp_path, text)
    task = ready(model="mine_task:net", data="mnist5k")
    trainer = task.trainer(CPU)
    for shard in (task.shard(0, CPU), task.shards(CPU)[0]):
        trainer.train(task.start(0), trainer.memory(), shard, 0, 0)


# ---- Starts


def test_the_models_own_start_is_everyones(ready: Callable[..., Task]) -> None:
    task = ready(arrays=rows())
    assert torch.equal(task.start(0), task.start(1))
    assert bool(task.start(0).any())
    task.start(0).zero_()
    assert bool(task.start(0).any())


def test_given_starts_take_the_place_of_the_parameters_and_not_of_the_statistics(
    ready: Callable[..., Task], tmp_path: Path
) -> None:
    mine(tmp_path, "def net(): return nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2, affine=False))")
    task = ready(arrays=rows(y=np.arange(6) % 2), model="mine_task:net", starts=[[1, 2, 3, 4], [5, 6, 7, 8]])
    assert task.start(0).tolist() == [1, 2, 3, 4, 0, 0, 1, 1]
    assert task.start(1).tolist() == [5, 6, 7, 8, 0, 0, 1, 1]


@pytest.mark.parametrize("starts", [[[1.0]], [[1.0] * 9, [1.0] * 8]])
def test_a_start_of_another_length(ready: Callable[..., Task], starts: list[list[float]]) -> None:
    with pytest.raises(ConfigError, match=r"\d numbers, but the model has 9 parameters") as caught:
        ready(arrays=rows(), starts=starts)
    assert caught.value.key == "task.init"


def test_pure_gossip_needs_vectors(ready: Callable[..., Task]) -> None:
    with pytest.raises(ConfigError, match="needs the vectors"):
        ready(data="none")
    task = ready(data="none", starts=[[1.0, 2.0], [3.0, 4.0]])
    assert [task.start(i).tolist() for i in range(2)] == [[1.0, 2.0], [3.0, 4.0]]
    assert task.shards(CPU) == [None, None]
    assert (task.shard(0, CPU), task.test_rows(CPU), task.code) == (None, None, "")


# ---- Rows


def test_more_peers_than_rows(ready: Callable[..., Task]) -> None:
    with pytest.raises(ConfigError, match="7 peers, but only 6 training rows") as caught:
        ready(arrays=rows(), names=[f"peer-{i}" for i in range(7)])
    assert caught.value.key == "topology.peers"


def test_a_peers_own_shard_holds_the_rows_of_its_part_of_the_common_data(ready: Callable[..., Task]) -> None:
    """A daemon has the first, the simulator the second; their bits and their strides are the same."""
    task = ready(data="mnist5k", model="cnn", partition=Partition("dirichlet", alpha=0.3))
    assert task.rows is not None
    assert sorted(np.concatenate(task.rows).tolist()) == list(range(4000))
    for peer, common in enumerate(task.shards(CPU)):
        own = task.shard(peer, CPU)
        assert own is not None
        assert common is not None
        assert len(own) == len(common)
        for chosen in (None, np.array([2, 0, 1])):
            for ours, theirs in zip(own.take(chosen), common.take(chosen), strict=True):
                assert torch.equal(ours, theirs)
                assert ours.stride() == theirs.stride()


def test_inline_shards_are_the_parts(ready: Callable[..., Task]) -> None:
    shards = [[[[1.0], 3.0], [[2.0], 5.0]], [[[3.0], 7.0]]]
    task = ready(data="inline", model="linear", shards=shards)
    assert task.rows is not None
    assert [part.tolist() for part in task.rows] == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("counts", "batch", "key", "words"),
    [
        ([4, 1], 2, "task.partition", "the shard of b is one row, which BatchNorm cannot train on"),
        ([4, 4], 1, "task.batch_size", "take 2 or more"),
        ([0, 4], 2, "task.partition", "the shard of a is empty"),
    ],
)
def test_shards_that_batch_norm_cannot_train_on(counts: list[int], batch: int, key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_shards(nn.BatchNorm1d(2), counts, batch, ["a", "b"])
    assert caught.value.key == key


def test_one_row_is_enough_without_batch_norm() -> None:
    check_shards(nn.Linear(1, 1), [1, 1], 1, ["a", "b"])
    check_shards(nn.BatchNorm1d(2), [2, 3], 2, ["a", "b"])
    with pytest.raises(ConfigError, match="the shard of b is empty"):
        check_shards(nn.Linear(1, 1), [1, 0], 1, ["a", "b"])


def test_the_task_checks_its_shards(ready: Callable[..., Task], tmp_path: Path) -> None:
    mine(tmp_path, "def net(): return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3))")
    with pytest.raises(ConfigError, match="the shard of b is one row"):
        ready(arrays=rows(), model="mine_task:net", partition=Partition("sizes", sizes=[5, 1]))


# ---- Each machine's own data


def own(*specs: str | None) -> Partition:
    return Partition("own", own=specs)


def save(folder: Path, name: str, **arrays: Any) -> str:
    np.savez(folder / name, **arrays)
    return f"npz:{name}"


def test_own_data_of_fewer_classes_fit_the_common_model(ready: Callable[..., Task], tmp_path: Path) -> None:
    """A holds classes 0 and 1 as floats, b class 2 alone, as one-hot rows; the classes are those of task.data."""
    a = save(tmp_path, "a.npz", **rows(4, y=np.array([0.0, 1.0, 1.0, 0.0])))
    b = save(
        tmp_path, "b.npz", **rows(2, y=np.array([[0, 0, 1], [0, 0, 1]])), x_test=np.ones((1, 2)), y_test=[[0, 0, 1]]
    )
    task = ready(arrays=rows(), partition=own(a, b))
    shards = task.shards(CPU)
    assert [shard.y.tolist() for shard in shards if shard is not None] == [[0, 1, 1, 0], [2, 2]]
    assert task.layout.size == 9
    assert task.data is not None
    assert task.data.classes == 3
    mine_is = task.shard(1, CPU)
    assert mine_is is not None
    assert mine_is.test is not None
    assert mine_is.test[1].tolist() == [2]


def test_own_labels_are_checked_against_the_models_outputs(ready: Callable[..., Task], tmp_path: Path) -> None:
    fine = save(tmp_path, "a.npz", **rows())
    many = save(tmp_path, "b.npz", **rows(4, y=np.array([0, 1, 2, 3], dtype=np.int32)))
    with pytest.raises(ConfigError, match=r"b.npz: y \(int32, min 0, max 3\): labels go up to 3.* 3 outputs") as caught:
        ready(arrays=rows(), partition=own(fine, many))
    assert caught.value.key == "peers.b.data"


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (rows(4, features=3), r"rows of shape \(3,\) and dtype float32, those of task.data are rows of shape \(2,\)"),
        (rows(4, y=np.array([0.5, 1.0, 2.0, 0.0])), "labels must be whole numbers"),
    ],
)
def test_own_data_of_another_kind(
    ready: Callable[..., Task], tmp_path: Path, arrays: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        ready(arrays=rows(), partition=own(save(tmp_path, "a.npz", **arrays), None), only=0)
    assert caught.value.key == "peers.a.data"


def test_own_targets_take_the_shape_of_the_outputs(ready: Callable[..., Task], tmp_path: Path) -> None:
    column = save(tmp_path, "a.npz", **rows(4, y=np.arange(4.0).reshape(4, 1)))
    whole = save(tmp_path, "b.npz", **rows(3, y=np.arange(3)))
    task = ready(arrays=rows(y=np.arange(6.0)), model="linear", partition=own(column, whole))
    assert [shard.y.tolist() for shard in task.shards(CPU) if shard is not None] == [[0, 1, 2, 3], [0, 1, 2]]


def test_only_the_own_data_that_are_needed_are_loaded(ready: Callable[..., Task], tmp_path: Path) -> None:
    there = save(tmp_path, "a.npz", **rows(4))
    task = ready(arrays=rows(), partition=own(there, "npz:on/another/machine.npz"), only=0)
    shards = task.shards(CPU)
    assert shards[1] is None
    assert shards[0] is not None
    with pytest.raises(ConfigError, match="no such file") as caught:
        ready(arrays=rows(), partition=own(there, "npz:on/another/machine.npz"))
    assert caught.value.key == "peers.b.data"


def test_own_labels_under_a_loss_of_the_users_become_the_common_kind(
    ready: Callable[..., Task], tmp_path: Path
) -> None:
    mine(tmp_path, WITH_LOSS)
    floats = save(tmp_path, "a.npz", **rows(4, y=np.array([0.0, 1.0, 1.0, 0.0])))
    task = ready(arrays=rows(), model="mine_task:net", partition=own(floats, None), only=0)
    shard = task.shard(0, CPU)
    assert shard is not None
    assert shard.y.dtype is torch.int64


# ---- What trying leaves behind


def test_trying_a_model_draws_nothing_from_the_callers_generator() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight + torch.rand(3)

    data = DataSet(torch.ones(4, 2), torch.tensor([0, 1, 2, 0]), None, None, "rows", None, 3)
    before = torch.get_rng_state()
    kind, _ = fit(BuiltModel(Noisy(), None, "mine:net"), data)
    assert kind == "classification"
    assert torch.equal(torch.get_rng_state(), before)
