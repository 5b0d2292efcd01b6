"""Stories of cores that do not wait for each other, line by line; as in `story`, with what these cores say.

A story's lines with ">" are told to the core, one each second; the indented lines are what it then asks for. Words in
brackets at the end of a line are for the reader. What peer 1 says in round 3 is "1's 3"; with pairs just "1's".
"""

import re
from textwrap import dedent

from peer.protocol.independent import Independent
from peer.protocol.messages import (
    Accept,
    Adopt,
    Adopted,
    Alert,
    Busy,
    Bye,
    Command,
    Copied,
    Copy,
    Data,
    Done,
    Effect,
    Event,
    Fetch,
    Finish,
    Learn,
    Learned,
    Message,
    Mix,
    Mixed,
    Model,
    PeerJoined,
    PeerLost,
    Propose,
    Received,
    Resume,
    Send,
    Term,
    Train,
    Trained,
)


def check(core: Independent, story: str) -> None:
    """Play the lines with ">" and compare all that the core asks for with the story; it may go on from another one."""
    told: list[str] = []
    lines = dedent(story).strip().splitlines()
    for second, line in enumerate(line for line in lines if line.startswith(">")):
        told.append(line)
        starts = line == f"> {core.me} starts"
        effects = core.start(0.0) if starts else core.handle(parse_event(line[1:], core), float(second))
        told += [f"    {show(effect)}" for effect in effects]
    assert told == lines, "\n".join(["it went otherwise:", *told])


def parse_event(line: str, core: Independent) -> Event:
    word, *rest = re.sub(r"\s*\(.*\)$", "", line).split()
    match word, rest:
        case "joined", [peer]:
            return PeerJoined(int(peer))
        case "lost", [peer, *reason]:
            return PeerLost(int(peer), " ".join(reason))
        case "trained", []:
            return Trained(core.round, f"{core.me}'s {core.round}")
        case "trained", [round]:
            return Trained(int(round), f"{core.me}'s {round}")
        case "mixed", []:
            return Mixed(core.round, 0, f"{core.me}'s")
        case "mixed", ["without", peer]:
            return Mixed(core.round, 0, f"{core.me}'s", rejected=(int(peer),))
        case "learned", []:
            return Learned(f"{core.me}'s")
        case "copied", ["for", peer]:
            return Copied(int(peer), f"{core.me}'s")
        case "adopted", [round]:
            return Adopted(int(round))
        case "stop", []:
            return Command("stop")
        case sender, [kind, *numbers]:
            return Received(int(sender), parse_message(kind, [int(n) for n in numbers], f"{sender}'s"))
    raise AssertionError(line)


def parse_message(kind: str, numbers: list[int], payload: str) -> Message:
    match kind, numbers:
        case "data", [round]:
            return Data(round, 0, f"{payload} {round}")
        case "done", [round]:
            return Done(round)
        case "bye", [rounds]:
            return Bye(rounds)
        case "resume", [round]:
            return Resume(round)
        case "fetch", []:
            return Fetch()
        case "model", [round]:
            return Model(round, payload)
        case "propose", [number, answered]:
            return Propose(number, answered, payload)
        case "accept", [number]:
            return Accept(number, payload)
        case "busy", [number]:
            return Busy(number)
    raise AssertionError(kind)


def show(effect: Effect) -> str:
    match effect:
        case Train(round):
            return f"train {round}"
        case Learn(None):
            return "learn nothing"
        case Learn(round, staleness):
            return f"learn {round}" + (f", stale {staleness}" if staleness else "")
        case Send(to, message):
            return f"to {to}: {show_message(message)}"
        case Mix(round, _, _, terms):
            return f"mix {round}: " + " + ".join(map(_show_term, terms))
        case Copy(to):
            return f"copy for {to}"
        case Adopt(round, payload):
            return f"adopt {payload}, round {round}"
        case Finish(outcome):
            return f"finish: {outcome}"
        case Alert(text, peer):
            return f"alert, {peer}: {text}"
    raise AssertionError(effect)


def _show_term(term: Term) -> str:
    stale = f" (stale {term.staleness})" if term.staleness else ""
    return f"{term.weight:g} x {term.payload}{stale}"


def show_message(message: Message) -> str:
    match message:
        case Data(round):
            return f"data {round}"
        case Done(round):
            return f"done {round}"
        case Bye(rounds):
            return f"bye {rounds}"
        case Resume(round):
            return f"resume {round}"
        case Fetch():
            return "fetch"
        case Model(round, payload):
            return f"model {round}, {payload}"
        case Propose(number, answered):
            return f"propose {number} {answered}"
        case Accept(number):
            return f"accept {number}"
        case Busy(number):
            return f"busy {number}"
    raise AssertionError(message)
