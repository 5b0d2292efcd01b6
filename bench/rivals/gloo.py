"""A synchronous parameter server on torch.distributed with gloo: one process of it.

    python gloo.py PORT ROUNDS PARAMETERS PROCESSES RANK

Rank 0 is the server. In every round it broadcasts the parameters, and the sum of what the workers push is reduced to
it; nobody waits at a barrier. It prints {"rounds_s": [...], "number": the mean of the parameters}.
"""

import json
import sys
from itertools import pairwise
from time import perf_counter

import torch
import torch.distributed as dist


def main() -> None:
    port, rounds, parameters, processes, rank = map(int, sys.argv[1:])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    x, pushed = torch.zeros(parameters), torch.zeros(parameters)
    times_s = [perf_counter()]
    for _ in range(rounds):
        dist.broadcast(x, src=0)
        if rank:
            torch.add(x, 1.0, out=pushed)  # a local step
            pushed.sub_(x)
        else:
            pushed.zero_()  # the server takes part in the sum, too
        dist.reduce(pushed, dst=0)
        if not rank:
            x.add_(pushed, alpha=1.0 / (processes - 1))
        times_s.append(perf_counter())
    if not rank:
        rounds_s = [after_s - before_s for before_s, after_s in pairwise(times_s)]
        print(json.dumps({"rounds_s": rounds_s, "number": float(x.double().mean())}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
