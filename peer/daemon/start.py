"""`earshot start`: this machine's one daemon of an experiment, in the foreground."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from time import monotonic

import numpy as np

from peer.assembly import Assembly, device_of
from peer.centre import Update
from peer.daemon.distributed import take_group_seat, uses_distributed
from peer.daemon.launch import FINAL, Seat, checkpoint_folder, take_coordinator_seat, take_seat
from peer.daemon.reporting import Figures, NodeEnd, Progress
from peer.errors import ConfigError, TrainingError
from peer.experiment import PeerEntry
from peer.history import peer_score
from peer.model_file import save_model
from peer.protocol.messages import PeerId
from peer.record import (
    Divergence,
    Ended,
    Row,
    finite,
    history_entry,
    metric_row,
    round_seconds,
    spent_until_now,
)
from peer.require import parse_stop
from peer.task.task import Task

LOOPBACK = ("127.", "localhost:", "[::1]:")


@dataclass
class Observers:
    """Whom a single daemon tells what happens."""

    entry: Callable[[Row], None] = lambda _: None
    metric: Callable[[Row], None] = lambda _: None
    alert: Callable[[str], None] = lambda _: None
    event: Callable[..., None] = lambda _kind, **_fields: None
    progress: Callable[[Progress], None] = lambda _: None


class _OwnReporter:
    """Keeps the history of one node."""

    def __init__(
        self,
        assembly: Assembly,
        name: str,
        observers: Observers,
        stop: Callable[[], bool],
        *,
        is_coordinator: bool = False,
        spent: tuple[float, int] = (0.0, 0),
    ) -> None:
        self.is_coordinator = is_coordinator
        self._spent_s, self.spent_bytes = spent  # by an earlier process, with whose run this one goes on
        self.assembly = assembly
        self.name = name
        self.observers = observers
        self.history: list[Row] = []
        self.diverged_round: int | None = None
        self.refusal = ""  # why the last greeting came to nothing
        self.has_ended = False  # as the experiment says, before its rounds were done
        self._judged = 0
        self._stop_when = parse_stop(assembly.experiment.stop_when)
        self._stop = stop
        self._began_s = monotonic()

    def progress(self, progress: Progress) -> None:
        self.observers.progress(progress)

    def figures(self, figures: Figures) -> None:
        judged = figures.judged
        if not judged.evaluations or (self.history and judged.round <= self.history[-1]["round"]):
            return
        scores = [peer_score(evaluation) for evaluation in judged.evaluations]
        every = self.assembly.experiment.record.params == "every"
        params: list[np.ndarray] | None = [judged.params.numpy()] if every else None
        entry = history_entry(judged.round, scores, None, params)
        seconds, payload_bytes = self._spent_s + monotonic() - self._began_s, self.spent_bytes + figures.payload_bytes
        entry["seconds"] = round_seconds(seconds)
        entry["payload_bytes_sent"] = payload_bytes
        if every and self.is_coordinator:
            entry["coordinator"] = entry.pop("params")[0]
        del entry["consensus_distance"]  # which no single peer can know
        entry["neighbour_distance"] = finite(judged.evaluations[0].neighbour_distance)
        self.history.append(entry)
        self.has_ended |= self._stop_when is not None and self._stop_when.is_met(entry)
        self.observers.entry(entry)
        self.observers.metric(metric_row(self.name, judged.round, scores[0], seconds, payload_bytes))

    def alert(self, text: str, peer: PeerId | None) -> None:
        self.observers.alert(text if peer is None else f"{self.assembly.nodes[peer]} {text}")

    def event(self, kind: str, peer: PeerId | None, reason: str) -> None:
        neighbour = None if peer is None else self.assembly.nodes[peer]
        if kind == "refused":
            self.refusal = reason
        self.observers.event(kind, peer=self.name, neighbour=neighbour, reason=reason)

    def updated(self, version: int, update: Update, age_s: float) -> None:
        row = asdict(update) | {"peer": self.assembly.names[update.sender]}
        del row["sender"]
        self.observers.event("update", version=version, **row)

    def diverged(self, round: int) -> bool:
        self.diverged_round = round
        return False

    def stop_is_wanted(self) -> bool:
        self.has_ended |= 0 < self.assembly.experiment.stop_after_s <= monotonic() - self._began_s
        return self.has_ended or self._stop()

    def round_to_judge(self) -> int | None:
        return self.diverged_round

    def judges_anywhere(self) -> bool:
        return self.has_ended

    def may_go_on(self, round: int) -> bool:
        return True

    def figures_wanted(self, round: int) -> list[int]:
        """Peers that wait for nobody are judged by their own rounds: nobody knows of all."""
        e = self.assembly.experiment
        passed = [r for r in range(self._judged + 1, round + 1) if e.evaluates_after(r)]
        self._judged = round
        return passed[-1:]

    def gone(self) -> list[PeerId]:
        return []


def seats_of(assembly: Assembly, name: str) -> list[PeerId]:
    """Return the nodes that the machine called `name` runs: a peer, a coordinator, or a peer that is one, too.

    Raises ConfigError where that is nobody, or where a neighbour cannot be reached.
    """
    nodes = assembly.nodes
    known = [name for i, name in enumerate(nodes) if assembly.host_of(i) == i]
    if name not in known:
        raise ConfigError("--name", f'"{name}" is nobody in this experiment; there are {", ".join(known[-12:])}')
    host = nodes.index(name)
    mine = [node for node in range(len(nodes)) if assembly.host_of(node) == host]
    for me in mine:
        _check_reach(assembly, me, mine)
    return mine


def _check_reach(assembly: Assembly, me: PeerId, mine: Sequence[PeerId]) -> None:
    name = assembly.nodes[me]
    if uses_distributed(assembly):
        _check_addresses(assembly)
    for peer in sorted({me, *assembly.neighbours(me)}):
        _check_loopback(assembly, peer)
        if peer in mine:
            continue
        if _dial_endpoint(assembly, peer) is None and _dial_endpoint(assembly, me) is None:
            raise ConfigError(
                "peers",
                f"{name} and its neighbour {assembly.nodes[peer]} need [[peers]] with an address for one of them at "
                "least, so that they can find each other; earshot up runs all peers on this host without addresses",
            )


def _check_addresses(assembly: Assembly) -> None:
    """Where sums are made by torch.distributed, all members meet at the first, which dials all others."""
    for peer in range(len(assembly.names)):
        _check_loopback(assembly, peer)
        if _dial_endpoint(assembly, peer) is None and len(assembly.names) > 1:
            engine, name = assembly.experiment.coordinator.engine, assembly.names[peer]
            raise ConfigError("peers", f'engine "{engine}" needs [[peers]] with an address of {name}, as of every peer')


def bind(assembly: Assembly, task: Task, me: PeerId, resumed: Path | None = None) -> Seat:
    """Take a seat of this machine. `resumed` is the folder of a coordinator's earlier run.

    Raises ConfigError when its address cannot be bound.
    """
    entry = _entry(assembly, me)
    turn = me if assembly.experiment.coordinator.engine == "nccl" else 0
    device = device_of(entry.device if entry and entry.device else assembly.experiment.task.device, turn)
    listen = _listen_endpoint(assembly, me)
    try:
        if me in assembly.coordinator_ids:
            folder = checkpoint_folder(resumed, assembly.nodes[me])
            return take_coordinator_seat(assembly, task, me, device, listen, folder)
        if uses_distributed(assembly):
            return take_group_seat(assembly, task, me, device, listen)
        return take_seat(assembly, task, me, device, listen)
    except ConfigError as error:
        if error.key != "transport.listen" or entry is None or entry.address is None:
            raise
        key = f"peers.{entry.name}.{'listen' if entry.listen else 'address'}"
        raise ConfigError(key, error.problem) from error


def run(seats: Sequence[Seat], run_folder: Path | None, observers: Observers, stop: Callable[[], bool]) -> Ended:
    """Run this machine's daemon to its end: its peer here, and a coordinator beside it in a thread of its own."""
    own, *guests = seats
    endings: list[Ended] = []
    threads = [
        Thread(target=lambda seat=guest: endings.append(_run_one(seat, seats, run_folder, observers, stop)))
        for guest in guests
    ]
    for thread in threads:
        thread.start()
    ended = _run_one(own, seats, run_folder, observers, stop)
    for thread in threads:
        thread.join()
    for guest in endings:
        _include(ended, guest)
    return ended


def _include(ended: Ended, guest: Ended) -> None:
    """Add what a coordinator came to that runs in a peer's process."""
    ended.coordinator = guest.coordinator
    ended.payload_bytes_sent += guest.payload_bytes_sent
    ended.wire_bytes_sent = (ended.wire_bytes_sent or 0) + (guest.wire_bytes_sent or 0)
    ended.short_rounds += guest.short_rounds
    ended.lost = sorted({*ended.lost, *guest.lost})
    ended.staleness.include(guest.staleness)
    ended.diverged = ended.diverged or guest.diverged
    if ended.outcome in ("finished", "interrupted") and guest.outcome in ("failed", "diverged"):
        ended.outcome, ended.why, ended.details = guest.outcome, guest.why, guest.details


def _run_one(
    seat: Seat, seats: Sequence[Seat], run_folder: Path | None, observers: Observers, stop: Callable[[], bool]
) -> Ended:
    assembly, name = seat.assembly, seat.assembly.nodes[seat.me]
    here = {other.me: other.links.endpoint for other in seats}
    others = {peer: _dial_endpoint(assembly, peer) for peer in {seat.me, *seat.core.neighbours}}
    seat.dial(others | {peer: here[peer] for peer in others if peer in here and peer != seat.me})
    if seat.endpoint is not None:
        observers.alert(f"listening on {seat.endpoint}")
    is_coordinator = seat.me in assembly.coordinator_ids
    spent = (0.0, 0) if run_folder is None else spent_until_now(run_folder, name)
    reporter = _OwnReporter(assembly, name, observers, stop, is_coordinator=is_coordinator, spent=spent)
    end = seat.run(reporter, lambda entry: observers.event("did", peer=name, **entry))
    if reporter.has_ended and end.outcome == "interrupted":
        end.outcome = "alone" if end.is_alone else "finished"
    tensors = seat.jobs.tensors()
    if run_folder is not None and end.tidy and end.outcome in FINAL and tensors is not None:
        save_model(tensors, run_folder / "peers" / name)
    return _ended(assembly, seat.me, reporter, end, seat.params().numpy())


def _ended(assembly: Assembly, me: PeerId, reporter: _OwnReporter, end: NodeEnd, params: np.ndarray) -> Ended:
    ended = Ended("daemons", end.step, 1, end.outcome, end.rounds, end.rounds_seconds)
    ended.history = reporter.history
    ended.payload_bytes_sent = reporter.spent_bytes + end.payload_bytes
    ended.wire_bytes_sent = None if uses_distributed(assembly) else end.wire_bytes
    ended.short_rounds = end.short_rounds
    ended.lost = [assembly.nodes[peer] for peer in sorted(end.lost)]
    ended.gradients = end.gradients
    ended.staleness = end.staleness
    ended.params = [params]
    ended.why = end.why
    if me in assembly.coordinator_ids:
        ended.coordinator = params
    if end.diverged_round is not None:
        ended.diverged = Divergence(end.diverged_round, reporter.name)
    if end.failure is not None:
        ended.why = str(end.failure)
        ended.details = end.failure.details if isinstance(end.failure, TrainingError) else ""
    if end.outcome == "alone":
        e = assembly.experiment
        names = ended.lost or [assembly.nodes[peer] for peer in sorted(assembly.neighbours(me))]
        patience = f"within {e.transport.join_s:g} s (transport.join_s)"
        if reporter.has_ended:
            patience = f"in the {e.stop_after_s:g} s that it had (stop_after_s)"
        ended.why = f"{reporter.name} never heard {_list_of(names)} {patience}"
        if reporter.refusal:
            ended.why += f"; {reporter.refusal}"
    return ended


def _list_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


# ---- Addresses


def _entry(assembly: Assembly, node: PeerId) -> PeerEntry | None:
    """Return the entry of a node; a coordinator in a peer's process has that peer's."""
    name = assembly.nodes[assembly.host_of(node)]
    return next((entry for entry in assembly.experiment.peers if entry.name == name), None)


def _listen_endpoint(assembly: Assembly, me: PeerId) -> str | None:
    """Return where a peer binds; None where it only dials."""
    if any(assembly.host_of(node) == me for node in assembly.coordinator_ids if node != me):
        return None  # the address is for the coordinator in this process; its worker dials
    entry = _entry(assembly, me)
    listen = (entry.listen if entry and entry.listen else None) or assembly.experiment.transport.listen
    if listen == "none":
        return None
    if listen != "auto":
        return _endpoint(listen.replace(":0", ":*") if listen.endswith(":0") else listen)
    return _endpoint(entry.address) if entry and entry.address else "tcp://127.0.0.1:*"


def _dial_endpoint(assembly: Assembly, peer: PeerId) -> str | None:
    """Return what others dial to reach a peer; None where it cannot be dialled."""
    if any(assembly.host_of(node) == peer for node in assembly.coordinator_ids if node != peer):
        return None
    entry = _entry(assembly, peer)
    if entry is None or entry.listen == "none":
        return None
    address = entry.advertise or entry.address
    return _endpoint(address) if address else None


def _endpoint(address: str) -> str:
    endpoint = address if address.startswith("tcp://") else f"tcp://{address}"
    return endpoint.replace("//localhost:", "//127.0.0.1:")


def _check_loopback(assembly: Assembly, peer: PeerId) -> None:
    """Without keys, peers talk on the loopback only."""
    entry, transport = _entry(assembly, peer), assembly.experiment.transport
    stated = {"transport.listen": transport.listen, "transport.advertise": transport.advertise}
    if entry is not None:
        stated |= {f"peers.{entry.name}.{key}": getattr(entry, key) for key in ("address", "listen", "advertise")}
    for key, address in stated.items():
        if not address or address in ("auto", "none"):
            continue
        if not _endpoint(address).removeprefix("tcp://").startswith(LOOPBACK):
            raise ConfigError(
                key,
                f"{address} is not a loopback address; between machines peers need keys, which are not built yet",
            )
