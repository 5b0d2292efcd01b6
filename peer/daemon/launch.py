"""From an experiment to one running node: the same for a peer of `up` and for `start`."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256

import torch

from peer.assembly import Assembly, Exchange, core_of, learner_of
from peer.daemon.jobs import Jobs
from peer.daemon.journal import Entry, Journal
from peer.daemon.node import Node
from peer.daemon.packing import Form, form_of
from peer.daemon.reporting import NodeEnd, Reporter
from peer.experiment import Experiment
from peer.experiment.choices import is_factory
from peer.learner import Learner, message_forms, wire_forms
from peer.network.greeting import Greeting
from peer.network.links import Links
from peer.protocol.membership import Membership, Patience
from peer.protocol.messages import PeerId
from peer.protocol.survey import Survey
from peer.task.factory import source_hash
from peer.task.task import Task

DIGESTED_ROUNDS = 8
"""Of how many rounds the mixing matrix is part of the digest."""


@dataclass(frozen=True)
class Seat:
    """One peer's place in an experiment, with its links bound and nothing dialled yet."""

    me: PeerId
    assembly: Assembly
    task: Task
    links: Links
    learner: Learner
    own_forms: tuple[Form, ...]
    wire_forms: tuple[Form, ...]
    core: Exchange | Survey

    def dial(self, endpoints: Mapping[PeerId, str | None]) -> None:
        """Connect to the neighbours: of a pair the later in node order dials, or whoever can reach the other."""
        for peer in sorted(self.core.neighbours):
            theirs, ours = endpoints.get(peer), self.links.endpoint
            if theirs is not None and (peer < self.me or ours is None):
                self.links.dial(peer, theirs)

    def run(self, reporter: Reporter, journal: Callable[[Entry], None] = lambda _: None) -> NodeEnd:
        """Run the node to its end. `journal` is told what becomes of the state of a peer that waits for nobody."""
        e, names = self.assembly.experiment, self.assembly.names
        t = e.transport
        node = Node(
            core=self.core,
            membership=Membership(self.core.neighbours, Patience(t.suspect_s, t.dead_s, t.join_s)),
            links=self.links,
            jobs=Jobs(
                self.learner,
                self.own_forms,
                self.wire_forms,
                is_due=(lambda _: False) if e.is_asynchronous else e.evaluates_after,
            ),
            reporter=reporter,
            heartbeat_s=t.heartbeat_s,
            stop_when_diverged=e.record.on_divergence == "stop",
            journal=Journal(journal, names.__getitem__) if e.is_asynchronous else None,
        )
        return node.run()


def take_seat(
    assembly: Assembly, task: Task, me: PeerId, device: torch.device, listen: str | None, *, endless: bool = False
) -> Seat:
    """Bind one peer's links and put its tensors on the device. Raises ConfigError when the address is taken.

    `endless`: somebody else counts the rounds of peers that do not wait for each other.
    """
    core = core_of(assembly, me, endless=endless)
    trainer = task.trainer(device)
    start = task.start(me).to(device)
    shard, test = task.shard(me, device), task.test_rows(device)
    learner = learner_of(assembly, task, me, trainer, start, shard, test, core.around)
    own, wire = (
        tuple(form_of(message) for message in forms(learner.algorithm, start)) for forms in (message_forms, wire_forms)
    )
    links = Links(
        {peer: assembly.names[peer] for peer in core.neighbours},
        greeting_of(assembly, task, me, str(device), trainer.step),
        tuple(form.size_bytes for form in wire),
        listen,
        model_bytes=form_of(learner.copy()).size_bytes,
    )
    return Seat(me, assembly, task, links, learner, own, wire, core)


def greeting_of(assembly: Assembly, task: Task, me: PeerId, device: str, step: str) -> Greeting:
    """Return what a peer says of itself to those that it meets.

    Its digest covers the experiment and what came of it here: who is which node, who hears whom with what weight in
    the first rounds, and how many rows are dealt out. The same file with another graph file beside it is another
    experiment.
    """
    resolved = {
        "names of the peers, in node order": ", ".join(assembly.names),
        "mixing matrix": _matrix_digest(assembly),
        "rows of the training data": str(0 if task.data is None or task.own is not None else len(task.data.x)),
    }
    whole = "\n".join([assembly.experiment.digest(), *resolved.values()])
    return Greeting(
        name=assembly.names[me],
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
