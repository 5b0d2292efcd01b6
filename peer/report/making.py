"""Making a report: everything is read and drawn before the first file is written."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.errors import ConfigError
from peer.report.figures import difference_table, outcome_table, prediction_table
from peer.report.labels import labels_of
from peer.report.page import GENERATOR, page_of
from peer.report.pictures import FILES, Picture, pictures_of
from peer.report.runs import read_run

PAGE = "report.html"


@dataclass(frozen=True)
class Report:
    """Where a report was written: its page, and its pictures as files of their own."""

    html: Path
    pictures: list[Path]


def make_report(folders: Sequence[Path], out: Path | None = None) -> Report:
    """Write the report of some runs into `out`, which is new, or holds a report, or nothing; without it, into report/
    in the first run's folder.

    Raises ConfigError for a folder that is no run's, and where the report cannot be written.
    """
    _check_distinct(folders)
    runs = [read_run(folder) for folder in folders]
    out = folders[0] / "report" if out is None else out
    _check_out(out)
    labels = labels_of(runs)
    shown = list(pictures_of(runs, labels))
    tables = outcome_table(runs, labels), difference_table(runs, labels), prediction_table(runs, labels)
    page = page_of(runs, labels, shown, *tables)
    pictures = [picture for picture in shown if isinstance(picture, Picture)]
    try:
        _write(out, page, pictures)
    except OSError as error:
        raise _unwritable(out, error) from error
    return Report(out / PAGE, [out / picture.file for picture in pictures])


def _check_distinct(folders: Sequence[Path]) -> None:
    places = [folder.resolve() for folder in folders]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise ConfigError("", f"{folders[i]}: is named twice; name each run once")


def _check_out(out: Path) -> None:
    """Refuse a place that cannot be a report's, and one that holds what a report would write over."""
    try:
        if out.exists() and not out.is_dir():
            raise ConfigError("", f"--out {out}: is a file; name a folder")
        nearest = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            why = "no place to write in" if nearest.is_dir() else "a file"
            raise ConfigError("", f"--out {out}: cannot be written: {nearest} is {why}; name another folder")
        found = sorted(path.name for path in out.iterdir()) if out.exists() else []
        strange = [name for name in found if name != PAGE and name not in FILES]
        if PAGE in found and GENERATOR not in (out / PAGE).read_text(encoding="utf-8", errors="replace"):
            strange.append(PAGE)
    except OSError as error:
        raise _unwritable(out, error) from error
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        text = f"--out {out}: the folder holds files that are not a report's ({strange[0]}{more}); name another"
        raise ConfigError("", f"{text}, nothing was overwritten")


def _write(out: Path, page: str, pictures: Sequence[Picture]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (out / name).unlink(missing_ok=True)  # an earlier report may have had pictures that this one has not
    for picture in pictures:
        (out / picture.file).write_bytes(picture.light)
    (out / PAGE).write_text(page, encoding="utf-8")


def _unwritable(out: Path, error: OSError) -> ConfigError:
    return ConfigError("", f"--out {out}: cannot be written: {error.strerror or error}; name another folder")
