"""What the pages in docs/ show works as it stands there."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from peer import load, simulate
from peer.experiment.choices import CHOICES
from peer.experiment.fault_entry import ACTIONS, fault_entry
from peer.experiment.schema import Coordinator, Faults, Network, Speed
from tests.processes import earshot

HOUSE = Path(__file__).parents[1]
DOCS = HOUSE / "docs"
OWN = (DOCS / "own.md").read_text(encoding="utf-8")
WORLD = (DOCS / "world.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return what stands between fences of a language; "" for none."""
    return [block for name, block in re.findall(r"```(\w*)\n(.*?)```", text, flags=re.DOTALL) if name == language]


def block(language: str) -> str:
    (found,) = blocks(OWN, language)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(block("python"))
    (tmp_path / "own.toml").write_text(block("toml"))
    return tmp_path


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A folder with the files of the page about the virtual world."""
    (file,) = blocks(WORLD, "toml")
    (tmp_path / "world.toml").write_text(file)
    links, steps = blocks(WORLD, "csv")
    (tmp_path / "links.csv").write_text(links)
    (tmp_path / "steps.csv").write_text(steps)
    return tmp_path


@pytest.mark.parametrize("family", ["own:shuffled_ring", "own:wheel"])
def test_the_example_learns_the_same_everywhere(folder: Path, family: str) -> None:
    settings = ("--set", f'topology.family="{family}"', "--set", 'record.params="final"', "--json", "--no-folder")
    found = []
    for command in (["up"], ["simulate", "--engine", "events"]):
        with earshot(*command, "own.toml", *settings, cwd=folder) as run:
            code, summary = run.end()
        assert code == 0
        found.append(summary)
    real, virtual = found
    assert real["params"] == virtual["params"]
    assert real["accuracy"]["min"] > 0.6


def test_the_example_is_short() -> None:
    statements = [line for line in block("python").splitlines() if line.strip() and not line.startswith("#")]
    assert len(statements) <= 30


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_its_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("text", blocks((DOCS / "coordinator.md").read_text(encoding="utf-8"), "toml"))
def test_a_file_of_the_page_about_coordinators_runs(tmp_path: Path, text: str) -> None:
    (tmp_path / "exp.toml").write_text(text)
    overrides = {"task.model": "softmax", "rounds": 2, "record.params": "final"}
    summary = simulate(load(tmp_path / "exp.toml", overrides))
    assert summary.outcome == "finished"
    assert all(row == summary.coordinator for row in summary.params)


def test_every_key_of_the_coordinator_is_on_its_page() -> None:
    page = (DOCS / "coordinator.md").read_text(encoding="utf-8")
    missing = [key for key in Coordinator.model_fields if f"`{key}" not in page and f"{key} = " not in page]
    assert missing == ["engine"]  # of a ring, which has a page of its own


def test_every_algorithm_is_in_the_table() -> None:
    text = (DOCS / "algorithms.md").read_text(encoding="utf-8")
    for name in CHOICES["algorithm.name"].built:
        assert f"`{name}`" in text


# ---- A virtual world


def commands(text: str) -> Iterator[list[str]]:
    for script in blocks(text, "sh"):
        yield from (shlex.split(line, comments=True)[1:] for line in script.splitlines() if line.startswith("earshot "))


def test_the_commands_of_the_world_say_what_stands_there(world: Path) -> None:
    predicted, on_the_way, in_the_end = blocks(WORLD, "")
    said: list[tuple[str, str]] = []
    for arguments in commands(WORLD):
        with earshot(*arguments, cwd=world) as running:
            said.append(running.process.communicate())
        assert running.process.returncode == 0, arguments
    (explanation, _), (summary, progress) = said[:2]
    assert predicted.rstrip() in explanation.splitlines()
    spoken = [line for line in progress.splitlines() if not line.startswith("in round")]
    for line in on_the_way.splitlines():  # of accuracies the last digit is another machine's own
        assert line in spoken if line.startswith("peer-") else line.split()[:2] in [s.split()[:2] for s in spoken]
    assert {line.split()[0] for line in in_the_end.splitlines()} <= {line.split()[0] for line in summary.splitlines()}
    assert "the parameters are those of runs/async, bit for bit" in said[-1][1]
    assert "the parameters are those of runs/async, bit for bit" in WORLD


class Question(NamedTuple):
    """A row of the table of questions to one file."""

    setting: str
    seconds: float
    megabytes: float


def questions() -> list[Question]:
    rows = re.findall(r"^\| (as it is|`--set [^|]*`) \| ([\d.]+) \| (\d+) \|$", WORLD, flags=re.MULTILINE)
    return [Question(shlex.split(said.strip("`"))[-1], float(s), float(mb)) for said, s, mb in rows]


def test_the_page_asks_one_file_several_questions() -> None:
    assert len(questions()) == 7


@pytest.mark.parametrize("question", questions(), ids=lambda question: question.setting)
def test_a_change_of_the_world_has_the_answer_that_stands_there(world: Path, question: Question) -> None:
    settings = [question.setting] if "=" in question.setting else []
    summary = simulate(load(str(world / "world.toml"), settings))
    assert summary.outcome == "finished"
    assert summary.simulated_seconds == pytest.approx(question.seconds, rel=0.2)
    assert summary.payload_bytes_sent / 1e6 == pytest.approx(question.megabytes, rel=0.2)


def test_every_key_of_the_virtual_world_is_in_the_tables() -> None:
    for table, of in (("network", Network), ("speed", Speed), ("faults", Faults)):
        for key in of.model_fields.keys() - {"attackers"}:  # which are not built yet
            assert f"| `{table}.{key}` |" in WORLD, key


def test_every_action_of_a_fault_is_in_the_table_with_an_entry_that_is_one() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\{.*?\})` \|", WORLD, flags=re.MULTILINE))
    assert tuple(rows) == ACTIONS
    for action, text in rows.items():
        assert fault_entry(tomllib.loads(f"entry = {text}")["entry"]).what == action


def test_the_command_that_plays_a_seed_again_does() -> None:
    text = (HOUSE / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (arguments,) = re.findall(r"`python (-m tests\.fault_bed [^`]*)`", text)
    subprocess.run([sys.executable, *shlex.split(arguments)], cwd=HOUSE, check=True, capture_output=True)


def test_the_map_of_the_house_leads_somewhere() -> None:
    text = (HOUSE / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (HOUSE / link).exists(), link
    for room in ("protocol", "network", "simulator", "daemon"):
        (rows,) = re.findall(rf"^ {{6}}{room}/.*\n((?: {{8}}.*\n)+)", text, flags=re.MULTILINE)
        names = [name for row in rows.splitlines() for name in re.split(r" {2,}", row.strip())[0].split(", ")]
        assert names
        for name in names:
            assert (HOUSE / "peer" / room / f"{name}.py").exists(), (room, name)
