"""What the experiments in this folder share: their options, and the claims of papers that they check.

Each repeats a measurement through earshot's own Python API, prints what it found beside what a paper claims, draws a
picture, and ends with exit code 1 if a claim did not hold.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from peer import simulate
from peer.experiment import Experiment
from peer.scripting import Document


@dataclass(frozen=True)
class Claim:
    """What a paper says, what was found here, and whether the two agree.

    A paper that begins with "after" does not say it in these words: it follows from what is there.
    """

    paper: str
    says: str
    found: str
    held: bool


def options_of(description: str, *, rounds: int, picture: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all experiments have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of data split, batches and starts")
    parser.add_argument("--rounds", type=int, default=rounds, help="of training in each run (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs") / picture, help="where the picture goes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout; the tables go to stderr")
    return parser


def finished(experiment: Experiment) -> Document:
    """Return the summary of a simulated run; ends the program where it did not come to its end."""
    summary: Document = simulate(experiment)
    if summary.outcome != "finished":
        raise SystemExit(f"a run ended as {summary.outcome}; there is nothing to compare:\n{experiment.to_toml()}")
    return summary


def screen(as_json: bool) -> Console:
    """Return where tables are printed."""
    console = Console(stderr=as_json, highlight=False)
    if not console.is_terminal:
        console.width = 140
    return console


def table(title: str, *headings: str) -> Table:
    """Return an empty table: its first column is text, the others are figures."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="")
    for i, heading in enumerate(headings):
        made.add_column(heading, justify="right" if i else "left")
    return made


def json_line(measured: str, fields: Mapping[str, Any]) -> None:
    print(json.dumps({"measured": measured, **fields}), flush=True)


def over_seeds(values: Iterable[float], form: Callable[[float], str]) -> str:
    """Return the mean, and where it differs from them the smallest and the largest value, in words."""
    given = list(values)
    low, mean, high = form(min(given)), form(fmean(given)), form(max(given))
    return mean if low == high else f"{mean} ({low} to {high})"


def conclude(claims: Sequence[Claim], console: Console, as_json: bool) -> int:
    """Say of each claim whether it held. Returns the exit code: 1 if one did not."""
    verdict = Table(title="Claims", title_justify="left", title_style="bold", header_style="", show_lines=True)
    for heading in ("claim", "found here", "held"):
        verdict.add_column(heading)
    for claim in claims:
        held = "[green]yes[/green]" if claim.held else "[bold red]NO[/bold red]"
        verdict.add_row(f"{claim.says}\n[dim]{claim.paper}[/dim]", claim.found, held)
        if as_json:
            print(json.dumps({"claim": claim.says, **{k: v for k, v in asdict(claim).items() if k != "says"}}))
    console.print(verdict)
    failed = sum(not claim.held for claim in claims)
    console.print(f"{failed} of {len(claims)} claims did not hold." if failed else f"All {len(claims)} claims held.")
    return 1 if failed else 0
