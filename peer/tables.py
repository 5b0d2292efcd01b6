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
    if "coordinator" in d:
        return "\n".join(_coordinated(explanation))
    lines = [
        f"{e.name}: {_peers(d['peers'])}, {e.topology.family}, {_how_near(d)}",
        "",
        *(_rounds(explanation) if "schedule" in d else _graph(explanation)),
        *_decided_later(explanation),
        f"  mixing matrix        {d['weights']}, {d['stochastic']} stochastic",
        f"  slem, spectral gap   {_figure(d['slem'])}, {_figure(d['spectral_gap'])}{_of_a_round(d)}",
        f"  rounds to consensus  {_consensus(explanation)}",
        f"  algorithm            {_algorithm(explanation)}",
        f"  parameters           {d['parameters']:,} at each peer{_gossiped(explanation)}",
        f"  training state       {human_bytes(d['memory_bytes'])} in all",
        f"  a message            {human_bytes(d['payload_bytes_per_message'])}{_exchanges(explanation)}",
        f"  a round              {human_bytes(d['bytes_per_round'])} in all",
        f"  seconds per round    {_pace(explanation)}",
    ]
    lines += ["", _hears(explanation)]
    matrices = [d["matrix"]] if "matrix" in d else d.get("matrices", [])
    for round, rows in enumerate(matrices):
        heading = [f"round {round}"] if "matrices" in d else []
        lines += ["", *heading, *(" ".join(f"{w:7.4f}" for w in row) for row in rows)]
    return "\n".join(lines)


def _coordinated(explanation: Explanation) -> list[str]:
    """Say what peers beside coordinators, or in a ring, do; the topology is not used."""
    d, e = explanation.document, explanation.assembly.experiment
    c = d["coordinator"]
    lines = [f"{e.name}: {_peers(d['peers'])}, {_design(explanation)}", ""]
    if c["names"]:
        push, given = human_bytes(c["push_bytes"]), human_bytes(c["given_bytes"])
        lines += [
            f"  coordinator          {', '.join(c['names'][:SHOWN_NEIGHBOURS])}",
            f"  a round              one version, of {_count_of(c['pushes_per_round'], 'push')}",
            f"  a worker pushes      {push}, and is given {given}",
        ]
    lines += [
        f"  parameters           {d['parameters']:,} at each peer",
        f"  training state       {human_bytes(d['memory_bytes'])} in all",
        f"  bytes of a round     {human_bytes(d['bytes_per_round'])} in all",
        f"  seconds per round    {_pace(explanation)}",
        "",
        "the topology is not used for exchange",
    ]
    return lines


def _design(explanation: Explanation) -> str:
    e = explanation.assembly.experiment
    if e.is_ring:
        return "a ring all-reduce in node order"
    what = "elastic averaging" if e.is_elastic else e.coordinator.aggregate
    return f"a parameter server, {e.coordinator.mode}, {what}"


def _count_of(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}es"


def prediction_text(prediction: Row) -> str:
    """Return what `earshot explain --predict` prints of the performance model."""
    p = prediction
    table = Table(box=None, pad_edge=False)
    for name in ("peers", "design", "exchange", "speed-up", "efficiency", "rows/s", "weak: efficiency", "rows/s"):
        table.add_column(name, justify="left" if name == "design" else "right")
    for before, row in zip([None, *p["rows"]], p["rows"], strict=False):
        is_first = before is None or before["peers"] != row["peers"]
        table.add_row(
            str(row["peers"]) if is_first else "",
            row["design"] + (" *" if row["design"] == p["design"] else ""),
            _short_time(row["comm_seconds"]),
            f"{row['speed_up']:.3g}",
            f"{row['efficiency']:.0%}",
            f"{row['samples_per_second']:,.0f}",
            f"{row['weak_efficiency']:.0%}",
            f"{row['weak_samples_per_second']:,.0f}",
        )
    source = p["source"]
    lines = [
        "what more peers would be worth (* this experiment's own design)",
        "",
        f"  local steps          {_short_time(p['step_seconds'])} for {p['rows_per_step']:,} rows of a round, "
        f"{source['step_seconds']}",
        f"  a machine's line     {_rate(p['bandwidth_mbps'])} each way, {_of(source['bandwidth_mbps'])}",
        f"  latency              {p['latency_ms']:.4g} ms, {_of(source['latency_ms'])}",
        f"  parameters to send   {human_bytes(p['payload_bytes'])}",
        f"  a hub                {_hub(p['hub_limit_peers'])}",
        "",
        _rendered(table),
        "",
        "speed-up, efficiency: the rows of a round divided among the peers. weak: as many rows again at each.",
    ]
    return "\n".join(lines)


def _hub(limit: int | None) -> str:
    if limit is None:
        return "its line has no limit"
    if limit == 0:
        return "its line takes longer than computing even with one peer"
    return f"is fastest with {_peers(limit)}; with more of them its line is the limit"


def _of(source: str) -> str:
    return source if source.startswith(("measured", "given")) else f"by {source}"


def _rate(mbps: float | None) -> str:
    if mbps is None:
        return "no limit"
    return f"{mbps / 1000:.3g} Gb/s" if mbps >= 1000 else f"{mbps:.4g} Mb/s"


def _short_time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms" if seconds >= 1e-3 or not seconds else f"{seconds * 1e6:.3g} us"


def _how_near(d: Row) -> str:
    threshold = "any distance" if d["threshold"] is None else f"{d['threshold']:g}"
    within = f"{d['metric']} within {threshold}{' ms' if d['metric'] == 'rtt' else ''}"
    if "schedule" not in d:
        return within
    return f"{within}, new in every round" if d["metric"] == "position" else "new in every round"


def _graph(explanation: Explanation) -> list[str]:
    """Say what a graph that stays is like."""
    d = explanation.document
    return [
        f"  {_edges(explanation):20} {d['edges']}",
        f"  connected            {'yes' if d['connected'] else 'no'}",
        f"  diameter             {'-' if d['diameter'] is None else d['diameter']}",
        f"  neighbours           {_degrees(d['degree'])}",
    ]


def _rounds(explanation: Explanation) -> list[str]:
    """Say what the rounds of a schedule are like one by one, and who ever hears whom."""
    d, edges = explanation.document, _edges(explanation)
    schedule, rounds = d["schedule"], d["schedule"]["rounds_seen"]
    connected = round(schedule["connected_share"] * rounds)
    together = "connected" if d["connected"] else "not connected"
    together += "" if d["diameter"] is None else f", diameter {d['diameter']}"
    return [
        f"  schedule             {_period(schedule)}",
        f"  a round by itself    {edges}: {_count(schedule['edges'])}; a peer hears {_count(schedule['degree'])}",
        f"                       connected in {connected} of {rounds} rounds",
        f"  all of them at once  {edges}: {d['edges']}; a peer hears {_count(d['degree'])}; {together}",
    ]


def _period(schedule: Row) -> str:
    if schedule["period"]:
        return f"repeats after {schedule['period']} rounds"
    return f"never repeats; the figures here are of the first {schedule['rounds_seen']} rounds"


def _decided_later(explanation: Explanation) -> list[str]:
    """Say what is known in a run alone: whose models are near, how long round trips take."""
    d, t = explanation.document, explanation.assembly.experiment.topology
    again = explanation.assembly.look_again
    if d["metric"] == "model":
        return [
            f"  model distance       who stands within {t.threshold:g} is mixed; two that are further apart look again",
            f"                       after {again} rounds. The figures are for all of them near",
        ]
    if d["metric"] == "rtt":
        return ["  round trips          those of [network], as the simulator has them; daemons measure their own"]
    return []


def _of_a_round(d: Row) -> str:
    if "schedule" not in d:
        return ""
    if d["slem"] == 0:
        return " (of a round: after some, nothing is left of any difference)"
    return f" (of a round, {'on average over the period' if d['schedule']['period'] else 'as measured'})"


def _consensus(explanation: Explanation) -> str:
    d, words = explanation.document, "(differences down to a millionth)"
    if d["rounds_to_consensus"] is not None:
        return f"{d['rounds_to_consensus']} {words}"
    return f"not within {explanation.rounds_waited:,} rounds {words}" if "schedule" in d else f"never {words}"


def _algorithm(explanation: Explanation) -> str:
    assembly = explanation.assembly
    a = assembly.experiment.algorithm
    if a.name == "adpsgd":
        return "adpsgd: neighbours average in pairs; the mixing matrix is not used"
    if assembly.uses_topology:
        waits = ", async" if assembly.experiment.is_asynchronous else ""
        return (f"{a.name}, {a.order}" if explanation.has_orders else a.name) + waits
    said = "everybody hears everybody, with equal weight" if assembly.everyone else "nobody gossips"
    return f"{a.name}: {said}; the topology is not used"


def _pace(explanation: Explanation) -> str:
    """Say what a round takes by [network] and [speed], and what a round is where nobody waits."""
    seconds = explanation.document["seconds_per_round"]
    if seconds is None:
        return "not known before the run"
    e = explanation.assembly.experiment
    in_all = f"; {len(explanation.assembly.names)} local rounds in all" if e.is_asynchronous else ""
    return f"{seconds:.4g} predicted, in the events engine{in_all}"


def _gossiped(explanation: Explanation) -> str:
    columns = explanation.assembly.shared_columns(explanation.layout)
    return "" if columns is None else f"; {len(columns):,} of {explanation.layout.size:,} numbers are gossiped"


def _exchanges(explanation: Explanation) -> str:
    exchanges = explanation.assembly.algorithm.exchanges
    return "" if exchanges == 1 else f", in {exchanges} exchanges"


def _edges(explanation: Explanation) -> str:
    return "arcs" if explanation.assembly.ground.schedule.directed else "edges"


def _figure(value: float | None) -> str:
    return "not known" if value is None else f"{value:.6g}"


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
    if s.get("staleness"):
        old = s["staleness"]
        apart = f"; {old['max_distance']:.3g} at most in distance" if old.get("max_distance") else ""
        table.add_row("staleness", f"{old['mean']:.3g} rounds on average, {old['max']} at most{apart}")
    if s["simulated_seconds"] is not None:
        table.add_row("simulated", f"{s['simulated_seconds']:.6g} s")
    if s.get("events"):
        table.add_row("events", f"{s['events']:,}, {s['events'] / max(s['rounds_seconds'], 1e-9):,.0f} a second")
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


def _count(spread: dict[str, float]) -> str:
    if spread["min"] == spread["max"]:
        return str(spread["min"])
    return f"{spread['min']} to {spread['max']}, {spread['mean']:.4g} on average"


def _spread(values: dict[str, float]) -> str:
    if values["min"] == values["max"]:
        return f"{values['mean']:.4g}"
    return f"{values['mean']:.4g} on average, {values['min']:.4g} to {values['max']:.4g}"


def _hears(explanation: Explanation) -> str:
    """Say whom each peer hears, in any round; with the distance where it is more than one hop."""
    neighbours = explanation.document["neighbours"]
    table = Table(box=None, pad_edge=False)
    table.add_column("peer")
    table.add_column("ever hears" if "schedule" in explanation.document else "hears")
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
