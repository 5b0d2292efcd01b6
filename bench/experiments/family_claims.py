"""What families.py claims: from the protocol, from the lines of the machines, and from who waits for whom.

M is what one message of parameters is, B the line of a machine each way, n the number of peers, and a hop of a ring
all-reduce the way of an n-th of M to the next member.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import fmean, median

from claims import Claim

from peer.record import Row

PEERS = 16
STEP_S, LATENCY_S, NODE_MBPS = 0.1, 0.01, 40.0
SLOWER = 4.0
SILENT_S = 2.0
"""After so many seconds of silence a peer counts as dead."""

MESSAGE_BYTES = 4 * 10 * (784 + 1)
HEADER_BYTES = 64
GOALS = (0.8, 0.85)

SYNC, QUORUM, ASYNC, BUFFERED = "sync server", "quorum 0.8 server", "async server", "buffered server, K = n/2"
RING, EXPONENTIAL, GEOMETRIC = "gossip, ring", "gossip, exponential", "gossip, geometric"
ASYNC_RING, ALL_REDUCE = "async gossip, ring", "ring all-reduce"
SERVERS = (SYNC, QUORUM, ASYNC, BUFFERED)
GOSSIP = (RING, EXPONENTIAL, GEOMETRIC)
IN_STEP = (SYNC, *GOSSIP)
UNWAITING = (QUORUM, ASYNC, BUFFERED, ASYNC_RING)
FAMILIES = (*SERVERS, RING, EXPONENTIAL, GEOMETRIC, ASYNC_RING, ALL_REDUCE)

EVEN, SLOW = "even peers", "one straggler, 4 times slower"
DEAD, COORDINATOR = "one peer dies", "coordinator (or a peer) away"
CONDITIONS = (EVEN, SLOW, DEAD, COORDINATOR)

LINES, PROTOCOL, MIXING = "by the lines of the machines", "by who waits for whom", "by the spectral gap"


@dataclass(frozen=True)
class Trained:
    """One training run of `run_s` simulated seconds, in which somebody may be dead from one second to another."""

    family: str
    condition: str
    seed: int
    run_s: float
    dies_s: float
    back_s: float
    summary: Row

    @property
    def history(self) -> list[Row]:
        return list(self.summary["history"])

    @property
    def outcome(self) -> str:
        return str(self.summary["outcome"])

    @property
    def rounds(self) -> int:
        """Rounds, or versions of a server."""
        return int(self.summary["rounds"])

    @property
    def gradients(self) -> int:
        return int(self.summary["gradients"])

    @property
    def accuracy(self) -> float:
        """In the end, the mean over the peers that are there, on the common test rows."""
        return float(self.history[-1]["accuracy"]["mean"])

    @property
    def staleness(self) -> float:
        """The mean, in versions; 0 where nothing is stale."""
        return float((self.summary.get("staleness") or {}).get("mean") or 0.0)

    @property
    def whole(self) -> Row:
        """The last entry that is of whole rounds: after it, the end cuts one short."""
        return self.history[-2 if len(self.history) > 2 else -1]

    @property
    def round_s(self) -> float:
        """Seconds of a round, or between versions."""
        return float(self.whole["simulated_seconds"] / max(1, self.whole["round"]))

    @property
    def round_bytes(self) -> float:
        """Payload that all have sent in a round."""
        return float(self.whole["payload_bytes_sent"] / max(1, self.whole["round"]))

    @property
    def pause_s(self) -> float:
        """The longest time between two entries of the history, beyond what is usual in this run."""
        gaps = [after["simulated_seconds"] - entry["simulated_seconds"] for entry, after in pairwise(self.history)]
        return float(max(gaps) - median(gaps)) if gaps else 0.0

    def reached(self, goal: float) -> dict[str, float]:
        """Return after how many rounds, seconds and MB an evaluation found this accuracy first; inf: none did."""
        for entry in self.history:
            if entry["accuracy"]["mean"] >= goal:
                mb = entry["payload_bytes_sent"] / 1e6
                return {"rounds": entry["round"], "s": entry["simulated_seconds"], "mb": mb}
        return {"rounds": inf, "s": inf, "mb": inf}


class Found:
    """The runs, asked for means over the seeds."""

    def __init__(self, runs: Sequence[Trained]) -> None:
        self.runs = runs

    def of(self, family: str, condition: str) -> list[Trained]:
        return [run for run in self.runs if (run.family, run.condition) == (family, condition)]

    def mean(self, family: str, condition: str, figure: str) -> float:
        return fmean(getattr(run, figure) for run in self.of(family, condition))

    def goal(self, family: str, condition: str, unit: str) -> float:
        """Return when the higher of the goals was reached."""
        return fmean(run.reached(GOALS[-1])[unit] for run in self.of(family, condition))

    def pauses_s(self, family: str, condition: str) -> float:
        """Return the longest pause of all seeds; of a run that ended early, without end."""
        return max(run.pause_s if run.outcome == "finished" else inf for run in self.of(family, condition))


def claims_of(runs: Sequence[Trained], gaps: Mapping[str, float]) -> list[Claim]:
    """Judge what was found. `gaps` are the spectral gaps of the graphs."""
    found = Found(runs)
    return [*line_claims(found), *straggler_claims(found), *mixing_claims(found, gaps), *death_claims(found)]


# ---- What the lines carry


def message_s(share: float = 1.0) -> float:
    """Return for how long such a share of M keeps a machine's line busy."""
    return (share * MESSAGE_BYTES + HEADER_BYTES) * 8 / (NODE_MBPS * 1e6)


def line_claims(found: Found) -> list[Claim]:
    n, m = PEERS, MESSAGE_BYTES
    by_count = {SYNC: 2 * n * m, RING: 2 * n * m, EXPONENTIAL: 4 * n * m, ALL_REDUCE: 2 * (n - 1) * m}
    sent = {family: found.mean(family, EVEN, "round_bytes") for family in by_count}
    barrier_s = (n + 1) * message_s() + STEP_S + 2 * LATENCY_S
    hop_s = message_s(1 / n) + LATENCY_S
    ring_s, delayed_s = STEP_S + 2 * (n - 1) * hop_s, SLOWER * STEP_S + n * hop_s
    rounds_s = found.mean(SYNC, EVEN, "round_s"), found.mean(ALL_REDUCE, EVEN, "round_s")
    slow_s = found.mean(ALL_REDUCE, SLOW, "round_s")
    return [
        Claim(
            LINES,
            "A round is 2 n M beside a synchronous server and on a ring, 4 n M on the exponential graph, 2 (n-1) M of "
            "an all-reduce. But half of the server's goes in by one line, and half out: n M each way. A peer's line "
            "has 2 M each way on the ring, 4 M, and 2 (n-1)/n M",
            ", ".join(f"{family} {figure / 1e6:.3f} MB" for family, figure in sent.items()),
            all(_near(figure, by_count[family], 0.01) for family, figure in sent.items()),
        ),
        Claim(
            LINES,
            f"So a round of the synchronous server is (n+1) M / B + a step + 2 latencies: {barrier_s:.3f} s",
            f"{rounds_s[0]:.3f} s",
            _near(rounds_s[0], barrier_s, 0.02),
        ),
        Claim(
            LINES,
            f"A round of the all-reduce is a step + 2 (n-1) hops: {ring_s:.3f} s; a straggler makes it its own steps + "
            f"n hops, {delayed_s:.3f} s, as the rest goes round while it computes again",
            f"{rounds_s[1]:.3f} s; {slow_s:.3f} s",
            _near(rounds_s[1], ring_s, 0.02) and _near(slow_s, delayed_s, 0.05),
        ),
    ]


def _near(value: float, goal: float, share: float) -> bool:
    return abs(value - goal) <= share * goal


# ---- Who pays for a straggler


def straggler_claims(found: Found) -> list[Claim]:
    rounds_s = {f: (found.mean(f, EVEN, "round_s"), found.mean(f, SLOW, "round_s")) for f in IN_STEP}
    steps_s = SLOWER * STEP_S
    barrier_s = rounds_s[SYNC][0] + steps_s - STEP_S
    times_longer = "; ".join(
        f"{f} {slow_s:.3f} s, {slow_s / even_s:.1f} times" for f, (even_s, slow_s) in rounds_s.items()
    )
    kept = {f: found.mean(f, SLOW, "gradients") / found.mean(f, EVEN, "gradients") for f in UNWAITING}
    least = 1 - (1 - 1 / SLOWER) / PEERS
    times = {family: found.goal(family, SLOW, "s") for family in (*SERVERS, RING, ASYNC_RING)}
    sooner = all(times[f] < times[SYNC] for f in SERVERS[1:]) and times[ASYNC_RING] < times[RING]
    return [
        Claim(
            PROTOCOL,
            "In step, with a server or without, all go at the straggler's pace. At a server a round gets its "
            f"{SLOWER - 1:g} further steps: {barrier_s:.3f} s. In gossip it is the straggler's {SLOWER:g} steps, "
            f"{steps_s:.3f} s, as what its neighbours say comes while it computes. So it is {SLOWER:g} times as long "
            "only where messages take no time",
            times_longer,
            _near(rounds_s[SYNC][1], barrier_s, 0.02) and all(_near(rounds_s[f][1], steps_s, 0.02) for f in GOSSIP),
        ),
        Claim(
            PROTOCOL,
            f"Who does not wait for it keeps all gradients but the straggler's own: {least:.1%}",
            "; ".join(f"{family} {share:.1%}" for family, share in kept.items()),
            all(abs(share - least) <= 0.02 for share in kept.values()),
        ),
        Claim(
            PROTOCOL,
            f"With a straggler, who does not wait is sooner at {GOALS[-1]:.0%} than who does",
            "; ".join(f"{family} {_seconds(time_s)}" for family, time_s in times.items()),
            sooner,
        ),
        Claim(
            PROTOCOL,
            f"At an asynchronous server with n workers of one speed a gradient is n - 1 = {PEERS - 1} versions old",
            f"{found.mean(ASYNC, EVEN, 'staleness'):.2f} on average",
            abs(found.mean(ASYNC, EVEN, "staleness") - (PEERS - 1)) <= 0.2,
        ),
    ]


def _seconds(time_s: float) -> str:
    return "never" if time_s == inf else f"{time_s:.1f} s"


# ---- What it costs to have no master


def mixing_claims(found: Found, gaps: Mapping[str, float]) -> list[Claim]:
    graphs = sorted(gaps, key=lambda graph: -gaps[graph])
    rounds = [found.goal(graph, EVEN, "rounds") for graph in graphs]
    times_s = {family: found.goal(family, EVEN, "s") for family in (SYNC, *graphs)}
    goal = f"{GOALS[-1]:.0%}"
    order = ", ".join(f"{g} (gap {gaps[g]:.3f}) {r:g} rounds" for g, r in zip(graphs, rounds, strict=True))
    shorter = [found.mean(graph, EVEN, "round_s") < found.mean(SYNC, EVEN, "round_s") for graph in graphs]
    needed = found.goal(SYNC, EVEN, "rounds")
    return [
        Claim(
            MIXING,
            f"The graph with by far the largest gap takes the fewest rounds to {goal}, and not the geometric one, "
            "with the most links. (Gaps as near each other as those of the other two settle nothing: seeds 0 and 1 "
            "have different orders)",
            order,
            all(rounds[0] < more for more in rounds[1:]),
        ),
        Claim(
            f"{LINES}, {MIXING}",
            f"Without a hub a round is shorter, but on skewed shards it takes more of them to {goal}",
            f"{SYNC} {needed:g} rounds, {_seconds(times_s[SYNC])}; "
            + ", ".join(f"{graph} {_seconds(times_s[graph])}" for graph in graphs),
            all(shorter) and all(more > needed for more in rounds),
        ),
    ]


# ---- Who stops when somebody dies


def death_claims(found: Found) -> list[Claim]:
    pauses = {family: found.pauses_s(family, DEAD) for family in (*IN_STEP, *UNWAITING)}
    away = {family: found.pauses_s(family, COORDINATOR) for family in (*SERVERS, *GOSSIP, ASYNC_RING)}
    one = found.of(SYNC, COORDINATOR)[0]
    gone_s = one.back_s - one.dies_s
    fell = {f: found.mean(f, EVEN, "accuracy") - found.mean(f, COORDINATOR, "accuracy") for f in SERVERS}
    ends = [run for condition in (DEAD, COORDINATOR) for run in found.of(ALL_REDUCE, condition)]
    last_s = [float(run.history[-1]["simulated_seconds"]) for run in ends]
    margin_s = 0.6  # evaluations are about half a second apart
    servers = [run for family in SERVERS for run in found.of(family, COORDINATOR)]
    goes_up = all(a["round"] < b["round"] for run in servers for a, b in pairwise(run.history))
    return [
        Claim(
            PROTOCOL,
            f"A peer that dies stops who is in step, gossip too, until it is known to be dead ({SILENT_S:g} s), and "
            "not again; who does not wait does not stop",
            _listed(pauses),
            all(pauses[f] <= SILENT_S + margin_s for f in IN_STEP) and all(pauses[f] <= margin_s for f in UNWAITING),
        ),
        Claim(
            PROTOCOL,
            "A ring all-reduce ends when a member dies, after the round that was as good as done at the most",
            ", ".join(
                f"{run.outcome}: dead from {run.dies_s:g} s on, last round at {at_s:.1f} s"
                for run, at_s in zip(ends, last_s, strict=True)
            ),
            all(
                run.outcome == "failed" and at_s <= run.dies_s + run.round_s
                for run, at_s in zip(ends, last_s, strict=True)
            ),
        ),
        Claim(
            PROTOCOL,
            f"While the coordinator is dead ({gone_s:g} s) every server stands still; gossip, whom a peer leaves for "
            "as long, only until that is known, and async gossip does not",
            _listed(away),
            all(gone_s - margin_s <= away[f] <= gone_s + 2 * margin_s for f in SERVERS)
            and all(away[f] <= SILENT_S + margin_s for f in GOSSIP)
            and away[ASYNC_RING] <= margin_s,
        ),
        Claim(
            PROTOCOL,
            "Then a server goes on from its checkpoint: no version is made twice, and it ends within 2 points of where "
            "it does without a fall",
            ", ".join(f"{family} {-100 * by:+.1f} points" for family, by in fell.items()),
            goes_up and all(by <= 0.02 for by in fell.values()),
        ),
    ]


def _listed(pauses: Mapping[str, float]) -> str:
    return ", ".join(f"{family} {_seconds(pause_s)}" for family, pause_s in pauses.items())
