"""The main job, end to end: eight daemons on the loopback learn digits together.

Runs the same experiment three times with real daemons: gossiping, alone, and with everything averaged over all peers
in each round, which is as if all data were in one place. Then it prints a table and draws a picture.
"""

import json
import subprocess
import sys
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.table import Table

from peer.assembly import assemble
from peer.experiment import load
from peer.record import utc_now
from peer.report import Run, draw

EXPERIMENT = Path(__file__).with_name("demo.toml")
RUNS = (("alone", "local"), ("with gossip", "dpsgd"), ("as if in one place", "exact"))


def main() -> int:
    console = Console()
    began_s = monotonic()
    experiment = load(EXPERIMENT)
    assembly = assemble(experiment)
    folder = Path("runs") / f"demo-{utc_now():%Y%m%dT%H%M%SZ}"
    runs = []
    for label, algorithm in RUNS:
        console.rule(f"{label}: eight daemons, algorithm {algorithm}", style="dim")
        runs.append(Run(label, run_daemons(algorithm, folder / algorithm)))
    picture = folder / "demo.png"
    draw(runs, assembly, picture)
    console.print()
    console.print(table_of(runs))
    heard = 2 * len(assembly.graph.edges) / len(assembly.names)
    sent, sent_to_all = (run.summary["payload_bytes_sent"] / 1e6 for run in runs[1:])
    console.print(
        f"\nEach daemon heard {heard:.1f} others on average, over ZeroMQ, and saw only its own shard.\n"
        f"Gossip sent {sent:.0f} MB where all-to-all sent {sent_to_all:.0f} MB. {monotonic() - began_s:.0f} s in all.",
        highlight=False,
    )
    console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)
    return 0


def run_daemons(algorithm: str, out: Path) -> dict:
    """Run the experiment as daemons and return its summary; ends this program where they fail."""
    command = [sys.executable, "-m", "peer", "up", str(EXPERIMENT), "--json", "--out", str(out)]
    done = subprocess.run([*command, "--set", f"algorithm.name={algorithm}"], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def table_of(runs: list[Run]) -> Table:
    """Return the table: accuracy over the peers of each run."""
    table = Table(title="accuracy on 1,000 test digits, over 8 peers")
    for heading in ("", "mean", "worst peer", "best peer"):
        table.add_column(heading, justify="left" if not heading else "right")
    for run in runs:
        a = run.summary["accuracy"]
        table.add_row(run.label, *(f"{100 * a[which]:.1f} %" for which in ("mean", "min", "max")))
    return table


if __name__ == "__main__":
    sys.exit(main())
