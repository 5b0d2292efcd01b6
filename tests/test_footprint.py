"""What a simulation is said to take of memory before it starts."""

import builtins
from pathlib import Path
from typing import Any

import pytest

from peer.assembly import assemble, prepare_task
from peer.experiment import from_dict
from peer.simulator import footprint
from peer.simulator.footprint import LINK_BYTES, PEER_BYTES, available_bytes, memory_bytes

D, FLOAT, DOUBLE = 7850, 4, 8


def needed(engine: Any = "rounds", peers: int = 10, **tables: Any) -> int:
    tables["task"] = {"model": "softmax", **tables.get("task", {})}
    tables["topology"] = {"family": "ring", "peers": peers, **tables.get("topology", {})}
    assembly = assemble(from_dict(tables))
    return memory_bytes(assembly, prepare_task(assembly), engine)


def test_softmax_by_hand() -> None:
    """State, what was said (two of them), two copies at an evaluation, and two more in float64."""
    assert needed() == 10 * D * (FLOAT + 2 * FLOAT + 2 * FLOAT + 2 * DOUBLE)


def test_it_is_linear_in_peers() -> None:
    assert needed(peers=30) == 3 * needed(peers=10)
    assert needed("events", peers=30) == 3 * needed("events", peers=10)


def test_momentum_takes_one_copy_more() -> None:
    assert needed(task={"momentum": 0.9}) - needed() == 10 * D * FLOAT


def test_double_precision_takes_twice_as_much_but_at_evaluations() -> None:
    assert needed(task={"dtype": "float64"}) == 10 * D * (5 * DOUBLE + 2 * DOUBLE)


def test_the_events_engine_has_cores_and_links_too() -> None:
    assert needed("events") - needed() == 10 * PEER_BYTES + 2 * 10 * LINK_BYTES


def test_links_for_which_something_is_drawn_take_more() -> None:
    assert needed("events", network={"jitter_ms": 1.0}) > needed("events")
    assert needed("events", network={"latency_ms": 1.0}) == needed("events")


def test_an_algorithm_with_more_state_takes_more() -> None:
    assert needed(algorithm={"name": "gradient_tracking"}) > needed()


def test_what_is_free_is_read_where_the_system_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  9 kB\nMemFree:  1 kB\nMemAvailable:  5 kB\n")
    real = builtins.open
    monkeypatch.setattr(footprint, "open", lambda _path: real(tmp_path / "meminfo"), raising=False)
    assert available_bytes() == 5 * 1024


def test_where_it_does_not_say_so_the_free_pages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_path: str) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(footprint, "open", missing, raising=False)
    monkeypatch.setattr("os.sysconf", {"SC_AVPHYS_PAGES": 3, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert available_bytes() == 3 * 4096


def test_where_nothing_is_known_there_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(footprint, "open", lambda _path: (_ for _ in ()).throw(FileNotFoundError()), raising=False)
    monkeypatch.setattr("os.sysconf", missing)
    assert available_bytes() is None
