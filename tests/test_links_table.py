"""The simulator's links: their file, the clock they make, and who is near by it."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peer.assembly.links import HEADER_BYTES, Link, LinkTable, links_of, transmission_s
from peer.errors import ConfigError
from peer.experiment import Experiment, from_dict
from peer.explanation import explain
from peer.scripting import Document, simulate
from peer.tables import explanation_text
from tests.commands import Command, Write

NAMES = ["oslo", "rome", "cairo", "lima, peru"]


def read(folder: Path, text: str | bytes, file: str = "links.csv", **network: float) -> LinkTable:
    (folder / "links.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return links_of(from_dict({"network": {"file": file, **network}}, folder=folder), NAMES)


# ---- The file


def test_without_a_file_all_links_are_alike() -> None:
    table = links_of(from_dict({"network": {"latency_ms": 12.5}}), NAMES)
    assert (table.one_way_ms(0, 1), table.one_way_ms(3, 2), table.round_trip_ms(0, 3)) == (12.5, 12.5, 25.0)
    assert links_of(from_dict({}), NAMES).round_trip_ms(0, 1) == 0.0


def test_one_direction_counts_for_both_unless_both_are_given(tmp_path: Path) -> None:
    table = read(tmp_path, "from,to,latency_ms\noslo,rome,20\nrome,cairo,3\ncairo,rome,4\n", latency_ms=7)
    assert (table.one_way_ms(0, 1), table.one_way_ms(1, 0), table.round_trip_ms(1, 0)) == (20, 20, 40)
    assert (table.one_way_ms(1, 2), table.one_way_ms(2, 1), table.round_trip_ms(1, 2)) == (3, 4, 7)
    assert table.round_trip_ms(0, 2) == 14


WRITTEN = {
    "plain": "from,to,latency_ms\noslo,rome,20\nrome,cairo,3e0\n",
    "from Windows, with a mark in front": "\ufefffrom,to,latency_ms\r\noslo,rome,20\r\nrome,cairo,3\r\n",
    "with spaces and comments": "# ours\n\n From , to , latency_ms\n oslo , rome , 20\n\n# more\n,,\nrome,cairo,3",
    "in another order, with columns that say nothing": "loss,latency_ms,to,from\n0,20,rome,oslo\n,3.0,cairo,rome\n",
    "with quotes": '"from", "to", "latency_ms"\n"oslo", "rome", "20"\n"rome","cairo","3"\n',
    "by number": "from,to,latency_ms,bandwidth_mbps\n0,1,20,0\n1,2,3,0.0\n",
}


@pytest.mark.parametrize("how", WRITTEN)
def test_ways_to_write_it(how: str, tmp_path: Path) -> None:
    assert read(tmp_path, WRITTEN[how]) == LinkTable(Link(), {(0, 1): Link(20.0), (1, 2): Link(3.0)})


def test_what_a_line_leaves_empty_is_as_the_network_table_has_it(tmp_path: Path) -> None:
    text = "from,to,latency_ms,bandwidth_mbps,loss\noslo,rome,,100,\nrome,cairo,4,,0.5\ncairo,oslo,0,0,0\n"
    table = read(tmp_path, text, latency_ms=7, bandwidth_mbps=20, loss=0.25)
    assert table.of(1, 0) == Link(7, 100, 0.25)
    assert table.of(1, 2) == Link(4, 20, 0.5)
    assert table.of(2, 0) == Link(0, 0, 0)
    assert table.of(0, 3) == table.all == Link(7, 20, 0.25)


def test_a_file_may_do_without_latencies(tmp_path: Path) -> None:
    assert read(tmp_path, "from,to,loss\noslo,rome,0.1\n", latency_ms=3).of(0, 1) == Link(3, 0, 0.1)


def test_a_message_takes_its_bits_over_the_bandwidth() -> None:
    assert transmission_s(Link(bandwidth_mbps=20), 10**6) == (10**6 + HEADER_BYTES) * 8 / 20e6
    assert transmission_s(Link(latency_ms=5), 10**6) == 0.0


def test_a_name_with_a_comma_and_a_link_to_oneself(tmp_path: Path) -> None:
    table = read(tmp_path, 'from,to,latency_ms\n"lima, peru",oslo,0.25\nrome,rome,1\n')
    assert table.round_trip_ms(0, 3) == 0.5


def test_a_name_goes_before_a_number(tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text("from,to,latency_ms\n1,0,5\n")
    experiment = from_dict({"network": {"file": "links.csv"}}, folder=tmp_path)
    assert links_of(experiment, ["1", "0"]).own == {(0, 1): Link(5.0)}


HEADER = "from,to,latency_ms\n"
LINE = "oslo,rome,5\n"
WRONG: dict[str, tuple[str | bytes, list[str]]] = {
    "an unknown peer": (HEADER + LINE + "oslo,paris,5\n", ["line 3", '"paris" is not a peer', "oslo, rome, cairo"]),
    "a misspelt peer": (HEADER + "\noslo,romme,5\n", ["line 3", '"romme" is not a peer', "did you mean rome?"]),
    "a number beyond all peers": (HEADER + "0,4,5\n", ["line 2", '"4" is not a peer']),
    "a negative number": (HEADER + "0,-1,5\n", ["line 2", '"-1" is not a peer']),
    "no name": (HEADER + "oslo,,5\n", ["line 2", '"" is not a peer']),
    "the same twice": (HEADER + LINE + "# again\n" + LINE, ["line 4", "oslo to rome stands in the file twice"]),
    "the same twice, by number": (HEADER + LINE + "0,1,7\n", ["line 3", "0 to 1 stands in the file twice"]),
    "no number": (HEADER + "oslo,rome,fast\n", ["line 2", 'latency_ms is "fast", not a number of 0 or more']),
    "nothing": (HEADER + "oslo,rome,\n", ["line 2", "says nothing of the link"]),
    "below 0": (HEADER + "oslo,rome,-5\n", ["line 2", 'latency_ms is "-5", not a number of 0 or more']),
    "NaN": (HEADER + "oslo,rome,nan\n", ["line 2", 'latency_ms is "nan"']),
    "infinite": (HEADER + "oslo,rome,inf\n", ["line 2", 'latency_ms is "inf"']),
    "a bandwidth below 0": (
        "from,to,bandwidth_mbps\noslo,rome,-1\n",
        ["line 2", 'bandwidth_mbps is "-1", not a number of 0 or more'],
    ),
    "a loss of all": ("from,to,latency_ms,loss\noslo,rome,5,1\n", ["line 2", 'loss is "1"', "below 1"]),
    "a loss in words": ("from,to,latency_ms,loss\noslo,rome,5,none\n", ["line 2", 'loss is "none", not a number']),
    "no figure": ("from,to\noslo,rome\n", ["line 2", "says nothing of the link"]),
    "no ends": ("\n\nfrom,latency_ms\noslo,5\n", ["line 3", "to is not there"]),
    "no header": (LINE, ["line 1", "the header must name from, to"]),
    "a column twice": ("from,to,latency_ms,Latency_ms\noslo,rome,5,6\n", ["line 1", '"latency_ms" twice']),
    "an unknown column": ("from,to,latency_ms,jitter_ms\noslo,rome,5,6\n", ["line 1", '"jitter_ms" is not known']),
    "a cell too few": (HEADER + "oslo,rome\n", ["line 2", "2 cells, and the header has 3"]),
    "a cell too many": (HEADER + LINE + "oslo,cairo,5,6\n", ["line 3", "4 cells, and the header has 3"]),
    "an open quote": (HEADER + 'oslo,"rome,5\n' + LINE, ["line 3", "unexpected end of data"]),
    "a cell beyond all bounds": (HEADER + "x" * 200_000 + ",rome,5\n", ["line 2", "limit"]),
    "an empty file": ("", ["is empty", "from,to,latency_ms"]),
    "only comments": ("# later\n", ["is empty"]),
    "another encoding": (
        HEADER.encode() + LINE.encode() + "málaga,rome,5\n".encode("latin-1"),
        ["line 3", "not UTF-8"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_the_file(name: str, tmp_path: Path) -> None:
    text, words = WRONG[name]
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert refused.value.key == "network.file"
    assert "links.csv" in str(refused.value)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("file", "words"), [("other.csv", "No such file"), (".", "Is a directory"), ("a\0b", "null byte")]
)
def test_a_file_that_cannot_be_read(file: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"network.file: cannot read .*{words}"):
        read(tmp_path, HEADER, file=file)


links = st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.floats(0, 1e6), max_size=16)


@settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_ms=links, all_ms=st.floats(0, 1e6), random=st.randoms(use_true_random=False))
def test_any_table_comes_back(
    tmp_path: Path, given_ms: dict[tuple[int, int], float], all_ms: float, random: Random
) -> None:
    names = ["oslo", "rome", "cairo", '"lima, peru"']
    lines = [f"{names[a]},{names[b]},{latency_ms!r}\n" for (a, b), latency_ms in given_ms.items()]
    random.shuffle(lines)
    table = read(tmp_path, "".join([HEADER, *lines]), latency_ms=all_ms)
    for a in range(4):
        for b in range(4):
            assert table.one_way_ms(a, b) == given_ms.get((a, b), given_ms.get((b, a), all_ms))
            assert table.round_trip_ms(a, b) == table.round_trip_ms(b, a)


# ---- The clock of the events engine


def gossiping(count: int, folder: Path = Path(), **tables: Any) -> Experiment:
    """Exact numbers: one weight per peer, a local step of one second, parameters in the summary."""
    task = {
        "model": "linear",
        "data": "inline",
        "shards": [[[[1.0 + i], 2.0 * i]] for i in range(count)],
        "init": [1.5],
        "batch_size": 0,
        "lr": 0.01,
        "dtype": "float64",
    }
    return from_dict({"task": task, "record": {"params": "final"}, **tables}, folder=folder)


@pytest.mark.parametrize("latency_ms", [0, 250, 1000, 6000])
@pytest.mark.parametrize("rounds", [1, 7])
def test_a_synchronous_round_takes_a_step_and_one_way(latency_ms: int, rounds: int) -> None:
    """Everybody starts at once, trains for a second, and hears after the latency: R rounds take R (1 + L)."""
    summary = simulate(gossiping(5, rounds=rounds, network={"latency_ms": latency_ms}), engine="events")
    assert summary.simulated_seconds == rounds * (1 + latency_ms / 1000)


def test_without_neighbours_there_is_nothing_to_wait_for() -> None:
    local = gossiping(3, rounds=4, algorithm={"name": "local"}, network={"latency_ms": 500})
    assert simulate(local, engine="events").simulated_seconds == 4.0


def test_two_exchanges_take_the_way_twice() -> None:
    tracking = gossiping(4, rounds=3, algorithm={"name": "gradient_tracking"}, network={"latency_ms": 500})
    assert simulate(tracking, engine="events").simulated_seconds == 3 * (1 + 2 * 0.5)


def test_from_is_who_speaks_and_to_is_who_hears(tmp_path: Path) -> None:
    """In a one-way ring nothing of a single round goes the other way."""
    (tmp_path / "ring.edges").write_text("0 1\n1 2\n2 0\n")
    (tmp_path / "links.csv").write_text(HEADER + "0,1,500\n1,0,9000\n1,2,750\n2,1,9000\n2,0,250\n0,2,9000\n")
    tables = {"topology": {"family": "file:ring.edges", "directed": True}, "network": {"file": "links.csv"}}
    assert simulate(gossiping(3, tmp_path, rounds=1, **tables), engine="events").simulated_seconds == 1.75


quarters_ms = st.integers(0, 12).map(lambda quarters: 250 * quarters)


@settings(deadline=None, max_examples=20, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one_way_ms=st.lists(quarters_ms, min_size=8, max_size=8), rounds=st.integers(1, 4))
def test_rounds_end_as_the_slowest_way_has_it_and_come_to_the_same(
    tmp_path: Path, one_way_ms: list[int], rounds: int
) -> None:
    """A peer's round ends when the last neighbour's message is there: t_i <- max over i and its j of t_j + 1 + L_ji."""
    ways = dict(zip([(i, j) for i in range(4) for j in ((i - 1) % 4, (i + 1) % 4)], one_way_ms, strict=True))
    lines = [f"{a},{b},{latency_ms}\n" for (a, b), latency_ms in ways.items()]
    (tmp_path / "links.csv").write_text("".join([HEADER, *lines]))
    ends_s = [0.0] * 4
    for _ in range(rounds):
        ends_s = [
            max([ends_s[i] + 1, *(ends_s[a] + 1 + latency_ms / 1000 for (a, b), latency_ms in ways.items() if b == i)])
            for i in range(4)
        ]
    summary = simulate(gossiping(4, tmp_path, rounds=rounds, network={"file": "links.csv"}), engine="events")
    assert summary.simulated_seconds == max(ends_s)
    at_once = simulate(gossiping(4, rounds=rounds), engine="events")
    assert results(summary) == results(at_once)


def results(summary: Document) -> list[Any]:
    """What a run comes to, whenever it was and whatever had been sent by then."""
    fields = summary.as_dict()
    when = ("simulated_seconds", "payload_bytes_sent")
    history = [{key: value for key, value in entry.items() if key not in when} for entry in fields["history"]]
    return [history, *(fields[k] for k in ("params", "payload_bytes_sent", "gradients", "short_rounds", "outcome"))]


# ---- Who is near

CITIES = ["oslo", "rome", "cairo", "lima"]
CITIES_CSV = "from,to,latency_ms\noslo,rome,10\nrome,oslo,20\nrome,cairo,15\ncairo,lima,100\nlima,oslo,80\n"


def cities(folder: Path, threshold: float, **topology: Any) -> Experiment:
    """Four cities in a ring; round trips: oslo - rome 30, rome - cairo 30, cairo - lima 200, lima - oslo 160."""
    (folder / "links.csv").write_text(CITIES_CSV)
    tables = {"topology": {"family": "ring", "metric": "rtt", "threshold": threshold, **topology}}
    peers = [{"name": name} for name in CITIES]
    return gossiping(4, folder, rounds=6, eval_every=3, network={"file": "links.csv"}, peers=peers, **tables)


NEAR = {
    160: {"oslo": ["rome", "lima"], "rome": ["oslo", "cairo"], "cairo": ["rome"], "lima": ["oslo"]},
    200: {"oslo": ["rome", "lima"], "rome": ["oslo", "cairo"], "cairo": ["rome", "lima"], "lima": ["oslo", "cairo"]},
}


@pytest.mark.parametrize("threshold", NEAR)
@pytest.mark.parametrize("rule", ["metropolis", "lazy"])
def test_explain_and_both_engines_agree_on_who_is_near(threshold: int, rule: str, tmp_path: Path) -> None:
    """A round trip at the threshold is within it, and both ways count. The run is that of the graph of the near."""
    experiment = cities(tmp_path, threshold, weights=rule)
    near = explain(experiment).document["neighbours"]
    assert near == NEAR[threshold]
    edges = {(CITIES.index(a), CITIES.index(b)) for a in CITIES for b in near[a]}
    (tmp_path / "near.edges").write_text("".join(f"{a} {b}\n" for a, b in edges if a < b))
    known = cities(tmp_path, 1, family="file:near.edges", metric="hops", weights=rule)
    assert explain(known).document["neighbours"] == near
    for engine in ("rounds", "events"):
        found, expected = (simulate(e, engine=engine) for e in (experiment, known))
        assert results(found) == results(expected)


def test_who_is_near_is_shown_with_the_round_trip(tmp_path: Path) -> None:
    lines = explanation_text(explain(cities(tmp_path, 160))).splitlines()
    assert [line.split(None, 1) for line in lines[-4:]] == [
        ["oslo", "rome (30), lima (160)"],
        ["rome", "oslo (30), cairo (30)"],
        ["cairo", "rome (30)"],
        ["lima", "oslo (160)"],
    ]


def test_only_the_own_neighbours_of_the_graph_may_be_near() -> None:
    """In a ring of five without any latency everybody is at 0 ms, and two of the four others are neighbours."""
    found = explain(gossiping(5, topology={"metric": "rtt", "threshold": 0.0})).document
    assert found["degree"] == {"min": 2, "max": 2, "mean": 2.0}


APART = """
[task]
model = "linear"
data = "inline"
shards = [[[[1.0], 1.0]], [[[1.0], 2.0]], [[[1.0], 3.0]], [[[1.0], 4.0]]]
init = [0.0]
batch_size = 0
[topology]
family = "ring"
metric = "rtt"
threshold = 35
[network]
file = "links.csv"
[[peers]]
name = "oslo"
[[peers]]
name = "rome"
[[peers]]
name = "cairo"
[[peers]]
name = "lima"
"""


@pytest.mark.parametrize("arguments", [["explain"], ["simulate"], ["simulate", "--engine", "events"]], ids=" ".join)
def test_peers_that_fall_apart_at_the_threshold(
    arguments: list[str], command: Command, write: Write, here: Path
) -> None:
    write(CITIES_CSV, "links.csv")
    exp = write(APART)
    refused = command(*arguments, exp, "--json")
    assert refused.code == 2
    assert "topology.threshold: at 35 the peers fall apart into 2 components" in refused.document["error"]
    assert "{oslo, rome, cairo}; {lima}" in refused.document["error"]
    assert not (here / "runs").exists()
    allowed = command(*arguments, exp, "--json", "--set", "topology.allow_disconnected=true")
    assert allowed.code == 0


def test_a_mistake_in_the_file_is_exit_2(command: Command, write: Write) -> None:
    write(CITIES_CSV + "lima,cairo,soon\n", "links.csv")
    exp = write(APART)
    for arguments in (["explain"], ["simulate"], ["simulate", "--engine", "events"]):
        refused = command(*arguments, exp, "--json", "--set", "topology.allow_disconnected=true")
        assert refused.code == 2
        assert 'line 7: latency_ms is "soon"' in refused.document["error"]


DIRECTED: Mapping[str, Any] = {"family": "exponential", "metric": "rtt", "threshold": 5.0}


def test_a_round_trip_goes_both_ways() -> None:
    with pytest.raises(ConfigError, match=r'topology\.metric: "rtt" is the same both ways, and the graph is directed'):
        explain(gossiping(4, topology=DIRECTED))
