"""What the events engine writes into the history: who is judged when, and whom an entry waits for.

In step, a peer is judged when it has completed a round, and the entry is made when all have been who are there. Beside
coordinators see `versions`: one model is judged when a version is made, copies of it when they are given or gone past.
Where nobody waits for anybody, all are judged at one instant. An entry is of the time at which the last was judged.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from torch import Tensor

from peer.entries import Entries, Judged
from peer.history import Figures, earliest, peer_score
from peer.protocol.messages import Event, PeerId
from peer.record import Divergence, Ended
from peer.simulator.clockwork import Clockwork
from peer.simulator.learners import Learners
from peer.simulator.progress import Progress
from peer.simulator.versions import Versions
from peer.simulator.watching import Watch


class Judging:
    """`enough(entry)` says whether the run may end after it; if it can, nobody goes on before all have been judged.

    Of `ended` it keeps what was seen on the way: where the run diverged, and the time of what counts of it.
    `evaluations_s` is the time of this machine that judging took.
    """

    def __init__(
        self,
        watch: Watch,
        learners: Learners,
        versions: Versions | None,
        clockwork: Clockwork,
        progress: Progress,
        ended: Ended,
        stop: Callable[[], bool],
        enough: Callable[[dict[str, object]], bool] | None,
    ) -> None:
        self.evaluations_s = 0.0
        self.held: dict[PeerId, tuple[int, Event]] = {}  # who waits at the end of a round until all are judged
        self._watch = watch
        self._assembly = watch.assembly
        self._learners = learners
        self._versions = versions
        self._clockwork = clockwork
        self._progress = progress
        self._ended = ended
        self._stop = stop
        self._enough = enough
        self._entries = Entries()
        self._partings = 0  # how many connections had ended when the entries were looked at last

    # ---- What happens to peers

    def begin_anew(self, me: PeerId) -> None:
        """A core begins again: what it was before counts no more."""
        self.held.pop(me, None)
        self._entries.forget(me)

    def completed(self, me: PeerId, round: int, event: Event) -> Event | None:
        """A peer has completed a round; returns what its core is told of it, None if it waits until all are judged."""
        self._ended.simulated_seconds = self._clockwork.now_s  # the goodbyes that follow are not part of it
        self.look_for_divergence(me, round)
        if not self._watch.is_due(round):
            return event
        self._entries.add(me, round, self._judged(me, round))
        if self._enough is not None:
            self.held[me] = round, event
        self.close_entries()
        return None if self._enough is not None else event

    def look_for_divergence(self, me: PeerId, round: int) -> None:
        """Note whether a peer has left all bounds, as it is after a round."""
        if self._learners[me].has_diverged():
            self._diverged(Divergence(round, self._assembly.names[me]))

    # ---- Versions of coordinators

    def made(self, versions: Versions, me: PeerId, version: int, event: Event) -> Event | None:
        """A coordinator has made a version; returns as `completed` does."""
        if versions.has_diverged(me):
            self._diverged(Divergence(version, self._assembly.nodes[me]))
        if versions.judges_copies or not self._watch.is_due(version):
            return event
        if self._enough is not None:
            self.held[me] = version, event
        x = versions.whole(version)
        if x is not None:
            if version > self._last_round():  # one that is made again after a fall has been judged
                self._add_entry(version, self._judged_as(x, version))
            self._release(version)
        return None if self._enough is not None else event

    def gone_past(self, me: PeerId, versions: Sequence[int]) -> None:
        """A worker is about to be given a version beyond these: after each it was what it is now."""
        if versions:
            judged = self._judged(me, versions[-1])
            for version in versions:
                self._entries.add(me, version, judged)

    def copied(self, me: PeerId, version: int, is_due: bool) -> None:
        """A worker, which is judged by its own copy, has been given a version."""
        self.look_for_divergence(me, version)
        if is_due:
            self._entries.add(me, version, self._judged(me, version))
        self._clockwork.at(self._clockwork.now_s, self.close_entries)  # when it is known how far this one is

    # ---- Entries

    def close_entries(self) -> None:
        """Give the history an entry for each round after which all have been judged who are waited for."""
        self._partings = self._clockwork.connections.ended
        for round, judged in self._entries.complete(self._progress.there()):
            if round > self._last_round():
                self._add_entry(round, judged)
            self._release(round)

    def close_entries_after_partings(self) -> None:
        """Somebody may have been given up since the entries were looked at last."""
        if self._partings != self._clockwork.connections.ended:
            self.close_entries()

    def evaluate_all(self, round: int) -> None:
        """Evaluate everybody who is there, as they are now."""
        if self._versions is not None and not self._versions.judges_copies:
            self._add_entry(round, self._judged_as(self._versions.now(), round))
            return
        there = self._progress.there()
        if there:
            self._add_entry(round, {me: self._judged(me, round) for me in there})

    def evaluate_the_end(self, *, is_cut_short: bool) -> None:
        """A run that ends before its last round is evaluated where it ends, each peer at its last completed round."""
        self.close_entries()
        judged = self._last_round()
        round = max(self._progress.rounds(), judged) if is_cut_short else self._progress.rounds()
        is_early = is_cut_short or self._ended.diverged is not None
        if self._ended.outcome != "finished" or not is_early or judged > round:
            return
        if judged == round and (round == 0 or not is_cut_short):
            return
        self._learners.drop_unfinished()
        self.evaluate_all(round)

    def _last_round(self) -> int:
        """Return the round of the last entry, -1 for none."""
        entries = self._watch.history.entries
        return int(entries[-1]["round"]) if entries else -1

    def _release(self, round: int) -> None:
        """Let those go on who were held at the end of a round; if the run is over, the round is completed, and that is
        all."""
        for me, (at, event) in list(self.held.items()):
            if at <= round:
                del self.held[me]
                self._clockwork.tell(me, event, is_last=self._progress.is_over)

    def _add_entry(self, round: int, judged: Mapping[PeerId, Judged]) -> None:
        """The entry is of the time at which the last of them was judged."""
        at = {name: max(found.at[name] for found in judged.values()) for name in next(iter(judged.values())).at}
        for last in self._watch.history.entries[-1:]:  # of a slow peer that is gone since, say
            at = {name: max(value, last[name]) for name, value in at.items()}
        self._ended.simulated_seconds = max(self._ended.simulated_seconds or 0.0, at["simulated_seconds"])
        if self._versions is not None and self._assembly.experiment.record.params == "every":
            at["coordinator"] = self._versions.listed(round)
        found = self._watch.evaluated(round, {me: one.figures for me, one in judged.items()}, at)
        if found is not None:
            self._diverged(found)
        if self._enough is not None and self._enough(self._watch.history.entries[-1]):
            self._progress.is_over = True

    def _diverged(self, found: Divergence) -> None:
        self._ended.diverged = earliest(self._ended.diverged, found, self._assembly.nodes)

    # ---- Figures

    def _judged(self, me: PeerId, round: int) -> Judged:
        began_s = perf_counter()
        learner = self._learners[me]
        figures = Figures(peer_score(learner.evaluate(round, self._stop)), learner.params().numpy().copy())
        self.evaluations_s += perf_counter() - began_s
        return Judged(figures, self._now())

    def _judged_as(self, x: Tensor, round: int) -> dict[PeerId, Judged]:
        """Return the figures of a coordinator's parameters, (d,), for every peer that is there."""
        assert self._versions is not None
        began_s = perf_counter()
        evaluations, params = self._versions.verdict.of(x, round, self._stop), x.numpy().copy()
        self.evaluations_s += perf_counter() - began_s
        there = self._progress.there() or range(len(evaluations))
        return {me: Judged(Figures(peer_score(evaluations[me]), params), self._now()) for me in there}

    def _now(self) -> dict[str, Any]:
        return {
            "payload_bytes_sent": self._ended.payload_bytes_sent,
            "simulated_seconds": self._clockwork.now_s,
        }
