"""The processes of `earshot up`: started, started again, waited for, stopped and killed.

On Linux they are forked from this process, which has imported torch and prepared the task once, but has touched no
socket, thread or GPU. Elsewhere they are spawned and prepare themselves. A coordinator whose process is gone is started
again, at the same address and from what it had saved.
"""

import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from peer.daemon.child import Place, run_child
from peer.daemon.pipe import Pipe
from peer.daemon.roster import PeerView, Roster
from peer.protocol.messages import PeerId
from peer.task.task import Task

LISTEN = "tcp://127.0.0.1:*"

RESTARTS = 3
"""How often a coordinator is started again."""

COUNTS = ("payload_bytes", "wire_bytes")
"""Of a node's figures, what is added up over its lives."""

FORKS = sys.platform == "linux"


class Processes:
    """The processes of one run. Who is in them is put into the roster."""

    def __init__(self, roster: Roster, task: Task, run_folder: Path | None, *, forks: bool) -> None:
        self._roster = roster
        self._assembly = roster.assembly
        self._task = task
        self._run_folder = run_folder
        self._forks = forks
        self._stop_line: Connection[bytes, bytes] | None = None  # its closing is the stop: all see it at one instant

    # ---- Start

    def start(self) -> None:
        """Start them all; a peer and a coordinator of one name are in one process."""
        torch.set_num_threads(1)  # a thread pool would not survive the fork
        self._context: Any = multiprocessing.get_context("fork" if self._forks else "spawn")
        self._listen, self._stop_line = self._context.Pipe(duplex=False)
        nodes = range(len(self._assembly.nodes))
        views: dict[PeerId, PeerView] = {}
        for host in nodes:
            inside = [node for node in nodes if self._assembly.host_of(node) == host]
            if inside:
                open_here = [view.pipe for view in views.values()]
                views |= self._start_one(dict.fromkeys(inside, LISTEN), open_here)
        self._roster.peers = [views[node] for node in nodes]

    def start_again(self, i: PeerId) -> bool:
        """Start a coordinator again whose process is gone, where it can go on; returns whether it was."""
        peer, e = self._roster.peers[i], self._assembly.experiment
        is_own = i in self._assembly.coordinator_ids and self._assembly.host_of(i) == i
        if not is_own or peer.endpoint is None or peer.restarts == RESTARTS:
            return False
        if self._run_folder is None and e.rounds:  # it would begin from nothing, and what workers know be void
            return False
        open_here = [other.pipe for other in self._roster.peers if other.pipe.is_open]
        view = self._start_one({i: peer.endpoint}, open_here)[i]
        view.restarts, view.score, view.earlier = peer.restarts + 1, peer.score, peer.earlier
        view.staleness = peer.staleness
        view.earlier.update({name: peer.last_figures.get(name, 0) for name in COUNTS})
        view.progress = {**peer.progress, **dict.fromkeys(COUNTS, 0)}
        self._roster.peers[i] = view
        return True

    def _start_one(self, listen: Mapping[PeerId, str], open_here: Sequence[Pipe]) -> dict[PeerId, PeerView]:
        """Start one process with these nodes, by where each binds. `open_here` are the pipes to the other processes."""
        names = self._assembly.nodes
        ends = {node: tuple(Pipe(end) for end in self._context.Pipe()) for node in listen}
        inherited = [self._stop_line, *open_here, *(ours for ours, _ in ends.values())] if self._forks else []
        places = [Place(node, ends[node][1], where) for node, where in listen.items()]
        prepared = (self._assembly, self._task) if self._forks else None
        process = self._context.Process(
            target=run_child,
            args=(places, self._listen, inherited, self._assembly.experiment, prepared, self._run_folder),
            name=names[places[0].me],
        )
        process.start()
        for place in places:
            place.pipe.connection.close()
        return {node: PeerView(names[node], process, ours) for node, (ours, _) in ends.items()}

    # ---- Until the end

    def wait(self, timeout_s: float) -> None:
        """Wait until one says something or ends."""
        living = [peer for peer in self._roster.peers if not peer.gone]
        pipes = [peer.pipe.connection for peer in living if peer.pipe.is_open]
        sentinels = {peer.process.sentinel for peer in living}  # two nodes may be in one process
        wait([*pipes, *sentinels], timeout=timeout_s)

    def stop(self) -> None:
        """Have all of them stop, at one instant."""
        if self._stop_line is not None:
            self._stop_line.close()

    def kill(self) -> None:
        """Kill what still runs; none is left."""
        for peer in self._roster.peers:
            if peer.process.is_alive():
                peer.process.kill()
            peer.process.join()
        self.stop()
