"""The experiment: its tables, and what they say together."""

import hashlib
import json
import math
from pathlib import Path

import tomli_w
from pydantic import PrivateAttr

from peer.experiment.choices import COORDINATING, DEFAULT_PEERS, FACTORY, GRAPH_FILE, NETWORKX, is_of
from peer.experiment.fingerprint import flat, short
from peer.experiment.schema import (
    Algorithm,
    Checkpoint,
    Compression,
    Coordinator,
    Faults,
    Network,
    PeerEntry,
    Record,
    Speed,
    Table,
    Task,
    Topology,
    Transport,
)
from peer.experiment.values import Count, Int, Name, Seconds
from peer.experiment.wording import shown


class Experiment(Table):
    """A checked experiment. Two are equal when their keys are; where they were read from does not count."""

    name: Name = "experiment"
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
        if self.coordinator.mode != "none" and "name" not in self.algorithm.model_fields_set:
            del tables["algorithm"]["name"]  # beside a coordinator there is none: written there, it would be refused
        return tomli_w.dumps(tables)

    def evaluates_after(self, round: int) -> bool:
        """Whether the peers are evaluated after so many rounds: round 0, multiples of eval_every, the last."""
        return round % self.eval_every == 0 or round == self.rounds

    @property
    def is_asynchronous(self) -> bool:
        """Whether peers gossip and do not wait for each other: a round is then as many local rounds in all as there are
        peers. Never so beside a coordinator, whatever its mode."""
        return self.coordinator.mode == "none" and (self.algorithm.mode == "async" or self.algorithm.name == "adpsgd")

    @property
    def coordinates(self) -> bool:
        """Whether there is a parameter server: coordinators hold the parameters, and peers push to them."""
        return self.coordinator.mode in COORDINATING

    @property
    def is_ring(self) -> bool:
        """Whether the peers reduce around a ring, without a coordinator."""
        return self.coordinator.mode == "ring"

    @property
    def is_elastic(self) -> bool:
        """Whether peers have parameters of their own, tied to the coordinator's: EASGD."""
        return self.algorithm.name == "easgd"

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
        """Key -> number of peers, where a key but topology.peers fixes it; a graph file is not read here.

        Of [[peers]], those that are coordinators alone do not count.
        """
        entries = self.peer_entries()
        return self._counts_of_keys() | ({"peers": len(entries)} if entries else {})

    def known_peers(self) -> int | None:
        """How many peers there are, None where only a graph file, networkx or a user's own function tells."""
        counts = self._counts_beside_entries() | self.stated_counts()
        if counts:
            return next(iter(counts.values()))
        told_elsewhere = any(is_of(self.topology.family, kind) for kind in (GRAPH_FILE, NETWORKX, FACTORY))
        return None if told_elsewhere or is_of(self.topology.among or "", GRAPH_FILE) else DEFAULT_PEERS

    def coordinator_names(self) -> tuple[str, ...]:
        """What the coordinators are called in the file, peers that train too or not: NAME, or NAME-0, NAME-1 and so on.

        None where nothing is coordinated, and none in a ring.
        """
        name, servers = self.coordinator.name, self.coordinator.servers
        if not self.coordinates:
            return ()
        return (name,) if servers == 1 else tuple(f"{name}-{i}" for i in range(servers))

    def coordinator_host(self) -> str | None:
        """The peer in whose process the coordinator runs; None where it has one of its own, or there is none.

        A name in [[peers]] is a peer's where another key says that there are as many peers as entries. A name that
        is neither there nor the default has to be a peer's: `coordinator_problem` says whether it is. What a graph file
        calls its nodes is not known here: a node with the default name is such a peer too.
        """
        name = self.coordinator.name
        if not self.coordinates or self.coordinator.servers > 1:
            return None
        if any(entry.name == name for entry in self.peers):
            return name if len(self.peers) in self._counts_beside_entries().values() else None
        return None if name == type(self.coordinator).model_fields["name"].default else name

    def coordinator_entries(self) -> tuple[str, ...]:
        """The names of the coordinators that are processes of their own, in [[peers]] or not."""
        return () if self.coordinator_host() is not None else self.coordinator_names()

    def peer_entries(self) -> tuple[PeerEntry, ...]:
        """Of [[peers]], those that are peers, in the order of the file."""
        apart = set(self.coordinator_entries())
        return tuple(entry for entry in self.peers if entry.name not in apart)

    def fingerprint(self) -> dict[str, str]:
        """Dotted key -> short text, for each key of the digest; above 64 characters, the text's hash."""
        return {key: short(shown(value)) for key, value in self._digested().items()}

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
        return dict(flat(kept))

    def _counts_of_keys(self) -> dict[str, int]:
        counts = {}
        if self.topology.shape is not None:
            counts["topology.shape"] = math.prod(self.topology.shape)
        if self.task.shards is not None:
            counts["task.shards"] = len(self.task.shards)
        if self.task.init is not None and self.init_is_nested():
            counts["task.init"] = len(self.task.init)
        return counts

    def _counts_beside_entries(self) -> dict[str, int]:
        """Key -> number of peers, of all keys but [[peers]]."""
        stated, sizes = self.topology.peers, self.task.sizes
        counts = {} if stated is None else {"topology.peers": stated}
        return counts | self._counts_of_keys() | ({} if sizes is None else {"task.sizes": len(sizes)})
