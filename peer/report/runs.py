"""Reading run folders: what was run, and what came of it. Whatever is wrong is said in one line that names the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from peer.errors import ConfigError
from peer.experiment import Experiment, load
from peer.record import Row
from peer.report.checks import prediction_problems, summary_problems
from peer.report.files import parsed, text_of
from peer.report.unfinished import from_metrics


@dataclass(frozen=True, eq=False)
class Recorded:
    """A run folder as read. `summary` has the keys of a run's summary; of a run that has none, those of
    `from_metrics`."""

    folder: Path
    experiment: Experiment
    summary: Row

    @property
    def name(self) -> str:
        return str(self.summary.get("name") or self.experiment.name)

    @property
    def outcome(self) -> str:
        return str(self.summary["outcome"])

    @property
    def is_one_daemons(self) -> bool:
        """Whether this is what one daemon of several tells, as `earshot start` has it tell: of itself alone."""
        if self.summary["engine"] != "daemons":
            return False
        return "neighbour_distance" in self.summary or self.summary["peers"] == 1 != self.experiment.known_peers()

    @property
    def has_one_model(self) -> bool:
        """Whether there is one model, a coordinator's, and peers have none of their own between their local steps."""
        return self.experiment.coordinates and not self.experiment.is_elastic


def read_run(folder: Path) -> Recorded:
    """Read a run folder. Raises ConfigError naming the file and the mend."""
    _check_folder(folder)
    file = folder / "experiment.toml"
    try:
        experiment = load(file)
    except ConfigError as error:
        text = str(error)
        raise ConfigError("", text if text.startswith(str(file)) else f"{file}: {text}", error.details) from error
    summary = _read_summary(folder / "summary.json")
    if summary is None:
        summary = from_metrics(experiment, folder)
    prediction = folder / "prediction.json"
    if "prediction" not in summary and prediction.exists():
        summary["prediction"] = parsed(prediction, text_of(prediction))
    _check(prediction_problems(summary.get("prediction")), folder)
    return Recorded(folder, experiment, summary)


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise ConfigError("", f"{folder}: no such folder; name the folder of a run, such as runs/NAME-TIME")
    if not folder.is_dir():
        raise ConfigError("", f"{folder}: is a file; name the folder of a run, such as {folder.parent}")
    if not (folder / "experiment.toml").exists():
        inside = sorted(path.parent for path in folder.glob("*/experiment.toml"))
        mend = f"name those in it, such as {inside[-1]}" if inside else "name a folder that a run has written"
        raise ConfigError("", f"{folder}: is not the folder of a run, for it has no experiment.toml; {mend}")


# ---- Summaries


def _read_summary(file: Path) -> Row | None:
    """Return a checked summary, None where the file is not there."""
    if not file.exists():
        return None
    mend = "if the run was cut short, remove this file, and the report is made from metrics.jsonl"
    summary = parsed(file, text_of(file), mend)
    _check(summary_problems(summary), file)
    return dict(summary)


def _check(problems: Iterator[str], where: Path) -> None:
    for problem in problems:
        raise ConfigError("", f"{where}: {problem}; it is not as a run has written it, copy it anew from where it ran")
