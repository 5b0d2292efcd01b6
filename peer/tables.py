"""Documents as text for people."""

from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from peer.explanation import Explanation
from peer.record import Row
from peer.screen import human_bytes

SHOWN_PEERS = 20
SHOWN_NEIGHBOURS = 10
UNBROKEN = 10_000
"""A width at which no line is broken: a path is to be copied in one piece."""


def explanation_text(explanation: Explanation) -> str:
    """Return what `earshot explain` prints."""
    d, e = explanation.document, explanation.assembly.experiment
    rounds = d["rounds_to_consensus"]
    lines = [
        f"{e.name}: {_peers(d['peers'])}, {e.topology.family}, {d['metric']} within {e.topology.threshold:g}",
        "",
        f"  edges                {d['edges']}",
        f"  connected            {'yes' if d['connected'] else 'no'}",
        f"  diameter             {'-' if d['diameter'] is None else d['diameter']}",
        f"  neighbours           {_degrees(d['degree'])}",
        f"  mixing matrix        {d['weights']}, {d['stochastic']} stochastic",
        f"  slem, spectral gap   {d['slem']:.6g}, {d['spectral_gap']:.6g}",
        f"  rounds to consensus  {'never' if rounds is None else rounds} (differences down to a millionth)",
        f"  parameters           {d['parameters']:,} at each peer",
        f"  training state       {human_bytes(d['memory_bytes'])} in all",
        f"  a message            {human_bytes(d['payload_bytes_per_message'])}",
        f"  a round              {human_bytes(d['bytes_per_round'])} in all",
    ]
    if "schedule" in d:
        lines += _rounds(d["schedule"])
    if e.algorithm.name in ("local", "exact"):
        said = "nobody gossips" if e.algorithm.name == "local" else "everybody hears everybody, with equal weight"
        lines.append(f'  algorithm            "{e.algorithm.name}": {said}; the topology is not used')
    lines += ["", _hears(explanation)]
    for rows in [d["matrix"]] if "matrix" in d else d.get("matrices", []):
        lines += ["", *(" ".join(f"{w:7.4f}" for w in row) for row in rows)]
    return "\n".join(lines)


def _rounds(schedule: dict[str, Any]) -> list[str]:
    """Say what the single rounds are like: the figures above are of all of them together."""
    period, seen = schedule["period"], schedule["rounds_seen"]
    repeats = f"repeats after {period} rounds" if period else f"never repeats; the first {seen} rounds were looked at"
    edges, connected = schedule["edges"], round(schedule["connected_share"] * seen)
    count = f"{edges['min']}" if edges["min"] == edges["max"] else f"{edges['min']} to {edges['max']}"
    return [
        f"  schedule             {repeats}",
        f"  edges of one round   {count}, {edges['mean']:.4g} on average; neighbours {_degrees(schedule['degree'])}",
        f"  rounds connected     {connected} of {seen} by themselves",
    ]


def summary_text(summary: Row) -> str:
    """Return what a run prints at its end."""
    s = summary
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("outcome", s["outcome"] + (f": {s['why']}" if s.get("why") else ""))
    if s["diverged"] is not None:
        table.add_row("diverged", f"{s['diverged']['peer']}, after round {s['diverged']['round']}")
    table.add_row("rounds", f"{s['rounds']} by {_peers(s['peers'])}")
    table.add_row("engine", f"{s['engine']}, {s['step']} local step")
    judged = s["history"][-1]["round"] if s["history"] else 0
    if judged != s["rounds"]:
        table.add_row("figures are of", f"round {judged}, the last evaluation")
    for name in ("accuracy", "own_accuracy", "loss", "own_loss"):
        if name in s and s[name]["mean"] is not None:
            table.add_row(name.replace("_", " "), _spread(s[name]))
    for name in ("consensus_distance", "neighbour_distance"):
        if s.get(name) is not None:
            table.add_row(name.replace("_", " "), f"{s[name]:.6g}")
    table.add_row("sent", human_bytes(s["payload_bytes_sent"]))
    if s["lost"]:
        table.add_row("lost", ", ".join(s["lost"]))
    if s["short_rounds"]:
        table.add_row("short rounds", str(s["short_rounds"]))
    table.add_row("seconds", f"{s['seconds']:.1f}, of which rounds {s['rounds_seconds']:.1f}")
    if s["run_folder"] is not None:
        table.add_row("run folder", _from_here(s["run_folder"]))
    return _rendered(table, width=UNBROKEN)


def _from_here(folder: str) -> str:
    path, here = Path(folder), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _degrees(degree: dict[str, float]) -> str:
    if degree["min"] == degree["max"]:
        return f"{degree['min']} each"
    return f"{degree['min']} to {degree['max']}, {degree['mean']:.4g} on average"


def _spread(values: dict[str, float]) -> str:
    if values["min"] == values["max"]:
        return f"{values['mean']:.4g}"
    return f"{values['mean']:.4g} on average, {values['min']:.4g} to {values['max']:.4g}"


def _hears(explanation: Explanation) -> str:
    """Say whom each peer hears, with the distance where it is more than one hop."""
    neighbours = explanation.document["neighbours"]
    table = Table(box=None, pad_edge=False)
    table.add_column("peer")
    table.add_column("hears")
    for name in list(neighbours)[:SHOWN_PEERS]:
        heard = [_with_distance(explanation, name, other) for other in neighbours[name]]
        more = f" and {len(heard) - SHOWN_NEIGHBOURS} more" if len(heard) > SHOWN_NEIGHBOURS else ""
        table.add_row(name, (", ".join(heard[:SHOWN_NEIGHBOURS]) or "nobody") + more)
    text = _rendered(table)
    hidden = len(neighbours) - SHOWN_PEERS
    return text + (f"\nand {_peers(hidden, 'more ')}" if hidden > 0 else "")


def _with_distance(explanation: Explanation, name: str, other: str) -> str:
    assembly = explanation.assembly
    t = assembly.experiment.topology
    if assembly.ground.period != 1 or t.metric == "model" or (t.metric == "hops" and t.threshold == 1):
        return other
    i, j = assembly.names.index(name), assembly.names.index(other)
    return f"{other} ({assembly.graph.edges[j, i]['distance']:.4g})"


def _peers(count: int, more: str = "") -> str:
    return f"{count} {more}peer{'' if count == 1 else 's'}"


def _rendered(renderable: Any, width: int = 110) -> str:
    text = StringIO()
    # The names are the user's: "[red]" and ":a:" are no markup.
    Console(file=text, width=width, highlight=False, markup=False, emoji=False).print(renderable)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())
