"""An experiment made ready to run, whichever way it runs: where topology, maths and task meet."""

from peer.assembly.assembly import Assembly, assemble, neighbourhoods, prepare_task
from peer.assembly.cores import core_of, gossip_of, learner_of
from peer.assembly.devices import check_devices, device_of
from peer.assembly.ground import Ground

__all__ = [
    "Assembly",
    "Ground",
    "assemble",
    "check_devices",
    "core_of",
    "device_of",
    "gossip_of",
    "learner_of",
    "neighbourhoods",
    "prepare_task",
]
