"""What `--require` takes, when it is met, and what a command then exits with."""

import json
from typing import Any

import pytest

from peer.errors import ConfigError
from peer.record import SUMMARY_NUMBERS
from peer.require import Requirement, parse
from tests.commands import Command, Write

SUMMARY: dict[str, Any] = {
    "rounds": 20,
    "accuracy": {"mean": 0.5, "min": None, "max": 0.75},
    "loss": {"mean": 0.0, "min": 0.0, "max": 0.0},
    "simulated_seconds": None,
    "lost": [],
}

PAIR = """
rounds = 3
[task]
data = "none"
init = [[0.0], [2.0]]
lr = 0.0
[topology]
family = "path"
"""


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        ("accuracy.mean >= 0.93", Requirement("accuracy.mean", ">=", 0.93)),
        ("accuracy.mean>=0.93", Requirement("accuracy.mean", ">=", 0.93)),
        ("  loss.max  <  1e-3 ", Requirement("loss.max", "<", 1e-3)),
        ("consensus_distance <= -1.5E+2", Requirement("consensus_distance", "<=", -150.0)),
        ("rounds == 1_000", Requirement("rounds", "==", 1000.0)),
        ("short_rounds != 0", Requirement("short_rounds", "!=", 0.0)),
        ("staleness.max > .5", Requirement("staleness.max", ">", 0.5)),
    ],
)
def test_parse(text: str, requirement: Requirement) -> None:
    assert parse(text) == requirement
    assert parse(str(requirement)) == requirement


@pytest.mark.parametrize(
    "text",
    [
        *("", "accuracy.mean", "accuracy.mean 0.9", "accuracy.mean => 0.9", "0.9 <= accuracy.mean", "loss.mean < x"),
        *("loss.mean < 0.1 and rounds > 3", "loss.mean < 1e", "loss.mean < nan", "loss.mean <", "a\nb"),
    ],
)
def test_another_form_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--require: ") as caught:
        parse(text)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("accuracy.men", "did you mean accuracy.mean?"),
        ("acuracy", "did you mean accuracy"),
        ("zzz", f"known are {', '.join(SUMMARY_NUMBERS)}"),
        ("accuracy", "did you mean accuracy.mean?"),
        ("lost", "loss.m"),
        ("outcome", "known are"),
    ],
)
def test_an_unknown_number_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"{name} >= 1")
    assert f'--require: no number "{name}" in a summary' in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("rounds == 20", True),
        ("rounds != 20", False),
        ("rounds > 20", False),
        ("rounds >= 20", True),
        ("accuracy.mean < 0.5", False),
        ("accuracy.mean <= 0.5", True),
        ("loss.mean == 0", True),
        ("accuracy.min >= 0", False),  # null
        ("accuracy.min < 1", False),
        ("accuracy.min != 1", False),
        ("simulated_seconds >= 0", False),  # null in the rounds engine
        ("staleness.mean >= 0", False),  # not in this summary
        ("own_loss.mean != 3", False),
    ],
)
def test_is_met(text: str, is_met: bool) -> None:
    assert parse(text).is_met(SUMMARY) is is_met


def test_every_number_of_a_summary_has_a_name(command: Command, write: Write) -> None:
    write(PAIR)
    summary = command("simulate", "exp.toml", "--engine", "events", "--json", "--no-folder").document
    numbers = {
        name if not isinstance(value, dict) else f"{name}.{part}"
        for name, value in summary.items()
        for part, number in (value.items() if isinstance(value, dict) else [("", value)])
        if isinstance(number, int | float) or number is None
    }
    assert numbers - {"diverged", "run_folder"} <= set(SUMMARY_NUMBERS)


# ---- What a command exits with


def test_met_is_0_and_unmet_is_1_and_says_what_it_is(command: Command, write: Write) -> None:
    write(PAIR)
    run = ("simulate", "exp.toml", "--no-folder", "--quiet", "--require")
    assert command(*run, "rounds == 3").code == 0
    unmet = command(*run, "rounds == 4")
    assert unmet.code == 1
    assert unmet.err == "not met: rounds == 4 (it is 3)\n"
    assert "finished" in unmet.out


def test_all_must_hold_and_all_that_do_not_are_named(command: Command, write: Write) -> None:
    write(PAIR)
    required = ["--require", "rounds > 9", "--require", "peers == 2", "--require", "loss.mean < 1"]
    outcome = command("simulate", "exp.toml", "--no-folder", "--quiet", "--json", *required)
    assert outcome.code == 1
    assert outcome.err == "not met: rounds > 9 (it is 3)\nnot met: loss.mean < 1 (it is not known)\n"
    assert outcome.document["outcome"] == "finished"


DIVERGES = """
rounds = 60
eval_every = 1
[task]
model = "linear"
data = "inline"
shards = [[[[1.0], 3.0]], [[[3.0], 7.0]]]
init = [1.5]
batch_size = 0
lr = 1.0
dtype = "float64"
[topology]
family = "path"
"""


@pytest.mark.parametrize("engine", ["rounds", "events"])
def test_a_diverged_run_is_3_whatever_was_required(command: Command, write: Write, engine: str) -> None:
    write(DIVERGES)
    outcome = command(
        *("simulate", "exp.toml", "--no-folder", "--quiet", "--json", "--engine", engine),
        *("--require", "rounds < 0", "--require", "peers == 2"),
    )
    assert outcome.code == 3
    assert outcome.document["outcome"] == "diverged"
    assert outcome.document["diverged"]["peer"] in ("peer-0", "peer-1")


def test_a_bad_requirement_is_refused_before_training_and_before_writing(command: Command, write: Write) -> None:
    folder = write(PAIR).parent
    for bad in ("rounds", "rouds > 3"):
        outcome = command("simulate", "exp.toml", "--json", "--require", "peers == 2", "--require", bad)
        assert outcome.code == 2
        assert outcome.document["error"].startswith("--require: ")
        assert outcome.err == f"earshot: {outcome.document['error']}\n"
    assert [file.name for file in folder.iterdir()] == ["exp.toml"]


def test_a_summary_with_json_is_one_document(command: Command, write: Write) -> None:
    write(PAIR)
    outcome = command("simulate", "exp.toml", "--json", "--no-folder")
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 1
    assert json.loads(outcome.out)["consensus_distance"] is not None
