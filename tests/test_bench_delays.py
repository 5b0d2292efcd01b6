"""bench/experiments/delays.py: it runs, shows what it measured, and says no to figures that deny a claim."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXPERIMENTS = Path(__file__).parents[1] / "bench" / "experiments"


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module("delays")


def test_delays_runs(
    tmp_path: Path, delays: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = delays.main(["--json", "--updates", "180"])
    stdout, tables = capsys.readouterr()
    lines = [json.loads(line) for line in stdout.splitlines()]
    measured = {(line["delay"], line["share"]): line for line in lines if line.get("measured") == "descent"}
    assert list(measured) == [(delay, share) for delay in range(6) for share in (0.98, 1.02)]
    assert {line["updates"] for line in measured.values()} == {180}
    assert measured[0, 0.98]["error_left"] == pytest.approx(0.96**169, rel=1e-9)
    assert measured[0, 1.02]["error_left"] == pytest.approx(1.04**169, rel=1e-9)
    assert len([line for line in lines if "claim" in line]) == 3
    assert code == 1  # nothing diverges, and little converges, in 180 updates
    assert "0.618034" in tables
    assert (tmp_path / "runs" / "delays.png").read_bytes().startswith(b"\x89PNG")


def test_claims_on_delays(delays: ModuleType) -> None:
    good = []
    for delay in delays.DELAYS:
        for share in (delays.BELOW, delays.ABOVE):
            outcome = "finished" if share == delays.BELOW else "diverged"
            run = delays.Descent(delay, share, outcome, 20_000, [])
            count = 200 if share == delays.BELOW else 40
            good.append(replace(run, errors=[run.radius ** (delays.EVERY * i) for i in range(10 * count)]))

    def held(beginning: str, *, delay: int, share: float, **changes: Any) -> bool:
        runs = [replace(run, **changes) if (run.delay, run.share) == (delay, share) else run for run in good]
        (claim,) = (claim for claim in delays.claims_of(runs, 20_000) if claim.says.startswith(beginning))
        return bool(claim.held)

    assert all(claim.held for claim in delays.claims_of(good, 20_000))
    assert not held("At 0.98", delay=3, share=delays.BELOW, outcome="diverged")
    assert not held("At 0.98", delay=5, share=delays.BELOW, errors=[1.0] * 50)
    assert not held("At 1.02", delay=0, share=delays.ABOVE, outcome="finished")
    assert not held("Errors", delay=2, share=delays.ABOVE, errors=[1.01 ** (13 * i) for i in range(50)])
    assert not held("Errors", delay=2, share=delays.ABOVE, errors=[1.0, 2.0])
