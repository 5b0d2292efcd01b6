"""Gossip of vectors without training: after how many rounds all peers have the exact mean, topology by topology.

Takezawa et al. 2023, "Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized Learning via
Finite-time Convergence": with the Base-(k+1) graph at most 2 log_(k+1) n + 2 rounds for every n, with k neighbours at
most. A part of topologies.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log, log2
from typing import Any

import numpy as np
from claims import Claim, finished, table
from rich.table import Table

from peer import explain
from peer.experiment import Experiment, from_dict
from peer.report import COLOURS

SIZES = (5, 6, 7, 22, 25, 32, 100)
DRAWN_SIZE = 25
DEGREES = (1, 2, 3, 4)
RIVALS = ("ring", "exponential", "one_peer_exponential")
EXACT = 1e-20  # of the squared distance from the mean, relative to the start; rounding leaves about 1e-32

BLUES = ("#9cc4e4", "#5a9bd0", "#1b6ca8", "#0b3558")
YING, TAKEZAWA = "Ying et al. 2021", "Takezawa et al. 2023"


@dataclass(frozen=True)
class Gossip:
    """One run of pure gossip; `k` is None but for base_k. Distances are squared, after 0, 1, ... rounds."""

    peers: int
    topology: str
    k: int | None
    seed: int
    degree: int  # the most neighbours that a peer hears in a round
    distances: list[float]  # from the mean of the starts, relative to that of the starts themselves

    @property
    def exact_after(self) -> int | None:
        """After how many rounds all have the mean of the starts, and keep it; None: not within the run."""
        apart = [t for t, distance in enumerate(self.distances) if not distance <= EXACT]
        after = apart[-1] + 1 if apart else 0
        return after if after < len(self.distances) else None


def bound(peers: int, k: int) -> float:
    """Return within how many rounds Base-(k+1) is to be exact: 2 log_(k+1) n + 2."""
    return 2 * log(peers, k + 1) + 2


# ---- Measuring


def jobs(sizes: Sequence[int], seeds: Sequence[int]) -> list[tuple[int, str, int | None, int]]:
    """Return the arguments of `gossip` for all runs."""
    ways: list[tuple[str, int | None]] = [*(("base_k", k) for k in DEGREES), *((rival, None) for rival in RIVALS)]
    return [(n, topology, k, seed) for n in sizes for topology, k in ways if k is None or k < n for seed in seeds]


def gossip(peers: int, topology: str, k: int | None, seed: int) -> Gossip:
    starts = np.random.default_rng(seed).standard_normal((peers, 8))
    tables = {
        "rounds": ceil(bound(peers, 1)),
        "eval_every": 1,
        "task": {"data": "none", "init": starts.tolist(), "dtype": "float64"},
        "topology": {"family": topology} if k is None else {"family": topology, "k": k},
        "record": {"params": "every"},
    }
    experiment = from_dict(tables)
    mean = starts.mean(axis=0)  # not of where they are: that would hide a W that moves the mean
    squares = [float(((np.array(entry.params) - mean) ** 2).sum()) for entry in finished(experiment).history]
    return Gossip(peers, topology, k, seed, degree_of(experiment), [square / squares[0] for square in squares])


def degree_of(experiment: Experiment) -> int:
    """Return the most neighbours that a peer hears in a round, from the mixing matrices themselves."""
    document = explain(experiment, matrix=True).as_dict()
    matrices = np.array(document.get("matrices") or [document["matrix"]])
    return int((matrices != 0).sum(axis=2).max()) - 1


# ---- What is claimed


def claims_of(runs: Sequence[Gossip]) -> list[Claim]:
    """Compare the rounds to exact consensus with the papers, run by run."""
    base = [run for run in runs if run.k is not None]
    powers = [run for run in runs if run.topology == "one_peer_exponential" and _is_power_of_two(run.peers)]
    rivals = [run for run in runs if run.k is None and run not in powers]
    sizes = ", ".join(str(n) for n in dict.fromkeys(run.peers for run in runs))
    then = {run.peers: max(b.exact_after or 0 for b in base if b.peers == run.peers) for run in rivals}
    closest = min((run.distances[then[run.peers]] for run in rivals), default=1.0)
    claims = [
        _claim(
            TAKEZAWA,
            "Base-(k+1) is exact within 2 log_(k+1) n + 2 rounds, for every n and k",
            [_within_bound(run) for run in base],
            f", n = {sizes}, k up to {max(run.k or 0 for run in base)}",
        ),
        _claim(
            TAKEZAWA,
            "With Base-(k+1) a peer has at most k neighbours in a round",
            [run.degree <= (run.k or 0) for run in base],
        ),
        _claim(
            TAKEZAWA,
            "Ring, exponential and one-peer exponential (n not a power of 2) are not exact by then",
            [run.distances[then[run.peers]] > EXACT for run in rivals],
            f"; the closest was at {closest:.0e} of the start",
        ),
    ]
    if powers:
        exact = [run.exact_after == round(log2(run.peers)) for run in powers]
        claims.append(_claim(YING, "One-peer exponential is exact after log2 n rounds where n is a power of 2", exact))
    return claims


def _claim(paper: str, says: str, held: Sequence[bool], more: str = "") -> Claim:
    return Claim(paper, says, f"{sum(held)} of {len(held)} runs{more}", all(held))


def _within_bound(run: Gossip) -> bool:
    return run.exact_after is not None and run.exact_after <= bound(run.peers, run.k or 0)


def _is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


# ---- Showing


def table_of(runs: Sequence[Gossip]) -> Table:
    title = "Gossip of vectors: rounds to exact consensus with Base-(k+1), and how far from it others are by then"
    headings = ("peers, k", "neighbours", "rounds", "bound", "ring", "exponential", "one-peer exponential")
    shown = table(title, *headings)
    for peers, k in dict.fromkeys((run.peers, run.k) for run in runs if run.k is not None):
        mine = [run for run in runs if (run.peers, run.k) == (peers, k)]
        taken = [run.exact_after for run in mine if run.exact_after is not None]
        rounds = max(taken) if len(taken) == len(mine) else None
        rivals = ["" if rounds is None else _range(runs, rival, peers, rounds) for rival in RIVALS]
        degree = max(run.degree for run in mine)
        shown.add_row(f"{peers}, {k}", f"{degree}", f"{rounds or 'more'}", f"{bound(peers, k):.1f}", *rivals)
    return shown


def _range(runs: Sequence[Gossip], topology: str, peers: int, rounds: int) -> str:
    reached = [run.distances[rounds] for run in runs if (run.peers, run.topology) == (peers, topology)]
    low, high = f"{min(reached):.1e}", f"{max(reached):.1e}"
    return low if low == high else f"{low} to {high}"


def draw_distances(axes: Any, runs: Sequence[Gossip]) -> None:
    """Draw how the distance from the mean falls among so many peers, in the mean over the seeds."""
    drawn = DRAWN_SIZE if any(run.peers == DRAWN_SIZE for run in runs) else runs[0].peers
    runs = [run for run in runs if run.peers == drawn]
    colours = dict(zip(RIVALS, (COLOURS[3], COLOURS[1], COLOURS[2]), strict=True))
    for topology, k in dict.fromkeys((run.topology, run.k) for run in runs):
        distances = np.array([run.distances for run in runs if (run.topology, run.k) == (topology, k)])
        look = {"color": colours.get(topology), "label": topology.replace("one_peer_", "one-peer ")}
        if k is not None:
            look = {"color": BLUES[k - 1], "marker": ".", "label": f"Base-{k + 1} (k = {k})"}
        axes.plot(np.arange(distances.shape[1]), distances.mean(axis=0), linewidth=1.8, **look)
    axes.axhline(EXACT, color="#888888", linewidth=1, linestyle=":")
    axes.set(yscale="log", xlabel="rounds", ylabel="squared distance from the mean, relative")
    axes.set_xlim(right=1.45 * (len(runs[0].distances) - 1))  # room for the legend
    axes.set_title(f"gossip of vectors among {drawn} peers", fontsize=10)


def draw_rounds(axes: Any, runs: Sequence[Gossip]) -> None:
    """Draw after how many rounds each Base-(k+1) graph is exact, and its bound."""
    base = [run for run in runs if run.k is not None and run.exact_after is not None]
    sizes = sorted({run.peers for run in runs})
    for k in dict.fromkeys(run.k for run in base if run.k is not None):
        mine = [run for run in base if run.k == k]
        aside = 1.02 ** (k - 2.5)  # equal ones next to each other
        style = {"color": BLUES[k - 1], "label": f"Base-{k + 1} (k = {k})"}
        axes.plot([run.peers * aside for run in mine], [run.exact_after for run in mine], "o", markersize=5, **style)
        axes.plot(sizes, [bound(n, k) for n in sizes], color=BLUES[k - 1], linewidth=1, linestyle="--")
    axes.set(xscale="log", xlabel="peers", ylabel="rounds to exact consensus")
    axes.set_xticks(sizes, [str(n) for n in sizes], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_title(r"dashed: the bound $2\,\log_{k+1} n + 2$", fontsize=10)
