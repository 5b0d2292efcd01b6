"""A run beside a coordinator that waited for nobody, done again from its notes: the same parameters, bit for bit."""

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
peers = {peers}
[transport]
heartbeat_s = 0.2
suspect_s = 1
dead_s = 2
[record]
params = "final"
[coordinator]
{coordinator}
{more}
"""
ASYNC = 'mode = "async"'
BUFFERED = 'mode = "buffered"\nbuffer = 2'
MODELS = 'aggregate = "models"'
EASGD = '[algorithm]\nname = "easgd"'
RUNS = {
    "clock": {},
    "a bound": {"coordinator": f"{ASYNC}\nmax_staleness = 1\nstaleness = 'inverse'"},
    "by turns": {"coordinator": f'{ASYNC}\narrival = "round_robin"\ndelay = 2'},
    "adam at the server": {"coordinator": f'{ASYNC}\nserver_optimizer = "adam"\nserver_lr = 0.01'},
    "a schedule": {"task": 'lr_schedule = "cosine"\nwarmup_rounds = 5'},
    "models, momentum, cnn": {
        "coordinator": f"{ASYNC}\n{MODELS}",
        "model": "cnn",
        "task": 'momentum = 0.9\nlocal_steps = 2\nlr_schedule = "cosine"',
    },
    "fp16": {"more": '[compression]\nname = "fp16"'},
    "inside a peer": {"coordinator": f'{ASYNC}\nname = "peer-1"'},
    "buffered": {"coordinator": f"{BUFFERED}\nstaleness = 'inverse_sqrt'"},
    "buffered models, momentum": {
        "coordinator": f'{BUFFERED}\n{MODELS}\nserver_optimizer = "momentum"',
        "task": "momentum = 0.9",
    },
    "easgd": {"more": EASGD},
    "easgd, cnn, momentum": {"more": EASGD, "model": "cnn", "task": "momentum = 0.9\nlocal_steps = 2"},
}
COMPARED = ("peer-0", "peer-1", "peer-2", "coordinator")


def write(
    folder: Path,
    rounds: int = 40,
    peers: int = 3,
    model: str = "softmax",
    task: str = "",
    coordinator: str = ASYNC,
    more: str = "",
) -> None:
    values = {"rounds": rounds, "peers": peers, "model": model, "task": task}
    (folder / "exp.toml").write_text(EXPERIMENT.format(**values, coordinator=coordinator, more=more))


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


def updates(folder: Path) -> list[Note]:
    lines = (folder / "run" / "events.jsonl").read_text().splitlines()
    return [note for line in lines if (note := json.loads(line))["event"] == "update"]


def rewrite(folder: Path, change: Callable[[Note], list[Note]]) -> None:
    """Put `change(note)` in the place of each update of `run`."""
    path = folder / "run" / "events.jsonl"
    notes = [json.loads(line) for line in path.read_text().splitlines()]
    changed = [new for note in notes for new in (change(note) if note["event"] == "update" else [note])]
    path.write_text("".join(json.dumps(note) + "\n" for note in changed))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment and its run."""
    folder = tmp_path_factory.mktemp("finished")
    write(folder, rounds=20)
    assert up(folder)["outcome"] == "finished"
    return folder


@pytest.fixture
def lab(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("which", RUNS)
def test_a_replay_ends_with_the_parameters_of_coordinator_and_workers(tmp_path: Path, which: str) -> None:
    write(tmp_path, **RUNS[which])  # type: ignore[arg-type]
    summary = up(tmp_path)
    assert summary["outcome"] == "finished"
    code, again, said = replayed(tmp_path)
    assert (code, again["outcome"]) == (0, "finished"), again.get("why")
    assert again["coordinator"] == summary["coordinator"]
    assert again["params"] == summary["params"]
    assert again["rounds"] == summary["rounds"] == 40
    assert "the parameters are those of run, bit for bit" in said


def test_pushes_were_stale_or_the_test_above_would_show_little(lab: Path) -> None:
    assert any(note["staleness"] for note in updates(lab))


@pytest.mark.parametrize("which", ["clock", "buffered"])
def test_each_evaluation_has_the_figures_of_the_daemons(tmp_path: Path, which: str) -> None:
    write(tmp_path, **RUNS[which])  # type: ignore[arg-type]
    summary = up(tmp_path, "--set", "record.params='every'")
    _, again, _ = replayed(tmp_path)
    for name in ("round", "accuracy", "loss", "coordinator"):
        assert [entry[name] for entry in again["history"]] == [entry[name] for entry in summary["history"]]


def test_models_are_written_where_a_folder_is(lab: Path) -> None:
    with forked("simulate", "exp.toml", "--replay", "run", "--json", "--out", "again", cwd=lab) as again:
        code, _ = again.end()
    assert code == 0
    for peer in ("peer-0", "peer-1", "peer-2"):
        ours, theirs = (lab / run / "peers" / peer / "model.safetensors" for run in ("again", "run"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_statistics_of_a_model_are_done_again_too(tmp_path: Path) -> None:
    (tmp_path / "normed.py").write_text(NORMED)
    write(tmp_path, model="normed:Normed")
    summary = up(tmp_path)
    code, again, said = replayed(tmp_path, "exp.toml")
    assert code == 0, again.get("why")
    assert again["coordinator"] == summary["coordinator"]
    assert "bit for bit" in said


NORMED = """
import torch
class Normed(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.BatchNorm1d(784), torch.nn.Linear(784, 10))
"""


@pytest.mark.parametrize("more", ['[algorithm]\nbuffers = "keep"', EASGD], ids=["kept", "easgd"])
def test_of_statistics_that_steps_without_effect_have_moved_nothing_is_said(tmp_path: Path, more: str) -> None:
    (tmp_path / "normed.py").write_text(NORMED)
    write(tmp_path, model="normed:Normed", more=more)
    assert up(tmp_path)["outcome"] == "finished"
    code, again, said = replayed(tmp_path, "exp.toml")
    assert code == 0, again.get("why")
    assert "bit for bit" in said


def test_a_run_that_diverged_is_done_again_as_far_as_the_coordinator_goes(tmp_path: Path) -> None:
    write(tmp_path, task="lr = 1e30")
    summary = up(tmp_path)
    assert summary["outcome"] == "diverged"
    code, again, said = replayed(tmp_path)
    assert code == 0, again
    assert again["coordinator"] == summary["coordinator"]
    assert "the parameters of coordinator are those of run, bit for bit" in said


def test_a_run_that_was_stopped_is_done_again_as_far_as_the_coordinator_goes(tmp_path: Path) -> None:
    write(tmp_path, rounds=0, coordinator=f'{ASYNC}\nserver_optimizer = "adam"\nserver_lr = 0.01')
    with forked("up", "exp.toml", "--json", "--out", "run", cwd=tmp_path) as daemons:
        daemons.read_until("round 20 ")
        daemons.signal(signal.SIGINT)
        code, summary = daemons.end()
    assert (code, summary["outcome"]) == (130, "interrupted")
    code, again, said = replayed(tmp_path)
    assert code == 0, again
    assert again["rounds"] == summary["rounds"]
    assert again["coordinator"] == summary["coordinator"]
    assert "the parameters of coordinator are those of run, bit for bit" in said


@pytest.mark.parametrize("more", ["", EASGD], ids=["clock", "easgd"])
def test_a_run_that_its_time_ended_is_done_again_as_far_as_the_coordinator_goes(tmp_path: Path, more: str) -> None:
    write(tmp_path, rounds=0, more=more)
    summary = up(tmp_path, "--set", "stop_after_s=0.5")
    assert summary["outcome"] == "finished"
    code, again, said = replayed(tmp_path)
    assert code == 0, again
    assert again["coordinator"] == summary["coordinator"]
    assert "the parameters of coordinator are those of run, bit for bit" in said


# ---- What comes to light


def test_a_push_of_another_peer_comes_to_light(lab: Path) -> None:
    def change(note: Note) -> list[Note]:
        first = updates(lab)[0]["peer"]
        other = next(name for name in COMPARED if name != first)
        return [note | {"peer": other}] if note["version"] == 1 else [note]

    rewrite(lab, change)
    code, document, _ = replayed(lab)
    assert (code, document["outcome"]) == (3, "failed")
    assert document["why"] == "peer-0, peer-1, peer-2, coordinator ended with other parameters than in run"


def test_another_staleness_comes_to_light(lab: Path) -> None:
    late = next(note for note in updates(lab) if note["staleness"])
    rewrite(lab, lambda note: [note | {"staleness": 0}] if note == late else [note])
    code, document, _ = replayed(lab)
    assert (code, document["outcome"]) == (3, "failed")


# ---- What cannot be done again


@pytest.mark.parametrize(
    ("coordinator", "words"),
    [
        ('mode = "sync"', "in step and needs no notes; simulate --engine events comes to the same parameters"),
        ('mode = "ring"', "in step and needs no notes; simulate --engine events comes to the same parameters"),
        ('mode = "quorum"\nquorum = 2', "a quorum leaves out what comes too late, and whose that was is not noted"),
        (f"{ASYNC}\nservers = 2", "which of the 2 servers made a version is not noted"),
    ],
)
def test_what_is_not_noted_is_refused_in_words(tmp_path: Path, coordinator: str, words: str) -> None:
    write(tmp_path, rounds=2, coordinator=coordinator)
    assert up(tmp_path)["outcome"] == "finished"
    with forked("simulate", "--replay", "run", "--json", "--out", "again", cwd=tmp_path) as again:
        code, document = again.end()
    assert code == 2
    assert words in document["error"]
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(("who", "did"), [(1, "was lost on the way"), (-1, "was started again")])
def test_a_run_with_a_loss_or_a_restart_is_refused(tmp_path: Path, who: int, did: str) -> None:
    write(tmp_path, rounds=0)
    with forked("up", "exp.toml", "--json", "--out", "run", cwd=tmp_path) as daemons:
        daemons.read_until("round 10 ")
        os.kill(sorted(daemons.children())[who], signal.SIGKILL)
        daemons.read_until("is lost" if who == 1 else "is started again")
        daemons.signal(signal.SIGINT)
        daemons.end()
    code, document, _ = replayed(tmp_path)
    assert code == 2
    assert did in document["error"] or "was lost on the way" in document["error"]
    assert "what came to nothing by that is not noted" in document["error"]


def only(version: int, change: Callable[[Note], list[Note]]) -> Callable[[Note], list[Note]]:
    return lambda note: change(note) if note["version"] == version else [note]


LACKING = "what was not finite was left out, or lines are missing"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (only(7, lambda note: []), f"version 7 has no update before one of version 8; {LACKING}"),
        (only(7, lambda note: [note, note]), "has 2 updates for version 7, which takes 1"),
        (only(7, lambda note: [note | {"version": 3}]), "version 3 is there again, after version 6"),
        (only(20, lambda note: []), "ends with version 19, and the run with version 20"),
        (only(7, lambda note: [note | {"peer": "nobody"}]), "nobody is not a peer of this experiment"),
        (only(7, lambda note: [note | {"peer": "coordinator"}]), "coordinator is not a peer of this experiment"),
        (only(7, lambda note: [note | {"staleness": 7}]), "version 7 cannot take in what is 7 versions behind"),
        (only(7, lambda note: [note | {"staleness": -1}]), "version 7 cannot take in what is -1 versions behind"),
        (only(7, lambda note: [note | {"staleness": "0"}]), "not a line of a run's events"),
        (lambda note: [], "has no updates"),
    ],
)
def test_notes_that_cannot_be_are_named_before_anything_is_written(
    lab: Path, change: Callable[[Note], list[Note]], words: str
) -> None:
    rewrite(lab, change)
    with forked("simulate", "--replay", "run", "--json", "--out", "again", cwd=lab) as again:
        code, document = again.end()
    assert code == 2
    assert words in document["error"]
    assert not (lab / "again").exists()


@pytest.mark.parametrize("line", ["nothing of the kind", "[]", '{"at": 3}'])
def test_a_line_that_is_no_event_is_named(lab: Path, line: str) -> None:
    path = lab / "run" / "events.jsonl"
    path.write_text(f"{line}\n{path.read_text()}")
    code, document, _ = replayed(lab)
    assert code == 2
    assert "line 1: not a line of a run's events" in document["error"]
