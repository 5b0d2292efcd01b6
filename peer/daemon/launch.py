"""From an experiment to one running node: the same for a peer of `up` and for `start`."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import torch

from peer.assembly import Assembly
from peer.daemon.node import Node, NodeEnd, Reporter
from peer.daemon.packing import Form, form_of
from peer.learner import Learner, message_forms
from peer.network.greeting import Greeting
from peer.network.links import Links
from peer.protocol.gossip import Gossip
from peer.protocol.membership import Membership, Patience
from peer.protocol.messages import PeerId
from peer.task.task import Task


@dataclass(frozen=True)
class Seat:
    """One peer's place in an experiment, with its links bound and nothing dialled yet."""

    me: PeerId
    assembly: Assembly
    task: Task
    links: Links
    learner: Learner
    forms: tuple[Form, ...]
    gossip: Gossip

    def dial(self, endpoints: Mapping[PeerId, str | None]) -> None:
        """Connect to the neighbours: of a pair the later in node order dials, or whoever can reach the other."""
        for peer in sorted(self.gossip.neighbours):
            theirs, ours = endpoints.get(peer), self.links.endpoint
            if theirs is not None and (peer < self.me or ours is None):
                self.links.dial(peer, theirs)

    def run(self, reporter: Reporter) -> NodeEnd:
        """Run the node to its end."""
        e = self.assembly.experiment
        t = e.transport
        node = Node(
            gossip=self.gossip,
            membership=Membership(self.gossip.neighbours, Patience(t.suspect_s, t.dead_s, t.join_s)),
            links=self.links,
            learner=self.learner,
            forms=self.forms,
            reporter=reporter,
            is_due=e.evaluates_after,
            heartbeat_s=t.heartbeat_s,
            stop_when_diverged=e.record.on_divergence == "stop",
        )
        return node.run()


def take_seat(assembly: Assembly, task: Task, me: PeerId, device: torch.device, listen: str | None) -> Seat:
    """Bind one peer's links and put its tensors on the device. Raises ConfigError when the address is taken."""
    here = assembly.neighbourhoods[me]
    gossip = Gossip(me, assembly.experiment.rounds, lambda _: here, exchanges=assembly.algorithm.exchanges)
    trainer = task.trainer(device)
    start = task.start(me).to(device)
    learner = Learner(me, assembly.algorithm, trainer, start, task.shard(me, device), task.test_rows(device))
    forms = tuple(form_of(message) for message in message_forms(assembly.algorithm, start))
    links = Links(
        {peer: assembly.names[peer] for peer in gossip.neighbours},
        greeting_of(assembly, task, me, str(device), trainer.step),
        tuple(form.size_bytes for form in forms),
        listen,
    )
    return Seat(me, assembly, task, links, learner, forms, gossip)


def greeting_of(assembly: Assembly, task: Task, me: PeerId, device: str, step: str) -> Greeting:
    """Return what a peer says of itself to those that it meets.

    Its digest covers the experiment and what came of it here: who is which node, who hears whom with what weight, and
    how many rows are dealt out. The same file with another graph file beside it is another experiment.
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
        code=task.code,
        device=device,
        step=step,
    )


def _matrix_digest(assembly: Assembly) -> str:
    matrix = assembly.mixing
    whole = sha256()
    for part in (matrix.indptr.astype("<i8"), matrix.indices.astype("<i8"), matrix.data.astype("<f8")):
        whole.update(part.tobytes())
    return whole.hexdigest()


def _short(text: str) -> str:
    return text if len(text) <= 64 else f"sha256:{sha256(text.encode()).hexdigest()[:16]}"
