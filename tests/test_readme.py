"""The README's commands and files do what it says."""

import re
import shlex
from pathlib import Path

import pytest

from peer.experiment import load
from peer.starter import starter_text
from peer.ways import engine_of
from tests.commands import Command
from tests.processes import earshot

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("block", blocks("toml"))
def test_every_file_in_it_loads(block: str, tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text(block)
    load(file)


def test_its_first_commands_work_in_order(tmp_path: Path) -> None:
    script = next(block for block in blocks("sh") if "earshot new" in block)
    commands = [shlex.split(line, comments=True)[1:] for line in script.splitlines() if line.startswith("earshot ")]
    assert [c[0] for c in commands] == ["new", "explain", "simulate", "up"]
    for arguments in commands:
        with earshot(*arguments, cwd=tmp_path) as running:
            running.process.communicate()
        assert running.process.returncode == 0, arguments


def test_its_python_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiment.toml").write_text(starter_text())
    monkeypatch.chdir(tmp_path)
    (code,) = [block for block in blocks("python") if "simulate" in block]
    exec(compile(code, "README.md", "exec"), {})


def test_its_own_model_and_data_learn(tmp_path: Path) -> None:
    (module,) = [block for block in blocks("python") if block.startswith("# mine.py")]
    (tmp_path / "mine.py").write_text(module)
    (experiment,) = [block for block in blocks("toml") if "mine:make" in block]
    (tmp_path / "exp.toml").write_text(experiment)
    settings = ("--set", "topology.peers=4", "--set", "rounds=150", "--set", "task.lr=0.3")
    with earshot("simulate", "exp.toml", *settings, "--json", "--no-folder", cwd=tmp_path) as run:
        code, summary = run.end()
    assert code == 0
    assert summary["accuracy"]["min"] > 0.7


def test_its_ways_to_run_are_commands_with_these_options(command: Command) -> None:
    ways = [shlex.split(way)[1:] for way in re.findall(r"^\| `(earshot [^`]*)` \|", TEXT, flags=re.MULTILINE)]
    assert [way[0] for way in ways] == ["simulate", "up", "start", "simulate"]
    for name, *arguments in ways:
        shown = command(name, "--help")
        assert shown.code == 0
        assert all(option in shown.out for option in arguments if option.startswith("--"))


def test_its_virtual_world_chooses_the_engine_that_knows_time(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    for block in blocks("toml"):
        file.write_text(block)
        assert engine_of(load(file)) == ("events" if "[network]" in block else "rounds")


def test_its_scripts_and_pages_are_there() -> None:
    scripts = re.search(r"`bench/experiments` has.*?\n\n", TEXT, flags=re.DOTALL)
    assert scripts is not None
    for script in re.findall(r"`(\w+\.py)`", scripts[0]):
        assert (README.parent / "bench" / "experiments" / script).exists(), script
    for page in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert (README.parent / page).exists(), page
    for script in re.findall(r"\./(scripts/\w+)", TEXT):
        assert (README.parent / script).stat().st_mode & 0o111, script


def test_its_error_is_the_real_one(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text("[topology]\ntreshold = 2\n")
    with earshot("explain", "exp.toml", cwd=tmp_path) as running:
        _, err = running.process.communicate()
    assert err.strip() in TEXT
    assert running.process.returncode == 2
