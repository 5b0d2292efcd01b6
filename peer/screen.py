"""What a person sees while a run goes on: a live table on a terminal, plain flushed lines elsewhere. All on stderr."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from time import monotonic
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from peer.assembly import Assembly
from peer.daemon.reporting import Progress
from peer.daemon.roster import PeerView
from peer.experiment import Experiment
from peer.record import Row
from peer.simulator.watching import Pace
from peer.task.layout import Layout
from peer.ways import Listener

SHOWN_PEERS = 24
SAY_EVERY_S = 5.0

WAIT_S = 1.0
"""A shorter wait is not worth a word."""
SHOWN_MEMORY_BYTES = 100_000_000
"""Less than so much is not worth a word."""

ENDS = {"finished": "done", "interrupted": "stopped", "diverged": "diverged", "failed": "failed", "alone": "alone"}


class Screen:
    """The progress of one run."""

    def __init__(self, experiment: Experiment, *, quiet: bool) -> None:
        self.experiment = experiment
        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._began_s = monotonic()
        self._said_s = 0.0
        self._last: Row | None = None

    def listener(self) -> Listener:
        if self.quiet:
            return Listener()
        return Listener(self._begins, self._entry, self._note, self._peers, self._progress, self._pace, self._memory)

    def __enter__(self) -> "Screen":
        if not self.quiet and self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    # ---- What a run tells

    def _begins(self, assembly: Assembly, layout: Layout) -> None:
        n = len(assembly.names)
        self._note(
            f"{self.experiment.name}: {n} peer{'s' if n > 1 else ''}, {layout.size:,} parameters, "
            f"{self.experiment.rounds or 'endless'} rounds"
        )

    def _note(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def _entry(self, entry: Row) -> None:
        self._last = entry
        if self._live is None:
            self._note(_entry_line(entry, self.experiment.rounds))
        else:
            self._live.update(Text(_entry_line(entry, self.experiment.rounds)), refresh=True)

    def _memory(self, needed: int, available: int | None) -> None:
        if needed < SHOWN_MEMORY_BYTES:
            return
        self._note(f"memory: about {human_bytes(needed)} for the peers")
        if available is not None and needed > available:
            self._note(f"warning: only {human_bytes(available)} of memory are free; fewer peers would fit")

    def _pace(self, pace: Pace) -> None:
        now_s = monotonic()
        line = _pace_line(pace, self.experiment.rounds)
        if self._live is not None:
            last = [Text(_entry_line(self._last, self.experiment.rounds))] if self._last else []
            self._live.update(Group(*last, Text(line)), refresh=True)
        elif now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            self._note(line)

    def _peers(self, peers: Sequence[PeerView]) -> None:
        now_s = monotonic()
        if now_s - self._said_s < (0.2 if self._live is not None else SAY_EVERY_S):
            return
        self._said_s = now_s
        if self._live is not None:
            self._live.update(_table(peers, self._last, self.experiment.rounds, now_s - self._began_s), refresh=True)
        else:
            for line in _waits(peers):
                self._note(line)

    def _progress(self, progress: Progress, assembly: Assembly) -> None:
        now_s = monotonic()
        waits_for = [(peer, waited_s) for peer, waited_s in progress.waits_for if waited_s >= WAIT_S]
        if waits_for and now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            names = ", ".join(assembly.nodes[peer] for peer, _ in waits_for)
            since = datetime.now() - timedelta(seconds=max(waited_s for _, waited_s in waits_for))
            until = ""
            if progress.phase == "waiting":
                until = f", until {since + timedelta(seconds=self.experiment.transport.join_s):%H:%M:%S}"
            self._note(f"round {progress.round}: waits for {names} since {since:%H:%M:%S}{until}")


def _entry_line(entry: Row, rounds: int) -> str:
    parts = [f"round {entry['round']}" + (f"/{rounds}" if rounds else "")]
    if entry["accuracy"]["mean"] is not None:
        a = entry["accuracy"]
        band = f" ({a['min']:.3f} to {a['max']:.3f})" if a["min"] < a["max"] else ""
        parts.append(f"accuracy {a['mean']:.3f}{band}")
    if entry["loss"]["mean"] is not None:
        parts.append(f"loss {entry['loss']['mean']:.4g}")
    for name in ("consensus_distance", "neighbour_distance"):
        if entry.get(name) is not None:
            parts.append(f"{name.replace('_', ' ')} {entry[name]:.4g}")
    return "  ".join(parts)


def _pace_line(pace: Pace, rounds: int) -> str:
    parts = [f"in round {pace.round}" + (f" of {rounds}" if rounds else "")]
    if pace.simulated_seconds is not None:
        parts.append(f"{pace.simulated_seconds:.1f} simulated s")
    if pace.events is not None:
        parts.append(f"{pace.events:,} events, {pace.events / max(pace.seconds, 1e-9):,.0f} a second")
    if pace.share:
        left_s = pace.seconds * (1 - pace.share) / pace.share
        parts.append(f"about {timedelta(seconds=round(max(0.0, left_s)))} left")
    return "  ".join(parts)


def _table(peers: Sequence[PeerView], last: Row | None, rounds: int, seconds: float) -> Any:
    table = Table(box=None, pad_edge=False)
    for heading in ("peer", "round", "loss", "accuracy", "sent", "neighbours", "waits for"):
        table.add_column(heading, justify="left" if heading in ("peer", "waits for") else "right")
    shown = peers if len(peers) <= SHOWN_PEERS else sorted(peers, key=lambda p: (not p.is_lost, p.round))
    for peer in shown[:SHOWN_PEERS]:
        p = peer.progress
        score = peer.score
        state = "lost" if peer.is_lost else ENDS.get(peer.end["outcome"], "") if peer.end else _waits_of(peer, peers)
        table.add_row(
            peer.name,
            str(p.get("round", "")) + (f"/{rounds}" if rounds and p else ""),
            "" if score is None or score.loss is None else f"{score.loss:.4f}",
            "" if score is None or score.accuracy is None else f"{score.accuracy:.3f}",
            human_bytes(p.get("payload_bytes", 0)),
            str(p.get("neighbours", "")),
            state,
        )
    below = [Text(f"and {len(peers) - SHOWN_PEERS} more peers")] if len(peers) > SHOWN_PEERS else []
    line = f"{seconds:.0f} s" + (f"   {_entry_line(last, rounds)}" if last else "")
    return Group(table, *below, Text(line))


def _waits(peers: Sequence[PeerView]) -> list[str]:
    lines = []
    for peer in peers:
        waits = _waits_of(peer, peers, at_least_s=SAY_EVERY_S)
        if waits and not peer.gone:
            lines.append(f"{peer.name}: round {peer.progress['round']}: waits for {waits}")
    return lines[:SHOWN_PEERS]


def _waits_of(peer: PeerView, peers: Sequence[PeerView], at_least_s: float = WAIT_S) -> str:
    waits = [(peers[i].name, s) for i, s in peer.progress.get("waits_for", ()) if s >= at_least_s]
    return _waits_text(waits)


def _waits_text(waits: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} ({seconds:.0f} s)" for name, seconds in waits[:4]) + (" ..." if len(waits) > 4 else "")


def human_bytes(count: float) -> str:
    """Return a number of bytes for people: 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
