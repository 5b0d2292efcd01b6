"""The experiment file: its tables and defaults, and what is refused, in one line that names the key.

Read it downwards: what is built, the tables of the file, the experiment, loading, the checks across keys, and
last the words of an error. Experiments come from `load` or `from_dict`; both check everything.
"""

import difflib
import hashlib
import ipaddress
import json
import math
import numbers
import re
import sys
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from peer.errors import ConfigError

# What is built. A value that gets built moves from `later` to `built`; a key leaves ONLY_DEFAULT.


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


FACTORY = Form('"package.module:factory"', r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
NPZ = Form('"npz:PATH"', r"npz:.+")
TORCHVISION = Form('"torchvision:NAME"', r"torchvision:[^\W\d]\w*")
GRAPH_FILE = Form('"file:PATH"', r"file:.+")
NETWORKX = Form('"networkx:NAME"', r"networkx:[^\W\d]\w*")
CUDA = Form('"cuda:N"', r"cuda:(0|[1-9][0-9]{0,3})")

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
        ),
        later=("one_peer_exponential", "base_k", "random_matching", "epidemic", "mobile"),
        forms=(GRAPH_FILE, NETWORKX),
    ),
    "topology.metric": Choice(("hops", "weight", "position"), later=("rtt", "model")),
    "topology.weights": Choice(("auto", "metropolis", "uniform", "lazy"), later=("push",)),
    "algorithm.name": Choice(
        ("dpsgd", "local", "exact"),
        later=(
            *("push_sum", "gradient_tracking", "d2", "choco", "adpsgd", "diloco", "easgd", "cached"),
            "power_gossip",
        ),
        later_forms=(FACTORY,),
    ),
    "algorithm.mode": Choice(("sync",), later=("async",)),
    "algorithm.order": Choice(("atc", "cta"), later=("diging",)),
    "algorithm.combine": Choice(
        ("weighted_sum",),
        later=("trimmed_mean", "median", "krum", "multi_krum", "geometric_median", "self_clip"),
    ),
    "algorithm.buffers": Choice(("average", "keep")),
    "compression.name": Choice(
        ("none",),
        later=(
            *("fp16", "bf16", "int8", "int4", "int2", "top_k", "random_k", "sign", "qsgd"),
            "low_rank",
        ),
    ),
    "coordinator.mode": Choice(("none",), later=("sync", "async", "quorum", "buffered", "ring")),
    "coordinator.aggregate": Choice(("gradients", "models")),
    "coordinator.weighting": Choice(("samples", "equal")),
    "coordinator.server_optimizer": Choice(("sgd", "momentum", "adam", "yogi", "adagrad")),
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
ONLY_DEFAULT = (
    *("stop_when", "stop_after_s", "algorithm.share", "network", "speed", "faults", "transport.overlap"),
    *("checkpoint", "peers.key"),
)

# Keys that only some values of another key use: key -> (the other key, the values); "file:" is any file.
USED_BY: dict[str, tuple[str, tuple[str, ...]]] = {
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
    "topology.args": ("topology.family", ("networkx:",)),
    "topology.directed": ("topology.family", ("file:",)),
    "algorithm.gamma": ("algorithm.name", ("choco",)),
    "algorithm.outer_lr": ("algorithm.name", ("diloco",)),
    "algorithm.outer_momentum": ("algorithm.name", ("diloco",)),
    "algorithm.alpha": ("algorithm.name", ("easgd",)),
    "algorithm.max_staleness": ("algorithm.name", ("cached",)),
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

# Families whose peers have positions: the distance is theirs, and no threshold fits every scale.
BY_POSITION = ("geometric", "mobile")

MAX_INT = 2**63 - 1
MAX_PEERS = 10_000_000
MAX_FILE_BYTES = 256 * 2**20


# The words of one value. Whatever they are made from, they are one line.


def _shown(value: object, depth: int = 20) -> str:
    """The value as a TOML file would have it, on one line; what lies deeper than `depth` is left out."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping | list | tuple) and depth == 0:
        return "..."
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_shown(item, depth - 1)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_shown(item, depth - 1) for item in value) + "]"
    return str(value)


def _one_line(text: str, limit: int = 80) -> str:
    """The text cut to `limit` characters, with every character that is not printable escaped."""
    clipped = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in clipped)


def _brief(value: object) -> str:
    return _one_line(_shown(value), 60)


def _listed(words: Sequence[str]) -> str:
    """a, b or c"""
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _nearest(word: str, words: Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, words, n=1, cutoff=0.7)), None)


# Checks of one value. Each returns the value, or raises ValueError with the words that follow the key.


def _matches(text: str, forms: Sequence[Form]) -> bool:
    return any(re.fullmatch(form.pattern, text) for form in forms)


def _check_choice(choice: Choice, value: str) -> str:
    if value in choice.built or _matches(value, choice.forms):
        return value
    allowed = [*choice.built, *(form.text for form in choice.forms)]
    if value in choice.later or _matches(value, choice.later_forms):
        raise ValueError(f"{_brief(value)} is not built yet; built are: {', '.join(allowed)}")
    nearest = _nearest(value, choice.built)
    hint = f" (did you mean {nearest}?)" if nearest and len(allowed) > 1 else ""
    raise ValueError(f"{_brief(value)} is not known; choose {_listed(allowed)}{hint}")


def _one_of(key: str) -> AfterValidator:
    return AfterValidator(partial(_check_choice, CHOICES[key]))


def _check_name(name: str, max_bytes: int = 200) -> str:
    """A name becomes a folder's name, and stands in one-line messages."""
    if not name.strip() or name in (".", ".."):
        raise ValueError(f"{_brief(name)} is not a name")
    if "/" in name or "\\" in name:
        raise ValueError(f"{_brief(name)} must not contain / or \\, for a folder is named after it")
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in name):
        raise ValueError(f"{_brief(name)} must not contain control characters")
    if len(name.encode()) > max_bytes:
        raise ValueError(f"{_brief(name)} must be at most {max_bytes} bytes long")
    return name


def _check_peer_name(name: str) -> str:
    if len(name) > 64:
        raise ValueError(f"{_brief(name)} must be at most 64 characters long")
    return _check_name(name)


def _check_address(text: str, lowest_port: int = 1, scheme_optional: bool = True) -> str:
    example = "host:5555 or tcp://host:5555" if scheme_optional else "tcp://0.0.0.0:5555"
    wrong = f"{_brief(text)} is not an address such as {example}, IPv6 in brackets"
    found = re.fullmatch(r"(tcp://)?(\[[^\s\[\]]+\]|[^\s\[\]:/@]+):([0-9]{1,5})", text)
    if found is None or not text.isprintable() or not (found[1] or scheme_optional):
        raise ValueError(wrong)
    if found[2].startswith("[") and not _is_ipv6(found[2][1:-1]):
        raise ValueError(wrong)
    if not lowest_port <= int(found[3]) <= 65535:
        raise ValueError(f"{_brief(text)}: a port is from {lowest_port} to 65535")
    return text


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _check_listen(text: str) -> str:
    if text in ("auto", "none"):
        return text
    if not text.startswith("tcp://"):
        raise ValueError(f'{_brief(text)} is not known; choose auto, none or "tcp://ADDRESS:PORT"')
    return _check_address(text, lowest_port=0, scheme_optional=False)


def _check_advertise(text: str) -> str:
    return _check_address(text) if text else text


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_vector(value: object) -> tuple[float, ...]:
    if not isinstance(value, tuple) or not value:
        raise ValueError(f"{_brief(value)} is not an array of numbers")
    for number in value:
        if not _is_number(number):
            raise ValueError(f"{_brief(number)} is not a number")
    try:
        vector = tuple(map(float, value))
    except OverflowError:
        raise ValueError(f"{_brief(value)} does not fit a float64") from None
    if not all(map(math.isfinite, vector)):
        raise ValueError(f"{_brief(value)} is not finite")
    return vector


def _check_init(value: object) -> object:
    """Flat: one start for all peers. Nested: one start for each peer."""
    if value is None or not isinstance(value, tuple) or not any(isinstance(row, tuple) for row in value):
        return None if value is None else _check_vector(value)
    rows = tuple(map(_check_vector, value))
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(f"row {i} has length {len(row)}, and row 0 has length {len(rows[0])}")
    return rows


def _check_filled(value: tuple[object, ...]) -> tuple[object, ...]:
    if not value:
        raise ValueError("[] must not be empty")
    return value


def _check_quorum(value: object) -> object:
    whole = isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= MAX_PEERS
    fraction = isinstance(value, float) and 0 < value <= 1
    if not (whole or fraction):
        raise ValueError(f"{_brief(value)} must be a fraction up to 1.0, or a count of 2 and more")
    return value


def _check_args(args: dict[str, Any]) -> dict[str, Any]:
    for name, value in args.items():
        if not name.isidentifier():
            raise ValueError(f"{_brief(name)} is not an argument's name")
        if not _is_plain(value):
            raise ValueError(f"{_brief({name: value})} must be text, finite numbers, true, false or arrays of them")
    return args


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


Int = Annotated[int, Field(ge=0, le=MAX_INT)]
Count = Annotated[int, Field(ge=1, le=MAX_INT)]
Peers = Annotated[int, Field(ge=1, le=MAX_PEERS)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
SomeSeconds = Annotated[float, Field(gt=0, le=1e9)]
Device = Annotated[str, _one_of("task.device")]
Address = Annotated[str, AfterValidator(_check_address)]
Listen = Annotated[str, AfterValidator(_check_listen)]
Advertise = Annotated[str, AfterValidator(_check_advertise)]
FILLED = AfterValidator(_check_filled)
Row = tuple[tuple[float, ...], float]
Shard = tuple[Row, ...]
Starts = tuple[float, ...] | tuple[tuple[float, ...], ...]


# The tables of the file. A key whose default is None is optional: left out, it says nothing.


class Table(BaseModel):
    """One table of the file: read-only, and no key in it that is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Task(Table):
    """[task]: what is trained, on which data, and how one local step goes."""

    model: Annotated[str, _one_of("task.model")] = "cnn"
    data: Annotated[str, _one_of("task.data")] = "mnist5k"
    partition: Annotated[str, _one_of("task.partition")] = "iid"
    alpha: Positive = 0.3
    classes_per_peer: Count | None = None
    sizes: Annotated[tuple[Count, ...], FILLED] | None = None
    rows_per_peer: Count | None = None
    batch_size: Int = 32
    local_steps: Count = 1
    optimizer: Annotated[str, _one_of("task.optimizer")] = "sgd"
    lr: NotNegative = 0.05
    lr_schedule: Annotated[str, _one_of("task.lr_schedule")] = "constant"
    warmup_rounds: Int = 0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NotNegative = 0.0
    proximal_mu: NotNegative = 0.0
    dtype: Annotated[str, _one_of("task.dtype")] = "float32"
    device: Device = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    step: Annotated[str, _one_of("task.step")] = "auto"
    shards: Annotated[tuple[Shard, ...], FILLED] | None = None
    init: Annotated[Starts | None, BeforeValidator(_check_init)] = None


class Topology(Table):
    """[topology]: who hears whom. `peers` is None where the file does not state it; `metric` is final."""

    family: Annotated[str, _one_of("topology.family")] = "ring"
    peers: Peers | None = None
    shape: Annotated[tuple[Peers, ...], FILLED] | None = None
    degree: Int | None = None
    k: Count | None = None
    p: Probability | None = None
    m: Count | None = None
    fanout: Count | None = None
    variant: str | None = None
    speed: NotNegative | None = None
    margin: NotNegative | None = None
    args: Annotated[dict[str, Any], AfterValidator(_check_args)] | None = None
    directed: bool | None = None
    seed: Int | None = None
    metric: Annotated[str, _one_of("topology.metric")] = "hops"
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 1.0
    weights: Annotated[str, _one_of("topology.weights")] = "auto"
    allow_disconnected: bool = False

    @model_validator(mode="before")
    @classmethod
    def _metric_of_family(cls, table: object) -> object:
        if isinstance(table, Mapping) and "metric" not in table and table.get("family") in BY_POSITION:
            return {**table, "metric": "position"}
        return table


class Algorithm(Table):
    """[algorithm]: what the peers do with what they hear."""

    name: Annotated[str, _one_of("algorithm.name")] = "dpsgd"
    mode: Annotated[str, _one_of("algorithm.mode")] = "sync"
    order: Annotated[str, _one_of("algorithm.order")] = "atc"
    gamma: Positive | None = None
    outer_lr: NotNegative | None = None
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    alpha: Positive | None = None
    max_staleness: Int | None = None
    allow_unstable: bool | None = None
    combine: Annotated[str, _one_of("algorithm.combine")] = "weighted_sum"
    tau: Positive | None = None
    f: Int = 0
    share: tuple[str, ...] = ("*",)
    buffers: Annotated[str, _one_of("algorithm.buffers")] = "average"


class Compression(Table):
    """[compression]: how a message is made smaller."""

    name: Annotated[str, _one_of("compression.name")] = "none"
    k: Count | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    levels: Count | None = None
    rank: Count | None = None


class Coordinator(Table):
    """[coordinator]: the optional parameter server or ring."""

    mode: Annotated[str, _one_of("coordinator.mode")] = "none"
    name: Annotated[str, AfterValidator(_check_peer_name)] = "coordinator"
    aggregate: Annotated[str, _one_of("coordinator.aggregate")] = "gradients"
    weighting: Annotated[str, _one_of("coordinator.weighting")] = "samples"
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    server_optimizer: Annotated[str, _one_of("coordinator.server_optimizer")] = "sgd"
    server_lr: NotNegative | None = None
    staleness: Annotated[str, _one_of("coordinator.staleness")] = "constant"
    max_staleness: Int = 0
    quorum: Annotated[int | float, BeforeValidator(_check_quorum)] = 0.8
    timer_s: Seconds = 0.0
    late: Annotated[str, _one_of("coordinator.late")] = "drop"
    buffer: Count = 10
    servers: Count = 1
    arrival: Annotated[str, _one_of("coordinator.arrival")] = "clock"
    delay: Int = 0
    engine: Annotated[str, _one_of("coordinator.engine")] = "own"


class Network(Table):
    """[network]: the links of the events engine."""

    latency_ms: NotNegative = 0.0
    jitter_ms: NotNegative = 0.0
    bandwidth_mbps: NotNegative = 0.0
    loss: Probability = 0.0
    duplicate: Probability = 0.0
    reorder: Probability = 0.0
    file: str = ""


class Speed(Table):
    """[speed]: how long local steps take in the events engine."""

    step_s: Positive = 1.0
    factors: tuple[Positive, ...] = ()
    distribution: Annotated[str, _one_of("speed.distribution")] = "constant"
    sigma: NotNegative | None = None


class Faults(Table):
    """[faults]: what goes wrong, and when."""

    schedule: tuple[dict[str, Any], ...] = ()
    attackers: tuple[dict[str, Any], ...] = ()
    per_minute: NotNegative = 0.0


class Transport(Table):
    """[transport]: sockets, and how long a silent peer is waited for."""

    listen: Listen = "auto"
    advertise: Advertise = ""
    plane: Annotated[str, _one_of("transport.plane")] = "auto"
    overlap: bool = False
    round_deadline_s: Seconds = 0.0
    heartbeat_s: SomeSeconds = 0.5
    suspect_s: SomeSeconds = 3.0
    dead_s: SomeSeconds = 5.0
    join_s: SomeSeconds = 60.0


class Checkpoint(Table):
    """[checkpoint]: how often a peer saves itself, and how many of these are kept."""

    every_rounds: Int = 0
    keep: Count = 3


class Record(Table):
    """[record]: what the summary holds, and whether a diverged run goes on."""

    params: Annotated[str, _one_of("record.params")] = "none"
    on_divergence: Annotated[str, _one_of("record.on_divergence")] = "stop"


class PeerEntry(Table):
    """One of [[peers]]: a machine, or a peer with properties of its own."""

    name: Annotated[str, AfterValidator(_check_peer_name)]
    address: Address | None = None
    listen: Listen | None = None
    advertise: Advertise | None = None
    position: tuple[float, float] | None = None
    key: str | None = None
    data: Annotated[str, _one_of("peers.data")] | None = None
    device: Device | None = None


class Experiment(Table):
    """A checked experiment. Two are equal when their keys are; where they were read from does not count."""

    name: Annotated[str, AfterValidator(_check_name)] = "experiment"
    seed: Int = 0
    rounds: Int = 200
    stop_when: str = ""
    stop_after_s: Seconds = 0.0
    eval_every: Count = 10
    task: Task = Task()
    topology: Topology = Topology()
    algorithm: Algorithm = Algorithm()
    compression: Compression = Compression()
    coordinator: Coordinator = Coordinator()
    network: Network = Network()
    speed: Speed = Speed()
    faults: Faults = Faults()
    transport: Transport = Transport()
    checkpoint: Checkpoint = Checkpoint()
    record: Record = Record()
    peers: tuple[PeerEntry, ...] = ()

    _path: Path | None = PrivateAttr(default=None)
    _folder: Path = PrivateAttr(default=Path("."))
    _overrides: dict[str, object] = PrivateAttr(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Experiment) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash(self.digest())

    @property
    def path(self) -> Path | None:
        """The file this was read from; None where there was none."""
        return self._path

    @property
    def folder(self) -> Path:
        """Where relative paths and the user's modules are looked for; absolute after `load`."""
        return self._folder

    @property
    def source_overrides(self) -> dict[str, object]:
        """Dotted key -> value of what `load` was told to override."""
        return dict(self._overrides)

    def to_toml(self) -> str:
        """The experiment as resolved, every key with its value; it loads back to an equal experiment."""
        tables = self.model_dump(exclude_none=True)
        if not self.peers:
            del tables["peers"]
        return tomli_w.dumps(tables)

    def init_is_nested(self) -> bool:
        """Whether task.init gives each peer a start of its own."""
        return self.task.init is not None and isinstance(self.task.init[0], tuple)

    def starts(self) -> tuple[tuple[float, ...], ...]:
        """The rows of task.init: none, one for all peers, or one for each."""
        rows = self.task.init or ()
        nested = tuple(row for row in rows if isinstance(row, tuple))
        flat = tuple(number for number in rows if isinstance(number, float))
        return nested or ((flat,) if flat else ())

    def stated_counts(self) -> dict[str, int]:
        """Key -> number of peers, where a key but topology.peers fixes it; a graph file is not read here."""
        counts = {}
        if self.topology.shape is not None:
            counts["topology.shape"] = math.prod(self.topology.shape)
        if self.task.shards is not None:
            counts["task.shards"] = len(self.task.shards)
        if self.task.init is not None and self.init_is_nested():
            counts["task.init"] = len(self.task.init)
        if self.peers:
            counts["peers"] = sum(not self._is_coordinator(peer) for peer in self.peers)
        return counts

    def fingerprint(self) -> dict[str, str]:
        """Dotted key -> short text, for each key of the digest; above 64 characters, the text's hash."""
        return {key: _short(_shown(value)) for key, value in self._digested().items()}

    def digest(self) -> str:
        """SHA-256, in hex, of what peers must agree on to train together.

        That is seed, rounds, task (without device, threads and step), topology, algorithm, compression and
        coordinator.
        """
        canonical = json.dumps(self._digested(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _digested(self) -> dict[str, object]:
        tables = {"task", "topology", "algorithm", "compression", "coordinator"}
        kept = self.model_dump(include={"seed", "rounds"} | tables, exclude_none=True)
        for local in ("device", "threads", "step"):
            del kept["task"][local]
        return dict(_flat(kept))

    def _is_coordinator(self, peer: PeerEntry) -> bool:
        return self.coordinator.mode != "none" and peer.name == self.coordinator.name


def differing_keys(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Where two fingerprints differ: "task.lr: 0.05 here, 0.1 there". Texts in `theirs` may be anything."""
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return [
        f"{_one_line(key)}: {_one_line(ours.get(key, 'not set'))} here, {_one_line(theirs.get(key, 'not set'))} there"
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]


def _short(text: str) -> str:
    return text if len(text) <= 64 else "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


# Loading.


def load(path: str | Path, overrides: Mapping[str, object] | Sequence[str] = ()) -> Experiment:
    """The experiment in a TOML file, "-" for stdin, with some keys set otherwise.

    overrides: dotted keys and values, such as {"topology.peers": 64} (None takes the key out of the file), or
    texts such as "topology.peers=64", whose values are TOML or a bare word. A table is set key by key.
    Raises ConfigError: one line that names the key, or the file and its line.
    """
    path = Path(path)
    tables = _parse(path, _read(path))
    changes = _changes(overrides)
    for key, value in changes:
        _override(tables, key, value)
    experiment = from_dict(tables, folder=path.absolute().parent, path=path)
    experiment._overrides = dict(changes)
    return experiment


def from_dict(data: Mapping[str, object], *, folder: Path = Path("."), path: Path | None = None) -> Experiment:
    """The experiment of a parsed file: `data` holds its tables. Raises ConfigError."""
    raw = _plain(data)
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        raise _first([_problem(dict(details)) for details in error.errors(include_url=False)], raw) from None
    problems = list(_problems(experiment))
    if problems:
        raise _first(problems, raw)
    experiment._path, experiment._folder = path, Path(folder)
    return experiment


def _read(path: Path) -> bytes:
    shown = _one_line(str(path), 300)
    if shown == "-":
        return sys.stdin.buffer.read(MAX_FILE_BYTES)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("", f"{shown}: no such file") from None
    except IsADirectoryError:
        raise ConfigError("", f"{shown}: is a folder, not an experiment file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError("", f"{shown}: cannot be read ({reason})") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError("", f"{shown}: larger than {MAX_FILE_BYTES // 2**20} MiB")
    return content


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    """The tables of the file, which is UTF-8 whatever the locale; a byte order mark is passed over."""
    shown = _one_line(str(path), 300)
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError("", f"{shown}: not UTF-8 at line {line} (byte 0x{content[error.start]:02x})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("", f"{shown}: not valid TOML: {_one_line(str(error), 200)}") from None


def _changes(overrides: Mapping[str, object] | Sequence[str]) -> list[tuple[str, object]]:
    if isinstance(overrides, Mapping):
        return list(overrides.items())
    texts = [overrides] if isinstance(overrides, str) else overrides
    return list(map(_change, texts))


def _change(text: str) -> tuple[str, object]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals and value):
        raise ConfigError("", f"{_brief(text)} sets no key; write section.key=value, such as task.lr=0.1")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError) as error:
        if value[0] in "\"'[{":
            problem = f"{_brief(value)} is not valid TOML: {_one_line(str(error))}"
            raise ConfigError(_one_line(key), problem) from None
        return key, value
    return key, parsed["value"] if len(parsed) == 1 else value


def _override(tables: dict[str, Any], key: str, value: object) -> None:
    """Sets one dotted key in the tables of a file; None takes it out."""
    if not isinstance(key, str) or not all(key.split(".")):
        raise ConfigError("", f"{_brief(key)} is not a key such as task.lr")
    if isinstance(value, Mapping):
        for name, item in value.items():
            _override(tables, f"{key}.{name}", item)
        return
    *parents, last = key.split(".")
    holder: Any = tables
    for depth, name in enumerate(parents):
        holder = _within(holder, name, _one_line(".".join(parents[: depth + 1])))
    if value is not None:
        holder[_place(holder, last, _one_line(key))] = value
    elif isinstance(holder, dict):
        holder.pop(last, None)


def _within(holder: Any, name: str, key: str) -> Any:
    """What `holder`, a table or an array, holds under `name`; a table that is not there yet is made."""
    if isinstance(holder, dict):
        holder.setdefault(name, {})
    inner = holder[_place(holder, name, key)]
    if not isinstance(inner, dict | list):
        raise ConfigError(key, "is not a table")
    return inner


def _place(holder: dict[str, Any] | list[Any], name: str, key: str) -> Any:
    """`name` in a table; in an array the position that it spells."""
    if isinstance(holder, dict):
        return name
    if not (name.isascii() and name.isdigit() and int(name) < len(holder)):
        raise ConfigError(key, f"is not there: the array has {len(holder)} entries, counted from 0")
    return int(name)


def _plain(value: Any) -> Any:
    """The value with arrays as tuples, and numbers of other libraries as Python's own."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else value


# The checks across keys.


class Problem(NamedTuple):
    """One thing that is wrong: `text` follows the key, or stands alone where no single key is to blame.

    `at` is the key whose place in the file ranks the problem, where that is not `key`.
    """

    key: str
    text: str
    at: str = ""


_DEFAULT = Experiment()


def _problems(experiment: Experiment) -> Iterator[Problem]:
    yield from _not_built(experiment)
    yield from _without_effect(experiment)
    yield from _needed(experiment)
    yield from _task_problems(experiment)
    if experiment.task.shards is not None:
        yield from _shard_problems(experiment)
    yield from _peer_problems(experiment)
    yield from _transport_problems(experiment.transport)
    yield from _count_problems(experiment)


def _value(experiment: Experiment, key: str) -> Any:
    """The value of "rounds" or "task.lr"."""
    value: Any = experiment
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _placed(experiment: Experiment, key: str) -> Iterator[tuple[str, Any, Any]]:
    """The key, its value and its default; for a table each of its keys, for peers.NAME each machine's."""
    table, _, name = key.partition(".")
    if table == "peers":
        for i, peer in enumerate(experiment.peers):
            yield f"peers.{i}.{name}", getattr(peer, name), None
    elif isinstance(_value(_DEFAULT, key), Table):
        for field in type(_value(_DEFAULT, key)).model_fields:
            yield from _placed(experiment, f"{key}.{field}")
    else:
        yield key, _value(experiment, key), _value(_DEFAULT, key)


def _not_built(experiment: Experiment) -> Iterator[Problem]:
    for keys in ONLY_DEFAULT:
        for key, value, default in _placed(experiment, keys):
            if value != default and default is None:
                yield Problem(key, "is not built yet; leave it out")
            elif value != default:
                yield Problem(key, f"{_brief(value)} is not built yet; built are: {_brief(default)}")


def _without_effect(experiment: Experiment) -> Iterator[Problem]:
    for keys, (other, users) in USED_BY.items():
        chosen = _value(experiment, other)
        if chosen in users or chosen.partition(":")[0] + ":" in users:
            continue
        for key, value, default in _placed(experiment, keys):
            if value != default:
                names = _listed([user + "..." if user.endswith(":") else user for user in users])
                yield Problem(key, f"belongs to {names}, and {other} is {_one_line(chosen)}")
    if experiment.coordinator.mode == "none":
        for key, value, default in _placed(experiment, "coordinator"):
            if value != default:
                yield Problem(key, "has no effect without coordinator.mode")


def _needed(experiment: Experiment) -> Iterator[Problem]:
    for (key, value), (needed, meaning) in NEEDS.items():
        if _value(experiment, key) == value and _value(experiment, needed) is None:
            yield Problem(needed, f'{key} = "{value}" needs it: {meaning}', at=key)
    topology = experiment.topology
    if topology.family in BY_POSITION and "threshold" not in topology.model_fields_set:
        meaning = "the distance within which peers hear each other"
        text = f"family {topology.family} needs one, such as 0.5, {meaning}"
        yield Problem("topology.threshold", text, at="topology.family")


def _task_problems(experiment: Experiment) -> Iterator[Problem]:
    task = experiment.task
    if task.data == "inline" and task.model != "linear" and not _matches(task.model, (FACTORY,)):
        text = f'{_brief(task.model)} cannot learn inline data; choose linear or "package.module:factory"'
        yield Problem("task.model", text)
    if task.data in ("inline", "none") and task.partition != "iid":
        yield Problem("task.partition", f'has no effect with task.data = "{task.data}"; leave it out')
    if task.lr_schedule == "cosine" and experiment.rounds == 0:
        yield Problem("task.lr_schedule", "cosine ends with the rounds, and rounds = 0 has no end")


def _shard_problems(experiment: Experiment) -> Iterator[Problem]:
    shards, starts = experiment.task.shards or (), experiment.starts()
    width = next((len(features) for shard in shards for features, _ in shard), 0)
    for i, shard in enumerate(shards):
        name = experiment.peers[i].name if i < len(experiment.peers) else f"peer-{i}"
        if not shard:
            yield Problem("task.shards", f"{name} has no rows")
        for row, (features, _) in enumerate(shard):
            if not features:
                yield Problem("task.shards", f"row {row} of {name} has no features")
            elif len(features) != width:
                text = f"row {row} of {name} has {len(features)} features, and the first row has {width}"
                yield Problem("task.shards", text)
    if experiment.task.model == "linear" and starts and len(starts[0]) != width:
        yield Problem(
            "task.init",
            f"a start has length {len(starts[0])}, and the rows of task.shards have {width} features",
        )


def _peer_problems(experiment: Experiment) -> Iterator[Problem]:
    peers = experiment.peers
    first: dict[str, int] = {}
    for i, peer in enumerate(peers):
        if first.setdefault(peer.name, i) != i:
            text = f"{_brief(peer.name)} is the name of peers.{first[peer.name]} too"
            yield Problem(f"peers.{i}.name", text)
    if len({peer.position is None for peer in peers}) == 2:
        lacking = next(i for i, peer in enumerate(peers) if peer.position is None)
        yield Problem(f"peers.{lacking}.position", "is missing; either all peers have one, or none has")
    if experiment.task.partition != "own":
        return
    if not peers:
        yield Problem("task.partition", "own needs [[peers]], each with its data")
    for i, peer in enumerate(peers):
        if peer.data is None:
            yield Problem(f"peers.{i}.data", 'is missing; task.partition = "own" needs it for each peer')


def _transport_problems(transport: Transport) -> Iterator[Problem]:
    for shorter, longer in (("heartbeat_s", "suspect_s"), ("suspect_s", "dead_s")):
        short, long = getattr(transport, shorter), getattr(transport, longer)
        if not short < long:
            yield Problem(f"transport.{shorter}", f"{short} must be below transport.{longer} = {long}")


def _count_problems(experiment: Experiment) -> Iterator[Problem]:
    counts = experiment.stated_counts()
    if experiment.topology.peers is not None:
        counts = {"topology.peers": experiment.topology.peers, **counts}
    if experiment.task.sizes is not None:
        counts["task.sizes"] = len(experiment.task.sizes)
    text = disagreement(counts)
    if text:
        yield Problem("", text, at=next(iter(counts)))


def disagreement(counts: Mapping[str, int]) -> str:
    """The first two keys that state different numbers of peers, in words; empty if all agree."""
    phrases = {"topology.peers": "topology.peers = ", "topology.shape": "topology.shape makes "}
    said = {key: phrases.get(key, f"{'[[peers]]' if key == 'peers' else key} has ") for key in counts}
    for first, second in zip(counts, list(counts)[1:], strict=False):
        if counts[first] != counts[second]:
            return f"{said[first]}{counts[first]}, but {said[second]}{counts[second]}"
    return ""


# The words of an error.

_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text (a string in quotes)",
    "bool_type": "true or false",
    "tuple_type": "an array",
    "dict_type": "a table",
    "model_type": "a table",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "{} or above"),
    "greater_than": ("gt", "above {}"),
    "less_than_equal": ("le", "{} or below"),
    "less_than": ("lt", "below {}"),
}
# A pattern of keys -> what follows an error there.
_HINTS = {
    r"peers(\.\d+(\.name)?)?": "[[peers]] lists machines, each with a name; their number is topology.peers",
    r"task\.shards(\.\d+)*": "it holds per peer a list of rows, and a row is [features, target]",
}


def _first(problems: Sequence[Problem], raw: Mapping[str, object]) -> ConfigError:
    """The problem that comes first in the file, and how many more there are."""
    first = min(problems, key=lambda problem: _rank(problem.at or problem.key, raw))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return ConfigError(first.key, first.text + more)


def _rank(key: str, raw: object) -> tuple[int, ...]:
    """Where a key stands in the file: its place in each table on the way, last if it is not there."""
    rank = []
    for name in key.split("."):
        if isinstance(raw, Mapping):
            names = list(raw)
            rank.append(names.index(name) if name in names else len(names))
            raw = raw.get(name)
        elif isinstance(raw, tuple) and name.isdigit() and int(name) < len(raw):
            rank.append(int(name))
            raw = raw[int(name)]
    return tuple(rank)


def _problem(error: Mapping[str, Any]) -> Problem:
    """One error of pydantic's, in our words."""
    key = _one_line(".".join(map(str, error["loc"])), 200)
    return Problem(key, _words(error, key))


def _words(error: Mapping[str, Any], key: str) -> str:
    kind, found, context = error["type"], _brief(error["input"]), error.get("ctx", {})
    hint = "".join(f"; {text}" for keys, text in _HINTS.items() if re.fullmatch(keys, key))
    if kind == "extra_forbidden":
        return f"unknown key; {_suggestion(error['loc'])}"
    if kind == "value_error":
        return str(context["error"])
    if kind in _TYPES:
        return f"{found} is not {_TYPES[kind]}{hint}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = context[name]
        return f"{found} must be {words.format(int(bound) if bound == int(bound) else bound)}"
    if kind == "finite_number":
        return f"{found} is not finite"
    if kind in ("missing", "too_long"):
        return ("is missing" if kind == "missing" else f"{found} is too long") + hint
    return f"{found}: {_one_line(error['msg'])}"


def _suggestion(loc: tuple[int | str, ...]) -> str:
    """Where an unknown key may belong."""
    name, table = str(loc[-1]), str(loc[0]) if len(loc) > 1 else ""
    homes = [home for home, keys in _keys().items() if name in keys and home]
    if table and name in _keys()[""]:
        return f"belongs at the top level: {name} (above the first [table])"
    if homes:
        return "belongs in " + _listed([_home(home, name) for home in homes])
    inside = ".".join(map(str, loc[:-1]))
    nearest = _nearest(name, _keys().get(table, ()))
    if nearest:
        return f"did you mean {inside}.{nearest}?" if inside else f"did you mean {nearest}?"
    far = _nearest(name, [key for keys in _keys().values() for key in keys])
    if far:
        homes = [home for home, keys in _keys().items() if far in keys]
        return "did you mean " + _listed([f"{home}.{far}".lstrip(".") for home in homes]) + "?"
    where = "the top level" if not table else f"[{table}]"
    return f"{where} knows {', '.join(_keys().get(table, ()))}"


def _home(table: str, name: str) -> str:
    return f"[[peers]]: {name}" if table == "peers" else f"[{table}]: {table}.{name}"


def _keys() -> dict[str, tuple[str, ...]]:
    """Table -> the keys it knows; "" is the top level."""
    known = {"": tuple(Experiment.model_fields), "peers": tuple(PeerEntry.model_fields)}
    for name, field in Experiment.model_fields.items():
        if isinstance(field.default, Table):
            known[name] = tuple(type(field.default).model_fields)
    return known
