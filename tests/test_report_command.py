"""`earshot report`: run folders in, a page and its pictures out; and every folder that is none is refused in words."""

import json
import re
import shutil
from base64 import b64decode
from collections.abc import Callable
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image
from matplotlib.figure import Figure

from peer.assembly.ground import ground_of
from peer.experiment import from_dict
from peer.report import pictures
from peer.report.curves import Line, draw_lines
from peer.report.look import LIGHT, plain
from peer.report.network import coordinators_of, network_of
from peer.report.runs import read_run
from peer.report.staleness import draw_staleness
from peer.report.unfinished import from_metrics
from peer.scripting import simulate, up
from tests.commands import Command, inline
from tests.test_docs import DOCS, blocks, commands

SHARDS = [[[[1.0], 3.0]], [[[2.0], 5.0]], [[[3.0], 7.0]], [[[4.0], 9.0]]]
LINE = {"name": "line", "rounds": 12, "eval_every": 2, **inline(SHARDS, [1.5], lr=0.02)}
DIGITS = {
    "name": "digits",
    "rounds": 4,
    "eval_every": 1,
    "task": {"model": "softmax"},
    "topology": {"peers": 4},
    "network": {"latency_ms": 10.0, "bandwidth_mbps": 100.0},
}
ALL_OF_A_LINE = {"loss-rounds.png", "loss-seconds.png", "loss-bytes.png", "consensus-distance.png", "topology.png"}


def with_lr(lr: float) -> dict[str, Any]:
    return {**LINE, "task": {**LINE["task"], "lr": lr}}  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of real runs, made once: line, fast, diverged, digits, and of daemons."""
    folder = tmp_path_factory.mktemp("runs")
    simulate(from_dict(LINE), engine="events", out=folder / "line")
    simulate(from_dict(with_lr(0.03)), engine="events", out=folder / "fast")
    simulate(from_dict({**with_lr(0.9), "rounds": 40}), engine="events", out=folder / "diverged")
    simulate(from_dict(DIGITS), engine="events", out=folder / "digits")
    simulate(from_dict(LINE), engine="rounds", out=folder / "rounds")
    up(from_dict(LINE), out=folder / "daemons")
    return folder


@pytest.fixture
def runs(made: Path, here: Path) -> Path:
    """A copy of them, to do with as one likes."""
    return Path(shutil.copytree(made, here / "runs"))


def change(run: Path, **values: Any) -> Path:
    """Change a run's summary."""
    file = run / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return run


class Page(HTMLParser):
    """What a page shows, and what it would load."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.source = file.read_text(encoding="utf-8")
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [str(value) for name, value in attrs if name in ("src", "srcset", "href", "data", "action")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")
        self._in_cell &= tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["style"]:
            return
        self.text += data
        if self._in_cell:
            self.rows[-1][-1] += data

    def row(self, name: str) -> list[str]:
        """The cells of the first row with this name."""
        return next(cells[1:] for cells in self.rows if cells[0] == name)


Report = Callable[..., Page]


@pytest.fixture
def report(command: Command) -> Report:
    """`earshot report ARGUMENTS`, which must do its work; returns the page."""

    def run(*arguments: object) -> Page:
        done = command("report", *arguments)
        assert (done.code, done.err) == (0, "")
        return Page(Path(done.out.rstrip("\n")))

    return run


@pytest.fixture
def words(report: Report, monkeypatch: pytest.MonkeyPatch) -> Report:
    """The same, but what is drawn is not made into images, which takes most of the time."""
    monkeypatch.setattr(Figure, "savefig", lambda _figure, file, **_how: file.write(b"no image"))
    return report


def is_drawn(png: bytes) -> bool:
    """Say whether there is something in a picture: ink, and more than one colour of it."""
    pixels = image.imread(BytesIO(png), format="png")[..., :3].reshape(-1, 3)
    return len({tuple(pixel) for pixel in (pixels[::7] * 255).astype(int).tolist()}) > 30


# ---- The page and the pictures


def test_a_run_gives_a_page_and_its_pictures_in_a_folder_of_its_own(command: Command, runs: Path) -> None:
    done = command("report", "runs/line")
    assert (done.code, done.out, done.err) == (0, "runs/line/report/report.html\n", "")
    written = {path.name for path in (runs / "line" / "report").iterdir()}
    assert written == ALL_OF_A_LINE | {"report.html"}
    for name in ALL_OF_A_LINE:
        assert is_drawn((runs / "line" / "report" / name).read_bytes()), name


def test_as_json_it_says_where_everything_is(command: Command, runs: Path) -> None:
    document = command("report", "runs/digits", "--out", "new/place", "--json").document
    assert document["html"] == "new/place/report.html"
    assert [Path(picture).name for picture in document["pictures"]] == [
        *("accuracy-rounds.png", "accuracy-seconds.png", "accuracy-bytes.png"),
        *("consensus-distance.png", "topology.png"),
    ]
    assert all(Path(picture).is_file() for picture in document["pictures"])


def test_the_page_has_everything_in_it_and_runs_nothing(report: Report, runs: Path) -> None:
    page = report("runs/line")
    assert all(source.startswith("data:image/png;base64,") for source in page.loads)
    assert len(page.loads) == 2 * len(ALL_OF_A_LINE)  # on a light page, and on a dark one
    assert page.tags.count("img") == len(ALL_OF_A_LINE)
    assert all(is_drawn(b64decode(source.partition(",")[2])) for source in page.loads)
    assert "script" not in page.tags
    assert "http://" not in page.source
    assert "https://" not in page.source
    assert '<meta name="viewport"' in page.source


def test_the_page_has_the_figures_of_the_summary(words: Report, runs: Path) -> None:
    page = words("runs/digits")
    summary = json.loads((runs / "digits" / "summary.json").read_text())
    assert page.row("rounds") == ["4"]
    assert page.row("accuracy")[0].startswith(f"{summary['accuracy']['mean']:.4g}")
    assert page.row("seconds") == [f"{summary['simulated_seconds']:.4g}simulated"]
    assert page.row("payload sent") == [f"{summary['payload_bytes_sent'] / 1e6:.1f} MB"]
    assert page.row("outcome") == ["finished"]


def test_names_that_are_alike_are_told_apart_by_what_differs(words: Report, runs: Path) -> None:
    page = words("runs/line", "runs/fast", "--out", "both")
    assert page.rows[0][1:] == ["lr 0.02", "lr 0.03"]
    assert page.row("task.lr") == ["0.02", "0.03"]
    assert "task.dtype" not in page.text
    assert "line: 2 runs compared" in page.text


def test_many_runs_are_rows(words: Report, runs: Path) -> None:
    page = words("runs/line", "runs/fast", "runs/digits", "runs/daemons", "runs/diverged", "--out", "all")
    assert page.rows[0][0] == "run"
    assert page.row("digits")[0] == "finished"


def test_a_run_that_diverged_is_shown_as_such(words: Report, runs: Path) -> None:
    page = words("runs/diverged")
    assert page.row("outcome")[0].startswith("divergedafter round")
    assert '<span class="badge bad">diverged</span>' in page.source


def test_a_run_that_was_interrupted_is_shown_as_such(words: Report, runs: Path) -> None:
    change(runs / "line", outcome="interrupted")
    assert (
        '<span class="badge so-so">interrupted</span> lr 0.02'
        in words("runs/line", "runs/fast", "--out", "both").source
    )


def test_why_a_run_failed_and_whom_it_lost_is_said(words: Report, runs: Path) -> None:
    change(runs / "line", outcome="failed", why="nobody came", lost=["peer-1", "peer-3"])
    page = words("runs/line")
    assert page.row("outcome") == ["failednobody came"]
    assert page.row("lost") == ["peer-1, peer-3"]


def test_runs_without_accuracy_beside_one_that_has_it_are_named(words: Report, runs: Path) -> None:
    page = words("runs/line", "runs/digits", "--out", "both")
    assert page.text.count("No accuracy: line.") == 3
    names = {path.name for path in Path("both").iterdir()}
    assert {"accuracy-rounds.png", "loss-rounds.png"} <= names


def test_runs_that_know_no_time_are_named(words: Report, runs: Path) -> None:
    page = words("runs/rounds", "runs/digits", "--out", "both")
    assert "The engine rounds has no time in its history: line." in page.text
    assert "loss-seconds.png" not in {path.name for path in (runs / "rounds").rglob("*.png")}


def test_seconds_of_two_kinds_are_told_apart(words: Report, runs: Path) -> None:
    page = words("runs/line", "runs/daemons", "--out", "both")
    assert "Real seconds, where those of the others are simulated: daemons." in page.text


def test_of_one_daemon_the_distance_to_its_neighbours_is_drawn(words: Report, runs: Path) -> None:
    summary = json.loads((runs / "line" / "summary.json").read_text())
    for entry in [summary, *summary["history"]]:
        entry["neighbour_distance"] = entry.pop("consensus_distance")
    (runs / "line" / "summary.json").write_text(json.dumps(summary))
    page = words("runs/line")
    assert "one daemon's parameters from those of the neighbours that it heard last." in page.text
    assert "Distance to neighbours against rounds" in page.text
    assert page.row("neighbour distance") == [f"{summary['neighbour_distance']:.4g}"]


def test_where_all_parameters_are_the_same_there_is_no_distance_to_draw(words: Report, runs: Path) -> None:
    history = json.loads((runs / "line" / "summary.json").read_text())["history"]
    change(runs / "line", history=[entry | {"consensus_distance": 0.0} for entry in history])
    page = words("runs/line")
    assert "0 throughout, for all peers have the same parameters: line." in page.text
    assert page.tags.count("img") == 4


def test_an_evaluation_of_nobody_is_no_point(words: Report, runs: Path) -> None:
    change(runs / "line", history=[])
    page = words("runs/line")
    assert page.text.count("No loss: line.") == 3
    assert page.tags.count("img") == 1


def test_text_from_files_is_text_on_the_page(words: Report, runs: Path) -> None:
    evil = "<img src=x onerror=alert(1)>&\"'$x_1$"
    change(runs / "line", name=evil, why=evil, outcome=evil, lost=[evil], engine=evil)
    page = words("runs/line", "runs/fast", "--out", "both")
    assert page.text.count(evil) >= 5
    assert page.tags.count("img") == 5
    assert "<img src=x" not in page.source


def test_what_is_the_same_in_all_runs_takes_no_column(words: Report, runs: Path) -> None:
    page = words("runs/line", "runs/fast", "--out", "both")
    assert "The same in all: outcome finished; peers 4; rounds 12; gradients 48; engine events." in page.text
    assert not {"outcome", "peers", "rounds", "gradients", "engine"} & {cells[0] for cells in page.rows}
    assert {"accuracy", "loss"} & {cells[0] for cells in page.rows} == {"loss"}


def test_titles_stand_above_pictures_and_what_is_not_drawn_has_no_card(words: Report, runs: Path) -> None:
    history = json.loads((runs / "line" / "summary.json").read_text())["history"]
    change(runs / "line", history=[entry | {"consensus_distance": 0.0} for entry in history])
    page = words("runs/line")
    assert "<figure><h3>Loss against rounds</h3><picture>" in page.source
    assert page.tags.count("figure") == page.tags.count("img") == 4
    assert page.text.count("Consensus distance against rounds") == 1


# ---- Beside a coordinator, and of one daemon


def with_mode(run: Path, mode: str, **tables: Any) -> None:
    """Have a run be one with a coordinator, as far as its experiment says."""
    (run / "experiment.toml").write_text(from_dict({**LINE, **tables, "coordinator": {"mode": mode}}).to_toml())


def test_one_model_has_no_distance(words: Report, runs: Path) -> None:
    with_mode(runs / "line", "sync")
    page = words("runs/line", "runs/fast", "--out", "both")
    assert page.row("consensus distance")[0] == "one modelthe coordinator's"
    assert "One model, the coordinator's, and so no distance: sync." in page.text


def test_the_centre_of_easgd_is_not_the_model_of_the_peers(words: Report, runs: Path) -> None:
    with_mode(runs / "line", "sync", algorithm={"name": "easgd"})
    assert "one model" not in words("runs/line").text


def test_rounds_of_different_work_are_told_apart(words: Report, runs: Path) -> None:
    with_mode(runs / "line", "async")
    page = words("runs/line", "runs/fast", "--out", "both")
    assert "not the same work everywhere. Of async it is one push. Of ring gossip it is that of all peers." in page.text


def test_rounds_of_the_same_work_need_no_words(words: Report, runs: Path) -> None:
    with_mode(runs / "line", "sync")
    assert "same work" not in words("runs/line", "runs/fast", "--out", "both").text


def as_of_one_daemon(run: Path) -> None:
    """Make a summary what one daemon of four would have written."""
    summary = json.loads((run / "summary.json").read_text()) | {"engine": "daemons", "peers": 1}
    for entry in [summary, *summary["history"]]:
        entry["neighbour_distance"] = entry.pop("consensus_distance")
    (run / "summary.json").write_text(json.dumps(summary))


def test_of_one_daemon_the_bytes_are_its_own(words: Report, runs: Path) -> None:
    as_of_one_daemon(runs / "daemons")
    page = words("runs/daemons")
    assert page.row("peers") == ["4"]
    assert page.row("payload sent")[0].endswith("by this daemon")
    assert "What one daemon has sent, not all of them." in page.text
    assert "one daemon's own report" in page.text


def test_bytes_of_one_daemon_beside_those_of_all_are_named(words: Report, runs: Path) -> None:
    as_of_one_daemon(runs / "daemons")
    page = words("runs/line", "runs/daemons", "--out", "both")
    assert "Of one daemon alone, where those of the others are of all peers: daemons." in page.text


# ---- Prediction, and staleness


@pytest.mark.parametrize(
    ("tables", "how", "kind"),
    [
        ({"coordinator": {"mode": "async"}, "rounds": 16}, ["simulate", "--engine", "events"], "simulated"),
        ({"coordinator": {"mode": "sync"}, "record": {"params": "final"}}, ["up"], "real"),
        ({}, ["simulate", "--engine", "events"], "simulated"),
    ],
)
def test_a_run_with_its_own_prediction_is_reported(
    command: Command, words: Report, here: Path, tables: dict[str, Any], how: list[str], kind: str
) -> None:
    (here / "exp.toml").write_text(from_dict({**DIGITS, **tables}).to_toml())
    way, *options = how
    assert command(way, "exp.toml", *options, "--predict", "--out", "run", "--quiet").code == 0
    summary = json.loads(Path("run/summary.json").read_text())
    predicted, took_s = summary["prediction"], summary["simulated_seconds" if kind == "simulated" else "rounds_seconds"]
    measured = took_s / summary["rounds"]
    page = words("run")
    row = next(cells for cells in page.rows if predicted["bottleneck"] in cells)
    assert row[1:4] == [
        f"{predicted['seconds_per_round']:.4g}",
        f"{measured:.4g}{kind}",
        f"{measured / predicted['seconds_per_round']:.3f}",
    ]
    assert "Predictions leave out faults, evaluations, start-up" in page.text
    assert Path("run/report/staleness.png").exists() == ("staleness" in summary)


def test_a_prediction_stands_beside_what_was_measured(words: Report, runs: Path) -> None:
    measured = json.loads((runs / "line" / "summary.json").read_text())["simulated_seconds"] / 12
    prediction = {"seconds_per_round": measured / 2, "speed_up": 3.5, "efficiency": 0.875, "bottleneck": "a <hub>"}
    change(runs / "line", prediction=prediction)
    page = words("runs/line")
    row = next(cells for cells in page.rows if "a <hub>" in cells)
    assert row[1:] == [f"{measured / 2:.4g}", f"{measured:.4g}simulated", "2.000", "3.5", "88%", "a <hub>"]


def test_a_prediction_may_stand_in_a_file_of_its_own(words: Report, runs: Path) -> None:
    (runs / "daemons" / "prediction.json").write_text('{"seconds_per_round": 0.25}')
    rounds_seconds = json.loads((runs / "daemons" / "summary.json").read_text())["rounds_seconds"]
    row = next(cells for cells in words("runs/daemons").rows if "0.25" in cells)
    assert row[2] == f"{rounds_seconds / 12:.4g}real"


def test_without_a_prediction_there_is_no_table_of_it(words: Report, runs: Path) -> None:
    assert "Prediction" not in words("runs/line").text


def test_staleness_is_drawn_where_it_was_counted(report: Report, runs: Path) -> None:
    change(runs / "fast", staleness={"mean": 0.5, "max": 2, "histogram": [6, 1, 1]})
    assert "Staleness" in report("runs/line", "runs/fast", "--out", "both").text
    assert is_drawn(Path("both/staleness.png").read_bytes())


def test_staleness_is_drawn_in_shares() -> None:
    axes: Any = Figure().subplots()
    draw_staleness(axes, [("a", 0, [6.0, 1.0, 1.0])], LIGHT)
    assert [bar.get_height() for bar in axes.patches] == [75.0, 12.5, 12.5]
    assert [bar.get_x() + bar.get_width() / 2 for bar in axes.patches] == pytest.approx([0, 1, 2])


@pytest.mark.parametrize(
    ("mode", "unit"), [("async", "in rounds, or versions of a coordinator."), ("none", "in rounds.")]
)
def test_staleness_is_in_versions_beside_a_coordinator(words: Report, runs: Path, mode: str, unit: str) -> None:
    counted = {"mean": 0.5, "max": 2, "histogram": [6, 1, 1]}
    for name in ("line", "fast"):
        change(runs / name, staleness=counted)
    tables = {**LINE, "coordinator": {"mode": mode}} if mode != "none" else LINE
    (runs / "line" / "experiment.toml").write_text(from_dict(tables).to_toml())
    assert f"had become, {unit}" in words("runs/line", "runs/fast", "--out", "both").text


def test_runs_around_the_same_coordinator_share_a_picture(words: Report, runs: Path) -> None:
    for name, mode in (("line", "sync"), ("fast", "async")):
        text = from_dict({**LINE, "coordinator": {"mode": mode}}).to_toml()
        (runs / name / "experiment.toml").write_text(text)
    page = words("runs/line", "runs/fast", "--out", "both")
    assert "Who talks with whomAll runs." in page.text
    assert "topology-2.png" not in {path.name for path in Path("both").iterdir()}


def test_a_long_tail_of_staleness_shares_bars() -> None:
    axes: Any = Figure().subplots()
    draw_staleness(axes, [("a", 0, [1.0] * 1000)], LIGHT)
    assert len(axes.patches) == 40
    assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(100)


# ---- Runs without a summary


@pytest.mark.parametrize(("name", "keys"), [("line", ("simulated_seconds", "payload_bytes_sent")), ("digits", ())])
def test_metrics_tell_what_the_summary_would(runs: Path, name: str, keys: tuple[str, ...]) -> None:
    run = read_run(runs / name)
    told = from_metrics(run.experiment, run.folder)
    assert told["outcome"] == "unfinished"
    assert len(told["history"]) == len(run.summary["history"])
    for entry, true in zip(told["history"], run.summary["history"], strict=True):
        assert entry["round"] == true["round"]
        for key in ("accuracy", "loss"):
            assert entry[key] == pytest.approx(true[key])
        for key in keys:
            assert entry[key] == pytest.approx(true[key])


def test_metrics_of_daemons_give_the_bytes_of_all(runs: Path) -> None:
    run = read_run(runs / "daemons")
    told = from_metrics(run.experiment, run.folder)
    assert told["engine"] == "daemons"
    assert [entry["payload_bytes_sent"] for entry in told["history"]] == [
        entry["payload_bytes_sent"] for entry in run.summary["history"]
    ]


def test_metrics_of_rounds_give_no_seconds(runs: Path) -> None:
    run = read_run(runs / "rounds")
    assert "seconds" not in from_metrics(run.experiment, run.folder)["history"][-1]


def test_a_run_without_a_summary_is_reported_as_far_as_it_has_come(words: Report, runs: Path) -> None:
    (runs / "digits" / "summary.json").unlink()
    file = runs / "digits" / "metrics.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:10], lines[10][:20]]))  # two evaluations of four peers, and a half
    page = words("runs/digits")
    assert page.row("outcome") == ["unfinished"]
    assert page.row("rounds") == ["1"]
    assert "Not known before the end: digits." in page.text


# ---- What is refused


def _break(name: str, text: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).write_text(text)

    return change


def _without_summary(metrics: str | None) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / "summary.json").unlink()
        (run / "metrics.jsonl").unlink()
        if metrics is not None:
            (run / "metrics.jsonl").write_text(metrics)

    return change


def _change(**values: Any) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        change(run, **values)

    return spoil


ROW = '{"round": 0, "peer": "a", "loss": 1.0, "seconds": 0.1}'


@pytest.mark.parametrize(
    ("spoil", "file", "words"),
    [
        (shutil.rmtree, "", "no such folder; name the folder of a run"),
        (
            lambda run: (run / "experiment.toml").unlink(),
            "",
            "is not the folder of a run, for it has no experiment.toml",
        ),
        (_break("experiment.toml", "rounds = ["), "experiment.toml", "not valid TOML"),
        (_break("experiment.toml", "rounds = -1"), "experiment.toml", "rounds"),
        (_break("summary.json", '{"name": "x'), "summary.json", "not valid JSON"),
        (_break("summary.json", '{"rounds": NaN}'), "summary.json", "NaN"),
        (_break("summary.json", "[" * 100_000), "summary.json", "not valid JSON"),
        (_break("summary.json", "[]"), "summary.json", "is no table"),
        (_break("summary.json", "{}"), "summary.json", "outcome is not text"),
        (_change(history={}), "summary.json", "history is not a list"),
        (_change(history=[{"round": "x"}]), "summary.json", "history.0 has no round"),
        (_change(loss={"mean": 1, "min": "0", "max": 2}), "summary.json", "loss is not mean, min and max"),
        (_change(lost="peer-1"), "summary.json", "lost is not a list of names"),
        (_change(rounds=True), "summary.json", "rounds is not a number"),
        (_change(staleness={"mean": 1, "max": 2, "histogram": [-1]}), "summary.json", "staleness.histogram"),
        (_change(prediction={"speed_up": "x"}), "", "prediction.speed_up is not a number"),
        (_without_summary(None), "summary.json", "is missing, and so is metrics.jsonl"),
        (_without_summary(""), "summary.json", "metrics.jsonl has no evaluation yet"),
        (_without_summary(f"{ROW}\n{{\n{ROW}\n"), "metrics.jsonl", "line 2 is not valid JSON"),
        (_without_summary(f'{ROW}\n{{"round": 1}}\n'), "metrics.jsonl", "line 2 is not one peer"),
        (_without_summary(ROW.replace("1.0", '"x"')), "metrics.jsonl", "has a loss that is not a number"),
        (lambda run: (run / "summary.json").write_bytes(b"\xff"), "summary.json", "is not UTF-8"),
        (_break("prediction.json", "{"), "prediction.json", "not valid JSON"),
    ],
)
def test_what_is_wrong_in_a_folder_is_said_in_one_line(
    command: Command, runs: Path, spoil: Callable[[Path], None], file: str, words: str
) -> None:
    spoil(runs / "line")
    done = command("report", "runs/digits", "runs/line", "--out", "new")
    assert done.code == 2
    assert done.err.startswith(f"earshot: {Path('runs/line') / file}: ")
    assert words in done.err
    assert done.err.count("\n") == 1
    assert not Path("new").exists()


def test_of_a_folder_of_runs_one_is_named(command: Command, runs: Path) -> None:
    done = command("report", "runs", "--json")
    assert done.code == 2
    assert "name those in it, such as runs/rounds" in done.document["error"]


def test_a_file_is_no_folder_of_a_run(command: Command, runs: Path) -> None:
    done = command("report", "runs/line/summary.json")
    assert (done.code, done.out) == (2, "")
    assert "is a file; name the folder of a run, such as runs/line" in done.err


def test_a_run_is_named_once(command: Command, runs: Path) -> None:
    done = command("report", "runs/line", "runs/../runs/line")
    assert done.code == 2
    assert "is named twice" in done.err


def test_at_least_one_run_is_named(command: Command) -> None:
    assert command("report").code == 2


# ---- Where it is written


def test_a_report_takes_the_place_of_an_earlier_one(words: Report, runs: Path) -> None:
    change(runs / "fast", staleness={"mean": 0.5, "max": 2, "histogram": [6, 1, 1]})
    words("runs/fast", "--out", "place")
    assert Path("place/staleness.png").exists()
    words("runs/line", "--out", "place")
    assert {path.name for path in Path("place").iterdir()} == ALL_OF_A_LINE | {"report.html"}


@pytest.mark.parametrize("name", ["notes.txt", "report.html"])
def test_files_that_are_not_a_reports_are_left_alone(command: Command, runs: Path, name: str) -> None:
    Path("place").mkdir()
    Path("place", name).write_text("mine")
    done = command("report", "runs/line", "--out", "place")
    assert done.code == 2
    assert f"the folder holds files that are not a report's ({name}); name another" in done.err
    assert [(path.name, path.read_text()) for path in Path("place").iterdir()] == [(name, "mine")]


def test_a_run_folder_itself_is_no_place_for_a_report(command: Command, runs: Path) -> None:
    assert command("report", "runs/line", "--out", "runs/line").code == 2


@pytest.mark.parametrize("place", ["runs/line/summary.json", "runs/line/summary.json/below"])
def test_a_place_that_cannot_be_written_is_refused(command: Command, runs: Path, place: str) -> None:
    done = command("report", "runs/line", "--out", place)
    assert done.code == 2
    assert done.err.startswith(f"earshot: --out {place}: ")
    assert done.err.count("\n") == 1


# ---- Networks


def drawn_network(**tables: Any) -> Any:
    experiment = from_dict(tables)
    return network_of(experiment, ground_of(experiment))


def test_around_a_coordinator_there_is_a_star() -> None:
    network = drawn_network(topology={"peers": 3}, coordinator={"mode": "sync"})
    assert network.names == ("peer-0", "peer-1", "peer-2", "coordinator")
    assert network.edges == [(0, 3), (1, 3), (2, 3)]
    assert network.places[3] == (0.0, 0.0)


def test_each_of_several_coordinators_talks_with_every_peer() -> None:
    network = drawn_network(topology={"peers": 3}, coordinator={"mode": "async", "servers": 2})
    assert network.names[3:] == ("coordinator-0", "coordinator-1")
    assert set(network.edges) == {(i, j) for i in range(3) for j in (3, 4)}


def test_a_coordinator_in_a_peers_process_is_called_after_it() -> None:
    e = from_dict({"topology": {"peers": 3}, "coordinator": {"mode": "sync", "name": "peer-1"}})
    assert coordinators_of(e, ("peer-0", "peer-1", "peer-2")) == ("coordinator@peer-1",)


def test_an_all_reduce_is_a_ring_in_node_order() -> None:
    network = drawn_network(topology={"peers": 4}, coordinator={"mode": "ring"})
    assert network.edges == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert network.directed


def test_without_a_coordinator_it_is_the_topology() -> None:
    network = drawn_network(topology={"family": "star", "peers": 5})
    assert sorted(map(sorted, network.edges)) == [[0, i] for i in range(1, 5)]
    assert network.places[0] == (0.0, 0.0)


def test_no_edge_of_a_torus_lies_on_a_peer_between() -> None:
    network = drawn_network(topology={"family": "torus", "shape": [4, 5]})
    for a, b in network.edges:
        for other in set(range(20)) - {a, b}:
            assert _distance(network.places[other], network.places[a], network.places[b]) > 0.05


def _distance(point: Any, a: Any, b: Any) -> float:
    """Return how far a point is from the line between two others."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    along = ((point[0] - a[0]) * dx + (point[1] - a[1]) * dy) / (dx * dx + dy * dy)
    along = min(1.0, max(0.0, along))
    return float(((a[0] + along * dx - point[0]) ** 2 + (a[1] + along * dy - point[1]) ** 2) ** 0.5)


def test_code_that_a_run_names_is_not_run(words: Report, runs: Path) -> None:
    run = runs / "line"
    (run / "own.py").write_text("open('ran', 'w').close()\ndef wheel(peers, seed, rounds): return []\n")
    text = (run / "experiment.toml").read_text()
    (run / "experiment.toml").write_text(text.replace('family = "ring"', 'family = "own:wheel"'))
    assert "own:wheel is code, and a report runs none" in words("runs/line").text
    assert not Path("ran").exists()


def test_a_graph_file_is_looked_for_here_too(words: Report, runs: Path) -> None:
    file = runs / "line" / "experiment.toml"
    file.write_text(file.read_text().replace('family = "ring"', 'family = "file:four.edges"'))
    assert "Not drawn" in words("runs/line").text
    Path("four.edges").write_text("0 1\n1 2\n2 3\n3 0\n")
    assert "Not drawn" not in words("runs/line").text


# ---- Looks


def test_two_dozen_runs_look_different() -> None:
    looks = {tuple(sorted(LIGHT.line(i).items())) for i in range(24)}
    assert len(looks) == 24


def test_every_run_of_many_is_drawn() -> None:
    axes = Figure().subplots()
    draw_lines(axes, [Line(f"run {i}", i, [0.0, 1.0], [0.5, i / 30]) for i in range(30)])
    assert [line.get_label() for line in axes.lines] == [f"run {i}" for i in range(30)]


@pytest.mark.parametrize(
    ("text", "shown"), [("_a", " _a"), ("$x_1$", r"\$x_1\$"), ("a\nb", "a b"), ("x" * 90, f"{'x' * 47}…{'x' * 24}")]
)
def test_names_in_pictures_are_plain(text: str, shown: str) -> None:
    assert plain(text) == shown


# ---- Its page in docs/

DOC = (DOCS / "report.md").read_text(encoding="utf-8")


def test_the_commands_of_the_documentation_do_what_stands_there(command: Command, here: Path) -> None:
    (file,) = blocks(DOC, "toml")
    (here / "small.toml").write_text(file)
    done = [command(*arguments) for arguments in commands(DOC)]
    assert [one.code for one in done] == [0] * 4
    (said,) = blocks(DOC, "")
    assert [one.out.rstrip("\n") for one in done[2:]] == said.splitlines()
    assert "exponential" in Page(here / "compared" / "report.html").row("topology.family")[1]


def test_the_documentation_names_every_picture() -> None:
    named = set(re.findall(r"`([\w-]+\.png)`", DOC))
    assert named == set(pictures.FILES) - {f"topology-{number}.png" for number in range(3, 10)}


def test_the_prediction_of_the_documentation_is_one(words: Report, runs: Path) -> None:
    (text,) = blocks(DOC, "json")
    (runs / "line" / "prediction.json").write_text(text)
    assert "65%" in next(cells for cells in words("runs/line").rows if "0.063" in cells)
