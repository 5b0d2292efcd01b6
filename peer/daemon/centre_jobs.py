"""What a coordinator's worker does with its centre, each as one job."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from torch import Tensor

from peer.algorithms.combine import is_finite
from peer.centre import Centre, Outcome, Pushed
from peer.checkpoint import load_latest, save
from peer.daemon.jobs import Done, Judged
from peer.daemon.packing import Form, pack, unpack, unpack_ragged
from peer.divergence import has_diverged
from peer.errors import ConfigError, WireError
from peer.learner import Evaluation
from peer.parcels import Parcels
from peer.protocol.coordinator import Present
from peer.protocol.messages import Applied, Apply, PeerId, Term
from peer.verdict import Verdict


@dataclass
class Store:
    """Where a coordinator saves itself: after every `every`-th version, the newest `keep` of them; without a folder
    nowhere. `digest` is that of the experiment, which must be the same when it begins again."""

    folder: Path | None
    every: int
    keep: int
    digest: str


@dataclass
class CentreJobs:
    """The jobs of one coordinator, the `place`-th. `pushed_form` is that of what workers push to it.

    `verdict` judges its parameters for all peers, None where these are judged by what they hold.
    """

    centre: Centre
    parcels: Parcels
    place: int
    pushed_form: Form
    verdict: Verdict | None
    due: Callable[[int], bool]
    store: Store
    gradients: int = 0  # it takes no local steps
    _losses_at_start: list[float | None] | None = None

    @property
    def judges(self) -> bool:
        return True

    @property
    def step(self) -> str:
        return "plain" if self.verdict is None else self.verdict.trainer.step

    def is_due(self, round: int) -> bool:
        return self.due(round)

    def drop_unfinished(self) -> None:
        """All that was applied counts."""

    def params(self) -> Tensor:
        return self.centre.params()

    def tensors(self) -> dict[str, Tensor] | None:
        if self.verdict is None:
            return None
        trainer = self.verdict.trainer
        return trainer.tensors(self.params(), trainer.memory())

    # ---- Versions

    def apply(self, apply: Apply) -> Done:
        """Make the next version, and judge it where that is due."""
        version = apply.version + 1
        outcome = self._apply(apply)
        given = self.parcels.give(self.centre.given())
        applied = Applied(pack(given), outcome.rejected)
        diverged_round = version if self.centre.has_diverged() or not is_finite(given) else None
        done = self.evaluate(version) if self.is_due(version) else Done()
        return Done(
            applied,
            done.judged,
            diverged_round or done.diverged_round,
            done.evaluation_s,
            changed_state=True,
            updates=outcome.updates,
        )

    def given(self) -> memoryview:
        """Return what workers are given, as bytes."""
        return pack(self.parcels.give(self.centre.given()))

    def evaluate(self, round: int, stop: Callable[[], bool] = lambda: False) -> Done:
        """Judge the parameters as they are; `round` is what the figures are called after."""
        began_s, x = monotonic(), self.params()
        evaluations = () if self.verdict is None else tuple(self.verdict.of(x, round, stop))
        took_s = 0.0 if round == 0 else monotonic() - began_s
        judged = Judged(round, evaluations, x.detach().cpu().clone())
        diverged_round = round if self._losses_have_diverged(evaluations) else None
        return Done(None, (judged,), diverged_round, took_s)

    def _apply(self, apply: Apply) -> Outcome:
        pushes, wrong = [], []
        for term in apply.terms:
            try:
                pushes.append(Pushed(term.weight, term.sender, self._opened(term), term.staleness))
            except WireError:
                wrong.append(term.sender)
        outcome = self.centre.apply(apply.version, pushes)
        return Outcome(outcome.updates, (*outcome.rejected, *wrong))

    def _opened(self, term: Term) -> Tensor:
        device = self.centre.start.device
        open_it = unpack_ragged if self.parcels.is_ragged(self.place) else unpack
        return self.parcels.pushed_to(self.place, open_it(term.payload, self.pushed_form, device))

    def _losses_have_diverged(self, evaluations: tuple[Evaluation, ...]) -> bool:
        losses = [evaluation.score.loss for evaluation in evaluations]
        if self._losses_at_start is None:
            self._losses_at_start = losses
        pairs = zip(losses, self._losses_at_start, strict=True)
        return any(loss is not None and has_diverged(loss, first or 0.0) for loss, first in pairs)

    # ---- Saved and begun again

    def saves(self, version: int, rounds: int) -> bool:
        """Say whether this version is to be saved."""
        return self.store.folder is not None and (version % self.store.every == 0 or version == rounds)

    def save(self, present: Present) -> Done:
        """Save what outlives this process. Raises TrainingError where that cannot be."""
        assert self.store.folder is not None
        facts: dict[str, Any] = {
            "digest": self.store.digest,
            "place": self.place,
            "turn": present.turn,
            "settled": {str(peer): number for peer, number in present.settled.items()},
        }
        save(self.store.folder, present.version, self.centre.tensors(), facts, self.store.keep)
        return Done(is_saved=True)

    def begin(self) -> tuple[Present, str]:
        """Return where this coordinator begins: where it had saved itself, or at the start; and what of the saved was
        damaged, in words. Raises ConfigError where what is there is of another run."""
        saved = None if self.store.folder is None else load_latest(self.store.folder)
        if saved is None:
            return Present(self.given()), ""
        if saved.facts.get("digest") != self.store.digest or saved.facts.get("place") != self.place:
            raise ConfigError("", f"{self.store.folder} holds checkpoints of another experiment; choose another folder")
        try:
            self.centre.restore({name: tensor.clone() for name, tensor in saved.tensors.items()})
        except ValueError as error:
            raise ConfigError("", f"{self.store.folder}: {error}") from error
        settled: dict[PeerId, int] = {int(peer): int(number) for peer, number in saved.facts["settled"].items()}
        damaged = f"checkpoints that are damaged were passed over: {', '.join(saved.damaged)}" if saved.damaged else ""
        return Present(self.given(), saved.number, settled, int(saved.facts.get("turn", 0))), damaged
