"""The performance model of `explain --predict`: by hand, beside the events engine, and as the command shows it.

A model of 2500 weights has 10,000 bytes, which take a second on a line of 0.08 Mb/s.
"""

import json
import re
import shlex
from collections.abc import Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any

import pytest

from peer import prediction
from peer.assembly import assemble, prepare_task
from peer.daemon.measure import measure_loopback
from peer.errors import ConfigError
from peer.experiment import Experiment, from_dict, load
from peer.prediction import Wires, measured_wires, peers_looked_at, predict, rows_of_a_round, wires_of
from peer.scripting import simulate
from peer.tables import prediction_text
from tests.commands import Command, Write
from tests.test_pace import experiment

WEIGHTS, SECOND_MBPS = 2500, 0.08
LINE = Wires(line_mbps=SECOND_MBPS)


def predicted(e: Experiment, wires: Wires = LINE, step_seconds: float = 32.0) -> dict[str, Any]:
    assembly = assemble(e)
    return predict(assembly, prepare_task(assembly), wires, step_seconds)


def of(document: dict[str, Any], design: str, peers: int) -> dict[str, Any]:
    (row,) = [row for row in document["rows"] if (row["design"], row["peers"]) == (design, peers)]
    return dict(row)


def comm(document: dict[str, Any], design: str) -> Sequence[float]:
    return [row["comm_seconds"] for row in document["rows"] if row["design"] == design]


def alike(figures: Any) -> Any:
    return pytest.approx(figures, rel=1e-9)


# ---- By hand


def test_it_looks_at_powers_of_two_and_at_all_peers() -> None:
    assert peers_looked_at(1) == [1]
    assert peers_looked_at(8) == [1, 2, 4, 8]
    assert peers_looked_at(11) == [1, 2, 4, 8, 11]


def test_each_design_takes_what_its_formula_says() -> None:
    found = predicted(experiment(8, weights=WEIGHTS))
    assert found["payload_bytes"] == 10_000
    assert comm(found, "hub") == alike([2, 4, 8, 16])
    assert comm(found, "sharded hub") == alike([2, 2, 2, 2])
    assert comm(found, "ring") == alike([0, 1, 1.5, 1.75])
    assert comm(found, "gossip") == alike([0, 1, 2, 2])


def test_latency_counts_once_for_each_message_that_waits_for_another() -> None:
    found = predicted(experiment(8, weights=WEIGHTS), Wires(latency_ms=500))
    assert comm(found, "hub") == comm(found, "sharded hub") == alike([1, 1, 1, 1])
    assert comm(found, "ring") == alike([0, 1, 3, 7])
    assert comm(found, "gossip") == alike([0, 0.5, 0.5, 0.5])


def test_a_link_that_is_slower_than_a_line_counts_for_each_message() -> None:
    found = predicted(experiment(4, weights=WEIGHTS), Wires(line_mbps=SECOND_MBPS, link_mbps=SECOND_MBPS / 3))
    assert comm(found, "hub") == alike([6, 6, 8])
    assert comm(found, "sharded hub") == alike([6, 3, 2])
    assert comm(found, "ring") == alike([0, 3, 4.5])
    assert comm(found, "gossip") == alike([0, 3, 3])


def test_speed_up_and_efficiency_are_of_the_same_work_by_more_peers() -> None:
    found = predicted(experiment(8, weights=WEIGHTS), step_seconds=32.0)
    four = of(found, "hub", 4)
    assert four["speed_up"] == alike(32 / (32 / 4 + 8))
    assert four["efficiency"] == alike(32 / (32 / 4 + 8) / 4)
    assert four["samples_per_second"] == alike(1 / 16), "a row each round"
    assert of(found, "ring", 1)["speed_up"] == alike(1.0)
    assert of(found, "hub", 1)["speed_up"] == alike(32 / 34), "the hub is a machine of its own"


def test_with_as_many_rows_again_at_each_peer_throughput_grows() -> None:
    eight = of(predicted(experiment(8, weights=WEIGHTS), step_seconds=32.0), "gossip", 8)
    assert eight["weak_efficiency"] == alike(32 / 34)
    assert eight["weak_samples_per_second"] == alike(8 / 34)


@pytest.mark.parametrize(("step_seconds", "limit"), [(32.0, 4), (31.9, 3), (2.0, 1), (1.9, 0)])
def test_beyond_a_limit_one_more_peer_makes_the_round_of_a_hub_longer(step_seconds: float, limit: int) -> None:
    found = predicted(experiment(8, weights=WEIGHTS), step_seconds=step_seconds)
    assert found["hub_limit_peers"] == limit


def test_the_limit_of_a_hub_is_where_its_round_is_shortest() -> None:
    found = predicted(experiment(64, weights=WEIGHTS), step_seconds=2 * 16**2)
    assert found["hub_limit_peers"] == 16
    speed_ups = {row["peers"]: row["speed_up"] for row in found["rows"] if row["design"] == "hub"}
    assert max(speed_ups, key=speed_ups.__getitem__) == 16


def test_without_a_limit_of_its_line_a_hub_has_none() -> None:
    found = predicted(experiment(8, weights=WEIGHTS), Wires(latency_ms=1))
    assert found["hub_limit_peers"] is None
    assert found["bandwidth_mbps"] is found["link_mbps"] is None


def test_gossip_is_over_the_graph_of_the_file() -> None:
    for family, comm_s in (("complete", [0, 1, 3, 7]), ("star", [0, 1, 3, 7]), ("random_matching", [0, 1, 1, 1])):
        found = predicted(experiment(8, weights=WEIGHTS, topology={"family": family}))
        assert comm(found, "gossip") == alike(comm_s)
    exact = predicted(experiment(8, weights=WEIGHTS, algorithm={"name": "exact"}))
    assert comm(exact, "gossip") == alike([0, 1, 3, 7])
    alone = predicted(experiment(8, weights=WEIGHTS, algorithm={"name": "local"}))
    assert comm(alone, "gossip") == [0, 0, 0, 0]


def test_an_algorithm_that_says_more_takes_longer_to_say_it() -> None:
    found = predicted(experiment(8, weights=WEIGHTS, algorithm={"name": "gradient_tracking"}))
    assert comm(found, "gossip") == alike([0, 2, 4, 4])
    assert comm(found, "ring") == alike([0, 1, 1.5, 1.75])


def test_the_own_design_is_named() -> None:
    designs: dict[str, dict[str, Any]] = {
        "gossip": {},
        "hub": {"mode": "async"},
        "sharded hub": {"mode": "sync", "servers": 2},
        "ring": {"mode": "ring"},
    }
    for design, coordinator in designs.items():
        assert predicted(experiment(4, weights=WEIGHTS, coordinator=coordinator))["design"] == design


def test_stated_servers_are_as_many_lines() -> None:
    found = predicted(experiment(8, weights=WEIGHTS, coordinator={"mode": "sync", "servers": 2}))
    assert comm(found, "sharded hub") == alike([2, 2, 4, 8])


def test_half_precision_halves_what_goes_to_a_hub() -> None:
    tables: dict[str, Any] = {"coordinator": {"mode": "sync"}, "compression": {"name": "fp16"}}
    found = predicted(experiment(4, weights=WEIGHTS, **tables))
    assert comm(found, "hub") == alike([1, 2, 4])
    assert comm(found, "ring") == alike([0, 1, 1.5])


# ---- Where the figures come from


def test_wires_are_those_of_the_file_and_say_so() -> None:
    assert wires_of(from_dict({})) is None
    assert wires_of(from_dict({"network": {"latency_ms": 5}})) is None, "a latency alone says nothing of a bandwidth"
    line = wires_of(from_dict({"network": {"node_mbps": 80, "latency_ms": 5}}))
    assert line is not None
    assert (line.line_mbps, line.link_mbps, line.latency_ms) == (80, inf, 5)
    assert line.source == {"bandwidth_mbps": "network.node_mbps", "latency_ms": "network.latency_ms"}
    link = wires_of(from_dict({"network": {"bandwidth_mbps": 20}}))
    assert link is not None
    assert (link.line_mbps, link.link_mbps) == (20, 20)
    assert link.source["bandwidth_mbps"] == "network.bandwidth_mbps"
    both = wires_of(from_dict({"network": {"bandwidth_mbps": 20, "node_mbps": 80}}))
    assert both is not None
    assert (both.line_mbps, both.link_mbps) == (80, 20)


def test_the_local_step_is_measured_by_the_median_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first, which gets everything ready, does not count; then 0.3 s, 0.2 s, 0.4 s, and it has been long enough."""
    ticks_s = iter([0.0, 90.0, 90.0, 90.3, 91.0, 91.2, 92.0, 92.4])
    monkeypatch.setattr(prediction, "perf_counter", lambda: next(ticks_s))
    assembly = assemble(experiment(2, weights=3))
    found = predict(assembly, prepare_task(assembly), LINE)
    assert found["step_seconds"] == pytest.approx(0.3, rel=1e-9)
    assert found["source"]["step_seconds"] == "measured"
    assert next(ticks_s, None) is None


@pytest.mark.parametrize(
    ("task", "rows"),
    [({"batch_size": 20}, 20), ({"batch_size": 20, "local_steps": 3}, 60), ({"batch_size": 0}, 500)],
)
def test_the_rows_of_a_round_are_those_of_its_local_steps(task: dict[str, Any], rows: int) -> None:
    e = from_dict({"task": {"model": "softmax", **task}, "topology": {"peers": 8}})
    assert rows_of_a_round(prepare_task(assemble(e))) == rows


def test_where_nothing_is_trained_there_is_nothing_to_speed_up() -> None:
    assembly = assemble(from_dict({"task": {"data": "none", "init": [[1.0], [2.0]]}}))
    with pytest.raises(ConfigError, match="nothing is trained"):
        predict(assembly, prepare_task(assembly), LINE)


def test_the_loopback_is_measured_with_the_links_of_daemons() -> None:
    found = measure_loopback()
    assert 0 < found.bandwidth_mbps < inf
    assert 0 < found.latency_ms < inf
    wires = measured_wires(found.bandwidth_mbps, found.latency_ms)
    assert wires.line_mbps == wires.link_mbps == found.bandwidth_mbps
    assert all(isfinite(wires.carry_s(n_bytes)) for n_bytes in (1, 10**9))


# ---- Beside the events engine


PAYLOAD = 16_000
LINE_MBPS = PAYLOAD * 4 * 8 / 1e6
"""On which the parameters take a second, and a header next to nothing."""


def beside(folder: Path, design: str, peers: int, factor: float = 1.0, **tables: Any) -> tuple[dict[str, Any], float]:
    """Return what is predicted, and the seconds of a round in the events engine, where a step takes two seconds."""
    tables |= {"speed": {"step_s": 2.0 * factor}, "network": {"node_mbps": LINE_MBPS, "latency_ms": 125}}
    runs = [experiment(peers, folder, weights=PAYLOAD, rounds=rounds, **tables) for rounds in (2, 6)]
    wires = wires_of(runs[0])
    assert wires is not None
    first_s, last_s = (simulate(e, engine="events").simulated_seconds for e in runs)
    return of(predicted(runs[0], wires, 2.0), design, peers), (last_s - first_s) / 4


@pytest.mark.parametrize("family", ["ring", "complete", "exponential", "random_matching"])
def test_gossip_takes_what_is_predicted(family: str, tmp_path: Path) -> None:
    row, seconds = beside(tmp_path, "gossip", 6, topology={"family": family})
    assert seconds == pytest.approx(2.0 + row["comm_seconds"], rel=5e-3)
    assert row["weak_samples_per_second"] == pytest.approx(6 / seconds, rel=5e-3)


def test_a_smaller_share_of_the_rows_speeds_gossip_up_as_predicted(tmp_path: Path) -> None:
    row, seconds = beside(tmp_path, "gossip", 4, factor=1 / 4)
    assert row["speed_up"] == pytest.approx(2.0 / seconds, rel=5e-3)


def test_a_ring_all_reduce_takes_what_is_predicted(tmp_path: Path) -> None:
    row, seconds = beside(tmp_path, "ring", 4, coordinator={"mode": "ring"})
    assert seconds == pytest.approx(2.0 + row["comm_seconds"], rel=5e-3)


def test_as_many_servers_as_workers_take_what_is_predicted(tmp_path: Path) -> None:
    row, seconds = beside(tmp_path, "sharded hub", 4, coordinator={"mode": "sync", "servers": 4})
    assert seconds == pytest.approx(2.0 + row["comm_seconds"], rel=5e-3)


@pytest.mark.parametrize("peers", [1, 2, 5])
def test_a_hub_takes_no_longer_than_is_predicted(peers: int, tmp_path: Path) -> None:
    """Messages go whole, one after another, so the first worker trains while the others are still being given theirs:
    with all pushes on the way at once it would be 2 k M / B, and here it is (k + 1) M / B."""
    row, seconds = beside(tmp_path, "hub", peers, coordinator={"mode": "sync"})
    assert seconds == pytest.approx(2.0 + (peers + 1) * 1.0 + 0.25, rel=5e-3)
    assert seconds <= (2.0 + row["comm_seconds"]) * 1.005
    assert row["comm_seconds"] == pytest.approx(2 * peers + 0.25, rel=1e-9)


# ---- The page


PAGE = (Path(__file__).parents[1] / "docs" / "prediction.md").read_text(encoding="utf-8")


def page_block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    return str(found)


def test_the_commands_of_the_page_work(command: Command, write: Write) -> None:
    write(page_block("toml"), "prediction.toml")
    for line in page_block("sh").splitlines():
        assert command(*shlex.split(line)[1:]).code == 0


def test_what_the_page_prints_is_what_the_model_says_of_its_step(write: Write) -> None:
    """But for the measured step, which is taken from the page to the three digits that stand there."""
    e = load(write(page_block("toml"), "prediction.toml"))
    wires = wires_of(e)
    assert wires is not None
    (shown,) = re.findall(r"^```\n(what more .*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    found = prediction_text(predicted(e, wires, 0.01454)).replace("given", "measured")
    words, expected = found.split(), shown.split()
    assert len(words) == len(expected)
    assert all(same(a, b) for a, b in zip(words, expected, strict=True))


def same(word: str, other: str) -> bool:
    """Say whether two words are the same, or numbers that differ by no more than rounding does."""
    if word == other:
        return True
    a, b = (float(text.strip("%").replace(",", "")) for text in (word, other))
    return a == pytest.approx(b, rel=2e-2, abs=1.0 if "%" in word else 0.0)


def test_the_table_of_the_page_is_what_comes_out(write: Write) -> None:
    file = write(page_block("toml"), "prediction.toml")
    rows = re.findall(r"^\| (as it is|`--set .*?`) \| ([\d.]+) ms \| ([\d.]+) ms \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 4
    for sets, textbook_ms, events_ms in rows:
        settings = [word for word in shlex.split(sets.strip("`")) if "=" in word] if "--set" in sets else []
        runs = [load(file, [*settings, f"rounds={rounds}", "eval_every=100", "task.batch_size=8"]) for rounds in (3, 6)]
        wires = wires_of(runs[0])
        assert wires is not None
        found = predicted(runs[0], wires, 0.015)
        row = of(found, found["design"], 8)
        first_s, last_s = (simulate(e, engine="events").simulated_seconds for e in runs)
        assert 15 + row["comm_seconds"] * 1000 == pytest.approx(float(textbook_ms), abs=0.06)
        assert (last_s - first_s) / 3 * 1000 == pytest.approx(float(events_ms), abs=0.06)


# ---- The command


WORLD = """
[task]
model = "softmax"
[topology]
peers = 3
[network]
node_mbps = 100
latency_ms = 2
"""


def test_the_command_puts_it_into_its_document(command: Command, write: Write) -> None:
    write(WORLD)
    found = command("explain", "exp.toml", "--predict", "--json").document
    model = found["prediction"]
    assert found["peers"] == 3
    assert (model["bandwidth_mbps"], model["latency_ms"]) == (100, 2)
    assert model["step_seconds"] > 0
    assert [row["peers"] for row in model["rows"] if row["design"] == "ring"] == [1, 2, 3]
    assert of(model, "hub", 3)["comm_seconds"] == alike(6 * model["payload_bytes"] * 8 / 1e8 + 0.004)
    assert "prediction" not in command("explain", "exp.toml", "--json").document


def test_the_command_measures_links_of_which_the_file_says_nothing(command: Command, write: Write) -> None:
    write(WORLD)
    for way in (["--loopback"], ["--set", "network.node_mbps=0"]):
        model = command("explain", "exp.toml", "--predict", "--json", *way).document["prediction"]
        assert model["source"]["bandwidth_mbps"] == "measured over the loopback of this machine"
        assert model["bandwidth_mbps"] not in (0, 100)


def test_a_person_reads_a_table(command: Command, write: Write) -> None:
    write(WORLD)
    text = command("explain", "exp.toml", "--predict").out
    assert re.search(r"local steps +[\d.]+ (us|ms|s) for 32 rows of a round, measured\n", text)
    assert "100 Mb/s each way, by network.node_mbps" in text
    assert re.search(r"^ +3  hub ", text, re.M)
    assert re.search(r"gossip \* ", text)
    assert "sharded hub" not in command("explain", "exp.toml").out


def test_what_cannot_be_predicted_is_refused(command: Command, write: Write) -> None:
    write('[task]\ndata = "none"\ninit = [[1.0], [2.0]]\n')
    nothing = command("explain", "exp.toml", "--predict")
    assert (nothing.code, nothing.out) == (2, "")
    assert "nothing is trained" in nothing.err
    alone = command("explain", "exp.toml", "--loopback", "--json")
    assert alone.code == 2
    assert "add --predict" in json.loads(alone.out)["error"]
