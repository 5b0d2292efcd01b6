"""Who hears whom, and with what weight. Imports nothing of ours."""

from topology.distance import METRICS, components, connecting_threshold, diameter, is_connected, neighbours
from topology.graphs import DEFAULT_PEERS, FAMILIES, build
from topology.net import Net, TopologyError
from topology.spectrum import rounds_to_consensus, slem, spectral_gap
from topology.weights import RULES, Stochasticity, mixing_matrix, stochasticity

__all__ = [
    "DEFAULT_PEERS",
    "FAMILIES",
    "METRICS",
    "RULES",
    "Net",
    "Stochasticity",
    "TopologyError",
    "build",
    "components",
    "connecting_threshold",
    "diameter",
    "is_connected",
    "mixing_matrix",
    "neighbours",
    "rounds_to_consensus",
    "slem",
    "spectral_gap",
    "stochasticity",
]
