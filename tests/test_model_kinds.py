"""Models of unusual kinds gossip correctly: batch norm, frozen layers, half precision, a head that stays personal.

The reference is a loop in plain torch over copies of the module, with autograd, explicit steps, and the mixing matrix
written out. It has nothing of the product in it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from peer.errors import ConfigError
from peer.experiment import Experiment, from_dict
from peer.scripting import Document, explain, simulate, up
from peer.ways import Engine
from tests import model_kinds
from tests.daemon_pool import DaemonPool

torch.set_num_threads(1)

ROUNDS = 4
LR = 0.125
PATH = torch.tensor([[2, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 2]], dtype=torch.float64) / 3
ALL = torch.full((4, 4), 0.25, dtype=torch.float64)
ARCS = torch.tensor([[3, 2, 2, 3], [3, 2, 0, 0], [0, 2, 2, 0], [0, 0, 2, 3]], dtype=torch.float64) / 6


def rows(count: int, features: int, seed: int) -> list[list[Any]]:
    """One peer's rows, as an experiment file has them; peers differ in scale."""
    draw = torch.Generator().manual_seed(seed)
    x = (1 + seed) * torch.randn(count, features, generator=draw).round(decimals=2)
    y = torch.randn(count, generator=draw).round(decimals=2)
    return [[[round(v, 2) for v in a], round(b, 2)] for a, b in zip(x.tolist(), y.tolist(), strict=True)]


SHARDS = [rows(count, 3, seed) for seed, count in enumerate((4, 8, 4, 8))]
IMAGES = [rows(4, 32, seed) for seed in range(4)]


# ---- By hand


@dataclass(frozen=True)
class Kind:
    """A model, what [algorithm] says of it, and the tensors that are then gossiped, in order."""

    model: str
    gossiped: tuple[str, ...]
    algorithm: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    step: str = "auto"

    def make(self) -> nn.Module:
        module: nn.Module = getattr(model_kinds, self.model)()
        return module.double() if self.dtype is torch.float64 else module


ENCODER = ("encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias")
LAYERS = ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
STATISTICS = ("running_mean", "running_var")
HALF = tuple(f"inner.{name}" for name in ("0.weight", "0.bias", "2.weight", "2.bias"))
PARTLY_HALF = (
    *("0.inner.weight", "0.inner.bias", "1.inner.0.weight", "1.inner.0.bias", "1.inner.1.weight", "1.inner.1.bias"),
    *("1.inner.0.running_mean", "1.inner.0.running_var"),
)

KINDS = {
    "batch norm": Kind("normed", (*LAYERS, "1.running_mean", "1.running_var")),
    "batch norm, kept": Kind("normed", LAYERS, {"buffers": "keep"}),
    "frozen": Kind("frozen", ("3.weight", "1.running_mean", "1.running_var")),
    "frozen, kept": Kind("frozen", ("3.weight",), {"buffers": "keep"}),
    "half": Kind("half", HALF, dtype=torch.float32, step="plain"),
    "partly half": Kind("partly_half", PARTLY_HALF, dtype=torch.float32),
    "head, vectorised": Kind("bare_split", ("encoder.0.weight", "encoder.0.bias"), {"share": ["encoder.*"]}),
    "head, statistics averaged": Kind(
        "split", (*ENCODER, "encoder.1.running_mean", "encoder.1.running_var"), {"share": ["encoder.*"]}
    ),
    "head, statistics kept": Kind("split", ENCODER, {"share": ["encoder.*"], "buffers": "keep"}),
    "several patterns": Kind(
        "split",
        ("encoder.0.weight", "encoder.0.bias", "head.2.bias", "head.1.running_var"),
        {"share": ["encoder.0.*", "head.2.b*", "head.?.running_var"]},
    ),
    "statistics of the encoder only": Kind(
        "split", ("encoder.1.running_mean", "encoder.1.running_var"), {"share": ["encoder.1.running_*"]}
    ),
    "a tied weight, by its second name": Kind(
        "tied", ("encoder.weight", "head.2.weight", "head.2.bias"), {"share": ["head.1.w*", "head.2.*"]}
    ),
    "buffers that come late": Kind("late", ("layer.weight", "layer.bias")),
    "one statistic only": Kind("split", ("head.1.running_mean",), {"share": ["head.*mean"]}),
}

Rule = Callable[[Tensor, Tensor, Tensor, dict[str, Tensor]], Tensor]
"""From W, (n, n), what the peers had, (n, ...), what each has found from there, and a memory: what they have then."""


def mix(W: Tensor, x: Tensor) -> Tensor:
    return torch.tensordot(W.to(x.dtype), x, dims=1)


def average(W: Tensor, here: Tensor, found: Tensor, past: dict[str, Tensor]) -> Tensor:
    """W (x - lr g)."""
    return mix(W, found)


def cta(W: Tensor, here: Tensor, found: Tensor, past: dict[str, Tensor]) -> Tensor:
    """W x - lr g."""
    return mix(W, here) + found - here


def d2(W: Tensor, here: Tensor, found: Tensor, past: dict[str, Tensor]) -> Tensor:
    """W (2 x - x before - lr g + lr g before), after a first step W (x - lr g)."""
    step = found - here
    ahead = found + here - past["x"] - past["step"] if past else found
    past |= {"x": here, "step": step}
    return mix(W, ahead)


def tracking(W: Tensor, here: Tensor, found: Tensor, past: dict[str, Tensor]) -> Tensor:
    """x <- W (x - lr y), y <- W (y + g - g before), y = g at the start."""
    g = (here - found) / LR
    past["y"] = mix(W, past["y"] + g - past["g"]) if past else g
    past["g"] = g
    return mix(W, here - LR * past["y"])


def diging(W: Tensor, here: Tensor, found: Tensor, past: dict[str, Tensor]) -> Tensor:
    """x <- W x - lr y, y <- W y + g - g before, y = g at the start."""
    g = (here - found) / LR
    past["y"] = mix(W, past["y"]) + g - past["g"] if past else g
    past["g"] = g
    return mix(W, here) - LR * past["y"]


def diloco(W: Tensor, here: Tensor, found: Tensor, past: dict[str, Tensor]) -> Tensor:
    """d <- a - W x, b <- 0.9 b + d, a <- a - 0.7 (d + 0.9 b)."""
    d = here - mix(W, found)
    past["b"] = 0.9 * past["b"] + d if past else d
    return here - 0.7 * (d + 0.9 * past["b"])


def push(W: Tensor, here: Tensor, found: Tensor, past: dict[str, Tensor]) -> Tensor:
    """z <- P (w z - lr g) / P w, w <- P w."""
    before, after = pushed_weights(W, here, past)
    return mix(W, before * here + found - here) / after


def push_average(W: Tensor, here: Tensor, found: Tensor, past: dict[str, Tensor]) -> Tensor:
    """The mean of what the peers have found, weighted by how much of the whole each holds: P (w s) / P w."""
    before, after = pushed_weights(W, here, past)
    return mix(W, before * found) / after


def pushed_weights(W: Tensor, like: Tensor, past: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    before = past.get("w", torch.ones(len(W), *[1] * (like.ndim - 1), dtype=like.dtype))
    past["w"] = mix(W, before)
    return before, past["w"]


@dataclass(frozen=True)
class Way:
    """An algorithm, the topology and the matrix it runs on, and what it does to parameters and to statistics."""

    algorithm: dict[str, Any]
    rule: Rule
    of_statistics: Rule = average
    topology: str = "path"
    W: Tensor = field(default_factory=lambda: PATH)
    local_steps: int = 1


WAYS = {
    "dpsgd": Way({"name": "dpsgd"}, average, local_steps=2),
    "dpsgd, cta": Way({"name": "dpsgd", "order": "cta"}, cta, local_steps=2),
    "d2": Way({"name": "d2"}, d2),
    "gradient tracking": Way({"name": "gradient_tracking"}, tracking),
    "diging": Way({"name": "gradient_tracking", "order": "diging"}, diging),
    "diloco": Way({"name": "diloco"}, diloco, topology="all", W=ALL, local_steps=3),
    "diloco over neighbours": Way({"name": "diloco", "among": "neighbours"}, diloco, local_steps=2),
    "exact": Way({"name": "exact"}, average, topology="all", W=ALL),
    "push-sum": Way({"name": "push_sum"}, push, push_average, topology="arcs", W=ARCS, local_steps=2),
}


def by_hand(kind: Kind, way: Way, rounds: int = ROUNDS) -> tuple[list[nn.Module], dict[str, Tensor]]:
    """Return every peer's module after so many rounds, and all that may change as rows: name -> (n, ...).

    What may change is held in the dtype of the run; the modules get it in theirs.
    """
    nets = [kind.make() for _ in SHARDS]
    now = {name: torch.stack([t.detach().to(kind.dtype)] * len(nets)) for name, t in moving(nets[0]).items()}
    past: dict[str, dict[str, Tensor]] = {name: {} for name in now}
    for _ in range(rounds):
        found = {name: x.clone() for name, x in now.items()}
        for i, net in enumerate(nets):
            for _ in range(way.local_steps):
                local_step(net, {name: x[i] for name, x in found.items()}, SHARDS[i], kind.dtype)
        for name in kind.gossiped:
            rule = way.of_statistics if name.endswith(STATISTICS) else way.rule
            found[name] = rule(way.W, now[name], found[name], past[name])
        now = found
    for i, net in enumerate(nets):
        load(net, {name: x[i] for name, x in now.items()})
    return nets, now


def moving(net: nn.Module) -> dict[str, Tensor]:
    """Return what training changes: the parameters that are not frozen, and floating-point buffers."""
    trained: dict[str, Tensor] = {name: p for name, p in net.named_parameters() if p.requires_grad}
    return trained | {name: b for name, b in net.named_buffers() if b.is_floating_point()}


@torch.no_grad()
def load(net: nn.Module, values: dict[str, Tensor]) -> None:
    tensors = moving(net)
    for name, value in values.items():
        tensors[name].copy_(value)


def local_step(net: nn.Module, at: dict[str, Tensor], shard: list[list[Any]], dtype: torch.dtype) -> None:
    """Move `at` by one step of gradient descent on all rows."""
    load(net, at)
    x = torch.tensor([features for features, _ in shard], dtype=dtype)
    output = net.train()(x)
    gap = output - torch.tensor([[target] for _, target in shard], dtype=dtype).to(output.dtype)
    trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(0.5 * (gap * gap).sum() / len(shard), list(trained.values()))
    for name, gradient in zip(trained, gradients, strict=True):
        at[name] -= LR * gradient.to(dtype)
    for name, buffer in net.named_buffers():
        if name in at:
            at[name].copy_(buffer)


def loss(net: nn.Module, shard: list[list[Any]], dtype: torch.dtype) -> float:
    """Return the loss on a peer's own rows with its own statistics."""
    x = torch.tensor([features for features, _ in shard], dtype=dtype)
    with torch.no_grad():
        output = net.eval()(x)
    gap = output - torch.tensor([[target] for _, target in shard], dtype=dtype).to(output.dtype)
    return float(0.5 * (gap * gap).sum() / len(shard))


# ---- The product


def experiment(kind: Kind, way: Way, *, rounds: int = ROUNDS, eval_every: int = ROUNDS, **tables: Any) -> Experiment:
    task = {"model": f"tests.model_kinds:{kind.model}", "data": "inline", "shards": SHARDS, "batch_size": 0}
    task |= {"lr": LR, "local_steps": way.local_steps, "dtype": str(kind.dtype).removeprefix("torch.")}
    family = "tests.model_kinds:arcs" if way.topology == "arcs" else "path"
    return from_dict(
        {
            "rounds": rounds,
            "eval_every": eval_every,
            "task": task | {"step": kind.step} | tables.get("task", {}),
            "topology": {"family": family, "peers": 4} | tables.get("topology", {}),
            "algorithm": way.algorithm | kind.algorithm | tables.get("algorithm", {}),
            "record": {"params": "final"} | tables.get("record", {}),
        }
    )


def models_of(folder: Path) -> list[dict[str, Tensor]]:
    """Return what a run folder holds of the peers' models, in node order."""
    return [load_file(path / "model.safetensors") for path in sorted((folder / "peers").iterdir())]


def columns(now: dict[str, Tensor], names: Iterable[str]) -> Tensor:
    """Return some of the tensors as flat rows, (n, d), in float64."""
    return torch.cat([now[name].flatten(1).double() for name in names], dim=1)


ENGINES: tuple[Engine, ...] = ("rounds", "events")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_a_loop_in_plain_torch(kind: str, way: str, engine: Engine, tmp_path: Path) -> None:
    """Every tensor of every peer's model file: gossiped, personal, frozen, and counters; and what is told of them."""
    k, w = KINDS[kind], WAYS[way]
    summary = simulate(experiment(k, w), engine=engine, out=tmp_path / "run")
    assert summary.outcome == "finished"
    nets, now = by_hand(k, w)
    double = k.dtype is torch.float64
    near = {"rtol": 1e-9, "atol": 1e-12} if double else {"rtol": 1e-5, "atol": 1e-6}
    for ours, net in zip(models_of(tmp_path / "run"), nets, strict=True):
        theirs = net.state_dict()
        assert {n: t.dtype for n, t in ours.items()} == {n: t.dtype for n, t in theirs.items()}
        trained = {tensor.data_ptr() for name, tensor in theirs.items() if name in now}  # a tied one has two names
        for name, tensor in theirs.items():
            limits = near if tensor.data_ptr() in trained else {"rtol": 0, "atol": 0}
            torch.testing.assert_close(ours[name], tensor, **limits, msg=lambda text, name=name: f"{name}: {text}")
    kept = [name for name in now if name.endswith(STATISTICS) and k.algorithm.get("buffers") == "keep"]
    vector = columns(now, [name for name in now if name not in kept])
    torch.testing.assert_close(torch.tensor(summary.params, dtype=torch.float64), vector, **near)
    x = columns(now, k.gossiped)
    distance = float(((x - x.mean(dim=0)) ** 2).sum() / len(x))
    assert summary.consensus_distance == pytest.approx(distance, rel=1e-9 if double else 1e-3)
    losses = [loss(net, shard, k.dtype) for net, shard in zip(nets, SHARDS, strict=True)]
    assert summary.loss.mean == pytest.approx(sum(losses) / 4, rel=1e-9 if double else 1e-3)


def test_the_rounds_engine_vectorises_a_model_with_a_personal_head() -> None:
    """The loop above holds for the vectorised step, then."""
    kind, way = KINDS["head, vectorised"], WAYS["dpsgd"]
    assert simulate(experiment(kind, way)).step == "vmap"
    assert simulate(experiment(KINDS["head, statistics kept"], way)).step == "plain"


def test_a_vectorised_step_in_half_precision_differs_by_its_rounding_only() -> None:
    """bfloat16 has 8 bits, and sums in another order."""
    kind = KINDS["half"]
    e = experiment(kind, WAYS["dpsgd"], task={"step": "vmap"})
    summary, (_, now) = simulate(e), by_hand(kind, WAYS["dpsgd"])
    assert summary.step == "vmap"
    torch.testing.assert_close(torch.tensor(summary.params).double(), columns(now, now), rtol=0, atol=2**-6)


# ---- What travels

NUMBERS = {  # parameters and statistics that are gossiped
    "batch norm": (29, 8),
    "batch norm, kept": (29, 0),
    "frozen": (4, 8),
    "frozen, kept": (4, 0),
    "half": (21, 0),
    "partly half": (29, 8),
    "head, vectorised": (16, 0),
    "head, statistics averaged": (24, 8),
    "head, statistics kept": (24, 0),
    "several patterns": (17, 2),
    "statistics of the encoder only": (0, 8),
    "a tied weight, by its second name": (13, 0),
    "buffers that come late": (4, 0),
    "one statistic only": (0, 2),
}
SAID = {  # by p parameters and s statistics; without parameters the first message of two is that of the second
    "dpsgd": lambda p, s: p + s,
    "dpsgd, cta": lambda p, s: p + s,
    "d2": lambda p, s: p + s,
    "gradient tracking": lambda p, s: 2 * p + s + s * (not p),
    "diging": lambda p, s: 2 * p + s,
    "diloco": lambda p, s: p + s,
    "diloco over neighbours": lambda p, s: p + s,
    "exact": lambda p, s: p + s,
    "push-sum": lambda p, s: p + s + bool(p) + bool(s),  # and a weight for either
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", NUMBERS)
def test_what_is_frozen_or_personal_is_not_sent(kind: str, way: str) -> None:
    k, w = KINDS[kind], WAYS[way]
    e = experiment(k, w, rounds=1)
    number_bytes = 8 if k.dtype is torch.float64 or way == "push-sum" else 4
    message_bytes = SAID[way](*NUMBERS[kind]) * number_bytes
    messages = 12 if w.topology == "all" else 6
    assert simulate(e, engine="events").payload_bytes_sent == messages * message_bytes
    assert explain(e).payload_bytes_per_message == message_bytes


def test_personal_numbers_stay_bit_for_bit_and_shared_ones_follow_the_matrix() -> None:
    """Without learning x <- W x for the encoder, from starts that differ; the head is not touched."""
    kind = KINDS["head, vectorised"]
    starts = torch.randn(4, 21, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    starts[:, 16:] *= 1000
    e = experiment(kind, WAYS["dpsgd"], task={"lr": 0.0, "init": starts.tolist()})
    expected = torch.linalg.matrix_power(PATH, ROUNDS) @ starts[:, :16]
    for engine in ENGINES:
        summary = simulate(e, engine=engine)
        x = torch.tensor(summary.params, dtype=torch.float64)
        torch.testing.assert_close(x[:, :16], expected, rtol=1e-13, atol=1e-15)
        assert torch.equal(x[:, 16:], starts[:, 16:])


@pytest.mark.parametrize("engine", ENGINES)
def test_peers_are_as_near_as_what_they_share(engine: Engine) -> None:
    """With the metric "model": encoders within the threshold are mixed, however far apart the heads are."""
    starts = torch.zeros(4, 21, dtype=torch.float64)
    starts[:, 0] = torch.tensor([0.0, 0.4, 0.8, 9.0])
    starts[:, 20] = torch.tensor([0.0, 100.0, 200.0, 300.0])
    e = experiment(
        KINDS["head, vectorised"],
        WAYS["dpsgd"],
        rounds=1,
        task={"lr": 0.0, "init": starts.tolist()},
        topology={"metric": "model", "threshold": 0.5},
    )
    x = torch.tensor(simulate(e, engine=engine).params, dtype=torch.float64)
    assert x[:, 0].tolist() == pytest.approx([0.4 / 3, 0.4, 2 / 3, 9.0])  # the last one is too far away
    assert torch.equal(x[:, 20], starts[:, 20])


# ---- Running statistics stay within the range of what the peers have seen


@pytest.mark.parametrize("way", ["dpsgd, cta", "diloco", "diloco over neighbours", "push-sum"])
def test_means_of_variances_lie_between_them(way: str) -> None:
    """Many local steps, after which a peer's statistics are those of its own rows, and next to no learning.

    Parameters would be extrapolated here: from x and what was found at x to somewhere else. Variances would be
    negative then, or grow without end.
    """
    kind = KINDS["batch norm"]
    w = replace(WAYS[way], local_steps=20)
    e = experiment(kind, w, rounds=8, task={"lr": 2.0**-20}, record={"params": "every"}, eval_every=1)
    rows = [torch.tensor([features for features, _ in shard], dtype=kind.dtype) for shard in SHARDS]
    seen = torch.stack([torch.ones(4), *(kind.make()[0](x).var(dim=0) for x in rows)])  # it begins with ones
    least, most = seen.min(dim=0).values, seen.max(dim=0).values
    for entry in simulate(e).history:
        variances = torch.tensor(entry.params, dtype=kind.dtype)[:, -4:]
        assert ((variances > least - 1e-3) & (variances < most + 1e-3)).all()


# ---- Half precision


@pytest.mark.parametrize("model", ["every_bfloat16", "large_float16"])
def test_averages_of_equal_numbers_are_these_numbers(model: str, tmp_path: Path) -> None:
    """Bit for bit, through vector, messages and file; in float16 40000 + 40000 would be infinite."""
    e = experiment(Kind(model, (), dtype=torch.float32), WAYS["dpsgd"], topology={"family": "ring"})
    for engine in ENGINES:
        assert simulate(e, engine=engine, out=tmp_path / engine).outcome == "finished"
        for tensors in models_of(tmp_path / engine):
            assert torch.equal(tensors["spare"], getattr(model_kinds, model)().spare)


# ---- The same values in another form


@pytest.fixture(scope="module")
def plain_images() -> Document:
    return images("images")


def images(model: str) -> Document:
    kind = Kind(model, (), {"share": ["1.weight", "1.bias", "2.running_*"]})
    return simulate(experiment(kind, WAYS["dpsgd"], task={"shards": IMAGES}), engine="events")


@pytest.mark.parametrize("model", ["images_channels_last", "images_compiled", "images_partly_compiled"])
def test_the_form_of_a_model_changes_no_value(model: str, plain_images: Document) -> None:
    """Nor the names by which a part of it is shared."""
    summary = images(model)
    assert summary.payload_bytes_sent == plain_images.payload_bytes_sent
    x, plain = (torch.tensor(s.params, dtype=torch.float64) for s in (summary, plain_images))
    torch.testing.assert_close(x, plain, rtol=1e-9, atol=1e-12)


# ---- As daemons


@pytest.fixture(scope="module")
def pool() -> Iterator[DaemonPool]:
    pool = DaemonPool()
    yield pool
    pool.close()


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("batch norm", "dpsgd"),
        ("batch norm, kept", "dpsgd, cta"),
        ("batch norm", "push-sum"),
        ("frozen", "gradient tracking"),
        ("half", "d2"),
        ("partly half", "diging"),
        ("head, vectorised", "gradient tracking"),
        ("head, statistics averaged", "dpsgd"),
        ("head, statistics averaged", "diloco"),
        ("head, statistics kept", "d2"),
        ("several patterns", "push-sum"),
        ("buffers that come late", "dpsgd"),
        ("one statistic only", "gradient tracking"),
        ("one statistic only", "push-sum"),
    ],
)
def test_daemons_come_to_the_same_bits(pool: DaemonPool, kind: str, way: str) -> None:
    e = experiment(KINDS[kind], WAYS[way])
    real, virtual = pool.up(e), simulate(e, engine="events")
    assert real.outcome == virtual.outcome == "finished", real.why
    assert real.params == virtual.params
    assert [h.loss.as_dict() for h in real.history] == [h.loss.as_dict() for h in virtual.history]
    assert real.consensus_distance == virtual.consensus_distance
    assert real.payload_bytes_sent == virtual.payload_bytes_sent


def test_the_files_of_daemons_hold_the_whole_model(tmp_path: Path) -> None:
    """Also what was never sent: the personal head, and each peer's counters."""
    e = experiment(KINDS["head, statistics averaged"], WAYS["dpsgd"])
    assert up(e, out=tmp_path / "up").outcome == "finished"
    simulate(e, engine="events", out=tmp_path / "events")
    for real, virtual in zip(models_of(tmp_path / "up"), models_of(tmp_path / "events"), strict=True):
        assert real.keys() == virtual.keys() == model_kinds.split().state_dict().keys()
        assert all(torch.equal(real[name], virtual[name]) for name in virtual)
        assert real["head.1.num_batches_tracked"].item() == ROUNDS * WAYS["dpsgd"].local_steps


# ---- Names


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("batch norm", "encoder.*"),
        ("batch norm", "1.num_batches_tracked"),
        ("batch norm, kept", "1.running_*"),
        ("frozen", "0.*"),
        ("head, vectorised", "ENCODER.*"),
        ("head, vectorised", "encoder"),
    ],
)
def test_a_pattern_that_matches_nothing_that_is_gossiped_is_refused(kind: str, pattern: str) -> None:
    e = experiment(KINDS[kind], WAYS["dpsgd"], algorithm={"share": ["*.weight", pattern]})
    for run in (explain, simulate):
        with pytest.raises(ConfigError, match=r"matches nothing; the model has .*weight") as caught:
            run(e)
        assert caught.value.key == "algorithm.share"
        assert f'"{pattern}"' in caught.value.problem
