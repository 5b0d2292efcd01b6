"""Stories of a coordinator or a worker: what it is told and what it then asks for, line by line."""

import re
from textwrap import dedent

from peer.protocol.by_arrival import ByArrival
from peer.protocol.by_rounds import ByRounds
from peer.protocol.coordinator import Coordinator, Present
from peer.protocol.messages import (
    Adopt,
    Adopted,
    Alert,
    Applied,
    Apply,
    Bye,
    Command,
    Effect,
    Event,
    Finish,
    Global,
    Heartbeat,
    PeerJoined,
    PeerLost,
    Pull,
    Push,
    Received,
    Send,
    Shares,
    Tick,
    Train,
    Trained,
)
from peer.protocol.worker import Worker

HUB = 9  # the coordinator
W0 = Present("w0")


class Told:
    """Plays a story's lines with ">", one each second; a story may go on from another one.

    What worker 1 pushes as its second is "1's 2", and the parameters of version 3 are "w3".
    """

    def __init__(self, core: Coordinator | Worker) -> None:
        self.core = core
        self.now_s = 0.0
        assert core.start(0.0) == []

    def play(self, story: str) -> "Told":
        lines = dedent(story).strip().splitlines()
        told = []
        for line in (line for line in lines if line.startswith(">")):
            self.now_s += 1.0
            effects = self.core.handle(self.event(without_remark(line)[1:]), self.now_s)
            told += [without_remark(line), *(f"    {show(effect)}" for effect in effects)]
        assert told == [without_remark(line) for line in lines], "\n".join(["it went otherwise:", *told])
        return self

    def event(self, line: str) -> Event:
        core = self.core
        match line.split():
            case ["joined", peer]:
                return PeerJoined(int(peer))
            case ["lost", peer, *reason]:
                return PeerLost(int(peer), " ".join(reason))
            case ["tick"]:
                return Tick()
            case ["stop"]:
                return Command("stop")
            case ["adopted"]:
                return Adopted(core.round)
            case ["trained"]:
                assert isinstance(core, Worker)
                return Trained(core.round, pushed(core))
            case ["applied"]:
                return Applied(f"w{core.round + 1}")
            case ["applied", "without", peer]:
                return Applied(f"w{core.round + 1}", (int(peer),))
            case [sender, "bye", rounds]:
                return Received(int(sender), Bye(int(rounds)))
            case [sender, "heartbeat", round]:
                return Received(int(sender), Heartbeat(int(round)))
            case [sender, "pull"]:
                return Received(int(sender), Pull(None))
            case [sender, "pull", "working", "at", version]:
                return Received(int(sender), Pull(int(version)))
            case [sender, "push", number, "from", version]:
                return Received(int(sender), Push(int(number), int(version[1:]), f"{sender}'s {number}"))
            case [sender, "global", w, "heard", number]:
                return Received(int(sender), Global(int(w[1:]), w, int(number)))
        raise AssertionError(line)


def without_remark(line: str) -> str:
    """Two spaces and a bracket at the end of a line are for the reader."""
    return re.sub(r"  \(.*\)$", "", line)


def pushed(worker: Worker) -> Shares:
    """What it has learned for one coordinator is "1's 2", and beside others "1's 2 for 9"."""
    what = f"{worker.me}'s {worker.round + 1}"
    hubs = worker.coordinators
    return Shares(None, {hub: what if len(hubs) == 1 else f"{what} for {hub}" for hub in hubs})


def show(effect: Effect) -> str:
    match effect:
        case Send(to, Global(version, payload, heard)):
            assert payload == f"w{version}"
            return f"to {to}: global {payload} heard {heard}"
        case Send(to, Push(number, version, payload)):
            return f"to {to}: push {number} from w{version}: {payload}"
        case Send(to, Pull(working_at)):
            return f"to {to}: pull" + ("" if working_at is None else f" working at {working_at}")
        case Send(to, Bye(rounds)):
            return f"to {to}: bye {rounds}"
        case Apply(version, terms):
            stale = {False: "", True: " stale by {}"}
            texts = [f"{t.weight:g} x {t.payload}{stale[t.staleness > 0].format(t.staleness)}" for t in terms]
            return f"apply to w{version}: {', '.join(texts)}"
        case Adopt(round, payload, version):
            assert payload is not None
            assert payload[0] == f"w{version}"
            return f"adopt {' and '.join(payload)} in round {round}"
        case Train(round):
            return f"train {round}"
        case Finish(outcome, why):
            return f"finish: {outcome}" + (f", {why}" if why else "")
        case Alert(text, None):
            return f"alert: {text}"
        case Alert(text, peer):
            return f"alert, {peer}: {text}"
    raise AssertionError(effect)


def told_of_two(core: Coordinator) -> Told:
    """A coordinator that has given w0 to workers 0 and 1."""
    return Told(core).play(
        """
        > joined 0
        > 0 pull
        > joined 1
        > 1 pull
            to 0: global w0 heard 0
            to 1: global w0 heard 0
        """
    )


def told_of_three(core: Coordinator) -> Told:
    return Told(core).play(
        """
        > joined 0
        > joined 1
        > joined 2
        > 0 pull
        > 1 pull
        > 2 pull
            to 0: global w0 heard 0
            to 1: global w0 heard 0
            to 2: global w0 heard 0
        """
    )


def sync(workers: int = 2, rounds: int = 0, present: Present = W0) -> ByRounds:
    return ByRounds(HUB, range(workers), rounds, present)


def asynchronous(workers: int = 2, rounds: int = 0, present: Present = W0) -> ByArrival:
    return ByArrival(HUB, range(workers), rounds, present)
