"""`earshot up`: every peer, and every coordinator, as a daemon process on this host, watched by this one.

On Linux the daemons are forked from this process, which has imported torch and prepared the task once, but has
touched no socket, thread or GPU. Elsewhere they are spawned and prepare themselves. A coordinator whose process is gone
is started again, at the same address and from what it had saved.
"""

import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any

import networkx as nx
import numpy as np
import torch

from peer.assembly import Assembly
from peer.assembly.coordination import judges_copies, owner_of
from peer.daemon.child import Place, run_child
from peer.daemon.distributed import uses_distributed
from peer.daemon.ending import Ending
from peer.daemon.pipe import Pipe
from peer.entries import Entries, Judged
from peer.history import Figures, History, earliest
from peer.record import Divergence, Ended, PeerScore, Row, Staleness, listed, metric_row, round_seconds
from peer.task.task import Task

LISTEN = "tcp://127.0.0.1:*"

STOP_S = 9.5
"""How long stopped daemons have to end before they are killed."""

SETTLE_S = 3.0
"""How long the other peers have to finish the round in which one has diverged."""

RESTARTS = 3
"""How often a coordinator is started again."""

COUNTS = ("payload_bytes", "wire_bytes")
"""Of a node's figures, what is added up over its lives."""

KEPT_PARTS = 8
"""Of how many entries the coordinators' parameters may still be missing."""

FORKS = sys.platform == "linux"


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


@dataclass
class Observers:
    """Whom the host tells what happens."""

    entry: Callable[[Row], None] = lambda _: None
    metric: Callable[[Row], None] = lambda _: None
    alert: Callable[[str, str], None] = lambda _name, _text: None
    event: Callable[..., None] = lambda _kind, **_fields: None
    peers: Callable[[Sequence[PeerView]], None] = lambda _: None


class Host:
    """Starts the daemons of one experiment, follows them, and sees to it that none is left."""

    def __init__(
        self,
        assembly: Assembly,
        task: Task,
        run_folder: Path | None,
        observers: Observers,
        stop: Callable[[], bool],
        *,
        forks: bool = FORKS,
    ) -> None:
        self.assembly = assembly
        self.observers = observers
        self._stop_wanted = stop
        self._dtype = np.dtype(str(task.layout.dtype).removeprefix("torch."))
        self._entries = Entries()
        every = assembly.experiment.record.params == "every"
        gossiped = assembly.shared_columns(task.layout)
        self._history = History(assembly.nodes, every, gossiped, observers.entry, owner_of(assembly))
        self._is_one_model = bool(assembly.coordinators) and not judges_copies(assembly)
        self._parts: dict[int, dict[int, bytes]] = {}  # by version, what each coordinator's parameters were
        self._ending = Ending(assembly.experiment, len(assembly.names))
        self._told_s: float | None = None  # when everybody was told where the others are
        self._judged: set[int] = set()  # peers that have been judged at all
        self._last: dict[int, Judged] = {}  # what each peer was where the run was ended
        self._has_ended = False
        self._stopped_s: float | None = None
        self._interrupted = False
        self._diverged: Divergence | None = None
        self._diverged_s = 0.0
        self._gave_up: set[tuple[int, int]] = set()  # (i, j): i counts j as lost
        self._began_s = monotonic()
        self._run_folder = run_folder
        self._task = task
        self._forks = forks
        self._stop_line: Connection[bytes, bytes] | None = None  # its closing is the stop: all see it at one instant
        self.peers: list[PeerView] = []

    def run(self) -> Ended:
        """Start the daemons and follow them until all have ended."""
        try:
            self._start()
            while any(not peer.gone for peer in self.peers):
                self._wait()
                self._read()
                self._judge()
                self._decide()
                self.observers.peers(self.peers)
        except KeyboardInterrupt:  # a second one: no more patience
            self._interrupted = True
        finally:
            self._kill()
        self._flush()
        self._add_last_entry()
        return self._result()

    def _start(self) -> None:
        torch.set_num_threads(1)  # a thread pool would not survive the fork
        self._context: Any = multiprocessing.get_context("fork" if self._forks else "spawn")
        self._listen, self._stop_line = self._context.Pipe(duplex=False)
        nodes = range(len(self.assembly.nodes))
        views: dict[int, PeerView] = {}
        for host in nodes:
            inside = [node for node in nodes if self.assembly.host_of(node) == host]
            if inside:
                open_here = [view.pipe for view in views.values()]
                views |= self._start_process(dict.fromkeys(inside, LISTEN), open_here)
        self.peers = [views[node] for node in nodes]

    def _start_process(self, listen: Mapping[int, str], open_here: Sequence[Pipe]) -> dict[int, PeerView]:
        """Start one process with these nodes, by where each binds. `open_here` are the pipes to the other processes."""
        names = self.assembly.nodes
        ends = {node: tuple(Pipe(end) for end in self._context.Pipe()) for node in listen}
        inherited = [self._stop_line, *open_here, *(ours for ours, _ in ends.values())] if self._forks else []
        places = [Place(node, ends[node][1], where) for node, where in listen.items()]
        prepared = (self.assembly, self._task) if self._forks else None
        process = self._context.Process(
            target=run_child,
            args=(places, self._listen, inherited, self.assembly.experiment, prepared, self._run_folder),
            name=names[places[0].me],
        )
        process.start()
        for place in places:
            place.pipe.connection.close()
        return {node: PeerView(names[node], process, ours) for node, (ours, _) in ends.items()}

    def _start_again(self, i: int) -> bool:
        """Start a coordinator again whose process is gone, where it can go on; returns whether it was."""
        peer, e = self.peers[i], self.assembly.experiment
        is_own = i in self.assembly.coordinator_ids and self.assembly.host_of(i) == i
        if not is_own or self._stopped_s is not None or peer.endpoint is None or peer.restarts == RESTARTS:
            return False
        if self._run_folder is None and e.rounds:  # it would begin from nothing, and what workers know be void
            return False
        open_here = [other.pipe for other in self.peers if other.pipe.is_open]
        view = self._start_process({i: peer.endpoint}, open_here)[i]
        view.restarts, view.score, view.earlier = peer.restarts + 1, peer.score, peer.earlier
        view.earlier.update({name: peer.last_figures.get(name, 0) for name in COUNTS})
        view.progress = {**peer.progress, **dict.fromkeys(COUNTS, 0)}
        self.peers[i] = view
        self.observers.alert(view.name, "is started again, from what it had saved")
        self.observers.event("restarted", peer=view.name)
        return True

    # ---- Following

    def _wait(self) -> None:
        living = [peer for peer in self.peers if not peer.gone]
        pipes = [peer.pipe.connection for peer in living if peer.pipe.is_open]
        sentinels = {peer.process.sentinel for peer in living}  # two nodes may be in one process
        wait([*pipes, *sentinels], timeout=0.1)

    def _read(self) -> None:
        for i, peer in enumerate(self.peers):
            if peer.gone:
                continue
            ended = not peer.process.is_alive()  # asked before the pipe is emptied
            for kind, fields in peer.pipe.receive():
                self._hear(i, peer, kind, fields)
            if ended:
                peer.gone = True
                peer.process.join()
                if peer.is_lost and self._stopped_s is None:
                    self.observers.event("lost", peer=peer.name, exit_code=peer.process.exitcode)
                    self.observers.alert(peer.name, f"its process ended ({_exit_text(peer.process.exitcode)})")
                    for other in self.peers:
                        other.pipe.send("gone", peer=i)
                    if not self._start_again(i):
                        self._tell_endpoints()
        self._flush()

    def _tell_endpoints(self) -> None:
        """When all peers that are there are bound, tell everybody where to find them."""
        if self._told_s is not None or not all(p.endpoint is not None or p.gone for p in self.peers):
            return
        self._told_s = monotonic()
        for peer in self.peers:
            peer.pipe.send("endpoints", endpoints=[p.endpoint for p in self.peers])

    def _hear(self, i: int, peer: PeerView, kind: str, fields: dict[str, Any]) -> None:
        match kind:
            case "bound":
                peer.endpoint = fields["endpoint"]
                if self._told_s is None:
                    self._tell_endpoints()
                else:  # it has been started again
                    peer.pipe.send("endpoints", endpoints=[p.endpoint for p in self.peers])
            case "progress":
                peer.progress = fields
            case "figures":
                self._take_figures(i, peer, fields)
            case "updated" if self._stopped_s is None:
                sender = self.assembly.names[fields.pop("sender")]
                self.observers.event("update", peer=sender, **fields)
            case "alert" if self._stopped_s is None:  # once stopped, everybody sees everybody leave
                names = self.assembly.nodes
                text = fields["text"] if fields["peer"] is None else f"{names[fields['peer']]} {fields['text']}"
                self.observers.alert(peer.name, text)
                self.observers.event("alert", peer=peer.name, text=text)
            case "event" if self._stopped_s is None:
                if fields["kind"] == "lost":
                    self._gave_up.add((i, fields["peer"]))
                if fields["kind"] == "joined":
                    self._gave_up.discard((i, fields["peer"]))
                neighbour = None if fields["peer"] is None else self.assembly.nodes[fields["peer"]]
                self.observers.event(fields["kind"], peer=peer.name, neighbour=neighbour, reason=fields["reason"])
            case "did":
                self.observers.event("did", peer=peer.name, **fields["entry"])
            case "diverged":
                peer.diverged_round = fields["round"]
                self._note_divergence(Divergence(fields["round"], peer.name))
            case "end":
                peer.end = fields
                if fields.get("diverged_round") is not None:
                    self._note_divergence(Divergence(fields["diverged_round"], peer.name))

    def _take_figures(self, i: int, peer: PeerView, fields: dict[str, Any]) -> None:
        """Take in what was judged: a peer by itself, or by a coordinator all of them, or what its parameters are."""
        round, payload_bytes = fields["round"], fields["payload_bytes"]
        if i in self.assembly.coordinator_ids and self.assembly.experiment.record.params == "every":
            self._parts.setdefault(round, {}).setdefault(i, fields["params"])  # as it was when it was first made
            self._complete_entries()
        scores = [PeerScore(**score) for score in fields["scores"]]
        if not scores:
            return
        params, seconds = np.frombuffer(fields["params"], dtype=self._dtype), monotonic() - self._began_s
        sent = payload_bytes + peer.earlier["payload_bytes"] + fields["heard_bytes"]
        at = {"payload_bytes_sent": sent, "seconds": round_seconds(self._seconds)}
        if len(scores) == 1 and i < len(self.assembly.names):
            judged = {i: Judged(Figures(scores[0], params), at)}
        else:
            everyone = range(len(self.assembly.names))
            judged = {j: Judged(Figures(scores[j], params), at) for j in everyone}
        for j, one in judged.items():
            self.peers[j].score = one.figures.score
            self._judged.add(j)
            name = self.assembly.names[j]
            self.observers.metric(metric_row(name, round, one.figures.score, seconds, payload_bytes))
        if fields["is_last"]:
            self._last |= judged
        elif self._is_one_model:
            if not self._history.entries or round > self._history.entries[-1]["round"]:
                self._add(round, {j: one for j, one in judged.items() if j not in self._away()})
        else:
            for j, one in judged.items():
                self._entries.add(j, round, one)

    @property
    def _local_rounds(self) -> int:
        return sum(peer.round for peer in self.peers)

    @property
    def _seconds(self) -> float:
        return 0.0 if self._told_s is None else monotonic() - self._told_s

    def _judge(self) -> None:
        """Where nobody waits for anybody, have all judged when they have done enough together."""
        for round in self._ending.rounds_to_judge(self._local_rounds):
            for peer in self.peers:
                peer.pipe.send("judge", round=round)

    def _decide(self) -> None:
        """Stop everybody where the run has to end; kill those that do not end in time."""
        failed = any((peer.end or {}).get("outcome") == "failed" for peer in self.peers)
        if self._stop_wanted() and self._stopped_s is None:
            self._interrupted = True
            self._stop()
        elif self._stopped_s is None and (failed or self._is_over()):
            self._stop()
        elif self._stopped_s is None and self._ending.is_reached(self._local_rounds, self._seconds):
            self._has_ended = True
            self._stop(anywhere=True)
        if self._stopped_s is not None and monotonic() - self._stopped_s > STOP_S:
            self._kill()

    def _is_over(self) -> bool:
        """A diverged run ends when the others have done that round too, or cannot."""
        if self._diverged is None or self.assembly.experiment.record.on_divergence == "continue":
            return False
        if self._is_one_model:  # nobody has another model
            return True
        behind = [p for p in self.peers if not p.gone and p.end is None and p.diverged_round is None]
        done = all(p.round >= self._diverged.round for p in behind)
        return done or monotonic() - self._diverged_s > SETTLE_S

    def _note_divergence(self, found: Divergence) -> None:
        if self._diverged is None:
            self._diverged_s = monotonic()
        self._diverged = earliest(self._diverged, found, self.assembly.nodes)

    def _stop(self, *, anywhere: bool = False) -> None:
        """Stop everybody. `anywhere`: all are judged where they stand."""
        self._stopped_s = monotonic()
        for peer in self.peers:
            peer.pipe.send("stop", round=None if self._diverged is None else self._diverged.round, anywhere=anywhere)
        self._close_stop_line()

    def _kill(self) -> None:
        for peer in self.peers:
            if peer.process.is_alive():
                peer.process.kill()
            peer.process.join()
        self._close_stop_line()

    def _close_stop_line(self) -> None:
        if self._stop_line is not None:
            self._stop_line.close()

    # ---- History

    def _flush(self) -> None:
        """Give the history an entry for each round that all peers which are still there have evaluated."""
        if self._is_one_model:
            return
        away = self._away()
        peers = enumerate(self.peers[: len(self.assembly.names)])
        there = {i: p.round if i in self._judged else -1 for i, p in peers if i not in away}
        for round, judged in self._entries.complete(there):
            entries = self._history.entries
            if not entries or round > entries[-1]["round"]:
                self._add(round, judged)

    def _add(self, round: int, judged: Mapping[int, Judged]) -> None:
        """The entry is of the time at which the last of them was judged, and of the bytes of all."""
        if not judged:
            return
        each = [one.at["payload_bytes_sent"] for one in judged.values()]
        bytes_sent = max(each) if self._is_one_model else sum(each)  # one model is judged for all
        for last in self._history.entries[-1:]:  # of a peer that is gone since, say
            bytes_sent = max(bytes_sent, last["payload_bytes_sent"])
        at: Row = {"payload_bytes_sent": bytes_sent, "seconds": max(one.at["seconds"] for one in judged.values())}
        if self.assembly.coordinators and self.assembly.experiment.record.params == "every":
            at["coordinator"] = None  # until all have told
        found = self._history.add(round, {i: one.figures for i, one in judged.items()}, at)
        if found is not None:
            self._note_divergence(found)
        self._complete_entries()
        self._ending.judge(self._history.entries[-1])
        if self._ending.has_barriers and not self._ending.is_reached(0, self._seconds):
            for peer in self.peers:
                peer.pipe.send("go", round=round)

    def _complete_entries(self) -> None:
        """Put the coordinators' parameters into entries of versions of which all have told theirs."""
        ids = self.assembly.coordinator_ids
        for entry in self._history.entries[-KEPT_PARTS:]:
            parts = self._parts.get(entry["round"], {})
            if len(parts) == len(ids) and ids and entry.get("coordinator") is None:
                whole = np.concatenate([np.frombuffer(parts[i], dtype=self._dtype) for i in ids])
                entry["coordinator"] = listed([whole])[0]
        last = self._history.entries[-1]["round"] if self._history.entries else 0
        for round in [r for r in self._parts if r < last and len(self._parts[r]) == len(ids)][:-KEPT_PARTS]:
            del self._parts[round]

    def _add_last_entry(self) -> None:
        """A run that was ended in the middle has its last entry there, by the round of the slowest."""
        away = self._away()
        last = {i: judged for i, judged in self._last.items() if i not in away}
        round = self._rounds(away)
        last_round = self._history.entries[-1]["round"] if self._history.entries else -1
        if last and (round > max(0, last_round) or round == last_round > 0):
            self._add(round, last)

    def _away(self) -> set[int]:
        """Return who is no part of the run any more."""
        return self._cut_off() | {i for i, peer in enumerate(self.peers) if peer.is_lost}

    def _rounds(self, away: set[int]) -> int:
        if self.assembly.coordinators:
            return min(self.peers[i].round for i in self.assembly.coordinator_ids)
        if self.assembly.experiment.is_asynchronous:
            return self._local_rounds // len(self.peers)
        return min([peer.round for i, peer in enumerate(self.peers) if i not in away] or [p.round for p in self.peers])

    # ---- The end

    def _result(self) -> Ended:
        ends = [peer.end for peer in self.peers if peer.end is not None]
        away = self._away()
        ran = [peer.last_figures for peer in self.peers if peer.last_figures]
        steps = [end["step"] for end in ends if "step" in end]
        ended = Ended("daemons", steps[0] if steps else "plain", len(self.assembly.names))
        ended.history = self._history.entries
        ended.diverged = self._diverged
        ended.rounds = self._rounds(away)
        ended.rounds_seconds = max((end.get("rounds_seconds", 0.0) for end in ends), default=0.0)
        earlier = sum((peer.earlier for peer in self.peers), start=Counter[str]())
        ended.payload_bytes_sent = sum(figures["payload_bytes"] for figures in ran) + earlier["payload_bytes"]
        ended.wire_bytes_sent = sum(figures["wire_bytes"] for figures in ran) + earlier["wire_bytes"]
        if uses_distributed(self.assembly):  # which does not tell
            ended.wire_bytes_sent = None
        ended.gradients = sum(figures["gradients"] for figures in ran)
        for end in ends:
            ended.staleness.include(Staleness(**end.get("staleness", {})))
        ended.short_rounds = sum(end.get("short_rounds", 0) for end in ends)
        ended.lost = [peer.name for i, peer in enumerate(self.peers) if i in away]
        params = [self._params(peer) for peer in self.peers]
        ended.params, parts = params[: ended.peers], [x for x in params[ended.peers :] if x is not None]
        if parts and len(parts) == len(self.assembly.coordinators):
            ended.coordinator = np.concatenate(parts)
        ended.outcome, ended.why = self._outcome(ends)
        ended.details = next((end["details"] for end in ends if end.get("details")), "")
        return ended

    def _cut_off(self) -> set[int]:
        """Return the peers that live, but apart from the others, which had taken them for dead.

        Of the peers that hear each other, the largest group is the run.
        """
        if not self._gave_up:
            return set()
        everyone = self.assembly.exchange_graph.to_undirected()
        here = everyone.subgraph([i for i, peer in enumerate(self.peers) if not peer.is_lost])
        cut_off: set[int] = set()
        for group in nx.connected_components(here):
            kept = nx.Graph(here.subgraph(group))
            kept.remove_edges_from([(i, j) for i, j in self._gave_up if i in group and j in group])
            parts = sorted(nx.connected_components(kept), key=lambda part: (-len(part), min(part)))
            cut_off.update(*parts[1:])
        return cut_off

    def _params(self, peer: PeerView) -> np.ndarray | None:
        raw = (peer.end or {}).get("params")
        return None if raw is None else np.frombuffer(raw, dtype=self._dtype)

    def _outcome(self, ends: list[dict[str, Any]]) -> tuple[Any, str]:
        failures = [(peer.name, peer.end) for peer in self.peers if (peer.end or {}).get("outcome") == "failed"]
        if failures:
            name, end = failures[0]
            return "failed", f"{name}: {end['failure']}" if end is not None else name
        if self._diverged is not None:
            return "diverged", ""
        if self._interrupted:
            return "interrupted", ""
        if self._has_ended:
            return "finished", ""
        if not ends:
            return "failed", "every peer's process ended before its time"
        alone = [peer.name for peer in self.peers if (peer.end or {}).get("outcome") == "alone"]
        if alone:
            return "alone", f"{', '.join(alone)} never heard a neighbour"
        unfinished = [peer.name for peer in self.peers if (peer.end or {}).get("outcome") == "interrupted"]
        return (
            ("interrupted", f"{', '.join(unfinished)} was stopped")
            if len(unfinished) == len(ends)
            else ("finished", "")
        )


def _exit_text(code: int | None) -> str:
    return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
