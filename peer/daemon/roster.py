"""What the parent of a run of daemons knows of them: how each is doing, and who is part of the run."""

from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

import networkx as nx

from peer.assembly import Assembly
from peer.daemon.pipe import Pipe
from peer.protocol.messages import PeerId
from peer.record import PeerScore, Staleness


@dataclass
class PeerView:
    """What the parent knows of one node, a peer or a coordinator."""

    name: str
    process: BaseProcess
    pipe: Pipe
    endpoint: str | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    score: PeerScore | None = None
    end: dict[str, Any] | None = None
    gone: bool = False  # its process has ended
    diverged_round: int | None = None
    restarts: int = 0
    staleness: Staleness = field(default_factory=Staleness)  # of what a coordinator has taken in, by what it told
    earlier: Counter[str] = field(default_factory=Counter)  # what it had sent and done before it was started again

    @property
    def is_lost(self) -> bool:
        return self.gone and self.end is None

    @property
    def round(self) -> int:
        """How many rounds it has completed, by its last word."""
        return int((self.end or {}).get("rounds", self.progress.get("round", 0)))

    @property
    def last_figures(self) -> dict[str, Any]:
        """Its counts by its last word: what it said at its end, or on the way."""
        return self.end if self.end is not None and "rounds" in self.end else self.progress

    @property
    def outcome(self) -> str | None:
        """What its run came to, None before it has said so."""
        return (self.end or {}).get("outcome")


class Roster:
    """All nodes of a run, in node order, once they have been started."""

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.peers: list[PeerView] = []
        self._gave_up: set[tuple[PeerId, PeerId]] = set()  # (i, j): i counts j as lost

    def tell(self, kind: str, /, **fields: Any) -> None:
        """Tell every node."""
        for peer in self.peers:
            peer.pipe.send(kind, **fields)

    def gave_up(self, i: PeerId, j: PeerId) -> None:
        """Peer i counts j as lost."""
        self._gave_up.add((i, j))

    def found_again(self, i: PeerId, j: PeerId) -> None:
        """Peer i has heard j, which may have been lost to it."""
        self._gave_up.discard((i, j))

    # ---- Who is there

    def away(self) -> set[PeerId]:
        """Return who is no part of the run any more."""
        return self._cut_off() | {i for i, peer in enumerate(self.peers) if peer.is_lost}

    def _cut_off(self) -> set[PeerId]:
        """Return the peers that live, but apart from the others, which had taken them for dead.

        Of the peers that hear each other, the largest group is the run.
        """
        if not self._gave_up:
            return set()
        everyone = self.assembly.exchange_graph.to_undirected()
        here = everyone.subgraph([i for i, peer in enumerate(self.peers) if not peer.is_lost])
        cut_off: set[PeerId] = set()
        for group in nx.connected_components(here):
            kept = nx.Graph(here.subgraph(group))
            kept.remove_edges_from([(i, j) for i, j in self._gave_up if i in group and j in group])
            parts = sorted(nx.connected_components(kept), key=lambda part: (-len(part), min(part)))
            cut_off.update(*parts[1:])
        return cut_off

    # ---- How far they are

    @property
    def local_rounds(self) -> int:
        """How many rounds they have done together."""
        return sum(peer.round for peer in self.peers)

    def rounds(self, away: set[PeerId]) -> int:
        """Return how many rounds the run has had; who is away does not count."""
        if self.assembly.coordinators:
            return min(self.peers[i].round for i in self.assembly.coordinator_ids)
        if self.assembly.experiment.is_asynchronous:
            return self.local_rounds // len(self.peers)
        return min([peer.round for i, peer in enumerate(self.peers) if i not in away] or [p.round for p in self.peers])
