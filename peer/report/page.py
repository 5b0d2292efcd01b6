"""The page: one HTML file with everything in it, which loads nothing and runs nothing."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape

from peer.report.figures import FIGURES, Table, same_in_all
from peer.report.labels import kind_of
from peer.report.pictures import Picture, Words
from peer.report.runs import Recorded
from peer.report.style import STYLE

GENERATOR = '<meta name="generator" content="earshot report">'
"""By this a page is known to be a report's."""

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

FIGURES_NOTE = "Means over the peers, and below them the worst and the best peer."
OWN_NOTE = "What one daemon tells of itself: its own figures, seconds and bytes."
DIFFERENCES_NOTE = (
    "Left out are keys that are the same in all runs, and keys that only some of them use, with their default. "
    "An empty cell: the key has no effect in that run."
)
PREDICTIONS_NOTE = (
    "Predictions leave out faults, evaluations, start-up, and what else runs on the same cores: of daemons on one "
    "machine, local steps alone are counted as sharing them. The seconds of a short run have much of its start in them."
)
CURVES = "Curves are means over the peers; the bands, drawn for up to four runs, reach from the worst peer to the best."

LONG = 20
"""Cells of more characters than this get room."""

TILES = ("accuracy", "loss", "rounds", "seconds", "payload sent", "lost")
"""The figures that a page about one run begins with."""


def page_of(
    runs: Sequence[Recorded],
    labels: Sequence[str],
    pictures: Sequence[Picture | Words],
    outcomes: Table,
    differences: Table | None,
    predictions: Table | None,
) -> str:
    """Return the whole page."""
    title = _title(runs)
    parts = [
        f"<header><p class=kicker>Earshot report</p><h1>{escape(title)}</h1>{_lead(runs, labels)}</header>",
        _section(
            "Figures",
            _table(outcomes, has_outcomes=True),
            OWN_NOTE if all(run.is_one_daemons for run in runs) else FIGURES_NOTE,
            _same(runs),
        ),
        _differences(runs, differences),
        _predictions(predictions),
        _gallery(runs, pictures),
        _folders(runs, labels),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{GENERATOR}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)} - Earshot report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


# ---- The top


def _title(runs: Sequence[Recorded]) -> str:
    names = {run.name for run in runs}
    of = f"{names.pop()}: " if len(names) == 1 else ""
    return runs[0].name if len(runs) == 1 else f"{of}{len(runs)} runs compared"


def _lead(runs: Sequence[Recorded], labels: Sequence[str]) -> str:
    """Say how the runs ended; of one run, its figures in large."""
    if len(runs) == 1:
        cells = [(name, FIGURES[name](runs[0])) for name in TILES]
        tiles = "".join(_tile(name, value) for name, value in cells if value != "-")
        return f"<p>{_badge(runs[0].outcome)} {escape(_kind(runs[0]))}</p><div class=tiles>{tiles}</div>"
    badly = [(label, run) for label, run in zip(labels, runs, strict=True) if run.outcome != "finished"]
    if not badly:
        return "<p>All of them finished.</p>"
    items = "".join(f"<li>{_badge(run.outcome)} {escape(label)}</li>" for label, run in badly)
    rest = len(runs) - len(badly)
    others = f"<p>The {'other' if rest == 1 else f'other {rest}'} finished.</p>" if rest else ""
    return f"<ul class=badly>{items}</ul>{others}"


def _kind(run: Recorded) -> str:
    peers = run.summary["peers"]
    who = "one daemon's own report" if run.is_one_daemons else f"{peers:g} peer{'' if peers == 1 else 's'}"
    what = f"{kind_of(run.experiment)}{' coordinator' if run.experiment.coordinates else ''}"
    return f"{who}, {what}, engine {run.summary['engine']}"


def _tile(name: str, value: str) -> str:
    number, rest = _split(value)
    return f"<div class=tile><span class=name>{escape(name)}</span><b>{escape(number)}</b>{rest}</div>"


def _split(text: str) -> tuple[str, str]:
    """Return the first line of a cell, and what stands below it, small, as HTML."""
    first, _, rest = text.partition("\n")
    kind = "'rest words'" if len(rest) > LONG else "rest"
    return first, f"<span class={kind}>{escape(rest)}</span>" if rest else ""


def _badge(outcome: str) -> str:
    kind = {"finished": "good", "interrupted": "so-so", "unfinished": "so-so"}.get(outcome, "bad")
    return f'<span class="badge {kind}">{escape(outcome)}</span>'


# ---- Sections


def _section(heading: str, content: str, note: str = "", before: str = "") -> str:
    above, below = (f"<p class=note>{escape(words)}</p>" if words else "" for words in (before, note))
    return f"<section><h2>{escape(heading)}</h2>{above}{content}{below}</section>"


def _same(runs: Sequence[Recorded]) -> str:
    """Say which figures are the same in all runs, and so in no row."""
    words = [f"{name} {cell}".replace("\n", ", ") for name, cell in same_in_all(runs).items()]
    return f"The same in all: {'; '.join(words)}." if words else ""


def _differences(runs: Sequence[Recorded], differences: Table | None) -> str:
    if len(runs) == 1:
        return ""
    if differences is None:
        return _section("What differs", "<p>Nothing: the experiments are the same in every key that has an effect.</p>")
    return _section("What differs", _table(differences), DIFFERENCES_NOTE)


def _predictions(predictions: Table | None) -> str:
    if predictions is None:
        return ""
    return _section("Prediction beside measurement", _table(predictions), PREDICTIONS_NOTE)


def _gallery(runs: Sequence[Recorded], pictures: Sequence[Picture | Words]) -> str:
    figures = "".join(_figure(picture) for picture in pictures if isinstance(picture, Picture))
    words = "".join(_words(picture) for picture in pictures if isinstance(picture, Words))
    about = "" if all(run.is_one_daemons for run in runs) else f"<p class=note>{CURVES}</p>"
    return f"<section><h2>Pictures</h2>{about}<div class=gallery>{figures}</div>{words}</section>"


def _words(words: Words) -> str:
    """Say why there is no such picture."""
    return f"<p class='note absent'><b>{escape(words.title)}.</b> {escape(' '.join(words.notes))}</p>"


def _figure(picture: Picture) -> str:
    notes = "".join(f"<p>{escape(note)}</p>" for note in picture.notes)
    caption = f"<figcaption>{notes}</figcaption>" if notes else ""
    light, dark = (f"data:image/png;base64,{b64encode(content).decode()}" for content in (picture.light, picture.dark))
    image = f'<img src="{light}" alt="{escape(picture.title)}">'
    return (
        f"<figure><h3>{escape(picture.title)}</h3><picture>"
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">{image}</picture>{caption}</figure>'
    )


def _folders(runs: Sequence[Recorded], labels: Sequence[str]) -> str:
    rows = "".join(
        f"<li>{escape(label)}: <code>{escape(str(run.folder))}</code></li>"
        for label, run in zip(labels, runs, strict=True)
    )
    return f"<footer><p>Made by <code>earshot report</code> from</p><ul>{rows}</ul></footer>"


def _table(table: Table, has_outcomes: bool = False) -> str:
    head = "".join(f"<th scope=col>{_breakable(column)}</th>" for column in table.columns)
    body = "".join(
        f"<tr><th scope=row>{_breakable(name)}</th>{''.join(_cells(table, i, has_outcomes))}</tr>\n"
        for i, (name, _) in enumerate(table.rows)
    )
    return (
        f"<div class=scroll tabindex=0><table><thead><tr><th scope=col>{escape(table.corner) or '&nbsp;'}</th>{head}"
        f"</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _breakable(key: str) -> str:
    """Let a dotted key go on below."""
    return escape(key).replace(".", ".<wbr>")


def _cells(table: Table, row: int, has_outcomes: bool) -> Iterator[str]:
    name, cells = table.rows[row]
    for column, text in zip(table.columns, cells, strict=True):
        first, rest = _split(text)
        is_outcome = has_outcomes and (column if table.corner else name) == "outcome"
        long = " class=long" if len(first) > LONG else ""
        yield f"<td{long}>{_badge(first) if is_outcome else escape(first)}{rest}</td>"
