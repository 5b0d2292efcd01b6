"""`earshot start`: this machine's one daemon of an experiment, in the foreground."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np

from peer.assembly import Assembly, device_of
from peer.daemon.launch import Seat, take_seat
from peer.daemon.reporting import Figures, NodeEnd, Progress
from peer.errors import ConfigError, TrainingError
from peer.experiment import PeerEntry
from peer.history import peer_score
from peer.model_file import save_model
from peer.protocol.messages import PeerId
from peer.record import Divergence, Ended, Row, finite, history_entry, metric_row, round_seconds
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
    """Keeps the history of one peer."""

    def __init__(self, assembly: Assembly, name: str, observers: Observers, stop: Callable[[], bool]) -> None:
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
        score = peer_score(figures.evaluation)
        if self.history and figures.evaluation.round <= self.history[-1]["round"]:
            return
        every = self.assembly.experiment.record.params == "every"
        params: list[np.ndarray] | None = [figures.params.numpy()] if every else None
        entry = history_entry(figures.evaluation.round, [score], None, params)
        entry["seconds"] = round_seconds(monotonic() - self._began_s)
        entry["payload_bytes_sent"] = figures.payload_bytes
        del entry["consensus_distance"]  # which no single peer can know
        entry["neighbour_distance"] = finite(figures.evaluation.neighbour_distance)
        self.history.append(entry)
        self.has_ended |= self._stop_when is not None and self._stop_when.is_met(entry)
        self.observers.entry(entry)
        seconds = monotonic() - self._began_s
        self.observers.metric(metric_row(self.name, figures.evaluation.round, score, seconds, figures.payload_bytes))

    def alert(self, text: str, peer: PeerId | None) -> None:
        self.observers.alert(text if peer is None else f"{self.assembly.names[peer]} {text}")

    def event(self, kind: str, peer: PeerId | None, reason: str) -> None:
        neighbour = None if peer is None else self.assembly.names[peer]
        if kind == "refused":
            self.refusal = reason
        self.observers.event(kind, peer=self.name, neighbour=neighbour, reason=reason)

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


def seat_of(assembly: Assembly, name: str) -> PeerId:
    """Return the node of the peer called `name`, after checking that its neighbours can be reached.

    Raises ConfigError.
    """
    if name not in assembly.names:
        raise ConfigError(
            "--name", f'"{name}" is not a peer of this experiment; they are {", ".join(assembly.names[:12])}'
        )
    me = assembly.names.index(name)
    for peer in sorted({me, *assembly.neighbours(me)}):
        _check_loopback(assembly, peer)
        if peer != me and _dial_endpoint(assembly, peer) is None and _dial_endpoint(assembly, me) is None:
            raise ConfigError(
                "peers",
                f"{name} and its neighbour {assembly.names[peer]} need [[peers]] with an address for one of them at "
                "least, so that they can find each other; earshot up runs all peers on this host without addresses",
            )
    return me


def bind(assembly: Assembly, task: Task, me: PeerId) -> Seat:
    """Take this machine's seat. Raises ConfigError when its address cannot be bound."""
    entry = _entry(assembly, me)
    device = device_of(entry.device if entry and entry.device else assembly.experiment.task.device, 0)
    try:
        return take_seat(assembly, task, me, device, _listen_endpoint(assembly, me))
    except ConfigError as error:
        if error.key != "transport.listen" or entry is None or entry.address is None:
            raise
        key = f"peers.{entry.name}.{'listen' if entry.listen else 'address'}"
        raise ConfigError(key, error.problem) from error


def run(seat: Seat, run_folder: Path | None, observers: Observers, stop: Callable[[], bool]) -> Ended:
    """Run this machine's daemon to its end."""
    assembly, name = seat.assembly, seat.assembly.names[seat.me]
    seat.dial({peer: _dial_endpoint(assembly, peer) for peer in seat.core.neighbours})
    if seat.links.endpoint is not None:
        observers.alert(f"listening on {seat.links.endpoint}")
    reporter = _OwnReporter(assembly, name, observers, stop)
    end = seat.run(reporter, lambda entry: observers.event("did", peer=name, **entry))
    if reporter.has_ended and end.outcome == "interrupted":
        end.outcome = "alone" if end.is_alone else "finished"
    if run_folder is not None and end.tidy and end.outcome in ("finished", "interrupted", "diverged"):
        save_model(seat.learner.tensors(), run_folder / "peers" / name)
    return _ended(assembly, seat.me, reporter, end, seat.learner.params().detach().cpu().numpy())


def _ended(assembly: Assembly, me: PeerId, reporter: _OwnReporter, end: NodeEnd, params: np.ndarray) -> Ended:
    ended = Ended("daemons", end.step, 1, end.outcome, end.rounds, end.rounds_seconds)
    ended.history = reporter.history
    ended.payload_bytes_sent = end.payload_bytes
    ended.wire_bytes_sent = end.wire_bytes
    ended.short_rounds = end.short_rounds
    ended.lost = [assembly.names[peer] for peer in sorted(end.lost)]
    ended.gradients = end.gradients
    ended.staleness = end.staleness
    ended.params = [params]
    if end.diverged_round is not None:
        ended.diverged = Divergence(end.diverged_round, reporter.name)
    if end.failure is not None:
        ended.why = str(end.failure)
        ended.details = end.failure.details if isinstance(end.failure, TrainingError) else ""
    if end.outcome == "alone":
        e = assembly.experiment
        names = ended.lost or [assembly.names[peer] for peer in sorted(assembly.neighbours(me))]
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


def _entry(assembly: Assembly, peer: PeerId) -> PeerEntry | None:
    name = assembly.names[peer]
    return next((entry for entry in assembly.experiment.peers if entry.name == name), None)


def _listen_endpoint(assembly: Assembly, me: PeerId) -> str | None:
    """Return where a peer binds; None where it only dials."""
    entry = _entry(assembly, me)
    listen = (entry.listen if entry and entry.listen else None) or assembly.experiment.transport.listen
    if listen == "none":
        return None
    if listen != "auto":
        return _endpoint(listen.replace(":0", ":*") if listen.endswith(":0") else listen)
    return _endpoint(entry.address) if entry and entry.address else "tcp://127.0.0.1:*"


def _dial_endpoint(assembly: Assembly, peer: PeerId) -> str | None:
    """Return what others dial to reach a peer; None where it cannot be dialled."""
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
