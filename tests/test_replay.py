"""A run of daemons that waited for nobody, done again from their notes: the same parameters, bit for bit."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forked import forked

Note = dict[str, Any]

EXPERIMENT = """
rounds = {rounds}
eval_every = 10
[task]
model = "{model}"
partition = "dirichlet"
{task}
[topology]
peers = 4
[algorithm]
{algorithm}
[transport]
heartbeat_s = 0.2
suspect_s = 1
dead_s = 2
[record]
params = "final"
"""

ASYNC = 'mode = "async"'
RUNS = {
    "async": {"algorithm": ASYNC},
    "async, cta, cnn with momentum": {"algorithm": f'{ASYNC}\norder = "cta"', "model": "cnn", "task": "momentum = 0.5"},
    "async with a bound": {"algorithm": f"{ASYNC}\nmax_staleness = 1"},
    "adpsgd": {"algorithm": 'name = "adpsgd"'},
    "adpsgd, cnn with momentum": {"algorithm": 'name = "adpsgd"', "model": "cnn", "task": "momentum = 0.5"},
}


def write(folder: Path, rounds: int = 20, model: str = "softmax", task: str = "", algorithm: str = ASYNC) -> None:
    text = EXPERIMENT.format(rounds=rounds, model=model, task=task, algorithm=algorithm)
    (folder / "exp.toml").write_text(text)


def up(folder: Path, *more: str) -> Note:
    """Run daemons into the folder `run`; return their summary."""
    with forked("up", "exp.toml", "--json", "--out", "run", *more, cwd=folder) as daemons:
        _, summary = daemons.end()
    return summary


def replayed(folder: Path, *more: str) -> tuple[int | None, Note, str]:
    """Return exit code and document of a replay of `run`, and what it said."""
    with forked("simulate", *more, "--replay", "run", "--json", "--no-folder", cwd=folder) as again:
        code, document = again.end()
    return code, document, "\n".join(again.said)


def rewrite(folder: Path, change: Callable[[Note], Note | None]) -> None:
    """Put `change(note)` in the place of each event of `run`; None leaves it out."""
    path = folder / "run" / "events.jsonl"
    changed = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(note) + "\n" for note in changed if note is not None))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment and its run."""
    folder = tmp_path_factory.mktemp("finished")
    write(folder)
    assert up(folder)["outcome"] == "finished"
    return folder


@pytest.fixture
def lab(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("which", RUNS)
def test_a_replay_ends_with_the_daemons_parameters(tmp_path: Path, which: str) -> None:
    write(tmp_path, **RUNS[which])  # type: ignore[arg-type]
    summary = up(tmp_path)
    assert summary["outcome"] == "finished"
    code, again, said = replayed(tmp_path)
    assert (code, again["outcome"]) == (0, "finished")
    assert again["params"] == summary["params"]
    assert again["gradients"] == summary["gradients"]
    assert "bit for bit" in said


def test_the_experiment_may_be_named_beside_the_run(lab: Path) -> None:
    code, again, _ = replayed(lab, "exp.toml")
    assert code == 0
    assert again["params"] == json.loads((lab / "run" / "summary.json").read_text())["params"]


@pytest.mark.parametrize("algorithm", [ASYNC, 'name = "adpsgd"'])
def test_what_the_others_ended_with_comes_out_when_one_was_killed(tmp_path: Path, algorithm: str) -> None:
    write(tmp_path, rounds=0, algorithm=algorithm)
    with forked("up", "exp.toml", "--json", "--out", "run", cwd=tmp_path) as daemons:
        daemons.read_until("round 10 ")
        os.kill(daemons.children()[1], signal.SIGKILL)
        daemons.read_until("is lost")
        daemons.signal(signal.SIGINT)
        code, summary = daemons.end()
    assert (code, summary["outcome"]) == (130, "interrupted")
    [lost] = [i for i, params in enumerate(summary["params"]) if params is None]
    assert summary["lost"] == [f"peer-{lost}"]
    code, again, _ = replayed(tmp_path)
    assert code == 0
    assert [x for i, x in enumerate(again["params"]) if i != lost] == [x for x in summary["params"] if x is not None]


@pytest.mark.parametrize("algorithm", [ASYNC, 'name = "adpsgd"'])
def test_a_peer_that_was_stopped_and_took_a_model_is_done_again_too(tmp_path: Path, algorithm: str) -> None:
    """What it was about to learn is void, but its momentum has it."""
    write(tmp_path, rounds=0, algorithm=algorithm, task="momentum = 0.9")
    with forked("up", "exp.toml", "--json", "--out", "run", cwd=tmp_path) as daemons:
        daemons.read_until("round 10 ")
        stopped = daemons.children()[1]
        os.kill(stopped, signal.SIGSTOP)
        for words in ["peer-1 is lost", "peer-1 is lost", *["round "] * 40]:  # by both neighbours, who go on
            daemons.read_until(words)
        os.kill(stopped, signal.SIGCONT)
        for words in ["peer-1 is there again", *["round "] * 60]:
            daemons.read_until(words)
        daemons.signal(signal.SIGINT)
        _, summary = daemons.end()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert summary["lost"] == [], daemons.said
    assert any(event.get("did") == "adopt" and event["of"] for event in events), daemons.said
    assert None not in summary["params"]
    code, again, said = replayed(tmp_path)
    assert code == 0, said
    assert again["params"] == summary["params"]


def test_a_run_that_diverged_is_done_again(tmp_path: Path) -> None:
    write(tmp_path, task="lr = 1e30")
    summary = up(tmp_path)
    assert summary["outcome"] == "diverged"
    code, again, _ = replayed(tmp_path)
    assert code == 0
    assert again["params"] == summary["params"]


def test_a_run_that_its_time_ended_is_done_again(tmp_path: Path) -> None:
    write(tmp_path, rounds=0)
    summary = up(tmp_path, "--set", "stop_after_s=0.5")
    assert summary["outcome"] == "finished"
    code, again, _ = replayed(tmp_path)
    assert code == 0
    assert again["params"] == summary["params"]
    assert again["gradients"] == summary["gradients"] > 0


# ---- What cannot be done again


def test_a_run_without_notes_is_refused(tmp_path: Path) -> None:
    write(tmp_path, algorithm="", rounds=2)
    up(tmp_path)
    code, document, _ = replayed(tmp_path)
    assert code == 2
    assert "has no mixes" in document["error"]
    assert "--engine events" in document["error"]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    code, document, _ = replayed(tmp_path, "exp.toml")
    assert code == 2
    assert document["error"] == "run/experiment.toml: no such file"
    code, document, _ = replayed(tmp_path)
    assert code == 2
    assert "run/experiment.toml" in document["error"]


def test_the_run_of_another_experiment_is_refused(lab: Path) -> None:
    code, document, _ = replayed(lab, "exp.toml", "--set", "topology.peers=3")
    assert code == 2
    assert "run is the run of another experiment: topology.peers: 3 here, 4 there" in document["error"]


def test_what_was_mixed_and_never_said_is_named_before_anything_is_written(lab: Path) -> None:
    rewrite(lab, lambda note: None if note.get("did") == "say" and note["peer"] == "peer-1" else note)
    with forked("simulate", "--replay", "run", "--json", "--out", "again", cwd=lab) as again:
        code, document = again.end()
    assert code == 2
    assert "mixed data" in document["error"]
    assert "of peer-1, who has no note of saying it" in document["error"]
    assert not (lab / "again").exists()


def test_notes_that_lack_the_training_are_refused(lab: Path) -> None:
    rewrite(lab, lambda note: None if note.get("did") == "train" and note["peer"] == "peer-2" else note)
    code, document, _ = replayed(lab)
    assert code == 2
    assert "peer-2 said data" in document["error"]


def test_a_line_that_is_no_event_is_named(lab: Path) -> None:
    path = lab / "run" / "events.jsonl"
    path.write_text("nothing of the kind\n" + path.read_text())
    code, document, _ = replayed(lab)
    assert code == 2
    assert "line 1" in document["error"]


def test_a_weight_that_was_tampered_with_comes_to_light(lab: Path) -> None:
    changed: list[Note] = []

    def change(note: Note) -> Note:
        if note.get("did") == "mix" and note["peer"] == "peer-2" and len(note["terms"]) > 1 and not changed:
            changed.append(note)
            note["terms"][0][0] *= 0.5
        return note

    rewrite(lab, change)
    code, document, _ = replayed(lab)
    assert changed
    assert (code, document["outcome"]) == (3, "failed")
    assert "peer-2" in document["why"]
    assert "other parameters than in run" in document["why"]


# ---- A model of one's own

OWN = """
import torch
class Mine(torch.nn.Linear):
    def __init__(self):
        super().__init__(784, 10)
    def forward(self, x):
        return super().forward(x.flatten(1))
"""


def test_a_model_beside_the_experiment_needs_the_experiment(tmp_path: Path) -> None:
    """The copy in the run folder names a module that does not lie beside it."""
    write(tmp_path, model="mine_beside:Mine")
    (tmp_path / "mine_beside.py").write_text(OWN)
    summary = up(tmp_path)
    code, again, _ = replayed(tmp_path, "exp.toml")
    assert code == 0
    assert again["params"] == summary["params"]
    code, document, _ = replayed(tmp_path)
    assert code == 2
    assert "mine_beside" in document["error"]
    assert "EXP" in document["error"]
