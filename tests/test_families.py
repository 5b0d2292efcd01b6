"""bench/experiments/families.py, and docs/families.md: they run, say what they found, and deny what was not found."""

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peer import load, simulate
from peer.experiment import from_dict

HOUSE = Path(__file__).parents[1]
EXPERIMENTS = HOUSE / "bench" / "experiments"
PAGE = (HOUSE / "docs" / "families.md").read_text(encoding="utf-8")
PNG = b"\x89PNG"


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module("families")


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module("family_claims")


# ---- The script


def test_families_runs(
    tmp_path: Path, families: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = families.main(["--json", "--rounds", "12", "--processes", "1", "--out", "made/here.png"])
    stdout, tables = capsys.readouterr()
    assert code == 1  # nobody reaches 85 % in 1.2 s
    lines = [json.loads(line) for line in stdout.splitlines()]
    runs = {(line["family"], line["condition"]): line for line in lines if line.get("measured") == "training"}
    assert len(runs) == 9 * 4
    assert len([line for line in lines if "claim" in line]) == 13
    even, slow = runs["sync server", "even peers"], runs["sync server", "one straggler, 4 times slower"]
    assert (even["rounds"], slow["rounds"]) == (5, 2)  # 5 of 0.227 s; 2 of 0.527 s
    assert runs["gossip, ring", "even peers"]["rounds"] == 9  # of 0.123 s
    assert runs["async server", "even peers"]["gradients"] > even["gradients"]
    assert runs["ring all-reduce", "one peer dies"]["outcome"] == "failed"
    assert even["reached"]["0.85"] == {"rounds": None, "s": None, "mb": None}
    assert "one peer dies: quorum" in tables
    assert (tmp_path / "made" / "here.png").read_bytes().startswith(PNG)


def test_another_process_measures_the_same(families: Any) -> None:
    jobs = [("sync server", EVEN, 3)]
    here, there = (next(families.measured(jobs, 6, processes)) for processes in (1, 2))
    assert here.history == there.history
    assert here.rounds == 2


def test_all_families_have_the_same_task_links_and_speeds(families: Any) -> None:
    for condition in families.CONDITIONS:
        made = [from_dict(families.tables_of(family, condition, 5, 240)) for family in families.FAMILIES]
        for table in ("task", "network", "speed", "transport", "seed", "stop_after_s"):
            assert all(getattr(e, table) == getattr(made[0], table) for e in made), table
        assert {e.topology.peers for e in made} == {16}


def test_who_has_no_coordinator_loses_a_peer_for_as_long(families: Any) -> None:
    def faults(family: str, condition: str) -> Any:
        return families.tables_of(family, condition, 0, 240)["faults"]["schedule"]

    assert faults("buffered server, K = n/2", families.COORDINATOR) == [
        {"at_s": 8.0, "kill": "coordinator", "for_s": 4.0}
    ]
    assert faults("gossip, ring", families.COORDINATOR) == [{"at_s": 8.0, "kill": "peer-8", "for_s": 4.0}]
    assert faults("ring all-reduce", families.COORDINATOR) == [{"at_s": 8.0, "kill": "peer-8"}]
    assert faults("sync server", families.DEAD) == [{"at_s": 4.0, "kill": "peer-8"}]
    assert faults("sync server", families.SLOW) == []


# ---- The claims: made-up figures that fulfil them, then one thing at a time that does not

GAPS = {"gossip, ring": 0.05, "gossip, exponential": 0.4, "gossip, geometric": 0.04}
EVEN, SLOW, DEAD, AWAY = (
    *("even peers", "one straggler, 4 times slower"),
    *("one peer dies", "coordinator (or a peer) away"),
)
ROUND_S = {"sync server": (0.227, 0.527), "gossip, ring": (0.123, 0.4), "gossip, exponential": (0.135, 0.4)}
ROUND_S |= {"gossip, geometric": (0.148, 0.4), "ring all-reduce": (0.412, 0.57)}
ROUND_BYTES = {"gossip, exponential": 64 * 31400, "ring all-reduce": 30 * 31400}
ROUNDS = {"sync server": 24, "gossip, exponential": 52, "gossip, ring": 112, "gossip, geometric": 128}
IN_STEP = tuple(ROUNDS)
SERVERS = ("sync server", "quorum 0.8 server", "async server", "buffered server, K = n/2")


class Made:
    """A run with figures that one chooses."""

    seed, run_s, dies_s, back_s = 0, 24.0, 8.0, 12.0

    def __init__(self, family: str, condition: str, **figures: Any) -> None:
        self.family, self.condition = family, condition
        waits, ends = family in IN_STEP, family == "ring all-reduce" and condition in (DEAD, AWAY)
        self.outcome = "failed" if ends else "finished"
        self.round_s = ROUND_S.get(family, (0.2, 0.2))[condition == SLOW]
        self.round_bytes = ROUND_BYTES.get(family, 32 * 31400)
        self.gradients = 953 if condition == SLOW else 1000
        self.accuracy, self.staleness = 0.88, 15.0
        hub_dies = condition == AWAY and family in SERVERS
        self.pause_s = 4.1 if hub_dies else 1.9 if waits and condition in (DEAD, AWAY) else 0.1
        self.history = [{"round": r, "simulated_seconds": s} for r, s in ((0, 0.0), (10, 7.8))]
        slower = 20.0 if condition == SLOW and waits else 10.0
        self.goal = {"rounds": ROUNDS.get(family, 100), "s": slower, "mb": 1.0}
        self.__dict__.update(figures)

    def reached(self, _: float) -> dict[str, float]:
        return self.goal


def judged(claims: Any, **changes: Any) -> dict[str, bool]:
    """Return of each claim, by its beginning, whether it holds; `changes` are of the run `at` = (family, condition)."""
    at = changes.pop("at", None)
    runs = [
        Made(family, condition, **(changes if at == (family, condition) else {}))
        for family in claims.FAMILIES
        for condition in claims.CONDITIONS
    ]
    return {claim.says: claim.held for claim in claims.claims_of(runs, GAPS)}


def denied(claims: Any, **changes: Any) -> list[str]:
    return [says for says, held in judged(claims, **changes).items() if not held]


def test_good_figures_fulfil_all_claims(claims: Any) -> None:
    assert denied(claims) == []
    assert len(judged(claims)) == 13


@pytest.mark.parametrize(
    ("at", "figures", "beginning"),
    [
        (("gossip, ring", EVEN), {"round_bytes": 1.1e6}, "A round is 2 n M"),
        (("sync server", EVEN), {"round_s": 0.26}, "So a round of the synchronous"),
        (("ring all-reduce", SLOW), {"round_s": 0.7}, "A round of the all-reduce"),
        (("gossip, ring", SLOW), {"round_s": 0.123}, "In step"),
        (("async server", SLOW), {"gradients": 700}, "Who does not wait for it"),
        (("quorum 0.8 server", SLOW), {"goal": {"rounds": 9, "s": 21.0, "mb": 1}}, "With a straggler"),
        (("async server", EVEN), {"staleness": 8.0}, "At an asynchronous server"),
        (("gossip, geometric", EVEN), {"goal": {"rounds": 40, "s": 10.0, "mb": 1}}, "The graph with by far"),
        (("gossip, exponential", EVEN), {"round_s": 0.3}, "Without a hub"),
        (("gossip, ring", DEAD), {"pause_s": 5.0}, "A peer that dies"),
        (("async gossip, ring", DEAD), {"pause_s": 1.0}, "A peer that dies"),
        (("gossip, ring", DEAD), {"outcome": "failed"}, "A peer that dies"),
        (("ring all-reduce", DEAD), {"outcome": "finished"}, "A ring all-reduce ends"),
        (("async server", AWAY), {"pause_s": 0.1}, "While the coordinator"),
        (("buffered server, K = n/2", AWAY), {"accuracy": 0.8}, "Then a server goes on"),
    ],
)
def test_figures_that_deny_a_claim(claims: Any, at: tuple[str, str], figures: dict[str, Any], beginning: str) -> None:
    assert any(says.startswith(beginning) for says in denied(claims, at=at, **figures))


def test_a_pause_is_what_a_gap_is_longer_than_usual(claims: Any) -> None:
    history = [{"simulated_seconds": s, "round": r} for r, s in enumerate((0.0, 0.5, 1.0, 4.5, 5.0))]
    run = claims.Trained("sync server", EVEN, 0, 5.0, 1.0, 4.0, {"history": history, "outcome": "finished"})
    assert run.pause_s == 3.0


# ---- The page


def rows() -> Iterator[tuple[str, float, float, float]]:
    for settings, *figures in re.findall(
        r"^\| `(--set .*)` \| (\d+) \| ([\d.]+) \| (\d+) \|$", PAGE, flags=re.MULTILINE
    ):
        rounds, seconds, mb = map(float, figures)
        yield settings, rounds, seconds, mb


def test_the_page_compares_eight_designs() -> None:
    assert len(list(rows())) == 8


@pytest.mark.parametrize(("settings", "rounds", "seconds", "megabytes"), list(rows()))
def test_a_design_has_the_figures_that_stand_there(
    tmp_path: Path, settings: str, rounds: float, seconds: float, megabytes: float
) -> None:
    found = simulate(load(file_of_the_page(tmp_path), [word for word in shlex.split(settings) if word != "--set"]))
    assert found.outcome == "finished"
    assert found.accuracy.mean >= 0.85
    assert found.rounds == pytest.approx(rounds, rel=0.25)
    assert found.simulated_seconds == pytest.approx(seconds, rel=0.25)
    assert found.payload_bytes_sent / 1e6 == pytest.approx(megabytes, rel=0.25)


def test_its_commands_are_accepted(tmp_path: Path) -> None:
    lines = [line for script in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in script.splitlines()]
    simulated = [shlex.split(line) for line in lines if line.startswith("earshot ")]
    assert len(simulated) == 4
    for _, command, file, *settings in simulated:
        assert (command, file) == ("simulate", "families.toml")
        load(file_of_the_page(tmp_path), [word for word in settings if word != "--set"])
    (script,) = (line.split()[1] for line in lines if line.startswith("python "))
    assert (HOUSE / script).exists()


def file_of_the_page(folder: Path) -> str:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    path = folder / "families.toml"
    path.write_text(text)
    return str(path)
