"""What goes with which coordinator: a parameter server's four disciplines, EASGD's centre, a ring, and none.

Keys that only some modes use, or only some server optimisers, stand in choices.USED_BY. Here is what needs a sentence
of its own.
"""

import re
from collections.abc import Collection, Iterator

from peer.experiment.choices import COORDINATING, USED_BY
from peer.experiment.experiment import Experiment
from peer.experiment.problem import Problem, changed
from peer.experiment.wording import brief, listed, one_line


def coordination_problems(experiment: Experiment) -> Iterator[Problem]:
    yield from _goes_with_a_server(experiment)
    if experiment.coordinator.mode == "none":
        yield from _without_coordinator(experiment)
        return
    yield from _gossip_beside_it(experiment)
    if experiment.is_elastic:
        yield from _elastic_problems(experiment)
    elif experiment.coordinates:
        yield from _task_problems(experiment)
    if experiment.coordinates:
        yield from _server_problems(experiment)
        yield from _entry_problems(experiment)


def quorum_problem(experiment: Experiment, peers: int) -> str:
    """What is wrong with coordinator.quorum among so many peers, in words; empty if nothing is."""
    quorum = experiment.coordinator.quorum
    if experiment.coordinator.mode != "quorum" or isinstance(quorum, float) or quorum <= peers:
        return ""
    return f"a count of {quorum} is above the number of peers, {peers}, and no round would close on it"


def coordinator_problem(experiment: Experiment, names: Collection[str]) -> str:
    """What is wrong with coordinator.name among peers of these names, in words; empty if nothing is.

    A node of a graph file that has the name of the one coordinator, the default too, is the peer that it runs in.
    """
    name, apart = experiment.coordinator.name, experiment.coordinator_entries()
    host, listed_names = experiment.coordinator_host(), {entry.name for entry in experiment.peers}
    if host is not None and host not in names:
        return f"{brief(host)} is a coordinator that is not in the file: it is no peer's name, and not in [[peers]]"
    if len(apart) > 1 and name in names:
        return f"{brief(name)} is a peer's name, and one process holds one of {len(apart)} servers; leave the name out"
    for own in apart if len(apart) > 1 else ():
        if own in names:
            return f"{brief(own)} is the name of a peer too, and a process of its own needs one that no peer has"
    missing = [own for own in apart if own not in listed_names]
    if missing and name != "coordinator":
        text = f"{brief(name)} is a coordinator that is not in the file: of its {len(apart)} servers "
        return f"{text}[[peers]] lacks {one_line(', '.join(missing))}; add them, or leave the name out"
    return ""


# ---- With a server or without


def _goes_with_a_server(experiment: Experiment) -> Iterator[Problem]:
    if experiment.coordinates:
        return
    modes = f"coordinator.mode {listed(COORDINATING)}"
    name, where = experiment.compression.name, "in a ring" if experiment.is_ring else "between peers that gossip"
    if name in ("fp16", "bf16"):
        yield Problem("compression.name", f"{brief(name)} is not built yet {where}; it goes with {modes}")
    for key, value, _ in changed(experiment, "checkpoint"):
        yield Problem(key, f"{brief(value)} is not built yet {where}; it goes with {modes}")


def _without_coordinator(experiment: Experiment) -> Iterator[Problem]:
    for key, _, _ in changed(experiment, "coordinator"):
        yield Problem(key, "has no effect without coordinator.mode")
    if experiment.is_elastic:
        text = 'easgd ties peers to a centre that a coordinator holds; write coordinator.mode = "sync" or "async"'
        yield Problem("algorithm.name", text)


# ---- What takes the place of gossip


def _gossip_beside_it(experiment: Experiment) -> Iterator[Problem]:
    """[algorithm] beside a coordinator: easgd with its alpha or no name; and what becomes of buffers."""
    mode, name = experiment.coordinator.mode, experiment.algorithm.name
    if experiment.is_elastic and mode not in ("sync", "async"):
        text = f"easgd goes with coordinator.mode sync or async, and it is {mode}"
        yield Problem("algorithm.name", text)
    elif not experiment.is_elastic and "name" in experiment.algorithm.model_fields_set:
        text = f'{one_line(name)} is a gossip algorithm, whose place coordinator.mode = "{mode}" takes; leave it out'
        yield Problem("algorithm.name", text)
    for key, _, _ in changed(experiment, "algorithm"):
        if key == "algorithm.alpha" and not experiment.is_elastic:
            yield Problem(key, 'belongs to easgd; write algorithm.name = "easgd", or leave it out')
        elif key not in ("algorithm.name", "algorithm.alpha", "algorithm.buffers"):
            text = f'has no effect beside coordinator.mode = "{mode}", which takes the place of gossip; leave it out'
            yield Problem(key, text + _INSTEAD.get(key, ""))


_INSTEAD = {
    "algorithm.mode": '. A server that nobody waits at is coordinator.mode = "async"',
    "algorithm.max_staleness": ". The bound of a server is coordinator.max_staleness",
}

_NOT_ELASTIC = (
    *("aggregate", "weighting", "fraction", "server_optimizer", "server_lr"),
    *("staleness", "max_staleness", "delay"),
)


def _elastic_problems(experiment: Experiment) -> Iterator[Problem]:
    for name in _NOT_ELASTIC:
        users = USED_BY[f"coordinator.{name}"][1]
        for key, _, _ in changed(experiment, f"coordinator.{name}"):
            if experiment.coordinator.mode in users:
                text = "has no effect under easgd, whose centre goes a part alpha of the way to each peer; leave it out"
                yield Problem(key, text)


def _task_problems(experiment: Experiment) -> Iterator[Problem]:
    """What does not go with parameters that the coordinator alone has."""
    task, mode = experiment.task, experiment.coordinator.mode
    if task.data == "none":
        text = f'none gives nothing to learn, so under coordinator.mode = "{mode}" nothing would ever change'
        yield Problem("task.data", f'{text}; "ring" and easgd take it')
    elif experiment.init_is_nested():
        text = "gives each peer a start of its own, and all begin from the coordinator's; write one, such as [1.0, 2.0]"
        yield Problem("task.init", text)
    if experiment.coordinator.aggregate != "gradients":
        return
    models = 'coordinator.aggregate = "models"'
    if task.local_steps > 1:
        text = f"{task.local_steps} does not go with gradients, of which a coordinator takes that of one step"
        yield Problem("task.local_steps", f"{text}; write {models}")
    if task.momentum:
        text = f"{task.momentum} has no effect on the gradient of one step, which is what the coordinator is given"
        yield Problem("task.momentum", f'{text}; write coordinator.server_optimizer = "momentum" or {models}')
    if task.proximal_mu:
        text = f"{task.proximal_mu} has no effect in one step, which begins where the coordinator is"
        yield Problem("task.proximal_mu", f"{text}; write {models} with task.local_steps above 1, or leave it out")


def _server_problems(experiment: Experiment) -> Iterator[Problem]:
    c = experiment.coordinator
    if experiment.transport.round_deadline_s:
        text = f'has no effect under coordinator.mode = "{c.mode}"; what closes a round early is coordinator.timer_s'
        yield Problem("transport.round_deadline_s", f'{text} with coordinator.mode = "quorum"')
    if c.servers > 1 and c.fraction < 1:
        text = f"{c.fraction} goes with one server: after a loss, several could wait for each other's members for good"
        yield Problem("coordinator.fraction", text)
    if c.servers > 1 and c.arrival == "round_robin":
        text = "goes with one server: after a loss, several could wait for each other's turns for good"
        yield Problem("coordinator.arrival", text)
    if c.mode == "quorum" and c.late == "drop" and c.staleness != "constant":
        text = f'{brief(c.staleness)} belongs to coordinator.late = "stale"; what comes late is dropped here'
        yield Problem("coordinator.staleness", text)
    peers = experiment.known_peers()
    if peers is not None and (text := quorum_problem(experiment, peers)):
        yield Problem("coordinator.quorum", text)
    if c.mode == "async" and not experiment.is_elastic:
        yield from _bound_problems(experiment)


def _bound_problems(experiment: Experiment) -> Iterator[Problem]:
    """max_staleness bounds what the clock brings about, delay fixes it; both count the versions of one coordinator."""
    c = experiment.coordinator
    if c.max_staleness and c.arrival == "round_robin":
        text = "bounds what the clock brings about, and in round_robin each is as stale as the other"
        yield Problem("coordinator.max_staleness", f"{text}; leave it out")
    elif c.max_staleness and c.servers > 1:
        text = f"goes with one server, whose versions it counts, and coordinator.servers is {c.servers}"
        yield Problem("coordinator.max_staleness", text)
    if c.delay and c.arrival == "clock":
        text = f'{c.delay} needs an order that is fixed; write coordinator.arrival = "round_robin"'
        yield Problem("coordinator.delay", text)


# ---- Names


def _entry_problems(experiment: Experiment) -> Iterator[Problem]:
    if text := coordinator_problem(experiment, _known_names(experiment)):
        yield Problem("coordinator.name", text)
    apart = set(experiment.coordinator_entries())
    for name in ("position", "data"):
        for key, _, _ in changed(experiment, f"peers.{name}"):
            if experiment.peers[int(key.split(".")[1])].name in apart:
                text = "has no effect: this is a coordinator's entry, which neither trains nor stands in the topology"
                yield Problem(key, f"{text}; leave it out")


def _known_names(experiment: Experiment) -> set[str]:
    """Of the names that matter here, the coordinator's and its servers', those of peers as far as the file tells."""
    asked = {experiment.coordinator.name, *experiment.coordinator_names()}
    if entries := experiment.peer_entries():
        return asked & {entry.name for entry in entries}
    peers = experiment.known_peers()
    if peers is None:  # the graph may name its nodes: whoever reads it asks again
        host = experiment.coordinator_host()
        return set() if host is None else {host}
    return {name for name in asked if (found := _NUMBERED.fullmatch(name)) and int(found[1]) < peers}


_NUMBERED = re.compile(r"peer-(0|[1-9][0-9]{0,7})")
