"""Counter-based randomness: a stream is a function of (seed, purpose, counters) and of nothing else.

A daemon and the simulator that ask for the same stream get the same numbers, in whatever order they ask.
"""

from hashlib import blake2b

import numpy as np


def stream(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return the generator of this seed, purpose ("batch", "partition", ...) and counters (peer, epoch, ...).

    The bits are those of Philox4x64 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"), whose key is
    a hash of the arguments.
    """
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_hash(seed, purpose, counters), "little")))


def torch_seed(seed: int, purpose: str, *counters: int) -> int:
    """Return a 63-bit seed for a torch generator, from the same family of streams."""
    return int.from_bytes(_hash(seed, purpose, counters)[:8], "little") >> 1


def _hash(seed: int, purpose: str, counters: tuple[int, ...]) -> bytes:
    """Return 128 bits. Integers are written out in decimal: numpy's count as Python's own."""
    text = " ".join([purpose, str(seed), *map(str, counters)])
    return blake2b(text.encode(), digest_size=16).digest()
