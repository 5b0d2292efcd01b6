"""The ways to run an experiment: in this process, as daemons on this host, as one daemon of many.

Each checks everything first, makes the run folder, runs, and returns the summary.
"""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Literal

import torch
from torch import Tensor

from peer.assembly import Assembly, assemble, check_devices, device_of, prepare_task
from peer.daemon import host, start
from peer.daemon.distributed import check_engine, uses_distributed
from peer.daemon.launch import Seat
from peer.daemon.measure import measure_loopback
from peer.daemon.reporting import Progress
from peer.daemon.roster import PeerView
from peer.errors import ConfigError, TrainingError
from peer.experiment import Experiment, differing_keys, load
from peer.experiment.wording import shown
from peer.explanation import warnings_of
from peer.model_file import save_model
from peer.prediction import expected, measured_wires
from peer.record import (
    Ended,
    Row,
    RunFolder,
    check_is_run,
    make_run_folder,
    outcome_of,
    resume_run_folder,
    summarise,
)
from peer.require import parse_stop
from peer.simulator import rounds
from peer.simulator.events import EventsEngine
from peer.simulator.footprint import available_bytes, memory_bytes
from peer.simulator.noted_versions import versions_of
from peer.simulator.replay import notes_of
from peer.simulator.replay import replay as replay_mixes
from peer.simulator.replay_versions import replay_versions
from peer.simulator.watching import Pace, Watch
from peer.task.layout import Layout
from peer.task.task import Task

Engine = Literal["rounds", "events"]

SAVED_PEERS = 100
"""The simulator writes a model file for each peer of so many at most."""


@dataclass
class Listener:
    """Whom a run tells what happens while it goes on."""

    begins: Callable[[Assembly, Layout], None] = lambda _assembly, _layout: None
    entry: Callable[[Row], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None
    peers: Callable[[Sequence[PeerView]], None] = lambda _: None
    progress: Callable[[Progress, Assembly], None] = lambda _progress, _assembly: None
    pace: Callable[[Pace], None] = lambda _: None
    memory: Callable[[int, int | None], None] = lambda _needed, _available: None


@dataclass
class Options:
    """How to run: when to stop, where to write (`writes` and no `out`: runs/; `resume`: where an earlier run did, which
    goes on), whom to tell. `predicts`: the summary also has what the rounds should take.

    `begins` is called when everything has been checked and the run is about to begin.
    """

    stop: Callable[[], bool] = lambda: False
    begins: Callable[[], None] = lambda: None
    writes: bool = True
    out: Path | None = None
    listener: Listener = field(default_factory=Listener)
    resume: Path | None = None
    predicts: bool = False


@dataclass(frozen=True)
class Result:
    """A summary, and the user's own traceback where their code ended the run."""

    summary: Row
    details: str = ""

    @property
    def exit_code(self) -> int:
        return {"finished": 0, "interrupted": 130}.get(self.summary["outcome"], 3)


def engine_of(experiment: Experiment) -> Engine:
    """Return the engine for a file that was given none: events where it asks for links, speeds, faults or peers that
    do not wait for each other, for rounds know no time."""
    asks = _virtual_tables(experiment) or experiment.transport.round_deadline_s or not _is_in_step(experiment)
    return "events" if asks else "rounds"


def _is_in_step(experiment: Experiment) -> bool:
    """Whether it is known without a clock who takes part in which round."""
    return not experiment.is_asynchronous and experiment.coordinator.mode in ("none", "sync", "ring")


def _virtual_tables(experiment: Experiment) -> list[str]:
    """Return the tables that say something of the simulator's world."""
    default = Experiment()
    return [name for name in ("network", "speed", "faults") if getattr(experiment, name) != getattr(default, name)]


def simulate(experiment: Experiment, engine: Engine, options: Options) -> Result:
    """Run all peers in this process. Raises ConfigError before anything is written or trained."""
    began_s = monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(experiment.task.threads)  # part of the promise that daemons compute the same bits
    try:
        if engine == "rounds" and not _is_in_step(experiment):
            raise ConfigError(
                "--engine",
                "rounds takes all peers from round to round together, and here not all are waited for; choose events",
            )
        stop_when = parse_stop(experiment.stop_when)
        enough = None if stop_when is None else stop_when.is_met
        assembly = assemble(experiment)
        task = prepare_task(assembly)
        check_devices(experiment)
        device = torch.device("cpu") if engine == "events" else device_of(experiment.task.device, 0)
        if engine == "events":
            _ask_for_all_rounds(assembly)
        folder = _open(options, experiment, assembly, task)
        tables = _virtual_tables(experiment)
        if tables and engine == "rounds":
            options.listener.note(f"{_listed(tables)}: rounds know no time, links or faults; events do")
        if uses_distributed(assembly):
            options.listener.note(f'coordinator.engine = "{experiment.coordinator.engine}": here as "own"; up uses it')
        options.listener.memory(memory_bytes(assembly, task, engine), available_bytes())
        watch = Watch(
            assembly,
            on_entry=options.listener.entry,
            on_metric=folder.metric if folder else lambda _: None,
            on_alert=lambda name, text: _alert(options, folder, name, text),
            on_model=_saver(folder, len(assembly.names)),
            on_event=folder.event if folder else lambda _kind, **_fields: None,
            on_pace=options.listener.pace,
        )
        if engine == "events":
            ended = EventsEngine(assembly, task, watch, options.stop, enough).run()
        else:
            ended = rounds.run(assembly, task, device, watch, options.stop, enough)
    finally:
        torch.set_num_threads(threads)
    if engine == "events" and ended.outcome in ("failed", "diverged"):
        options.listener.note(f"the same again: {_command(experiment)}")
    prediction = expected(assembly, task) if options.predicts and engine == "events" else None
    return _close(experiment, ended, began_s, folder, prediction)


def _command(experiment: Experiment) -> str:
    """Return the command that simulates this again, event by event."""
    changed = {**experiment.source_overrides, "seed": experiment.seed}
    sets = [f"--set {shlex.quote(f'{key}={shown(value)}')}" for key, value in changed.items()]
    file = shlex.quote(str(experiment.path or "-"))
    return f"earshot simulate {file} --engine events {' '.join(sets)}"


def replay(experiment: Experiment, run: Path, options: Options) -> Result:
    """Do a run of daemons that waited for nobody again, from what they noted, and compare the parameters.

    Raises ConfigError before anything is written.
    """
    began_s = monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(experiment.task.threads)
    try:
        _check_same(experiment, run)
        assembly, task = _of_the_run(experiment, run)
        is_gossip = experiment.coordinator.mode == "none"
        if is_gossip:
            notes_of(run, assembly.names)
        else:
            versions_of(run, assembly)
        folder = _open(options, experiment, assembly, task)
        watch = Watch(
            assembly,
            on_entry=options.listener.entry,
            on_metric=folder.metric if folder else lambda _: None,
            on_model=_saver(folder, len(assembly.names)),
        )
        again = replay_mixes if is_gossip else replay_versions
        ended, compared = again(assembly, task, run, watch, options.stop)
    finally:
        torch.set_num_threads(threads)
    if not compared:
        options.listener.note(f"{run} has no peers/*/model.safetensors: there is nothing to compare with")
    elif ended.outcome == "finished":
        of_all = "" if set(assembly.names) <= set(compared) else f" of {', '.join(compared)}"
        options.listener.note(f"the parameters{of_all} are those of {run}, bit for bit")
    return _close(experiment, ended, began_s, folder)


def _check_same(experiment: Experiment, run: Path, option: str = "--replay") -> None:
    """Refuse to do the run of another experiment again, or to go on with it. Raises ConfigError."""
    differences = differing_keys(experiment.fingerprint(), load(run / "experiment.toml").fingerprint())
    if differences:
        raise ConfigError(option, f"{run} is the run of another experiment: {'; '.join(differences[:4])}")


def _check_unfinished(experiment: Experiment, run: Path) -> None:
    """Refuse to go on with what is no run, another experiment's, or has come to its end. Raises ConfigError."""
    check_is_run(run)
    _check_same(experiment, run, "--resume")
    if outcome_of(run) == "finished":
        raise ConfigError("--resume", f"{run} has come to its end; there is nothing to go on with")


def _of_the_run(experiment: Experiment, run: Path) -> tuple[Assembly, Task]:
    """Prepare the experiment of a run. Beside the copy in the run's folder lies nothing that the original may need."""
    try:
        assembly = assemble(experiment)
        return assembly, prepare_task(assembly)
    except ConfigError as error:
        if experiment.path is None or experiment.path.resolve().parent != run.resolve():
            raise
        mend = f"name the experiment's own file, beside which its files lie: earshot simulate EXP --replay {run}"
        raise ConfigError(error.key, f"{error.problem}; {mend}", error.details) from error


def up(experiment: Experiment, options: Options) -> Result:
    """Run every peer as a daemon on this host. To be called in a process that has started no threads."""
    began_s = monotonic()
    torch.set_num_threads(1)
    parse_stop(experiment.stop_when)
    assembly = assemble(experiment, measures=True)
    _ask_for_all_rounds(assembly)
    check_devices(experiment)
    check_engine(assembly)
    task = prepare_task(assembly)
    folder = _open(options, experiment, assembly, task)
    _say_what_is_real(experiment, options)
    observers = host.Observers(
        entry=options.listener.entry,
        metric=folder.metric if folder else lambda _: None,
        alert=lambda name, text: options.listener.note(f"{name}: {text}"),
        event=folder.event if folder else lambda _kind, **_fields: None,
        peers=options.listener.peers,
    )
    running = host.Host(assembly, task, folder.path if folder else None, observers, options.stop)
    ended = running.run()
    return _close(experiment, ended, began_s, folder, _expected_here(assembly, task) if options.predicts else None)


def _expected_here(assembly: Assembly, task: Task) -> Row | None:
    """Return what the rounds of daemons on this host should take. After the run: before it, nothing may have had
    threads or sockets, as processes are forked."""
    found = measure_loopback()
    return expected(assembly, task, measured_wires(found.bandwidth_mbps, found.latency_ms), os.cpu_count() or 1)


def start_one(experiment: Experiment, name: str, options: Options) -> Result:
    """Run this machine's daemon, the peer or the coordinator called `name`."""
    began_s = monotonic()
    torch.set_num_threads(experiment.task.threads)
    parse_stop(experiment.stop_when)
    assembly = assemble(experiment, measures=True)
    _ask_for_all_rounds(assembly)
    mine = start.seats_of(assembly, name)
    if options.resume is not None and not any(me in assembly.coordinator_ids for me in mine):
        raise ConfigError("--resume", f"{name} is no coordinator; nobody else saves itself on the way yet")
    check_engine(assembly)
    if options.resume is not None:
        _check_unfinished(experiment, options.resume)
    task = prepare_task(assembly, only=mine[0])
    seats: list[Seat] = []
    try:
        for me in mine:
            seats.append(start.bind(assembly, task, me, options.resume))
        folder = _open(options, experiment, assembly, task)
    except BaseException:
        for seat in seats:
            seat.links.close()  # sockets left open would keep this process from ending its ZeroMQ context
        raise
    for seat in seats:
        if folder is not None:
            seat.save_in(folder.path)
    _say_what_is_real(experiment, options)
    observers = start.Observers(
        entry=options.listener.entry,
        metric=folder.metric if folder else lambda _: None,
        alert=lambda text: _alert(options, folder, name, text),
        event=folder.event if folder else lambda _kind, **_fields: None,
        progress=lambda progress: options.listener.progress(progress, assembly),
    )
    ended = start.run(seats, folder.path if folder else None, observers, options.stop)
    return _close(experiment, ended, began_s, folder)


def _open(options: Options, experiment: Experiment, assembly: Assembly, task: Task) -> RunFolder | None:
    for warning in warnings_of(assembly):
        options.listener.note(f"warning: {warning}")
    folder = None
    if options.resume is not None:
        folder = resume_run_folder(options.resume, experiment)
    elif options.writes or options.out:
        folder = make_run_folder(experiment, options.out)
    options.begins()
    options.listener.begins(assembly, task.layout)
    return folder


def _saver(folder: RunFolder | None, peers: int) -> Callable[[str, dict[str, Tensor]], None] | None:
    if folder is None or peers > SAVED_PEERS:
        return None
    peers_folder = folder.path / "peers"

    def save(name: str, tensors: dict[str, Tensor]) -> None:
        save_model(tensors, peers_folder / name)

    return save


def _alert(options: Options, folder: RunFolder | None, name: str, text: str) -> None:
    options.listener.note(f"{name}: {text}")
    if folder is not None:
        folder.event("alert", peer=name, text=text)


def _close(
    experiment: Experiment, ended: Ended, began_s: float, folder: RunFolder | None, prediction: Row | None = None
) -> Result:
    seconds = monotonic() - began_s
    summary = summarise(experiment, ended, seconds, None if folder is None else folder.path)
    if prediction is not None:
        summary["prediction"] = prediction
    if folder is not None:
        folder.finish(summary)
    return Result(summary, ended.details)


def _say_what_is_real(experiment: Experiment, options: Options) -> None:
    tables = _virtual_tables(experiment)
    if tables:
        options.listener.note(f"{_listed(tables)}: for simulate only; here links, steps and faults are real")


def _listed(tables: Sequence[str]) -> str:
    return " and ".join(f"[{name}]" for name in tables)


def _ask_for_all_rounds(assembly: Assembly) -> None:
    """Have a user's own schedule that fails in a later round say so before anything is written. Raises ConfigError."""
    try:
        for round in range(assembly.ground.rounds or 0):
            assembly.mixing(round)
        assembly.neighbours(0)
    except TrainingError as error:
        raise ConfigError("", str(error), error.details) from error
