"""What is built, and what each value brings with it.

A value that gets built moves from `later` to `built`; a key leaves ONLY_DEFAULT.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple


class Form(NamedTuple):
    """A value with a part of its own, such as "npz:PATH"."""

    text: str
    pattern: str


class Choice(NamedTuple):
    """The values of one key: those that are built, and those of the contract that are not yet."""

    built: tuple[str, ...]
    later: tuple[str, ...] = ()
    forms: tuple[Form, ...] = ()
    later_forms: tuple[Form, ...] = ()


def matches(text: str, forms: Sequence[Form]) -> bool:
    return any(re.fullmatch(form.pattern, text) for form in forms)


def is_factory(text: str) -> bool:
    """Say whether a value names a user's own function."""
    return matches(text, (FACTORY,)) and not text.startswith(("file:", "networkx:", "npz:", "torchvision:"))


def is_of(text: str, kind: str | Form) -> bool:
    """Say whether a value is this one, or has this form."""
    if isinstance(kind, str):
        return text == kind
    return is_factory(text) if kind == FACTORY else matches(text, (kind,))


FACTORY = Form('"package.module:factory"', r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
NPZ = Form('"npz:PATH"', r"npz:.+")
TORCHVISION = Form('"torchvision:NAME"', r"torchvision:[^\W\d]\w*")
GRAPH_FILE = Form('"file:PATH"', r"file:.+")
NETWORKX = Form('"networkx:NAME"', r"networkx:[^\W\d]\w*")
CUDA = Form('"cuda:N"', r"cuda:(0|[1-9][0-9]{0,3})")

# How many peers there are where nothing says so; as topology has it, which is not loaded for reading a file.
DEFAULT_PEERS = 8

# Modes in which a coordinator holds the parameters: a parameter server. In the remaining one, "ring", nobody does.
COORDINATING = ("sync", "async", "quorum", "buffered")

CHOICES: dict[str, Choice] = {
    "task.model": Choice(("cnn", "mlp", "softmax", "linear"), forms=(FACTORY,)),
    "task.data": Choice(("mnist5k", "inline", "none"), forms=(TORCHVISION, NPZ, FACTORY)),
    "task.partition": Choice(("iid", "dirichlet", "by_class", "sizes", "sample", "own")),
    "task.optimizer": Choice(("sgd",)),
    "task.lr_schedule": Choice(("constant", "cosine", "step")),
    "task.dtype": Choice(("float32", "float64")),
    "task.device": Choice(("auto", "cpu", "cuda"), forms=(CUDA,)),
    "task.step": Choice(("auto", "vmap", "plain"), later=("fused",)),
    "topology.family": Choice(
        (
            *("ring", "path", "grid", "torus", "star", "complete", "hypercube", "exponential"),
            *("regular", "geometric", "smallworld", "erdos_renyi", "barabasi_albert"),
            *("one_peer_exponential", "base_k", "random_matching", "epidemic", "mobile"),
        ),
        forms=(GRAPH_FILE, NETWORKX, FACTORY),
    ),
    "topology.metric": Choice(("hops", "weight", "position", "rtt", "model")),
    "topology.weights": Choice(("auto", "metropolis", "uniform", "lazy", "push")),
    "topology.variant": Choice(("oracle", "local")),
    "topology.among": Choice(("complete", "ring", "path", "star", "hypercube"), forms=(GRAPH_FILE,)),
    "algorithm.name": Choice(
        ("dpsgd", "adpsgd", "push_sum", "gradient_tracking", "d2", "diloco", "easgd", "local", "exact"),
        later=("choco", "cached", "power_gossip"),
        forms=(FACTORY,),
    ),
    "algorithm.mode": Choice(("sync", "async")),
    "algorithm.order": Choice(("atc", "cta", "diging")),
    "algorithm.among": Choice(("all", "neighbours")),
    "algorithm.combine": Choice(
        ("weighted_sum",),
        later=("trimmed_mean", "median", "krum", "multi_krum", "geometric_median", "self_clip"),
    ),
    "algorithm.buffers": Choice(("average", "keep")),
    "compression.name": Choice(
        ("none", "fp16", "bf16"),
        later=("int8", "int4", "int2", "top_k", "random_k", "sign", "qsgd", "low_rank"),
    ),
    "coordinator.mode": Choice(("none", "sync", "async", "quorum", "buffered", "ring")),
    "coordinator.aggregate": Choice(("gradients", "models")),
    "coordinator.weighting": Choice(("samples", "equal")),
    "coordinator.server_optimizer": Choice(("sgd", "momentum", "adam", "yogi", "adagrad")),
    "coordinator.variant": Choice(("paper", "zero_start", "flower")),
    "coordinator.staleness": Choice(("constant", "inverse", "inverse_sqrt")),
    "coordinator.late": Choice(("drop", "stale")),
    "coordinator.arrival": Choice(("clock", "round_robin")),
    "coordinator.engine": Choice(("own", "gloo", "nccl")),
    "speed.distribution": Choice(("constant", "lognormal")),
    "transport.plane": Choice(("auto", "tcp"), later=("shm", "ipc")),
    "record.params": Choice(("none", "final", "every")),
    "record.on_divergence": Choice(("stop", "continue")),
    "peers.data": Choice((), forms=(TORCHVISION, NPZ, FACTORY)),
}

# Keys of the contract that may only keep their default until they are built; a table stands for all its keys.
ONLY_DEFAULT = ("faults.attackers", "transport.overlap", "peers.key", "transport.advertise")

# Keys that only some values of another key use: key -> (the other key, the values or their forms).
USED_BY: dict[str, tuple[str, tuple[str | Form, ...]]] = {
    "task.classes_per_peer": ("task.partition", ("by_class",)),
    "task.sizes": ("task.partition", ("sizes",)),
    "task.rows_per_peer": ("task.partition", ("sample",)),
    "task.shards": ("task.data", ("inline",)),
    "topology.shape": ("topology.family", ("grid", "torus")),
    "topology.degree": ("topology.family", ("regular",)),
    "topology.k": ("topology.family", ("smallworld", "base_k")),
    "topology.p": ("topology.family", ("smallworld", "erdos_renyi")),
    "topology.m": ("topology.family", ("barabasi_albert",)),
    "topology.fanout": ("topology.family", ("epidemic",)),
    "topology.variant": ("topology.family", ("epidemic",)),
    "topology.speed": ("topology.family", ("mobile",)),
    "topology.margin": ("topology.family", ("mobile",)),
    "topology.pairs": ("topology.family", ("random_matching",)),
    "topology.among": ("topology.family", ("random_matching",)),
    "topology.look_again": ("topology.metric", ("model",)),
    "topology.args": ("topology.family", (NETWORKX, FACTORY)),
    "topology.directed": ("topology.family", (GRAPH_FILE,)),
    "algorithm.gamma": ("algorithm.name", ("choco",)),
    "algorithm.outer_lr": ("algorithm.name", ("diloco",)),
    "algorithm.outer_momentum": ("algorithm.name", ("diloco",)),
    "algorithm.nesterov": ("algorithm.name", ("diloco",)),
    "algorithm.among": ("algorithm.name", ("diloco",)),
    "algorithm.alpha": ("algorithm.name", ("easgd",)),
    "algorithm.allow_unstable": ("algorithm.name", ("d2",)),
    "algorithm.tau": ("algorithm.combine", ("self_clip",)),
    "algorithm.f": (
        "algorithm.combine",
        ("trimmed_mean", "median", "krum", "multi_krum", "geometric_median", "self_clip"),
    ),
    "compression.k": ("compression.name", ("top_k", "random_k")),
    "compression.fraction": ("compression.name", ("top_k", "random_k")),
    "compression.levels": ("compression.name", ("qsgd",)),
    "compression.rank": ("compression.name", ("low_rank",)),
    "coordinator.name": ("coordinator.mode", COORDINATING),
    "coordinator.aggregate": ("coordinator.mode", COORDINATING),
    "coordinator.weighting": ("coordinator.mode", ("sync", "quorum", "ring")),
    "coordinator.fraction": ("coordinator.mode", ("sync",)),
    "coordinator.server_optimizer": ("coordinator.mode", COORDINATING),
    "coordinator.server_lr": ("coordinator.mode", COORDINATING),
    "coordinator.server_momentum": ("coordinator.server_optimizer", ("momentum",)),
    "coordinator.beta1": ("coordinator.server_optimizer", ("adam", "yogi", "adagrad")),
    "coordinator.beta2": ("coordinator.server_optimizer", ("adam", "yogi")),
    "coordinator.server_tau": ("coordinator.server_optimizer", ("adam", "yogi", "adagrad")),
    "coordinator.variant": ("coordinator.server_optimizer", ("adam", "yogi", "adagrad")),
    "coordinator.staleness": ("coordinator.mode", ("async", "quorum", "buffered")),
    "coordinator.max_staleness": ("coordinator.mode", ("async",)),
    "coordinator.quorum": ("coordinator.mode", ("quorum",)),
    "coordinator.timer_s": ("coordinator.mode", ("quorum",)),
    "coordinator.late": ("coordinator.mode", ("quorum",)),
    "coordinator.buffer": ("coordinator.mode", ("buffered",)),
    "coordinator.servers": ("coordinator.mode", ("sync", "async", "buffered")),
    "coordinator.arrival": ("coordinator.mode", ("async",)),
    "coordinator.delay": ("coordinator.mode", ("async",)),
    "coordinator.engine": ("coordinator.mode", ("ring",)),
    "speed.sigma": ("speed.distribution", ("lognormal",)),
    "peers.data": ("task.partition", ("own",)),
}

# Values that need a further key: (key, value) -> (the needed key, what it says).
NEEDS: dict[tuple[str, str], tuple[str, str]] = {
    ("task.partition", "by_class"): ("task.classes_per_peer", "how many classes each peer holds, such as 2"),
    ("task.partition", "sizes"): ("task.sizes", "the number of rows of each peer, such as [100, 50, 50]"),
    ("task.partition", "sample"): ("task.rows_per_peer", "how many rows each peer draws, such as 200"),
    ("task.data", "inline"): ("task.shards", "per peer a list of [features, target]"),
    ("task.data", "none"): ("task.init", "the vectors that are gossiped, such as [[1.0], [2.0]]"),
}

# The orders that an algorithm has; the first is its default. Others have one order, and take no such key.
ORDERS = {
    **dict.fromkeys(("dpsgd", "local", "exact"), ("atc", "cta")),  # the other two are D-PSGD with another W
    "gradient_tracking": ("atc", "diging"),
}

# Algorithms in which nobody waits for anybody, in mode "async" and, the first, in any. A user's own may, too.
ASYNCHRONOUS = ("adpsgd", "dpsgd")

# Families in which W changes from round to round.
TIME_VARYING = ("one_peer_exponential", "base_k", "random_matching", "epidemic", "mobile")

# Families whose peers have positions: the distance is theirs, and no threshold fits every scale.
BY_POSITION = ("geometric", "mobile")
