"""Counter-based randomness: any round can be drawn at any time, in any order, on any machine."""

from hashlib import sha256

import numpy as np


def stream(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return the generator of this seed, purpose ("matching", ...) and counters (a round, ...).

    The bits are those of Philox4x64 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"), whose key
    is a hash of the arguments.
    """
    text = " ".join(["topology", purpose, str(seed), *map(str, counters)])
    return np.random.Generator(np.random.Philox(key=int.from_bytes(sha256(text.encode()).digest()[:16], "little")))
