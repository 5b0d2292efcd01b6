"""Which device a peer computes on."""

import torch

from peer.errors import ConfigError
from peer.experiment import Experiment


def device_of(wanted: str, turn: int, key: str = "task.device") -> torch.device:
    """Return the device of a peer; "auto" and "cuda" deal the GPUs out by `turn`. Raises ConfigError."""
    if wanted == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return torch.device("cuda", turn % count) if count else torch.device("cpu")
    index = turn % max(1, count) if wanted == "cuda" else int(wanted.removeprefix("cuda:"))
    if index >= count:
        raise ConfigError(key, f'"{wanted}" is not there: torch finds {count} CUDA devices; "cpu" always works')
    return torch.device("cuda", index)


def check_devices(experiment: Experiment) -> None:
    """Refuse a device that this machine does not have. Raises ConfigError."""
    device_of(experiment.task.device, 0)
    for entry in experiment.peers:
        if entry.device is not None:
            device_of(entry.device, 0, key=f"peers.{entry.name}.device")
