"""Who hears whom, and with what weight, in which round. Imports nothing of ours."""

from topology.distance import METRICS, ROUNDING, components, connecting_threshold, diameter, is_connected, neighbours
from topology.given import Rounds, given
from topology.graphs import DEFAULT_PEERS, FAMILIES, build
from topology.mixing_speed import contraction, measured_rounds_to_consensus
from topology.mobile import Mobile
from topology.net import Net, TopologyError
from topology.overview import Overview, Remembered, overview
from topology.schedule import SCHEDULES, Cycle, Drawn, Schedule, graph_of, schedule, union_graph
from topology.spectrum import lambda_min, rounds_to_consensus, slem, spectral_gap
from topology.weights import RULES, Stochasticity, canonical, mixing_matrix, stochasticity

__all__ = [
    "DEFAULT_PEERS",
    "FAMILIES",
    "METRICS",
    "ROUNDING",
    "RULES",
    "SCHEDULES",
    "Cycle",
    "Drawn",
    "Mobile",
    "Net",
    "Overview",
    "Remembered",
    "Rounds",
    "Schedule",
    "Stochasticity",
    "TopologyError",
    "build",
    "canonical",
    "components",
    "connecting_threshold",
    "contraction",
    "diameter",
    "given",
    "graph_of",
    "is_connected",
    "lambda_min",
    "measured_rounds_to_consensus",
    "mixing_matrix",
    "neighbours",
    "overview",
    "rounds_to_consensus",
    "schedule",
    "slem",
    "spectral_gap",
    "stochasticity",
    "union_graph",
]
