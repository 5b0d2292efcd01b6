"""Pictures of runs: what stands on the horizontal axis, and where the curves go."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from peer.assembly import assemble
from peer.experiment import from_dict
from peer.report import Against, Run, draw, draw_curves
from peer.scripting import simulate

PNG = b"\x89PNG"


def spread(mean: float | None) -> dict[str, float | None]:
    return {"mean": mean, "min": None if mean is None else mean - 0.1, "max": None if mean is None else mean + 0.1}


def summary(figure: str = "accuracy", **columns: list[float]) -> dict[str, Any]:
    """A summary with entries of 0.2, 0.5 and 0.7, and further columns."""
    other = "loss" if figure == "accuracy" else "accuracy"
    history = [
        {
            "round": 10 * i,
            figure: spread(mean),
            other: spread(None),
            **{key: column[i] for key, column in columns.items()},
        }
        for i, mean in enumerate((0.2, 0.5, 0.7))
    ]
    return {figure: spread(0.7), other: spread(None), "history": history}


def drawn(*summaries: dict[str, Any], against: Against = "round") -> Any:
    axes = Figure().subplots()
    draw_curves(axes, [Run(f"run {i}", one) for i, one in enumerate(summaries)], against)
    return axes


def points(axes: Any, line: int = 0) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in axes.lines[line].get_xydata()]


def test_curves_are_against_rounds() -> None:
    axes = drawn(summary())
    assert points(axes) == [(0, 0.2), (10, 0.5), (20, 0.7)]
    assert axes.get_xlabel() == "rounds"
    assert axes.get_ylabel() == "accuracy on the common test rows"


def test_curves_are_against_simulated_seconds() -> None:
    fast, slow = summary(simulated_seconds=[0.0, 1.5, 3.0]), summary(simulated_seconds=[0.0, 6.0, 12.0])
    axes = drawn(fast, slow, against="simulated_seconds")
    assert points(axes) == [(0, 0.2), (1.5, 0.5), (3.0, 0.7)]
    assert points(axes, 1) == [(0, 0.2), (6.0, 0.5), (12.0, 0.7)]
    assert axes.get_xlabel() == "simulated time (s)"


def test_runs_without_simulated_seconds_are_against_their_own() -> None:
    axes = drawn(summary(seconds=[0.0, 0.25, 0.5]), against="simulated_seconds")
    assert points(axes) == [(0, 0.2), (0.25, 0.5), (0.5, 0.7)]
    assert axes.get_xlabel() == "time (s)"


def test_curves_are_against_megabytes() -> None:
    axes = drawn(summary(payload_bytes_sent=[0, 2_000_000, 4_500_000]), against="payload_bytes_sent")
    assert points(axes) == [(0, 0.2), (2.0, 0.5), (4.5, 0.7)]
    assert axes.get_xlabel() == "payload sent by all peers (MB)"


def test_an_axis_that_a_history_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="no payload_bytes_sent"):
        drawn(summary(payload_bytes_sent=[0, 1, 2]), summary(), against="payload_bytes_sent")
    with pytest.raises(ValueError, match="no simulated_seconds"):
        drawn(summary(), against="simulated_seconds")


def test_runs_without_accuracy_show_their_loss_on_a_logarithmic_axis() -> None:
    axes = drawn(summary("loss"))
    assert axes.get_ylabel() == "loss on the common test rows"
    assert axes.get_yscale() == "log"
    assert points(axes)[0] == (0, 0.2)


def test_an_entry_without_figures_is_left_out() -> None:
    gap = summary()
    gap["history"][1]["accuracy"] = spread(None)
    assert points(drawn(gap)) == [(0, 0.2), (20, 0.7)]


@pytest.mark.parametrize("against", ["round", "simulated_seconds", "payload_bytes_sent"])
def test_a_run_of_the_events_engine_can_be_drawn_on_each_axis(tmp_path: Path, against: Against) -> None:
    tables = {"rounds": 2, "eval_every": 1, "task": {"model": "softmax"}, "topology": {"peers": 3}}
    e = from_dict(tables)
    path = tmp_path / "run.png"
    draw([Run("dpsgd", simulate(e, engine="events").as_dict())], assemble(e), path, against)
    assert path.read_bytes().startswith(PNG)
