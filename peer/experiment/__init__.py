"""The experiment file: its tables and defaults, and what is refused, in one line that names the key.

Experiments come from `load` or `from_dict`; both check everything. Each file here imports only those above it:

    wording.py      one value in words
    choices.py      what is built, and what each value brings with it
    values.py       the kinds of value, each with its check
    fault_entry.py  one entry of faults.schedule
    fingerprint.py  where two experiments differ
    schema.py       the tables
    experiment.py   the experiment that they make up
    problem.py      one thing that is wrong
    coordination.py the checks of what goes with which coordinator
    rules.py        the checks across all other keys
    refusal.py      the words of a refusal
    reading.py      load and from_dict
"""

from peer.experiment.coordination import coordinator_problem, quorum_problem
from peer.experiment.experiment import Experiment
from peer.experiment.fingerprint import differing_keys
from peer.experiment.reading import from_dict, load
from peer.experiment.rules import disagreement
from peer.experiment.schema import (
    Algorithm,
    Checkpoint,
    Compression,
    Coordinator,
    Faults,
    Network,
    PeerEntry,
    Record,
    Speed,
    Table,
    Task,
    Topology,
    Transport,
)

__all__ = [
    "Algorithm",
    "Checkpoint",
    "Compression",
    "Coordinator",
    "Experiment",
    "Faults",
    "Network",
    "PeerEntry",
    "Record",
    "Speed",
    "Table",
    "Task",
    "Topology",
    "Transport",
    "coordinator_problem",
    "differing_keys",
    "disagreement",
    "from_dict",
    "load",
    "quorum_problem",
]
