"""The rounds engine: all peers as the rows of one matrix, which go from round to round in step.

There are no messages and no time. It is the fast way to see what an algorithm does on a topology.
"""

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from peer.assembly import Assembly
from peer.errors import TrainingError
from peer.history import Figures, earliest, peer_score
from peer.learner import judge
from peer.record import Divergence, Ended, Row, listed
from peer.simulator.gossiping import Gossiping
from peer.simulator.in_step import InStep
from peer.simulator.served import Elastic, Ringed, Served
from peer.simulator.steps import Steps
from peer.simulator.watching import Watch
from peer.task.local import Interrupted
from peer.task.task import Task
from peer.verdict import Verdict


def run(
    assembly: Assembly,
    task: Task,
    device: torch.device,
    watch: Watch,
    stop: Callable[[], bool],
    enough: Callable[[Row], bool] | None = None,
) -> Ended:
    """Run the experiment to its end, or until `stop` says so. `enough(entry)` says whether it may end after it."""
    e, n = assembly.experiment, len(assembly.names)
    x = torch.stack([task.start(i) for i in range(n)]).to(device)
    steps = Steps(task, e.task.step, device, x)
    watch.history.gossiped = assembly.shared_columns(task.layout)
    peers = _peers(assembly, task, steps, x, watch)
    ended = Ended("rounds", steps.step, n)
    try:
        ended.diverged = _evaluate(watch, task, steps, peers, 0, stop)
        started_s = perf_counter()
        while e.rounds == 0 or ended.rounds < e.rounds:
            if enough is not None and enough(watch.history.entries[-1]):
                break
            if ended.diverged is not None and e.record.on_divergence == "stop":
                ended.outcome = "diverged"
                break
            began_s = perf_counter()
            peers.advance(ended.rounds, stop)
            ended.rounds += 1
            ended.gradients, ended.payload_bytes_sent = peers.gradients, peers.payload_bytes
            found = peers.diverged(ended.rounds)
            ended.rounds_seconds += perf_counter() - began_s
            is_late = 0 < e.stop_after_s <= perf_counter() - started_s
            ends = is_late or (found is not None and e.record.on_divergence == "stop")
            if watch.is_due(ended.rounds) or ends:
                judged = _evaluate(watch, task, steps, peers, ended.rounds, stop)
                found = found if judged is None else earliest(found, judged, assembly.nodes)
            ended.diverged = ended.diverged or found
            if watch.wants_pace():
                watch.pace(ended.rounds, ended.rounds / e.rounds if e.rounds else None)
            if is_late:
                break
            if stop():
                raise Interrupted
    except (Interrupted, KeyboardInterrupt):
        ended.outcome = "interrupted"
    except TrainingError as error:
        ended.outcome, ended.why, ended.details = "failed", str(error), error.details
    if ended.diverged is not None and ended.outcome == "finished":
        ended.outcome = "diverged"
    ended.history = watch.history.entries
    params = peers.params()
    if isinstance(peers, Served):
        params = peers.held()
        ended.coordinator = peers.centre().cpu().numpy()
    ended.params = list(params.cpu().numpy())
    if watch.on_model is not None:
        for i, name in enumerate(assembly.names):
            watch.on_model(name, steps.trainer.tensors(params[i], steps.memory(i)))
    return ended


def _peers(assembly: Assembly, task: Task, steps: Steps, x: Tensor, watch: Watch) -> InStep:
    e = assembly.experiment
    if e.is_ring:
        return Ringed(assembly, task, steps, x)
    if e.coordinates:
        return (Elastic if e.is_elastic else Served)(assembly, task, steps, x, watch.on_alert)
    return Gossiping(assembly, task, steps, x)


def _evaluate(
    watch: Watch, task: Task, steps: Steps, peers: InStep, round: int, stop: Callable[[], bool]
) -> Divergence | None:
    params = peers.params()
    test = task.test_rows(params.device)
    at: Row = {"payload_bytes_sent": peers.payload_bytes}
    if isinstance(peers, Served) and watch.assembly.experiment.record.params == "every":
        at["coordinator"] = listed([peers.centre().cpu().numpy()])[0]
    if isinstance(peers, Served) and peers.is_one_model:
        evaluations = Verdict(steps.trainer, steps.shards, test).of(params[0], round, stop)
    else:
        evaluations = [
            judge(steps.trainer, x, steps.memory(i), steps.shards[i], test, round, stop) for i, x in enumerate(params)
        ]
    rows = params.cpu().numpy()
    figures = {i: Figures(peer_score(evaluation), rows[i]) for i, evaluation in enumerate(evaluations)}
    return watch.evaluated(round, figures, at)
