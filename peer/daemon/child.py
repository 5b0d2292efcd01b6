"""One process of `earshot up`: it takes a peer's seat, or a coordinator's, or both, tells its parent, and runs."""

import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any

import torch

from peer.assembly import Assembly, assemble, device_of, prepare_task
from peer.centre import Update
from peer.daemon.distributed import take_group_seat, uses_distributed
from peer.daemon.ending import has_barriers
from peer.daemon.journal import Entry
from peer.daemon.launch import FINAL, Seat, checkpoint_folder, take_coordinator_seat, take_seat
from peer.daemon.pipe import Pipe
from peer.daemon.reporting import Figures, NodeEnd, Progress
from peer.errors import ConfigError, EarshotError, TrainingError
from peer.experiment import Experiment
from peer.history import peer_score
from peer.model_file import save_model
from peer.protocol.messages import PeerId
from peer.task.task import Task


class ParentReporter:
    """Tells the parent all there is to know; a stop comes from it, from its death, or from SIGTERM.

    `stop_line` is at its end when the parent wants everybody to stop. All siblings see that at one instant, so none
    can take for a loss that another one has stopped; `stop` in the pipe, sent before it, says what is wanted then.
    `waits_for_all`: after each evaluation the parent says whether to go on. `terminated` is set by SIGTERM.
    """

    def __init__(
        self, pipe: Pipe, stop_line: "Connection[bytes, bytes]", terminated: Flag, *, waits_for_all: bool = False
    ) -> None:
        self._pipe = pipe
        self._stop_line = stop_line
        self._terminated = terminated
        self._round_to_judge: int | None = None
        self._judges_anywhere = False
        self._waits_for_all = waits_for_all
        self._may_go_on = -1
        self._wanted: list[int] = []
        self._gone: list[PeerId] = []
        self._endpoints: dict[PeerId, str | None] | None = None

    def progress(self, progress: Progress) -> None:
        self._pipe.send("progress", **asdict(progress))

    def figures(self, figures: Figures) -> None:
        judged = figures.judged
        self._pipe.send(
            "figures",
            round=judged.round,
            scores=[asdict(peer_score(evaluation)) for evaluation in judged.evaluations],
            params=judged.params.numpy().tobytes(),
            payload_bytes=figures.payload_bytes,
            heard_bytes=figures.heard_bytes,
            is_last=self._judges_anywhere,
        )

    def alert(self, text: str, peer: PeerId | None) -> None:
        self._pipe.send("alert", text=text, peer=peer)

    def event(self, kind: str, peer: PeerId | None, reason: str) -> None:
        self._pipe.send("event", kind=kind, peer=peer, reason=reason)

    def updated(self, version: int, update: Update, age_s: float) -> None:
        self._pipe.send("updated", version=version, **asdict(update), age_s=age_s)

    def diverged(self, round: int) -> bool:
        self._pipe.send("diverged", round=round)
        return True

    def stop_is_wanted(self) -> bool:
        return self._terminated.is_set() or not self._pipe.is_open or self._stop_line.poll()

    def round_to_judge(self) -> int | None:
        self._listen()
        return self._round_to_judge

    def judges_anywhere(self) -> bool:
        self._listen()
        return self._judges_anywhere

    def may_go_on(self, round: int) -> bool:
        self._listen()
        return not self._waits_for_all or round <= self._may_go_on

    def figures_wanted(self, round: int) -> list[int]:
        wanted, self._wanted = self._wanted, []
        return wanted

    def entry(self, entry: Entry) -> None:
        """Hand on what becomes of the state."""
        self._pipe.send("did", entry=entry)

    def gone(self) -> list[PeerId]:
        self._listen()
        gone, self._gone = self._gone, []
        return gone

    def wait_for_endpoints(self) -> dict[PeerId, str | None] | None:
        """Wait for the parent to say where everybody is; None when it wants an end instead."""
        while self._endpoints is None and not self.stop_is_wanted():
            self._pipe.connection.poll(1.0)
            self._listen()
        return self._endpoints

    def _listen(self) -> None:
        for kind, fields in self._pipe.receive():
            match kind:
                case "stop":
                    self._round_to_judge, self._judges_anywhere = fields["round"], fields["anywhere"]
                case "go":
                    self._may_go_on = fields["round"]
                case "judge":
                    self._wanted.append(fields["round"])
                case "gone":
                    self._gone.append(fields["peer"])
                case "endpoints":
                    self._endpoints = dict(enumerate(fields["endpoints"]))


@dataclass(frozen=True)
class Place:
    """A node of this process: its pipe to the parent, and where it binds."""

    me: PeerId
    pipe: Pipe
    listen: str = "tcp://127.0.0.1:*"


def run_child(
    places: Sequence[Place],
    stop_line: "Connection[bytes, bytes]",
    others: "Sequence[Pipe | Connection[bytes, bytes]]",
    experiment: Experiment,
    prepared: tuple[Assembly, Task] | None,
    run_folder: Path | None,
) -> None:
    """Be these nodes until the end. `others` are the parent's ends of pipes that a fork has left open here.

    `prepared` is what the parent has already assembled, where the process was forked from it.
    """
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent sees to it
    terminated = Flag()
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    torch.set_num_threads(experiment.task.threads)
    reporters = {
        place.me: ParentReporter(place.pipe, stop_line, terminated, waits_for_all=has_barriers(experiment))
        for place in places
    }
    own, *guests = places
    try:
        assembly, task = prepared if prepared is not None else _prepare(experiment, own.me)
    except EarshotError as error:
        for place in places:
            _tell_failure(place.pipe, error)
        return
    threads = [
        Thread(target=_run_node, args=(guest, reporters[guest.me], assembly, task, stop_line, run_folder))
        for guest in guests
    ]
    for thread in threads:
        thread.start()
    _run_node(own, reporters[own.me], assembly, task, stop_line, run_folder)
    for thread in threads:
        thread.join()


def _run_node(
    place: Place,
    reporter: ParentReporter,
    assembly: Assembly,
    task: Task,
    stop_line: "Connection[bytes, bytes]",
    run_folder: Path | None,
) -> None:
    """Be one node until its end, and tell the parent."""
    pipe, name = place.pipe, assembly.nodes[place.me]
    try:
        seat, device = _seat(place, assembly, task, run_folder)
        pipe.send("bound", endpoint=seat.endpoint, device=device)
        endpoints = reporter.wait_for_endpoints()
        if endpoints is None:
            seat.links.close()
            return
        seat.dial(endpoints)
        seat.links.watch(pipe.fileno())
        seat.links.watch(stop_line.fileno())
        end = seat.run(reporter, reporter.entry)
        tensors = seat.jobs.tensors()
        if run_folder is not None and end.tidy and end.outcome in FINAL and tensors is not None:
            save_model(tensors, run_folder / "peers" / name)
        pipe.send("end", **_plain(end), params=seat.params().numpy().tobytes())
    except EarshotError as error:
        _tell_failure(pipe, error)
    finally:
        pipe.close()


def _seat(place: Place, assembly: Assembly, task: Task, run_folder: Path | None) -> tuple[Seat, str]:
    """Take a node's seat; returns which device was wished for, too."""
    e, me, name = assembly.experiment, place.me, assembly.nodes[place.me]
    entry = next((entry for entry in e.peers if entry.name == name), None)
    wanted = entry.device if entry is not None and entry.device else e.task.device
    device = device_of(wanted, me)
    if me in assembly.coordinator_ids:
        folder = checkpoint_folder(run_folder, name)
        seat = take_coordinator_seat(assembly, task, me, device, place.listen, folder, may_be_left=False)
        return seat, wanted  # nobody starts a peer again
    if uses_distributed(assembly):
        return take_group_seat(assembly, task, me, device, place.listen), wanted
    endless = len(assembly.names) > 1
    judges = not e.coordinates
    return take_seat(assembly, task, me, device, place.listen, endless=endless, judges=judges), wanted


def _tell_failure(pipe: Pipe, error: EarshotError) -> None:
    pipe.send("end", **failure_fields(error), outcome="failed")


def failure_fields(error: EarshotError) -> dict[str, Any]:
    """Return an error in a form that survives the pipe."""
    details = error.details if isinstance(error, ConfigError | TrainingError) else ""
    return {"failure": str(error), "details": details}


def _prepare(experiment: Experiment, me: PeerId) -> tuple[Assembly, Task]:
    assembly = assemble(experiment, measures=True)
    needs_all = experiment.coordinator.mode != "none"  # who weighs by rows has to know those of all
    return assembly, prepare_task(assembly, only=None if needs_all else me)


def _plain(end: NodeEnd) -> dict[str, Any]:
    failure = {"failure": end.why} if end.failure is None else failure_fields(end.failure)
    return {
        "outcome": end.outcome,
        "rounds": end.rounds,
        "rounds_seconds": end.rounds_seconds,
        "short_rounds": end.short_rounds,
        "lost": {str(peer): why for peer, why in end.lost.items()},
        "gradients": end.gradients,
        "payload_bytes": end.payload_bytes,
        "wire_bytes": end.wire_bytes,
        "step": end.step,
        "staleness": asdict(end.staleness),
        "diverged_round": end.diverged_round,
        **failure,
    }
