"""The survey of one peer, told as stories on a clock.

A story's lines with "<" say when, in milliseconds, and what the core is told; the indented lines are what it then asks
for. Words in brackets are for the reader. Peer 1 surveys, and its candidates have other numbers.
"""

import re
from collections.abc import Callable
from math import fsum, inf
from textwrap import dedent

import networkx as nx
import pytest

import topology
from peer.protocol import survey
from peer.protocol.gossip import Gossip
from peer.protocol.messages import (
    Alert,
    Bye,
    Command,
    Data,
    Degree,
    Done,
    Echo,
    Effect,
    Event,
    Finish,
    Heartbeat,
    Measured,
    Message,
    Mix,
    Mixed,
    Neighbourhood,
    PeerId,
    PeerJoined,
    PeerLost,
    Probe,
    Received,
    Send,
    Skip,
    Tick,
    Train,
    Trained,
)
from peer.protocol.survey import PROBES, Rule, Survey, neighbourhood

RULES: list[Rule] = ["metropolis", "uniform", "lazy"]
SOUNDINGS: dict[str, Callable[[int], Message]] = {"probe": Probe, "echo": Echo, "measured": Measured, "degree": Degree}


def surveyor(*candidates: PeerId, within_ms: float = 10.0, rounds: int = 1) -> Survey:
    def gossip_of(here: Neighbourhood) -> Gossip:
        return Gossip(1, rounds, lambda _: here)

    return Survey(1, frozenset(candidates), within_ms, "metropolis", gossip_of)


def begun(*candidates: PeerId, within_ms: float = 10.0, rounds: int = 1) -> Survey:
    core = surveyor(*candidates, within_ms=within_ms, rounds=rounds)
    assert core.start(0.0) == []
    return core


# ---- Stories


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair is measured twice from each side: a story is short."""
    monkeypatch.setattr(survey, "PROBES", 2)


def parse(line: str, core: Survey) -> tuple[float, Event]:
    """Return when, in seconds, and what: "12: 2 echo 0"."""
    at_ms, _, what = re.sub(r"\s*\(.*\)$", "", line).partition(":")
    return float(at_ms) / 1000, parse_event(what.split(), core)


def parse_event(words: list[str], core: Survey) -> Event:
    match words:
        case ["joined", peer]:
            return PeerJoined(int(peer))
        case ["lost", peer, *reason]:
            return PeerLost(int(peer), " ".join(reason))
        case ["trained"]:
            return Trained(core.round, f"{core.me}'s")
        case ["mixed"]:
            return Mixed(core.round, 0, None)
        case ["stop"]:
            return Command("stop")
        case ["tick"]:
            return Tick()
        case [sender, "data", number]:
            round, exchange = number.split(".")
            return Received(int(sender), Data(int(round), int(exchange), f"{sender}'s"))
        case [sender, kind, number]:
            others: dict[str, Callable[[int], Message]] = {
                "heartbeat": Heartbeat,
                "done": Done,
                "skip": Skip,
                "bye": Bye,
            }
            return Received(int(sender), {**SOUNDINGS, **others}[kind](int(number)))
    raise AssertionError(words)


def show(effect: Effect) -> str:
    match effect:
        case Send(to, Data(round, exchange)):
            return f"to {to}: data {round}.{exchange}"
        case Send(to, Bye(rounds)):
            return f"to {to}: bye {rounds}"
        case Send(to, Probe(n) | Echo(n) | Measured(n) | Degree(n) as message):
            return f"to {to}: {type(message).__name__.lower()} {n}"
        case Train(round):
            return f"train {round}"
        case Mix(round, exchange, _, terms):
            return f"mix {round}.{exchange}: " + " + ".join(f"{term.weight:.3g} x {term.payload}" for term in terms)
        case Finish(outcome):
            return f"finish: {outcome}"
        case Alert(text, None):
            return f"alert: {text}"
        case Alert(text, peer):
            return f"alert, {peer}: {text}"
    raise AssertionError(effect)


def play(core: Survey, line: str) -> list[str]:
    at_s, event = parse(line.removeprefix("<"), core)
    return [show(effect) for effect in core.handle(event, at_s)]


def check(core: Survey, story: str) -> None:
    """Play the lines with "<" and compare all that the core asks for with the story."""
    told = [f"< {core.me} starts", *(f"    {show(effect)}" for effect in core.start(0.0))]
    lines = dedent(story).strip().splitlines()
    for line in lines[1:]:
        if line.startswith("<"):
            told += [line, *(f"    {text}" for text in play(core, line))]
    assert told == lines, "\n".join(["it went otherwise:", *told])


def measured(core: Survey, **round_trips_ms: float) -> None:
    """Tell a core all of these candidates, at round trips of so many milliseconds: p2=3."""
    for name, rtt_ms in round_trips_ms.items():
        peer = int(name[1:])
        for line in [
            f"0: joined {peer}",
            *(f"{rtt_ms * (i + 1)}: {peer} echo {i}" for i in range(survey.PROBES)),
            f"{rtt_ms * survey.PROBES}: {peer} measured {round(rtt_ms * 1000)}",
        ]:
            play(core, line)


@pytest.mark.usefixtures("twice")
def test_one_is_near_and_one_is_far() -> None:
    check(
        surveyor(0, 2),
        """
        < 1 starts
        < 0: joined 0
            to 0: probe 0
        < 1: joined 2
            to 2: probe 0
        < 2: 2 probe 0
            to 2: echo 0
        < 4: 0 echo 0  (it took 4 ms)
            to 0: probe 1
        < 10: 0 echo 1  (and now 6)
            to 0: measured 4000
        < 11: 2 probe 1
            to 2: echo 1
        < 12: 2 measured 30000
        < 21: 2 echo 0  (20 ms)
            to 2: probe 1
        < 22: 0 measured 5000  (the shortest of all counts, and that is 4 ms)
        < 33: 2 echo 1  (12 ms)
            to 2: measured 12000
            to 0: degree 1
            alert: 1 of 2 answer within 10 ms and are its neighbours, the others take 12 ms or more
        < 40: 0 degree 3  (it has other neighbours)
            train 0
        < 50: 2 heartbeat 0
        < 60: trained
            to 0: data 0.0
        < 70: 0 data 0.0
            mix 0.0: 0.25 x 0's + 0.75 x 1's
        < 80: mixed
            to 0: bye 1
        < 90: 0 bye 1
            to 2: bye 1
            finish: finished
        """,
    )


@pytest.mark.usefixtures("twice")
def test_the_two_of_a_pair_agree_though_only_one_of_them_has_seen_a_short_way() -> None:
    """10 ms is within 10 ms; what one has seen counts for both."""
    check(
        surveyor(2),
        """
        < 1 starts
        < 0: joined 2
            to 2: probe 0
        < 5: 2 measured 10000  (it was joined first, and is done with its own half)
        < 50: 2 echo 0
            to 2: probe 1
        < 99: 2 echo 1
            to 2: measured 49000
            to 2: degree 1
        < 99: 2 degree 1
            train 0
        """,
    )
    check(
        surveyor(2),
        """
        < 1 starts
        < 0: joined 2
            to 2: probe 0
        < 10: 2 echo 0
            to 2: probe 1
        < 60: 2 echo 1
            to 2: measured 10000
        < 70: 2 measured 49000
            to 2: degree 1
        """,
    )


@pytest.mark.usefixtures("twice")
def test_far_from_everybody() -> None:
    core = surveyor(0, 2)
    check(
        core,
        """
        < 1 starts
        < 0: joined 0
            to 0: probe 0
        < 0: joined 2
            to 2: probe 0
        < 15: 0 echo 0
            to 0: probe 1
        < 30: 0 echo 1
            to 0: measured 15000
        < 30: 0 measured 14000
        < 123: 2 echo 0
            to 2: probe 1
        < 246: 2 echo 1
            to 2: measured 123000
        < 250: 2 measured 10001  (a thousandth of a millisecond too much)
            alert: nobody answers within 10 ms, the nearest takes 10 ms: it trains alone
            train 0
        < 260: trained
            mix 0.0: 1 x 1's
        < 270: mixed
            to 0: bye 1
            to 2: bye 1
            finish: finished
        """,
    )
    assert core.rtt_us == {0: 14000, 2: 10001}
    assert core.lost == {}


@pytest.mark.usefixtures("twice")
def test_a_neighbour_that_is_ahead() -> None:
    """It has heard this peer's degree, and still needs its data: one message can come before the own survey is over."""
    core = begun(0, 2)
    measured(core, p0=4.0, p2=3.0)
    assert [play(core, line) for line in ["9: 2 degree 1", "9: 2 data 0.0", "9: 2 heartbeat 0"]] == [[], [], []]
    assert play(core, "12: 0 degree 2") == ["train 0"]
    assert play(core, "13: trained") == ["to 0: data 0.0", "to 2: data 0.0"]
    assert play(core, "14: 0 data 0.0") == ["mix 0.0: 0.333 x 0's + 0.333 x 1's + 0.333 x 2's"]


def test_one_peer() -> None:
    check(
        surveyor(),
        """
        < 1 starts
            train 0
        < 5: trained
            mix 0.0: 1 x 1's
        < 5: mixed
            finish: finished
        """,
    )


@pytest.mark.usefixtures("twice")
def test_two_peers() -> None:
    check(
        surveyor(0),
        """
        < 1 starts
        < 1: joined 0
            to 0: probe 0
        < 1: 0 probe 0
            to 0: echo 0
        < 1: 0 heartbeat 0
        < 2: 0 echo 0
            to 0: probe 1
        < 2: 0 probe 1
            to 0: echo 1
        < 3: 0 measured 900
        < 3: 0 echo 1
            to 0: measured 1000
            to 0: degree 1
        < 4: 0 degree 1
            train 0
        < 5: 0 data 0.0
        < 6: trained
            to 0: data 0.0
            mix 0.0: 0.5 x 0's + 0.5 x 1's
        < 7: 0 bye 1
        < 7: mixed
            to 0: bye 1
            finish: finished
        """,
    )


# ---- Candidates that are lost at each stage


def test_one_that_never_comes() -> None:
    core = surveyor(0)
    check(
        core,
        """
        < 1 starts
        < 60000: lost 0 never heard within 60 s
            alert, 0: is lost (never heard within 60 s)
            train 0
        """,
    )
    assert core.lost == {0: "never heard within 60 s"}


@pytest.mark.usefixtures("twice")
def test_one_that_dies_while_it_is_measured() -> None:
    core = begun(0, 2)
    measured(core, p2=3.0)
    assert play(core, "5: joined 0") == ["to 0: probe 0"]
    assert play(core, "6: 0 echo 0") == ["to 0: probe 1"]
    assert play(core, "9: lost 0 gone") == ["alert, 0: is lost (gone)", "to 2: degree 1"]
    assert play(core, "9: lost 0 once more") == []
    assert play(core, "9: 0 echo 1") == []
    assert play(core, "9: 0 probe 1") == []
    assert play(core, "9: 2 degree 1") == ["train 0"]
    assert core.lost == {0: "gone"}
    assert core.around(0) == Neighbourhood({1: 0.5, 2: 0.5}, {2: 0.5})
    lines = ["10: trained", "11: 2 data 0.0", "12: mixed", "13: 2 bye 1"]
    assert [play(core, line) for line in lines] == [
        ["to 2: data 0.0"],
        ["mix 0.0: 0.5 x 1's + 0.5 x 2's"],
        ["to 2: bye 1"],
        ["finish: finished"],  # of the dead nobody takes leave
    ]


@pytest.mark.usefixtures("twice")
def test_one_that_dies_when_it_is_measured_and_another_is_not() -> None:
    core = begun(0, 2)
    measured(core, p0=2.0)
    assert play(core, "9: lost 0 gone") == ["alert, 0: is lost (gone)"]
    measured(core, p2=3.0)
    assert core.near == (2,)


@pytest.mark.usefixtures("twice")
def test_one_that_dies_before_it_has_told_its_degree() -> None:
    """The weights of the pairs that live are those that the others reckon with; what it would have had is kept."""
    core = begun(0, 2)
    measured(core, p0=2.0, p2=3.0)
    assert play(core, "9: 2 degree 5") == []
    assert core.waits_for() == {0}
    assert play(core, "9: lost 0 gone") == ["alert, 0: is lost (gone)", "train 0"]
    assert core.lost == {0: "gone"}
    assert play(core, "9: trained") == ["to 2: data 0.0"]
    assert play(core, "9: 2 data 0.0") == ["mix 0.0: 0.833 x 1's + 0.167 x 2's"]
    assert play(core, "9: mixed") == ["to 2: bye 1"]
    assert core.short_rounds == 1


@pytest.mark.usefixtures("twice")
@pytest.mark.parametrize("ahead", [False, True])
def test_one_that_dies_after_it_has_told_its_degree(ahead: bool) -> None:
    """What it has said counts."""
    core = begun(0, 2)
    measured(core, p0=2.0, p2=3.0)
    told = ["9: 0 degree 2", *(["9: 0 data 0.0"] if ahead else []), "9: lost 0 gone"]
    assert [play(core, line) for line in told] == [*([[]] * (len(told) - 1)), ["alert, 0: is lost (gone)"]]
    assert play(core, "9: 2 degree 1") == ["train 0"]
    assert play(core, "9: trained") == ["to 2: data 0.0"]
    rest = "0.333 x 0's + 0.333 x 1's" if ahead else "0.667 x 1's"
    assert play(core, "9: 2 data 0.0") == [f"mix 0.0: {rest} + 0.333 x 2's"]
    assert core.lost == {0: "gone"}


@pytest.mark.usefixtures("twice")
def test_one_that_is_stopped_leaves_early() -> None:
    core = begun(0, 2)
    measured(core, p2=3.0)
    play(core, "5: joined 0")
    assert play(core, "9: 0 bye 0") == ["alert, 0: is lost (left after round 0)", "to 2: degree 1"]
    assert play(core, "9: 2 bye 0") == ["alert, 2: is lost (left after round 0)", "train 0"]
    assert list(core.lost) == [0, 2]


@pytest.mark.usefixtures("twice")
@pytest.mark.parametrize("end", ["50: 2 bye 1", "50: 2 bye 0", "50: lost 2 gone"])
def test_who_is_far_may_go_home_or_die_and_is_no_loss(end: str) -> None:
    """It trains alone and is done while this peer still waits for another."""
    core = begun(0, 2)
    measured(core, p2=20.0)
    assert play(core, end) == []
    measured(core, p0=3.0)
    assert core.near == (0,)
    assert play(core, "60: 0 degree 1") == ["train 0"]
    assert core.lost == {}


@pytest.mark.usefixtures("twice")
def test_nor_is_it_one_when_only_a_degree_is_still_to_come() -> None:
    core = begun(0, 2)
    measured(core, p2=20.0, p0=3.0)
    assert core.waits_for() == {0}
    assert play(core, "50: 2 bye 1") == []
    assert play(core, "50: lost 2 gone") == []
    assert play(core, "60: 0 degree 1") == ["train 0"]
    assert core.lost == {}


@pytest.mark.usefixtures("twice")
def test_the_order_in_which_losses_are_told_is_that_in_which_they_were() -> None:
    """A shell tells of them as they come: what was told is at the front."""
    core = begun(0, 2, 3)
    measured(core, p3=3.0, p2=3.0)
    play(core, "50: lost 0 never came")
    play(core, "51: lost 3 gone")
    assert list(core.lost) == [0, 3]
    assert play(core, "52: 2 degree 2") == ["train 0"]
    assert list(core.lost) == [0, 3]
    play(core, "53: lost 2 gone as well")
    assert core.lost == {0: "never came", 3: "gone", 2: "gone as well"}


# ---- A stop at each stage

STAGES: dict[str, tuple[list[str], list[str]]] = {
    "nobody has come": ([], ["to 0: bye 0", "to 2: bye 0", "finish: interrupted"]),
    "one is being measured": (["0: joined 2"], ["to 0: bye 0", "to 2: bye 0", "finish: interrupted"]),
    "one is lost": (["0: lost 2 gone"], ["to 0: bye 0", "finish: interrupted"]),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stop_before_all_are_measured(stage: str) -> None:
    before, effects = STAGES[stage]
    core = begun(0, 2)
    for line in before:
        play(core, line)
    assert play(core, "1: stop") == effects
    after = ["joined 0", "0 probe 0", "0 echo 0", "0 measured 1", "0 bye 0", "lost 0 gone", "stop", "tick"]
    assert [play(core, f"2: {event}") for event in after] == [[]] * len(after)


@pytest.mark.usefixtures("twice")
def test_a_stop_while_a_degree_is_still_to_come() -> None:
    core = begun(0, 2)
    measured(core, p0=2.0, p2=20.0)
    assert play(core, "50: stop") == ["to 0: bye 0", "to 2: bye 0", "finish: interrupted"]
    assert play(core, "51: 0 degree 1") == []


@pytest.mark.usefixtures("twice")
def test_a_stop_in_the_rounds_takes_leave_of_those_that_are_far_too() -> None:
    core = begun(0, 2, rounds=5)
    measured(core, p0=2.0, p2=20.0)
    assert play(core, "50: 0 degree 1") == ["train 0"]
    assert sorted(play(core, "51: stop")) == ["finish: interrupted", "to 0: bye 0", "to 2: bye 0"]
    assert play(core, "52: trained") == []


# ---- Others that break the rules

BREACHES = {
    "before it was measured": ["0 data 0.0"],
    "of a later round": ["0 degree 1", "0 data 1.0"],
    "of a later exchange": ["0 degree 1", "0 data 0.1"],
    "more than one": ["0 degree 1", "0 data 0.0", "0 data 0.0"],
}


@pytest.mark.usefixtures("twice")
@pytest.mark.parametrize("name", BREACHES)
def test_a_message_out_of_turn(name: str) -> None:
    """Nothing piles up: a right neighbour is at most one message ahead."""
    core = begun(0, 2)
    if name == "before it was measured":
        measured(core, p2=2.0)
        play(core, "0: joined 0")
    else:
        measured(core, p0=2.0, p2=2.0)
    *right, wrong = BREACHES[name]
    for line in right:
        assert play(core, f"50: {line}") == []
    text = play(core, f"50: {wrong}")[0]
    assert re.fullmatch(r"alert, 0: is lost \(sent a message of round [01] out of turn\)", text)
    assert play(core, "60: 2 degree 1") == ["train 0"]


@pytest.mark.usefixtures("twice")
def test_who_is_far_and_sends_data_all_the_same() -> None:
    core = begun(0, 2)
    measured(core, p2=20.0, p0=3.0)
    assert play(core, "50: 2 degree 1") == []
    assert play(core, "50: 2 data 0.0") == []
    assert play(core, "60: 0 degree 1") == ["train 0"]
    assert core.around(0) == Neighbourhood({1: 0.5, 0: 0.5}, {0: 0.5})


def test_echoes_that_nobody_asked_for() -> None:
    core = begun(0)
    assert play(core, "0: 0 echo 0") == []  # before the own probe
    assert play(core, "0: joined 0") == ["to 0: probe 0"]
    assert play(core, "0: joined 0") == []
    assert play(core, "1: 0 echo 1") == []
    assert play(core, "2: 0 echo 0") == ["to 0: probe 1"]
    assert play(core, "3: 0 echo 0") == []
    for i in range(1, PROBES):
        play(core, f"{3 * i + 2}: 0 echo {i}")
    assert core.rtt_us == {}
    assert play(core, f"60: 0 echo {PROBES}") == []
    play(core, "60: 0 measured 9000")
    assert core.rtt_us == {0: 2000}


def test_strangers_and_heartbeats_leave_no_trace() -> None:
    core = begun(0)
    play(core, "0: joined 0")
    before = repr(core._candidates)
    for event in ["0 heartbeat 7", "0 skip 0", "0 done 0", *(f"9 {kind} 0" for kind in [*SOUNDINGS, "bye"]), "tick"]:
        assert play(core, f"1: {event}") == []
    assert play(core, "1: lost 9 gone") == []
    assert repr(core._candidates) == before
    assert core.lost == {}


@pytest.mark.usefixtures("twice")
def test_a_degree_of_0_or_beyond_all_bounds() -> None:
    for told, weight in [("0", 1 / 2), (str(2**62), 1 / (1 + 2**62))]:
        core = begun(0)
        measured(core, p0=2.0)
        assert play(core, f"5: 0 degree {told}") == ["train 0"]
        assert core.around(0).weights[0] == weight
        assert fsum(core.around(0).weights.values()) == 1.0


# ---- What a person may want to know


@pytest.mark.usefixtures("twice")
def test_for_whom_a_peer_waits() -> None:
    core = begun(0, 2)
    lines = {
        "0: joined 2": ("waiting", {0}),
        "0: lost 0 never came": ("measuring", {2}),
        "3: 2 echo 0": ("measuring", {2}),
        "6: 2 echo 1": ("measuring", {2}),
        "6: 2 measured 3000": ("measuring", {2}),  # for its degree
        "7: 2 degree 1": ("training", set()),
        "8: trained": ("gathering", {2}),
        "9: 2 data 0.0": ("mixing", set()),
        "9: mixed": ("closing", {2}),
        "9: 2 bye 1": ("done", set()),
    }
    assert (core.phase, core.waits_for(), core.alive, core.round) == ("waiting", {0, 2}, {0, 2}, 0)
    for line, (phase, peers) in lines.items():
        play(core, line)
        assert (line, core.phase, core.waits_for()) == (line, phase, peers)
    assert (core.alive, core.round, core.short_rounds, core.deadline_s) == (set(), 1, 0, inf)


@pytest.mark.usefixtures("twice")
@pytest.mark.parametrize(
    ("rtt_ms", "words"), [(12.3456, "12.3 ms"), (0.5, "0.5 ms"), (123.4, "123 ms"), (12345.6, "12346 ms")]
)
def test_a_round_trip_as_it_is_said(rtt_ms: float, words: str) -> None:
    core = begun(0, within_ms=0.1)
    play(core, "0: joined 0")
    play(core, f"{rtt_ms}: 0 echo 0")
    play(core, f"{2 * rtt_ms}: 0 echo 1")
    assert play(core, f"99999: 0 measured {2**40}") == [
        f"alert: nobody answers within 0.1 ms, the nearest takes {words}: it trains alone",
        "train 0",
    ]


@pytest.mark.usefixtures("twice")
@pytest.mark.parametrize(("within_ms", "near"), [(0.0, ()), (1.001, (0,)), (inf, (0, 2))])
def test_any_threshold(within_ms: float, near: tuple[int, ...]) -> None:
    """Rounding keeps nobody out: 1.001 * 1000 is 1001 but for the last bit."""
    core = begun(0, 2, within_ms=within_ms)
    measured(core, p0=1.001, p2=1e6)
    assert core.near == near


# ---- The weights


@pytest.mark.parametrize("rule", RULES)
def test_rows_are_those_of_the_whole_graph_to_the_last_bit(rule: Rule) -> None:
    graph = nx.barabasi_albert_graph(40, 3, seed=1)
    matrix = topology.mixing_matrix(graph, rule).toarray()
    for i in graph:
        here = neighbourhood(i, {j: graph.degree(j) for j in graph[i]}, rule)
        assert here.weights == {j: matrix[i, j] for j in [i, *graph[i]]}
        assert here.listeners == {j: matrix[j, i] for j in graph[i]}
