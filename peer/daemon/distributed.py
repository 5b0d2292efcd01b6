"""A ring's sums on torch.distributed: coordinator.engine "gloo" or "nccl" in the place of our own ring.

Only the sums are made there. Who is there, who runs what, who stops and who is lost goes over the links as ever. The
members find each other's engines by a store, which the first of them holds, on the loopback like everything without
keys. A sum is made in a copy: a member has either the mean of a complete round or what it had before.
"""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Thread
from time import sleep
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from peer.assembly import Assembly, learner_of
from peer.assembly.coordination import weights_of
from peer.daemon.beside_jobs import RingJobs
from peer.daemon.jobs import Done
from peer.daemon.launch import Seat, greeting_of
from peer.errors import ConfigError
from peer.network.links import Links, Traffic
from peer.network.sizes import Sizes
from peer.protocol.collective import Collective, Summed
from peer.protocol.messages import Assemble, Divide, PeerId
from peer.protocol.ring import cut
from peer.task.local import Interrupted
from peer.task.task import Task

FOREVER = timedelta(days=1)
"""What torch is told to wait at most; who is lost, and when, is for membership to say."""

SLICE = timedelta(seconds=0.2)
"""How often who waits for a sum looks whether it is to stop."""

POLL_S = 0.0002
"""How often it is looked whether a GPU is done."""

AFTER_DEAD_S = 1.0
"""How much longer than membership may take a member waits to learn why a sum came to nothing."""


def check_engine(assembly: Assembly) -> None:
    """Refuse an engine that cannot run here, where all peers are on this host. Raises ConfigError."""
    e = assembly.experiment
    engine, key = e.coordinator.engine, "coordinator.engine"
    if not uses_distributed(assembly):
        return
    if not dist.is_available() or (engine == "gloo" and not dist.is_gloo_available()):
        raise ConfigError(key, f'"{engine}" is not part of this torch; "own" always works')
    if engine != "nccl":
        return
    peers, devices = len(assembly.names), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices < peers or not dist.is_nccl_available():
        there = f"torch finds {devices}" if dist.is_nccl_available() else "this torch has no NCCL"
        raise ConfigError(
            key, f'"nccl" needs a CUDA device for each of the {peers} peers on this host; {there}; choose "gloo"'
        )
    if "cpu" in {e.task.device, *(entry.device for entry in e.peers)}:
        raise ConfigError("task.device", '"nccl" sums on GPUs, and here a peer is on the CPU; choose "auto"')


def uses_distributed(assembly: Assembly) -> bool:
    """Whether the sums of this experiment are made by torch.distributed."""
    return assembly.experiment.is_ring and assembly.experiment.coordinator.engine != "own"


# ---- Where the members meet


@dataclass
class Meeting:
    """The store by which the members' engines find each other, a TCPStore of torch's; `address` is where it is."""

    address: str | None = None
    _store: Any = None

    def open(self, endpoint: str) -> None:
        """Hold the store at an endpoint such as "tcp://127.0.0.1:5000"; for the port "*" the system gives one.

        Raises ConfigError when it cannot be bound. torch by itself would listen on every interface.
        """
        host, port = _host_and_port(endpoint)
        try:
            listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            problem = f"{endpoint} cannot be bound ({error.strerror}); choose another address"
            raise ConfigError("transport.listen", problem) from None
        port = listening.getsockname()[1]
        self.address = f"{endpoint.rpartition(':')[0]}:{port}"
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )

    def store(self, timeout_s: float) -> Any:
        """Return the store; it is known that its holder is there. Raises RuntimeError when it cannot be reached."""
        if self._store is None:
            assert self.address is not None
            host, port = _host_and_port(self.address)
            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                host, port, timeout=timedelta(seconds=timeout_s), wait_for_workers=False
            )
        return self._store


def _host_and_port(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), 0 if port == "*" else int(port)


# ---- Engines


class Engine(Protocol):
    """Sums over all members."""

    def sum(self, x: Tensor, stop: Callable[[], bool]) -> None:
        """Put the sum of all members' x, (d,), into x. When it fails or is interrupted, what is in x is of no use.

        Raises RuntimeError when a member is gone, Interrupted when it is to stop.
        """
        ...


class Gloo:
    """Sums tensors on the CPU. Waits for all other members to come, `timeout_s` at most; RuntimeError after that."""

    def __init__(self, store: Any, me: PeerId, members: int, timeout_s: float) -> None:
        gloo: Any = dist.ProcessGroupGloo  # whose stub lacks what torch itself sets
        options = gloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        self._group = gloo(store, me, members, options)
        self._options = dist.AllreduceOptions()
        self._options.timeout = FOREVER

    def sum(self, x: Tensor, stop: Callable[[], bool]) -> None:
        work = self._group.allreduce([x], self._options)
        while True:
            try:
                work.wait(SLICE)
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # raises what went wrong, if it was that and not the slice
                    return
                if stop():
                    Thread(target=_wait_on, args=(work, self._group), daemon=True).start()
                    raise Interrupted from None
            else:
                return


def _wait_on(work: "dist.Work", group: object) -> None:
    """Keep a group for as long as it is at a sum: its destructor would wait for a member that stands still."""
    with suppress(RuntimeError):
        work.wait()


class Nccl:
    """Sums tensors on a GPU, one for each member."""

    def __init__(self, store: Any, me: PeerId, members: int, device: torch.device) -> None:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # else torch would end the process by itself
        os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = FOREVER
        self._device = device
        with torch.cuda.device(device):
            self._group = nccl(store, me, members, options)

    def sum(self, x: Tensor, stop: Callable[[], bool]) -> None:
        with torch.cuda.device(self._device):
            work = self._group.allreduce([x])
            while not work.is_completed():
                if stop():
                    self._group.abort()
                    raise Interrupted
                sleep(POLL_S)
            work.wait()
            torch.cuda.synchronize()


# ---- A member


@dataclass
class GroupJobs(RingJobs):
    """The jobs of a member whose sums an engine makes. `connect` waits until those of all members are connected.

    `sent_bytes` are what a member sends for a sum by the algorithm's formula; the engines do not tell what they sent.
    """

    connect: Callable[[], Engine] = field(kw_only=True)
    traffic: Traffic = field(kw_only=True)
    sent_bytes: int = field(kw_only=True)
    sums_on: torch.device = field(kw_only=True)
    _engine: Engine | None = None
    _problem: str = ""  # why there is no engine
    _stop: Callable[[], bool] = lambda: False
    _completed: Tensor = field(init=False)  # the parameters at the end of the last round

    def __post_init__(self) -> None:
        self._completed = self.learner.params()

    def params(self) -> Tensor:
        """Return those of the last complete round: a sum may still be under way."""
        return self._completed

    def train(self, round: int, stop: Callable[[], bool]) -> Done:
        self._stop = stop
        if self._engine is None:
            try:
                self._engine = self.connect()
            except RuntimeError as error:  # somebody is gone already; who that is, membership will tell
                self._problem = f"the members could not be connected: {_first_line(error)}"
        return super().train(round, stop)

    def divide(self, divide: Divide) -> Done:
        """Have the weighted parameters summed over all members."""
        if self._engine is None:
            return Done(Summed(divide.round, (), self._problem))
        x = divide.payload["x"].detach() * divide.weight  # a copy, and no other than that is summed in
        total = x.to(self.sums_on)
        try:
            self._engine.sum(total, self._stop)
        except RuntimeError as error:
            return Done(Summed(divide.round, (), _first_line(error)))
        self.traffic.payload_bytes += self.sent_bytes
        return Done(Summed(divide.round, ((total,),)))

    def assemble(self, assemble: Assemble) -> Done:
        done = super().assemble(assemble)
        self._completed = self.learner.params()
        return done

    def _numbers(self, payload: Any) -> Tensor:
        """Here a piece is a tensor."""
        assert isinstance(payload, Tensor)
        return payload


def _first_line(error: Exception) -> str:
    """Return what torch says, without the place in its source and the advice."""
    text = str(error).partition("\n")[0].rpartition("] ")[2] if str(error).startswith("[") else str(error)
    return text.partition(". ")[0].strip()[:200]


@dataclass(frozen=True)
class GroupSeat(Seat):
    """A member's place. Where the first peer can be found is where the store is; it dials the others by itself."""

    meeting: Meeting = field(kw_only=True)

    @property
    def endpoint(self) -> str | None:
        return self.meeting.address if self.me == 0 else self.links.endpoint

    def dial(self, endpoints: Mapping[PeerId, str | None]) -> None:
        if self.me != 0:
            self.meeting.address = endpoints.get(0)
        super().dial({**endpoints, 0: None})


def take_group_seat(assembly: Assembly, task: Task, me: PeerId, device: torch.device, listen: str | None) -> GroupSeat:
    """Bind one member's links, or for the first peer the store, and put its tensors on the device.

    Raises ConfigError when the address is taken.
    """
    e, n, d = assembly.experiment, len(assembly.names), task.layout.size
    meeting = Meeting()
    if me == 0:
        if listen is None:
            raise ConfigError("transport.listen", f'"{assembly.names[0]}" is where all members meet; it has to listen')
        meeting.open(listen)
    by = weights_of(assembly, task)
    core = Collective(
        me,
        e.rounds,
        assembly.names,
        weights=None if by is None else [by[peer] for peer in range(n)],
        round_deadline_s=e.transport.round_deadline_s,
        patience_s=e.transport.dead_s + AFTER_DEAD_S,
    )
    trainer, start = task.trainer(device), task.start(me).to(device)
    shard, test = task.shard(me, device), task.test_rows(device)
    learner = learner_of(assembly, task, me, trainer, start, shard, test, core)
    greeting = greeting_of(assembly, task, me, str(device), trainer.step)
    names = {peer: assembly.names[peer] for peer in core.neighbours}
    links = Links(names, greeting, dict.fromkeys(names, Sizes()), listen if me else None)

    def connect() -> Engine:
        store = meeting.store(e.transport.join_s)
        if e.coordinator.engine == "nccl":
            return Nccl(store, me, n, device)
        return Gloo(store, me, n, e.transport.join_s)

    jobs = GroupJobs(
        learner,
        (),
        (),
        e.evaluates_after,
        segments=(),
        connect=connect,
        traffic=links.traffic,
        sent_bytes=sent_elements(d, n, me) * start.element_size(),
        sums_on=device if e.coordinator.engine == "nccl" else torch.device("cpu"),
    )
    return GroupSeat(me, assembly, links, jobs, core, meeting=meeting)


def sent_elements(elements: int, members: int, me: PeerId) -> int:
    """Return how many numbers a member of a ring all-reduce sends: Patarasuk and Yuan 2009, 2 (n - 1) / n of all.

    To the element, where n does not divide them: twice each segment but the two that end with the next member.
    """
    segments = [sum(map(len, segment)) for segment in cut(elements, members, max(elements, 1))]
    return 2 * elements - segments[(me + 1) % members] - segments[(me + 2) % members]
