"""Stories: what one gossip core is told and what it then asks for, line by line.

A story's lines with ">" are told to the core; the indented lines are what it then asks for. Words in brackets at the
end of a line are for the reader. What peer 1 says is "1's", and the share of it that is for 2 "1's for 2".
"""

import re
from collections.abc import Callable
from textwrap import dedent

from peer.protocol.gossip import Gossip
from peer.protocol.messages import (
    Alert,
    Bye,
    Command,
    Data,
    Done,
    Effect,
    Event,
    Finish,
    Heartbeat,
    Message,
    Mix,
    Mixed,
    PeerJoined,
    PeerLost,
    Received,
    Send,
    Shares,
    Skip,
    Tick,
    Train,
    Trained,
)


def check(core: Gossip, story: str) -> None:
    """Play the lines with ">" and compare all that the core asks for with the story."""
    told = [f"> {core.me} starts", *(f"    {show(effect)}" for effect in core.start(0.0))]
    lines = dedent(story).strip().splitlines()
    for line in lines[1:]:
        if line.startswith(">"):
            told.append(line)
            told += [f"    {show(effect)}" for effect in core.handle(parse_event(line[1:], core), 0.0)]
    assert told == lines, "\n".join(["it went otherwise:", *told])


def parse_event(line: str, core: Gossip) -> Event:
    word, *rest = re.sub(r"\s*\(.*\)$", "", line).split()
    match word, rest:
        case "joined", [peer]:
            return PeerJoined(int(peer))
        case "lost", [peer, *reason]:
            return PeerLost(int(peer), " ".join(reason))
        case "trained", []:
            return Trained(core.round, _own(core, "'s"))
        case "mixed", []:
            return Mixed(core.round, core.exchange, _own(core, "'s next"))
        case "mixed", ["without", peer]:
            return Mixed(core.round, core.exchange, _own(core, "'s next"), rejected=(int(peer),))
        case "mixed", [peer, "is", "far"]:
            return Mixed(core.round, core.exchange, _own(core, "'s next"), far=(int(peer),))
        case "stop", []:
            return Command("stop")
        case "tick", []:
            return Tick()
        case sender, [kind, number]:
            return Received(int(sender), parse_message(kind, number, f"{sender}'s"))
    raise AssertionError(line)


def _own(core: Gossip, what: str) -> str | Shares:
    own = f"{core.me}{what}"
    if core.conserves == "rows":
        return own
    return Shares(own, {peer: f"{own} for {peer}" for peer in core.around(core.round).listeners})


def parse_message(kind: str, number: str, payload: str) -> Message:
    if kind == "data":
        round, exchange = number.split(".")
        return Data(int(round), int(exchange), payload)
    kinds: dict[str, Callable[[int], Message]] = {"done": Done, "skip": Skip, "heartbeat": Heartbeat, "bye": Bye}
    return kinds[kind](int(number))


def show_message(message: Message) -> str:
    match message:
        case Data(round, exchange, payload):
            return f"data {round}.{exchange}" + (f", {payload}" if " for " in payload else "")
        case Done(round):
            return f"done {round}"
        case Skip(round):
            return f"skip {round}"
        case Bye(rounds):
            return f"bye {rounds}"
    raise AssertionError(message)


def show(effect: Effect) -> str:
    match effect:
        case Train(round):
            return f"train {round}"
        case Send(to, message):
            return f"to {to}: {show_message(message)}"
        case Mix(round, exchange, _, terms):
            return f"mix {round}.{exchange}: " + " + ".join(f"{term.weight:g} x {term.payload}" for term in terms)
        case Finish(outcome):
            return f"finish: {outcome}"
        case Alert(text, peer):
            return f"alert, {peer}: {text}"
    raise AssertionError(effect)
