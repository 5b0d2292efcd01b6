"""The checks across keys: what is refused although each value alone is fine."""

from collections.abc import Iterator, Mapping

from peer.experiment.choices import (
    ASYNCHRONOUS,
    BY_POSITION,
    NEEDS,
    ONLY_DEFAULT,
    ORDERS,
    TIME_VARYING,
    USED_BY,
    is_factory,
    is_of,
)
from peer.experiment.coordination import coordination_problems
from peer.experiment.experiment import Experiment
from peer.experiment.fault_entry import FaultError, fault_entry
from peer.experiment.problem import Problem, changed, value_of
from peer.experiment.schema import Transport
from peer.experiment.wording import brief, listed, one_line


def problems_in(experiment: Experiment) -> Iterator[Problem]:
    yield from _not_built(experiment)
    yield from _without_effect(experiment)
    yield from _needed(experiment)
    yield from _task_problems(experiment)
    yield from _topology_problems(experiment)
    if experiment.coordinator.mode == "none":
        yield from _algorithm_problems(experiment)
        yield from _asynchronous_problems(experiment)
    yield from coordination_problems(experiment)
    yield from _world_problems(experiment)
    if experiment.task.shards is not None:
        yield from _shard_problems(experiment)
    yield from _peer_problems(experiment)
    yield from _transport_problems(experiment.transport)
    yield from _count_problems(experiment)


def _not_built(experiment: Experiment) -> Iterator[Problem]:
    for keys in ONLY_DEFAULT:
        for key, value, default in changed(experiment, keys):
            if default is None:
                yield Problem(key, "is not built yet; leave it out")
            else:
                yield Problem(key, f"{brief(value)} is not built yet; built are: {brief(default)}")


def _without_effect(experiment: Experiment) -> Iterator[Problem]:
    # [coordinator] without a mode, and [algorithm] beside one, are for coordination.py.
    idle = "coordinator." if experiment.coordinator.mode == "none" else "algorithm."
    for keys, (other, users) in USED_BY.items():
        chosen = value_of(experiment, other)
        if keys.startswith(idle) or any(is_of(chosen, user) for user in users):
            continue
        for key, _, _ in changed(experiment, keys):
            names = listed([user if isinstance(user, str) else user.text for user in users])
            yield Problem(key, f"belongs to {names}, and {other} is {one_line(chosen)}")


def _needed(experiment: Experiment) -> Iterator[Problem]:
    for (key, value), (needed, meaning) in NEEDS.items():
        if value_of(experiment, key) == value and value_of(experiment, needed) is None:
            yield Problem(needed, f'{key} = "{value}" needs it: {meaning}', at=key)
    topology = experiment.topology
    if topology.family in BY_POSITION and "threshold" not in topology.model_fields_set:
        meaning = "the distance within which peers hear each other"
        text = f"family {topology.family} needs one, such as 0.5, {meaning}"
        yield Problem("topology.threshold", text, at="topology.family")


def _task_problems(experiment: Experiment) -> Iterator[Problem]:
    task = experiment.task
    if task.data == "inline" and task.model != "linear" and not is_factory(task.model):
        text = f'{brief(task.model)} cannot learn inline data; choose linear or "package.module:factory"'
        yield Problem("task.model", text)
    if task.data in ("inline", "none") and task.partition != "iid":
        yield Problem("task.partition", f'has no effect with task.data = "{task.data}"; leave it out')
    if task.lr_schedule == "cosine" and experiment.rounds == 0:
        yield Problem("task.lr_schedule", "cosine ends with the rounds, and rounds = 0 has no end")


def _topology_problems(experiment: Experiment) -> Iterator[Problem]:
    t = experiment.topology
    if t.family == "mobile" and t.metric != "position":
        text = f'{brief(t.metric)} does not go with mobile, which measures positions; write "position" or leave it out'
        yield Problem("topology.metric", text)
    elif t.family in TIME_VARYING and t.family != "mobile" and (t.metric != "hops" or t.threshold != 1):
        key = "metric" if t.metric != "hops" else "threshold"
        text = f"{t.family} says itself who hears whom in which round; leave it out"
        yield Problem(f"topology.{key}", text)
    elif t.metric == "model" and "threshold" not in t.model_fields_set:
        text = (
            'metric = "model" needs one: how far apart the parameters of two peers may be, as a Euclidean distance, '
            "for them to hear each other"
        )
        yield Problem("topology.threshold", text, at="topology.metric")
    elif t.metric == "rtt" and "threshold" not in t.model_fields_set:
        text = 'metric = "rtt" needs one: the round trip in milliseconds within which peers hear each other'
        yield Problem("topology.threshold", text, at="topology.metric")
    if t.metric in ("rtt", "model") and t.weights == "push":
        text = f'push does not go with metric = "{t.metric}", by which peers hear each other or not at all'
        yield Problem("topology.weights", text)


def _algorithm_problems(experiment: Experiment) -> Iterator[Problem]:
    a = experiment.algorithm
    if a.order not in ORDERS.get(a.name, ("atc",)):
        users = [name for name, orders in ORDERS.items() if a.order in orders]
        text = f"{brief(a.order)} belongs to {listed(users)}, and algorithm.name is {one_line(a.name)}; leave it out"
        yield Problem("algorithm.order", text)
    if a.name in ("gradient_tracking", "d2"):
        yield from _not_one_plain_step(experiment)


def _asynchronous_problems(experiment: Experiment) -> Iterator[Problem]:
    a, t = experiment.algorithm, experiment.topology
    bounded = a.name == "cached" or (a.mode == "async" and a.name != "adpsgd")
    if a.max_staleness is not None and not bounded:
        text = 'belongs to mode = "async", in which a peer mixes what it has; '
        drawn = "adpsgd mixes what it has just been told" if a.name == "adpsgd" else "here peers wait for each other"
        yield Problem("algorithm.max_staleness", text + drawn)
    if not experiment.is_asynchronous:
        return
    if a.name not in ASYNCHRONOUS and not is_factory(a.name):
        why = {"local": "in which nobody is heard", "exact": "which is the mean of all in the same round"}
        text = f'"async" does not go with {a.name}, {why.get(a.name, "which needs rounds in step")}'
        yield Problem("algorithm.mode", f"{text}; it goes with dpsgd, adpsgd and an algorithm of your own")
        return
    key, said = ("name", "adpsgd") if a.name == "adpsgd" else ("mode", "async")
    if t.family in TIME_VARYING:
        text = f"{said} has no common rounds, and {t.family} says who hears whom in which round; choose one that stays"
        yield Problem("topology.family", text, at=f"algorithm.{key}")
    if t.metric in ("rtt", "model"):
        text = f'{said} does not go with topology.metric = "{t.metric}", whose neighbours are found in rounds in step'
        yield Problem(f"algorithm.{key}", text)
    if experiment.transport.round_deadline_s:
        text = f'has no effect under algorithm.{key} = "{said}", in which nobody is waited for'
        yield Problem("transport.round_deadline_s", f"{text}; leave it out")


def _world_problems(experiment: Experiment) -> Iterator[Problem]:
    """[speed] and [faults]."""
    s = experiment.speed
    if s.file and s.distribution == "lognormal":
        yield Problem("speed.distribution", '"lognormal" draws what a trace, speed.file, says; leave one of them out')
    for i, table in enumerate(experiment.faults.schedule):
        try:
            fault_entry(table)
        except FaultError as error:
            yield Problem(".".join(filter(None, (f"faults.schedule.{i}", error.name))), error.text)


def _not_one_plain_step(experiment: Experiment) -> Iterator[Problem]:
    """Gradient tracking and D2 take what a round has learned for a gradient."""
    name, task = experiment.algorithm.name, experiment.task
    if task.local_steps > 1:
        text = (
            f"{task.local_steps} under {name} would bring back the bias that it removes: the peers would track how far"
        )
        yield Problem("task.local_steps", f"{text} they drift instead of the gradient. It takes 1; dpsgd takes any")
    if task.momentum:
        text = f"{task.momentum} under {name} would make peers follow old gradients as if they were taken here"
        yield Problem("task.momentum", f"{text}; its proof has none. It takes 0; dpsgd takes any")
    if name == "d2" and (task.lr_schedule != "constant" or task.warmup_rounds):
        key = "lr_schedule" if task.lr_schedule != "constant" else "warmup_rounds"
        text = "d2 subtracts the last step from this one, and steps of two sizes do not cancel out at the optimum"
        yield Problem(f"task.{key}", f"{text}; it takes a constant lr. gradient_tracking takes any")


def _shard_problems(experiment: Experiment) -> Iterator[Problem]:
    shards, starts, entries = experiment.task.shards or (), experiment.starts(), experiment.peer_entries()
    width = next((len(features) for shard in shards for features, _ in shard), 0)
    for i, shard in enumerate(shards):
        name = entries[i].name if i < len(entries) else f"peer-{i}"
        if not shard:
            yield Problem("task.shards", f"{name} has no rows")
        for row, (features, _) in enumerate(shard):
            if not features:
                yield Problem("task.shards", f"row {row} of {name} has no features")
            elif len(features) != width:
                text = f"row {row} of {name} has {len(features)} features, and the first row has {width}"
                yield Problem("task.shards", text)
    if experiment.task.model == "linear" and starts and len(starts[0]) != width:
        yield Problem(
            "task.init",
            f"a start has length {len(starts[0])}, and the rows of task.shards have {width} features",
        )


def _peer_problems(experiment: Experiment) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for i, entry in enumerate(experiment.peers):
        if first.setdefault(entry.name, i) != i:
            text = f"{brief(entry.name)} is the name of peers.{first[entry.name]} too"
            yield Problem(f"peers.{i}.name", text)
    apart = set(experiment.coordinator_entries())
    peers = {i: entry for i, entry in enumerate(experiment.peers) if entry.name not in apart}
    if len({peer.position is None for peer in peers.values()}) == 2:
        lacking = next(i for i, peer in peers.items() if peer.position is None)
        yield Problem(f"peers.{lacking}.position", "is missing; either all peers have one, or none has")
    if experiment.topology.family == "mobile":
        for i, peer in peers.items():
            if peer.position is not None and not all(0 <= length <= 1 for length in peer.position):
                text = f"{brief(peer.position)} is outside the unit square, in which mobile peers walk"
                yield Problem(f"peers.{i}.position", f"{text}; both numbers are from 0 to 1")
    if experiment.task.partition != "own":
        return
    if not peers:
        yield Problem("task.partition", "own needs [[peers]], each with its data")
    for i, peer in peers.items():
        if peer.data is None:
            yield Problem(f"peers.{i}.data", 'is missing; task.partition = "own" needs it for each peer')


def _transport_problems(transport: Transport) -> Iterator[Problem]:
    for shorter, longer in (("heartbeat_s", "suspect_s"), ("suspect_s", "dead_s")):
        short, long = getattr(transport, shorter), getattr(transport, longer)
        if not short < long:
            yield Problem(f"transport.{shorter}", f"{short} must be below transport.{longer} = {long}")


def _count_problems(experiment: Experiment) -> Iterator[Problem]:
    counts = experiment.stated_counts()
    if experiment.topology.peers is not None:
        counts = {"topology.peers": experiment.topology.peers, **counts}
    if experiment.task.sizes is not None:
        counts["task.sizes"] = len(experiment.task.sizes)
    text = disagreement(counts)
    if text:
        yield Problem("", text, at=next(iter(counts)))


def disagreement(counts: Mapping[str, int]) -> str:
    """The first two keys that state different numbers of peers, in words; empty if all agree."""
    phrases = {"topology.peers": "topology.peers = ", "topology.shape": "topology.shape makes "}
    said = {key: phrases.get(key, f"{'[[peers]]' if key == 'peers' else key} has ") for key in counts}
    for first, second in zip(counts, list(counts)[1:], strict=False):
        if counts[first] != counts[second]:
            return f"{said[first]}{counts[first]}, but {said[second]}{counts[second]}"
    return ""
