"""What the pages in docs/ show works as it stands there."""

import re
from pathlib import Path

import pytest

from peer.experiment.choices import CHOICES
from tests.processes import earshot

DOCS = Path(__file__).parents[1] / "docs"
OWN = (DOCS / "own.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", OWN, flags=re.DOTALL)
    return str(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(block("python"))
    (tmp_path / "own.toml").write_text(block("toml"))
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


def test_every_algorithm_is_in_the_table() -> None:
    text = (DOCS / "algorithms.md").read_text(encoding="utf-8")
    for name in CHOICES["algorithm.name"].built:
        assert f"`{name}`" in text
