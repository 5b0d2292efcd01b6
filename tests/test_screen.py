"""What a person reads while a simulation goes on: its memory before it starts, its pace, and what is left of it."""

from pathlib import Path

import pytest

from peer import screen
from peer.experiment import from_dict
from peer.screen import SAY_EVERY_S, SHOWN_MEMORY_BYTES, Screen, _pace_line, human_bytes
from peer.simulator.watching import Pace
from tests.forked import forked


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == "", "stdout is for the document"
    return captured.err.splitlines()


def quiet_or_not(quiet: bool = False, rounds: int = 200) -> Screen:
    return Screen(from_dict({"rounds": rounds}), quiet=quiet)


# ---- Memory


def test_memory_that_matters_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    quiet_or_not().listener().memory(3_200_000_000, 8_000_000_000)
    assert shown(capsys) == ["memory: about 3.2 GB for the peers"]


def test_memory_that_is_short_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    quiet_or_not().listener().memory(3_200_000_000, 1_000_000_000)
    lines = shown(capsys)
    assert lines[0] == "memory: about 3.2 GB for the peers"
    assert lines[1].startswith("warning: only 1.0 GB of memory are free")
    assert len(lines) == 2


def test_where_nobody_knows_what_is_free_there_is_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    quiet_or_not().listener().memory(3_200_000_000, None)
    assert len(shown(capsys)) == 1


def test_little_memory_is_not_worth_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    quiet_or_not().listener().memory(SHOWN_MEMORY_BYTES - 1, SHOWN_MEMORY_BYTES)
    assert shown(capsys) == []


# ---- Pace


def test_what_is_left_goes_by_the_share_that_is_done() -> None:
    line = _pace_line(Pace(50, 0.25, 30.0), 200)
    assert line == "in round 50 of 200  about 0:01:30 left"


def test_simulated_time_and_events_are_said_where_there_are_any() -> None:
    line = _pace_line(Pace(5, 0.5, 10.0, 123.44, 250_000), 10)
    assert line == "in round 5 of 10  123.4 simulated s  250,000 events, 25,000 a second  about 0:00:10 left"


def test_a_run_without_an_end_has_nothing_left() -> None:
    assert _pace_line(Pace(50, None, 30.0), 0) == "in round 50"
    assert "left" not in _pace_line(Pace(0, 0.0, 1.0), 200), "nothing done says nothing of the rest"


def test_a_run_that_is_done_has_no_time_left() -> None:
    assert _pace_line(Pace(200, 1.0, 30.0), 200).endswith("about 0:00:00 left")


def test_pace_is_said_from_time_to_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(screen, "monotonic", lambda: now_s[0])
    listener = quiet_or_not().listener()
    for round in range(5):
        listener.pace(Pace(round, None, 1.0))
    assert shown(capsys) == ["in round 0 of 200"]
    now_s[0] += SAY_EVERY_S
    listener.pace(Pace(9, None, 1.0))
    assert shown(capsys) == ["in round 9 of 200"]


# ---- Silence


def test_nothing_is_said_to_who_wants_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    listener = quiet_or_not(quiet=True).listener()
    listener.memory(3_200_000_000, 1)
    listener.pace(Pace(1, 0.5, 1.0))
    listener.note("anything")
    assert shown(capsys) == []


@pytest.mark.parametrize("engine", ["rounds", "events"])
def test_a_simulation_says_its_memory_before_its_first_round(tmp_path: Path, engine: str) -> None:
    text = 'rounds = 1\n[task]\nmodel = "softmax"\nbatch_size = 1\n[topology]\npeers = 400\n'
    (tmp_path / "exp.toml").write_text(text)
    for quiet in ([], ["--quiet"]):
        with forked("simulate", "exp.toml", "--engine", engine, "--no-folder", *quiet, cwd=tmp_path) as run:
            code, _ = run.end_as_text()
        assert code == 0
        memory = [i for i, line in enumerate(run.said) if line.startswith("memory: about")]
        rounds = [i for i, line in enumerate(run.said) if line.startswith("round ")]
        if quiet:
            assert run.said == []
        else:
            assert len(memory) == 1
            assert memory[0] < rounds[0]


def test_bytes_for_people() -> None:
    assert [human_bytes(n) for n in (7, 1500, 2_000_000)] == ["7 B", "1.5 kB", "2.0 MB"]
