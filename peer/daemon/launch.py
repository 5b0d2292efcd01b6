"""From an experiment to one running node: the same for a peer or coordinator of `up` and for `start`."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from peer.assembly import Assembly, Exchange, core_of, learner_of
from peer.assembly.coordination import centre_of, coordinator_of, judges_copies, parcels_of, piece_elements, weights_of
from peer.daemon.beside_jobs import RingJobs, WorkerJobs
from peer.daemon.centre_jobs import CentreJobs, Store
from peer.daemon.jobs import Jobs
from peer.daemon.journal import Entry, Journal
from peer.daemon.node import Node
from peer.daemon.packing import form_of, ragged_bytes
from peer.daemon.reporting import NodeEnd, Reporter
from peer.experiment import Experiment
from peer.experiment.choices import is_factory
from peer.learner import message_forms, wire_forms
from peer.network.greeting import Greeting
from peer.network.links import Links
from peer.network.sizes import Sizes
from peer.protocol.coordinator import Coordinator
from peer.protocol.membership import Membership, Patience
from peer.protocol.messages import PeerId
from peer.protocol.ring import Ring, cut
from peer.protocol.survey import Survey
from peer.protocol.worker import Worker
from peer.task.factory import source_hash
from peer.task.task import Task
from peer.verdict import Verdict

FINAL = ("finished", "interrupted", "diverged")
"""Outcomes after which there is a model to keep."""

DIGESTED_ROUNDS = 8
"""Of how many rounds the mixing matrix is part of the digest."""


@dataclass(frozen=True)
class Seat:
    """One node's place in an experiment, with its links bound and nothing dialled yet.

    `damaged` says which of a coordinator's checkpoints were passed over, in words.
    """

    me: PeerId
    assembly: Assembly
    links: Links
    jobs: Jobs | CentreJobs
    core: Exchange | Survey | Coordinator
    damaged: str = ""

    @property
    def endpoint(self) -> str | None:
        """Where others find it; None where it only dials."""
        return self.links.endpoint

    def dial(self, endpoints: Mapping[PeerId, str | None]) -> None:
        """Connect to the neighbours: of a pair one dials, see `Assembly.dials`, or whoever can reach the other.

        `endpoints` are those that everybody knows, the own one among them.
        """
        for peer in sorted(self.core.neighbours):
            theirs, ours = endpoints.get(peer), endpoints.get(self.me)
            if theirs is not None and (self.assembly.dials(self.me, peer) or ours is None):
                self.links.dial(peer, theirs)

    def run(self, reporter: Reporter, journal: Callable[[Entry], None] = lambda _: None) -> NodeEnd:
        """Run the node to its end. `journal` is told what becomes of the state of a peer that waits for nobody."""
        e, names = self.assembly.experiment, self.assembly.names
        t = e.transport
        if self.damaged:
            reporter.alert(self.damaged, None)
        node = Node(
            core=self.core,
            membership=Membership(self.core.neighbours, Patience(t.suspect_s, t.dead_s, t.join_s)),
            links=self.links,
            jobs=self.jobs,
            reporter=reporter,
            heartbeat_s=t.heartbeat_s,
            stop_when_diverged=e.record.on_divergence == "stop",
            journal=Journal(journal, names.__getitem__) if e.is_asynchronous else None,
            records_updates=e.coordinator.mode != "sync",
        )
        return node.run()

    def save_in(self, run_folder: Path) -> None:
        """Have a coordinator save itself in this run's folder."""
        if isinstance(self.jobs, CentreJobs):
            self.jobs.store.folder = checkpoint_folder(run_folder, self.assembly.nodes[self.me])

    def params(self) -> Tensor:
        """Return the parameters that the node stands for, on the CPU."""
        return self.jobs.params().detach().cpu()


def take_seat(
    assembly: Assembly,
    task: Task,
    me: PeerId,
    device: torch.device,
    listen: str | None,
    *,
    endless: bool = False,
    judges: bool = True,
) -> Seat:
    """Bind one peer's links and put its tensors on the device. Raises ConfigError when the address is taken.

    `endless`: somebody else counts the rounds of peers that do not wait for each other. `judges`: beside a coordinator,
    too, the peer is judged by what it holds.
    """
    core = core_of(assembly, task, me, endless=endless)
    trainer = task.trainer(device)
    start = task.start(me).to(device)
    shard, test = task.shard(me, device), task.test_rows(device)
    learner = learner_of(assembly, task, me, trainer, start, shard, test, core)
    e, greeting = assembly.experiment, greeting_of(assembly, task, me, str(device), trainer.step)
    jobs: Jobs
    pieces = 0
    match core:
        case Worker():
            parcels = parcels_of(assembly, task)
            forms = tuple(form_of(parcels.give(start[a:b])) for a, b in parcels.spans)
            ids = list(assembly.coordinator_ids)
            is_judged = judges or judges_copies(assembly)
            jobs = WorkerJobs(
                learner, (), (), e.evaluates_after, is_judged, parcels=parcels, coordinators=ids, given_forms=forms
            )
            sizes = {peer: Sizes(given=form.size_bytes) for peer, form in zip(ids, forms, strict=True)}
        case Ring():
            segments = cut(task.layout.size, len(assembly.names), piece_elements(task.layout))
            jobs = RingJobs(learner, (), (), e.evaluates_after, segments=segments)
            bytes_of = _piece_bytes(core, segments, start.element_size())
            sizes = dict.fromkeys(core.neighbours, Sizes(pieces=bytes_of))
            pieces = 2 * sum(map(len, segments))
        case _:
            own, wire = (
                tuple(form_of(message) for message in forms_of(learner.algorithm, start))
                for forms_of in (message_forms, wire_forms)
            )
            due = (lambda _: False) if e.is_asynchronous else e.evaluates_after
            jobs = Jobs(learner, own, wire, due)
            data, model = tuple(form.size_bytes for form in wire), form_of(learner.copy()).size_bytes
            sizes = dict.fromkeys(core.neighbours, Sizes(data, model))
    names = {peer: assembly.nodes[peer] for peer in core.neighbours}
    return Seat(me, assembly, Links(names, greeting, sizes, listen, pieces=pieces), jobs, core)


def take_coordinator_seat(
    assembly: Assembly,
    task: Task,
    me: PeerId,
    device: torch.device,
    listen: str | None,
    folder: Path | None,
    *,
    may_be_left: bool = True,
) -> Seat:
    """Bind a coordinator's links and put its tensors on the device; it begins where it had saved itself in the folder.

    `may_be_left`: workers that are gone may come back. Raises ConfigError when the address is taken, and for
    checkpoints of another run.
    """
    task = task.apart()  # a peer may train in another thread of this process
    e, parcels, place = assembly.experiment, parcels_of(assembly, task), me - assembly.coordinator_ids.start
    centre = centre_of(assembly, task, me, device)
    zeros = torch.zeros(task.layout.size, dtype=task.layout.dtype)
    form = form_of(parcels.push(zeros)[place])
    verdict = None
    if not judges_copies(assembly):
        verdict = Verdict(task.trainer(device), task.shards(device), task.test_rows(device))
    greeting = greeting_of(assembly, task, me, str(device), "plain")
    store = Store(folder, e.checkpoint.every_rounds or 1, e.checkpoint.keep, greeting.digest)
    jobs = CentreJobs(centre, parcels, place, form, verdict, e.evaluates_after, store)
    present, damaged = jobs.begin()
    core = coordinator_of(assembly, weights_of(assembly, task), me, present, may_be_left=may_be_left)
    most = ragged_bytes(form, len(centre.start)) if parcels.is_ragged(place) else form.size_bytes
    names = {peer: assembly.nodes[peer] for peer in core.neighbours}
    links = Links(names, greeting, dict.fromkeys(names, Sizes(push=most, is_ragged=parcels.is_ragged(place))), listen)
    return Seat(me, assembly, links, jobs, core, damaged)


def checkpoint_folder(run_folder: Path | None, name: str) -> Path | None:
    """Return where a coordinator of a run saves itself; None where nothing is written."""
    return None if run_folder is None else run_folder / "peers" / name / "checkpoints"


def _piece_bytes(
    core: Ring, segments: tuple[tuple[range, ...], ...], number_bytes: int
) -> Callable[[str, int, int], int]:
    """Return how many bytes a piece has that reaches this member of a ring."""

    def size_bytes(phase: str, step: int, piece: int) -> int:
        if not 0 <= step < core.members - 1:
            return 0
        segment = segments[core.segment_heard("scatter" if phase == "scatter" else "gather", step)]
        return len(segment[piece]) * number_bytes if 0 <= piece < len(segment) else 0

    return size_bytes


def greeting_of(assembly: Assembly, task: Task, me: PeerId, device: str, step: str) -> Greeting:
    """Return what a node says of itself to those that it meets.

    Its digest covers the experiment and what came of it here: who is which node, who hears whom with what weight in
    the first rounds, and how many rows are dealt out. The same file with another graph file beside it is another
    experiment.
    """
    resolved = {
        "names of the peers, in node order": ", ".join(assembly.nodes),
        "mixing matrix": _matrix_digest(assembly),
        "rows of the training data": str(0 if task.data is None or task.own is not None else len(task.data.x)),
    }
    whole = "\n".join([assembly.experiment.digest(), *resolved.values()])
    return Greeting(
        name=assembly.nodes[me],
        session=secrets.token_hex(8),
        digest=sha256(whole.encode()).hexdigest(),
        fingerprint={**assembly.experiment.fingerprint(), **{k: _short(v) for k, v in resolved.items()}},
        layout_digest=task.layout.digest(),
        layout=task.layout.lines(),
        code=task.code + user_code_of_exchange(assembly.experiment),
        device=device,
        step=step,
    )


def user_code_of_exchange(experiment: Experiment) -> str:
    """Return the hashes of the user's own modules for topology and algorithm, "" where there are none."""
    specs = (experiment.topology.family, experiment.algorithm.name)
    return "".join(source_hash(spec, experiment.folder) for spec in specs if is_factory(spec))


def _matrix_digest(assembly: Assembly) -> str:
    whole = sha256()
    for round in range(min(assembly.period or DIGESTED_ROUNDS, DIGESTED_ROUNDS)):
        matrix = assembly.mixing(round)
        for part in (matrix.indptr.astype("<i8"), matrix.indices.astype("<i8"), matrix.data.astype("<f8")):
            whole.update(part.tobytes())
    return whole.hexdigest()


def _short(text: str) -> str:
    return text if len(text) <= 64 else f"sha256:{sha256(text.encode()).hexdigest()[:16]}"
