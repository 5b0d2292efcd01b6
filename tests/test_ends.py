"""Runs of daemons that end before their rounds are done: by a figure, by time, or by what all have done together."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from peer.experiment import Experiment, from_dict
from peer.scripting import simulate
from tests.daemon_pool import DaemonPool
from tests.forked import forked
from tests.processes import free_ports

SOFTMAX = """
rounds = {rounds}
eval_every = 5
[task]
model = "softmax"
partition = "dirichlet"
[topology]
family = "ring"
[record]
params = "final"
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[DaemonPool]:
    pool = DaemonPool()
    yield pool
    pool.close()


def experiment(**keys: Any) -> Experiment:
    task = {"model": "softmax", "partition": "dirichlet", "alpha": 0.5, "lr": 0.1}
    tables: dict[str, Any] = {"rounds": 0, "eval_every": 3, "task": task, "record": {"params": "final"}}
    return from_dict({**tables, "topology": {"family": "ring", "peers": 5}, **keys})


def write(folder: Path, rounds: int, peers: int = 3, more: str = "") -> None:
    text = SOFTMAX.format(rounds=rounds) + more
    for i, port in enumerate(free_ports(peers)):
        text += f'[[peers]]\nname = "lab-{i + 1}"\naddress = "127.0.0.1:{port}"\n'
    (folder / "exp.toml").write_text(text)


def rounds_of(summary: Any) -> list[int]:
    return [entry["round"] for entry in summary["history"]]


@pytest.mark.parametrize("topology", [{"family": "ring", "peers": 5}, {"family": "one_peer_exponential", "peers": 6}])
@pytest.mark.parametrize("stop_when", ["accuracy.mean >= 0.6", "consensus_distance > 0.005", "loss.max <= 1.8"])
def test_a_figure_ends_daemons_where_it_ends_the_simulator(
    pool: DaemonPool, topology: dict[str, Any], stop_when: str
) -> None:
    e = experiment(stop_when=stop_when, topology=topology, rounds=200)
    real, events, rounds = pool.up(e), simulate(e, engine="events"), simulate(e, engine="rounds")
    assert real.outcome == events.outcome == rounds.outcome == "finished"
    assert real.rounds == events.rounds == rounds.rounds < 200
    assert real.rounds % 3 == 0
    assert real.params == events.params
    assert [h.round for h in real.history] == [h.round for h in events.history]
    assert real.gradients == events.gradients
    assert real.lost == []


def test_a_figure_that_is_met_before_anything_trains(pool: DaemonPool) -> None:
    e = experiment(stop_when="accuracy.mean >= 0", rounds=50)
    real, events = pool.up(e), simulate(e, engine="events")
    assert real.rounds == events.rounds == 0
    assert real.params == events.params
    assert [h.round for h in real.history] == [0]


@pytest.mark.parametrize("command", [["simulate"], ["simulate", "--engine", "events"], ["up"], ["start"]])
@pytest.mark.parametrize("stop_when", ["accuracy.men >= 0.9", "accuracy.mean", "loss.mean < low"])
def test_an_end_that_cannot_be_understood_is_refused(tmp_path: Path, command: list[str], stop_when: str) -> None:
    write(tmp_path, rounds=5)
    name = ["--name", "lab-1"] if command == ["start"] else []
    with forked(*command, "exp.toml", *name, "--json", "--set", f'stop_when="{stop_when}"', cwd=tmp_path) as run:
        code, document = run.end()
    assert code == 2
    assert "stop_when" in document["error"]
    assert not (tmp_path / "runs").exists(), "before anything starts"


def test_time_ends_daemons_where_they_stand(tmp_path: Path) -> None:
    write(tmp_path, rounds=0)
    with forked("up", "exp.toml", "--json", "--no-folder", "--set", "stop_after_s=0.7", cwd=tmp_path) as run:
        code, summary = run.end()
    assert (code, summary["outcome"]) == (0, "finished")
    assert summary["lost"] == []
    assert summary["rounds"] > 0
    assert rounds_of(summary)[-1] == summary["rounds"]
    assert rounds_of(summary)[:-1] == list(range(0, summary["rounds"], 5))


@pytest.mark.parametrize("end", ["stop_after_s=0.7", 'stop_when="accuracy.mean >= 0.5"'])
def test_a_single_daemon_ends_by_its_own_time_and_figures(tmp_path: Path, end: str) -> None:
    write(tmp_path, rounds=0, peers=2)
    with ExitStack() as stack:
        names = ("lab-1", "lab-2")
        daemons = [
            stack.enter_context(
                forked("start", "exp.toml", "--name", name, "--json", "--no-folder", "--set", end, cwd=tmp_path)
            )
            for name in names
        ]
        ends = [daemon.end() for daemon in daemons]
    for code, summary in ends:
        assert (code, summary["outcome"]) == (0, "finished")
        assert rounds_of(summary)[-1] == summary["rounds"]
    if "stop_when" in end:
        assert max(summary["accuracy"]["mean"] for _, summary in ends) >= 0.5


@pytest.mark.parametrize("algorithm", ['mode = "async"', 'name = "adpsgd"'])
def test_peers_that_wait_for_nobody_end_when_all_have_done_enough_together(tmp_path: Path, algorithm: str) -> None:
    write(tmp_path, rounds=20, peers=4, more=f"[algorithm]\n{algorithm}\n")
    with forked("up", "exp.toml", "--json", "--no-folder", cwd=tmp_path) as run:
        code, summary = run.end()
    assert (code, summary["outcome"], summary["lost"]) == (0, "finished", [])
    assert summary["gradients"] >= 4 * 20
    assert 20 <= summary["rounds"] <= summary["gradients"] // 4, "the last may have been done after the end"
    marks = rounds_of(summary)
    assert marks[:-1] == [0, 5, 10, 15]
    assert marks[-1] == summary["rounds"]


def test_a_figure_ends_peers_that_wait_for_nobody(tmp_path: Path) -> None:
    write(tmp_path, rounds=5000, peers=4, more='[algorithm]\nmode = "async"\n')
    stop = 'stop_when="accuracy.mean >= 0.5"'
    with forked("up", "exp.toml", "--json", "--no-folder", "--set", stop, cwd=tmp_path) as run:
        code, summary = run.end()
    assert (code, summary["outcome"]) == (0, "finished")
    assert summary["rounds"] < 5000
    assert max(entry["accuracy"]["mean"] for entry in summary["history"]) >= 0.5


def test_whose_time_is_over_before_anybody_was_heard_was_alone(tmp_path: Path) -> None:
    (port, other) = free_ports(2)
    (tmp_path / "pair.toml").write_text(
        'rounds = 0\nstop_after_s = 0.5\n[task]\nmodel = "softmax"\n'
        f'[[peers]]\nname = "here"\naddress = "127.0.0.1:{port}"\n'
        f'[[peers]]\nname = "nowhere"\naddress = "127.0.0.1:{other}"\n'
    )
    with forked("start", "pair.toml", "--name", "here", "--json", "--no-folder", cwd=tmp_path) as run:
        code, document = run.end()
    assert (code, document["outcome"]) == (3, "alone")
    assert document["why"].startswith("here never heard nowhere in the 0.5 s")
