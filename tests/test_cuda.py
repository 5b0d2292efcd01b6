"""The same experiment on a CUDA device."""

from typing import Any

import pytest
import torch
from torch import nn

from peer.algorithms.dpsgd import AdaptThenCombine
from peer.daemon.packing import form_of, pack, unpack
from peer.experiment import from_dict
from peer.learner import Learner, Said
from peer.scripting import simulate
from peer.task.layout import layout_of
from peer.task.local import PlainTrainer, Schedule, Shard
from peer.task.models import BuiltModel
from peer.task.task import Wish, prepare

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.parametrize(
    ("model", "step"), [("softmax", "plain"), ("softmax", "vmap"), ("mlp", "plain"), ("cnn", "plain")]
)
def test_five_rounds_agree_with_the_cpu(model: str, step: str) -> None:
    def run(device: str) -> Any:
        task = {"model": model, "lr": 0.05, "momentum": 0.5, "local_steps": 2, "device": device, "step": step}
        tables = {"rounds": 5, "eval_every": 5, "task": task, "topology": {"family": "ring", "peers": 4}}
        return simulate(from_dict(tables | {"record": {"params": "final"}}))

    here, there = run("cpu"), run("cuda")
    assert here.outcome == there.outcome == "finished"
    assert there.step == step
    assert there.loss.mean == pytest.approx(here.loss.mean, abs=1e-3)
    for ours, theirs in zip(here.params, there.params, strict=True):
        torch.testing.assert_close(torch.tensor(theirs), torch.tensor(ours), rtol=0, atol=1e-3)


def test_a_learner_on_a_gpu_packs_through_host_memory() -> None:
    cuda = torch.device("cuda", 0)
    task = prepare(Wish(model="softmax", data="mnist5k", names=["a", "b"], seed=0, schedule=Schedule(lr=0.1)))
    shard = task.shard(0, cuda)
    peer = Learner(0, AdaptThenCombine(), task.trainer(cuda), task.start(0).to(cuda), shard, task.test_rows(cuda))
    message = peer.train(0)
    payload = pack(message)
    back = unpack(bytearray(payload), form_of(message), cuda)
    assert back["x"].device == cuda
    assert torch.equal(back["x"], message["x"])
    assert peer.mix(0, [Said(0.5, 0, message), Said(0.5, 1, back)]) == (None, ())
    assert torch.equal(peer.params(), message["x"])
    assert {tensor.device.type for tensor in peer.tensors().values()} == {"cpu"}
    assert peer.evaluate(1).score.rows == 1000


def test_dropout_on_a_gpu_is_reproducible_and_leaves_the_callers_generator_alone() -> None:
    cuda = torch.device("cuda", torch.cuda.device_count() - 1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    layout = layout_of(net, torch.float32, average_buffers=True)
    schedule = Schedule(lr=0.1, batch_size=0)
    built = BuiltModel(net, None, "mine:net")
    trainer = PlainTrainer(built, layout, schedule, kind="classification", seed=0, device=cuda)
    x = torch.ones(layout.size, device=cuda)
    shard = Shard(torch.ones(6, 3, device=cuda), torch.arange(6, device=cuda) % 3)
    before = torch.cuda.get_rng_state(cuda)
    deltas = [trainer.train(x, trainer.memory(), shard, peer, 0).delta for peer in (0, 0, 1)]
    assert torch.equal(deltas[0], deltas[1])
    assert not torch.equal(deltas[0], deltas[2])
    assert torch.equal(torch.cuda.get_rng_state(cuda), before)
