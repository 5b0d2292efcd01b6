"""`earshot up`: every peer, and every coordinator, as a daemon process on this host, watched by this one.

It hears what they tell, hands figures on to the chronicle, and decides when the run is over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from peer.assembly import Assembly
from peer.daemon import result
from peer.daemon.chronicle import Chronicle, dtype_of
from peer.daemon.ending import Ending
from peer.daemon.processes import FORKS, Processes
from peer.daemon.roster import PeerView, Roster
from peer.history import earliest
from peer.protocol.messages import PeerId
from peer.record import Divergence, Ended, Row
from peer.task.task import Task

WAIT_S = 0.1
"""How long at most nothing is decided, where nobody says anything."""

STOP_S = 9.5
"""How long stopped daemons have to end before they are killed."""

SETTLE_S = 3.0
"""How long the other peers have to finish the round in which one has diverged."""


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
        self.roster = Roster(assembly)
        self._processes = Processes(self.roster, task, run_folder, forks=forks)
        self._dtype = dtype_of(task.layout)
        self._chronicle = Chronicle(
            assembly,
            task.layout,
            self.roster,
            on_entry=observers.entry,
            on_metric=observers.metric,
            on_added=self._added,
            on_late=lambda i, round: self.roster.peers[i].pipe.send("go", round=round),
        )
        self._ending = Ending(assembly.experiment, len(assembly.names))
        self._stop_wanted = stop
        self._told_s: float | None = None  # when everybody was told where the others are
        self._stopped_s: float | None = None
        self._interrupted = False
        self._has_ended = False  # as the experiment says, before its rounds were done
        self._diverged: Divergence | None = None
        self._diverged_s = 0.0

    def run(self) -> Ended:
        """Start the daemons and follow them until all have ended."""
        try:
            self._processes.start()
            while any(not peer.gone for peer in self.roster.peers):
                self._processes.wait(WAIT_S)
                self._read()
                self._judge()
                self._decide()
                self.observers.peers(self.roster.peers)
        except KeyboardInterrupt:  # a second one: no more patience
            self._interrupted = True
        finally:
            self._processes.kill()
        self._chronicle.add_complete()
        self._chronicle.add_last()
        return self._result()

    # ---- Hearing

    def _read(self) -> None:
        for i, peer in enumerate(self.roster.peers):
            if peer.gone:
                continue
            ended = not peer.process.is_alive()  # asked before the pipe is emptied
            for kind, fields in peer.pipe.receive():
                self._hear(i, peer, kind, fields)
            if ended:
                peer.gone = True
                peer.process.join()
                if peer.is_lost and self._stopped_s is None:
                    self._lose(i, peer)
        self._chronicle.add_complete()

    def _lose(self, i: PeerId, peer: PeerView) -> None:
        """Its process is gone: tell everybody, and start a coordinator again."""
        self.observers.event("lost", peer=peer.name, exit_code=peer.process.exitcode)
        self.observers.alert(peer.name, f"its process ended ({_exit_text(peer.process.exitcode)})")
        self.roster.tell("gone", peer=i)
        if self._processes.start_again(i):
            self.observers.alert(peer.name, "is started again, from what it had saved")
            self.observers.event("restarted", peer=peer.name)
        else:
            self._tell_endpoints()

    def _hear(self, i: PeerId, peer: PeerView, kind: str, fields: dict[str, Any]) -> None:
        match kind:
            case "bound":
                peer.endpoint = fields["endpoint"]
                if self._told_s is None:
                    self._tell_endpoints()
                else:  # it has been started again
                    peer.pipe.send("endpoints", endpoints=self._endpoints())
            case "progress":
                peer.progress = fields
            case "figures":
                self._chronicle.take(i, fields, self._seconds)
            case "did":
                self.observers.event("did", peer=peer.name, **fields["entry"])
            case "updated":
                sender = self.assembly.nodes[fields.pop("sender")]
                peer.staleness.add(fields["staleness"], fields.pop("age_s"), fields["distance"])
                self.observers.event("update", peer=sender, **fields)
            case "diverged":
                peer.diverged_round = fields["round"]
                self._note_divergence(Divergence(fields["round"], peer.name))
            case "end":
                peer.end = fields
                if fields.get("diverged_round") is not None:
                    self._note_divergence(Divergence(fields["diverged_round"], peer.name))
            case _ if self._stopped_s is None:  # once stopped, everybody sees everybody leave
                self._hear_news(i, peer, kind, fields)

    def _hear_news(self, i: PeerId, peer: PeerView, kind: str, fields: dict[str, Any]) -> None:
        """Hear what a node says of others."""
        names = self.assembly.nodes
        match kind:
            case "alert":
                text = fields["text"] if fields["peer"] is None else f"{names[fields['peer']]} {fields['text']}"
                self.observers.alert(peer.name, text)
                self.observers.event("alert", peer=peer.name, text=text)
            case "event":
                if fields["kind"] == "lost":
                    self.roster.gave_up(i, fields["peer"])
                if fields["kind"] == "joined":
                    self.roster.found_again(i, fields["peer"])
                neighbour = None if fields["peer"] is None else names[fields["peer"]]
                self.observers.event(fields["kind"], peer=peer.name, neighbour=neighbour, reason=fields["reason"])

    def _tell_endpoints(self) -> None:
        """When all peers that are there are bound, tell everybody where to find them."""
        if self._told_s is not None or not all(p.endpoint is not None or p.gone for p in self.roster.peers):
            return
        self._told_s = monotonic()
        self.roster.tell("endpoints", endpoints=self._endpoints())

    def _endpoints(self) -> list[str | None]:
        return [peer.endpoint for peer in self.roster.peers]

    @property
    def _seconds(self) -> float:
        return 0.0 if self._told_s is None else monotonic() - self._told_s

    # ---- Deciding

    def _judge(self) -> None:
        """Where nobody waits for anybody, have all judged when they have done enough together."""
        for round in self._ending.rounds_to_judge(self.roster.local_rounds):
            self.roster.tell("judge", round=round)

    def _added(self, entry: Row, found: Divergence | None) -> None:
        """The history has a further entry: is that the end? Else those may go on who wait for it."""
        if found is not None:
            self._note_divergence(found)
        self._ending.judge(entry)
        if self._ending.has_barriers and not self._ending.is_reached(0, self._seconds):
            self.roster.tell("go", round=entry["round"])

    def _decide(self) -> None:
        """Stop everybody where the run has to end; kill those that do not end in time."""
        failed = any(peer.outcome == "failed" for peer in self.roster.peers)
        if self._stop_wanted() and self._stopped_s is None:
            self._interrupted = True
            self._stop()
        elif self._stopped_s is None and (failed or self._is_over()):
            self._stop()
        elif self._stopped_s is None and self._ending.is_reached(self.roster.local_rounds, self._seconds):
            self._has_ended = True
            self._stop(anywhere=True)
        if self._stopped_s is not None and monotonic() - self._stopped_s > STOP_S:
            self._processes.kill()

    def _is_over(self) -> bool:
        """A diverged run ends when the others have done that round too, or cannot."""
        if self._diverged is None or self.assembly.experiment.record.on_divergence == "continue":
            return False
        if self._chronicle.is_one_model:  # nobody has another model
            return True
        behind = [p for p in self.roster.peers if not p.gone and p.end is None and p.diverged_round is None]
        done = all(p.round >= self._diverged.round for p in behind)
        return done or monotonic() - self._diverged_s > SETTLE_S

    def _note_divergence(self, found: Divergence) -> None:
        if self._diverged is None:
            self._diverged_s = monotonic()
        self._diverged = earliest(self._diverged, found, self.assembly.nodes)

    def _stop(self, *, anywhere: bool = False) -> None:
        """Stop everybody. `anywhere`: all are judged where they stand."""
        self._stopped_s = monotonic()
        round = None if self._diverged is None else self._diverged.round
        self.roster.tell("stop", round=round, anywhere=anywhere)
        self._processes.stop()

    # ---- The end

    def _result(self) -> Ended:
        ended = result.ended(self.roster, self._dtype)
        ended.history = self._chronicle.entries
        for last in self._chronicle.entries[-1:]:  # what one that is gone had sent after its last word
            ended.payload_bytes_sent = max(ended.payload_bytes_sent, last["payload_bytes_sent"])
        ended.diverged = self._diverged
        ended.outcome, ended.why = result.outcome(
            self.roster,
            has_diverged=self._diverged is not None,
            is_interrupted=self._interrupted,
            has_reached_its_end=self._has_ended,
        )
        return ended


def _exit_text(code: int | None) -> str:
    return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
