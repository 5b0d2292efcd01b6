"""The tables of the experiment file with their defaults.

A key whose default is None is optional: left out, it says nothing.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from peer.experiment.choices import BY_POSITION
from peer.experiment.values import (
    FILLED,
    Address,
    Advertise,
    Arguments,
    Chance,
    Count,
    Decay,
    Device,
    Int,
    Listen,
    NotNegative,
    PeerName,
    Peers,
    Positive,
    Probability,
    Quorum,
    Seconds,
    Shard,
    SomeSeconds,
    Starts,
    one_of,
)


class Table(BaseModel):
    """One table of the file: read-only, and no key in it that is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Task(Table):
    """[task]: what is trained, on which data, and how one local step goes."""

    model: Annotated[str, one_of("task.model")] = "cnn"
    data: Annotated[str, one_of("task.data")] = "mnist5k"
    partition: Annotated[str, one_of("task.partition")] = "iid"
    alpha: Positive = 0.3
    classes_per_peer: Count | None = None
    sizes: Annotated[tuple[Count, ...], FILLED] | None = None
    rows_per_peer: Count | None = None
    batch_size: Int = 32
    local_steps: Count = 1
    optimizer: Annotated[str, one_of("task.optimizer")] = "sgd"
    lr: NotNegative = 0.05
    lr_schedule: Annotated[str, one_of("task.lr_schedule")] = "constant"
    warmup_rounds: Int = 0
    momentum: Decay = 0.0
    weight_decay: NotNegative = 0.0
    proximal_mu: NotNegative = 0.0
    dtype: Annotated[str, one_of("task.dtype")] = "float32"
    device: Device = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    step: Annotated[str, one_of("task.step")] = "auto"
    shards: Annotated[tuple[Shard, ...], FILLED] | None = None
    init: Starts | None = None


class Topology(Table):
    """[topology]: who hears whom. `peers` is None where the file does not state it; `metric` is final."""

    family: Annotated[str, one_of("topology.family")] = "ring"
    peers: Peers | None = None
    shape: Annotated[tuple[Peers, ...], FILLED] | None = None
    degree: Int | None = None
    k: Count | None = None
    p: Probability | None = None
    m: Count | None = None
    fanout: Count | None = None
    variant: Annotated[str, one_of("topology.variant")] | None = None
    pairs: Int | None = None
    among: Annotated[str, one_of("topology.among")] | None = None
    speed: NotNegative | None = None
    margin: NotNegative | None = None
    args: Arguments | None = None
    directed: bool | None = None
    seed: Int | None = None
    metric: Annotated[str, one_of("topology.metric")] = "hops"
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 1.0
    look_again: Count | None = None
    weights: Annotated[str, one_of("topology.weights")] = "auto"
    allow_disconnected: bool = False

    @model_validator(mode="before")
    @classmethod
    def _metric_of_family(cls, table: object) -> object:
        if isinstance(table, Mapping) and "metric" not in table and table.get("family") in BY_POSITION:
            return {**table, "metric": "position"}
        return table


class Algorithm(Table):
    """[algorithm]: what the peers do with what they hear."""

    name: Annotated[str, one_of("algorithm.name")] = "dpsgd"
    mode: Annotated[str, one_of("algorithm.mode")] = "sync"
    order: Annotated[str, one_of("algorithm.order")] = "atc"
    gamma: Positive | None = None
    outer_lr: NotNegative | None = None
    outer_momentum: Decay | None = None
    nesterov: bool | None = None
    among: Annotated[str, one_of("algorithm.among")] | None = None
    alpha: Positive | None = None
    max_staleness: Int | None = None
    allow_unstable: bool | None = None
    combine: Annotated[str, one_of("algorithm.combine")] = "weighted_sum"
    tau: Positive | None = None
    f: Int = 0
    share: Annotated[tuple[str, ...], FILLED] = ("*",)
    buffers: Annotated[str, one_of("algorithm.buffers")] = "average"


class Compression(Table):
    """[compression]: how a message is made smaller."""

    name: Annotated[str, one_of("compression.name")] = "none"
    k: Count | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    levels: Count | None = None
    rank: Count | None = None


class Coordinator(Table):
    """[coordinator]: the optional parameter server or ring.

    A key of the server optimiser that is None has that optimiser's own default, and server_lr the task's lr for
    gradients, 1.0 for models.
    """

    mode: Annotated[str, one_of("coordinator.mode")] = "none"
    name: PeerName = "coordinator"
    aggregate: Annotated[str, one_of("coordinator.aggregate")] = "gradients"
    weighting: Annotated[str, one_of("coordinator.weighting")] = "samples"
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    server_optimizer: Annotated[str, one_of("coordinator.server_optimizer")] = "sgd"
    server_lr: NotNegative | None = None
    server_momentum: Decay | None = None
    beta1: Decay | None = None
    beta2: Decay | None = None
    server_tau: Positive | None = None
    variant: Annotated[str, one_of("coordinator.variant")] | None = None
    staleness: Annotated[str, one_of("coordinator.staleness")] = "constant"
    max_staleness: Int = 0
    quorum: Quorum = 0.8
    timer_s: Seconds = 0.0
    late: Annotated[str, one_of("coordinator.late")] = "drop"
    buffer: Count = 10
    servers: Annotated[int, Field(ge=1, le=1000)] = 1
    arrival: Annotated[str, one_of("coordinator.arrival")] = "clock"
    delay: Int = 0
    engine: Annotated[str, one_of("coordinator.engine")] = "own"


class Network(Table):
    """[network]: the links of the events engine."""

    latency_ms: NotNegative = 0.0
    jitter_ms: NotNegative = 0.0
    bandwidth_mbps: NotNegative = 0.0
    node_mbps: NotNegative = 0.0
    loss: Chance = 0.0
    duplicate: Chance = 0.0
    reorder: Chance = 0.0
    file: str = ""


class Speed(Table):
    """[speed]: how long local steps take in the events engine."""

    step_s: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    factors: tuple[Annotated[float, Field(gt=0, le=1e6)], ...] = ()
    distribution: Annotated[str, one_of("speed.distribution")] = "constant"
    sigma: NotNegative | None = None
    file: str = ""


class Faults(Table):
    """[faults]: what goes wrong, and when."""

    schedule: tuple[dict[str, Any], ...] = ()
    attackers: tuple[dict[str, Any], ...] = ()
    per_minute: Annotated[float, Field(ge=0, le=600)] = 0.0


class Transport(Table):
    """[transport]: sockets, and how long a silent peer is waited for."""

    listen: Listen = "auto"
    advertise: Advertise = ""
    plane: Annotated[str, one_of("transport.plane")] = "auto"
    overlap: bool = False
    round_deadline_s: Seconds = 0.0
    heartbeat_s: SomeSeconds = 0.5
    suspect_s: SomeSeconds = 3.0
    dead_s: SomeSeconds = 5.0
    join_s: SomeSeconds = 60.0


class Checkpoint(Table):
    """[checkpoint]: after how many versions a coordinator saves itself, and how many of these are kept.

    every_rounds = 0 is after every one.
    """

    every_rounds: Int = 0
    keep: Count = 3


class Record(Table):
    """[record]: what the summary holds, and whether a diverged run goes on."""

    params: Annotated[str, one_of("record.params")] = "none"
    on_divergence: Annotated[str, one_of("record.on_divergence")] = "stop"


class PeerEntry(Table):
    """One of [[peers]]: a machine, or a peer with properties of its own."""

    name: PeerName
    address: Address | None = None
    listen: Listen | None = None
    advertise: Advertise | None = None
    position: tuple[float, float] | None = None
    key: str | None = None
    data: Annotated[str, one_of("peers.data")] | None = None
    device: Device | None = None
