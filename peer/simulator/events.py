"""The events engine: the daemons' own protocol cores on a virtual clock, with a `Learner` for each as a daemon has.

Local steps take what [speed] says, messages go over the links of [network], and [faults] happen. Of what cores ask for
see `tensor_shell`, of the history `judging`: here is the run, why it ends, and what it comes to.
"""

from collections.abc import Callable
from math import inf
from time import perf_counter

from peer.assembly import Assembly
from peer.errors import TrainingError
from peer.record import Ended
from peer.simulator.shell import Core
from peer.simulator.stage import stuck_after_s
from peer.simulator.tensor_shell import TensorShell
from peer.simulator.watching import Watch
from peer.task.local import Interrupted
from peer.task.task import Task


class EventsEngine(TensorShell):
    """All peers of one experiment on one virtual clock. `enough(entry)` says whether the run may end after it."""

    def __init__(
        self,
        assembly: Assembly,
        task: Task,
        watch: Watch,
        stop: Callable[[], bool],
        enough: Callable[[dict[str, object]], bool] | None = None,
    ) -> None:
        super().__init__(assembly, task, watch, stop, enough)
        self.stop = stop
        self._stuck_s = stuck_after_s(assembly)
        self._is_cut_short = False  # by stop_after_s
        watch.history.gossiped = assembly.shared_columns(task.layout)

    def run(self) -> Ended:
        """Run to the end, or until `stop` says so."""
        began_s = perf_counter()
        try:
            self.judging.evaluate_all(0)
            self.judging.evaluations_s, began_s = 0.0, perf_counter()
            self._play()
            self._find_out_why()
            self.progress.is_ending = not self._somebody_goes_on()
            self.judging.evaluate_the_end(is_cut_short=self._is_cut_short)
        except (Interrupted, KeyboardInterrupt):
            self.ended.outcome = "interrupted"
        except TrainingError as error:
            self.ended.outcome, self.ended.why, self.ended.details = "failed", str(error), error.details
        self.ended.rounds_seconds = perf_counter() - began_s - self.judging.evaluations_s
        return self._result()

    # ---- The run

    def _play(self) -> None:
        """Let one thing happen after another, for as long as anything is to come of it."""
        clockwork, ends_s = self.clockwork, self.assembly.experiment.stop_after_s or inf
        clockwork.start()
        self.troubles.advanced(-1, 0)
        while not self.progress.is_over and self._somebody_goes_on() and not clockwork.is_stuck(self._stuck_s):
            if clockwork.next_s > ends_s:
                clockwork.now_s = self.ended.simulated_seconds = ends_s
                self._is_cut_short = True
                return
            clockwork.step()
            self._look_after_step()

    def _somebody_goes_on(self) -> bool:
        states = self.clockwork.states
        return states["up"] > 0 or (self.troubles.brings_somebody_back and not states["done"])

    def _look_after_step(self) -> None:
        if self.stop():
            raise Interrupted
        found = self.ended.diverged
        if found is not None and self.assembly.experiment.record.on_divergence == "stop":
            # a diverged run ends when every peer has done the round in which it was seen
            is_seen_by_all = self.assembly.experiment.is_asynchronous or self.progress.slowest() >= found.round
            self.progress.is_over |= is_seen_by_all
        self.judging.close_entries_after_partings()
        if self.watch.wants_pace():
            progress, clockwork = self.progress, self.clockwork
            self.watch.pace(progress.rounds(), progress.share(), clockwork.now_s, clockwork.events)

    # ---- Why it ends

    def _find_out_why(self) -> None:
        """The clock stands still: all are done, or nobody is left, or nobody can go on."""
        ended, departures = self.ended, self.departures
        if departures.is_broken:
            ended.outcome, ended.why = departures.why_some_gave_up()
        elif self.progress.is_over or self._is_cut_short:
            return
        elif departures.led_by:
            ended.outcome, ended.why = "interrupted", f"{departures.led_by} has left, and the others with it"
        elif departures.gave_up and self.progress.rounds() != self.assembly.experiment.rounds:
            ended.outcome, ended.why = departures.why_some_gave_up()
        elif self._somebody_goes_on():
            cores = [process.core for process in self.clockwork.processes if process.state == "up"]
            waiting = [self._what_is_waited_for(core) for core in cores]
            ended.outcome, ended.why = "failed", f"nobody goes on any more: {'; '.join(waiting[:4])}"
        elif not self.clockwork.states["done"]:
            ended.outcome, ended.why = "failed", "nobody is left to go on: all were killed, stopped or left"

    def _what_is_waited_for(self, core: Core) -> str:
        names, held = self.assembly.nodes, self.judging.held
        if core.me in held:
            return f"{names[core.me]} waits for others to be judged after round {held[core.me][0]}"
        others = ", ".join(names[peer] for peer in sorted(core.waits_for()))
        return f"{names[core.me]} in round {core.round} waits for {others}"

    # ---- What it comes to

    def _result(self) -> Ended:
        ended, processes, names = self.ended, self.clockwork.processes, self.assembly.nodes
        self.learners.drop_unfinished()
        if ended.diverged is not None and ended.outcome == "finished":
            ended.outcome = "diverged"
        ended.history = self.watch.history.entries
        ended.rounds = max([self.progress.rounds(), *(entry["round"] for entry in ended.history[-1:])])
        ended.events, ended.event_hash = self.clockwork.events, self.clockwork.event_hash
        ended.short_rounds = sum(process.core.short_rounds for process in processes)
        ended.gradients = self.learners.gradients
        lost = self._lost()
        ended.lost = [names[me] for me in sorted(lost)]
        peers = range(len(self.assembly.names))
        ended.params = [None if me in lost else self.learners[me].params().numpy() for me in peers]
        if self.versions is not None:
            ended.coordinator = self.versions.now().numpy()
        if self.watch.on_model is not None:
            there = {me for me, process in enumerate(processes) if process.state in ("up", "done")}
            for me in sorted(self.learners.each.keys() & there):
                self.watch.on_model(names[me], self.learners[me].tensors())
        return ended

    def _lost(self) -> set[int]:
        """Return who is away: not who could not go on, nor those who have left together."""
        processes, departures = self.clockwork.processes, self.departures
        away = {me for me, process in enumerate(processes) if process.state not in ("up", "done")}
        away -= departures.gave_up.keys()
        return {me for me in away if processes[me].core.phase != "done"} if departures.led_by else away
