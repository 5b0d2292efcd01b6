"""An experiment made ready to run, whichever way it runs: where topology, maths and task meet."""

from peer.assembly.assembly import Assembly, assemble, neighbourhoods, prepare_task
from peer.assembly.cores import Exchange, core_of, exchange_of, learner_of
from peer.assembly.devices import check_devices, device_of
from peer.assembly.faults import Fault
from peer.assembly.ground import Ground
from peer.assembly.links import Link, LinkTable
from peer.assembly.speeds import Speeds

__all__ = [
    "Assembly",
    "Exchange",
    "Fault",
    "Ground",
    "Link",
    "LinkTable",
    "Speeds",
    "assemble",
    "check_devices",
    "core_of",
    "device_of",
    "exchange_of",
    "learner_of",
    "neighbourhoods",
    "prepare_task",
]
