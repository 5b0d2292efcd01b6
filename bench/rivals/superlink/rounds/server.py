"""The server's half: FedAvg without evaluation. Prints {"rounds_s": [...], "number": the mean of the parameters}."""

import json
from itertools import pairwise
from time import perf_counter

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds, parameters, workers = (int(context.run_config[key]) for key in ("rounds", "parameters", "workers"))
    start = ArrayRecord([np.zeros(parameters, np.float32)])
    times_s: list[float] = []

    def note(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """The strategy comes by here before the first round, and after each."""
        times_s.append(perf_counter())
        return None

    strategy = FedAvg(min_train_nodes=workers, min_available_nodes=workers, fraction_evaluate=0.0)
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds, evaluate_fn=note)
    [array] = result.arrays.to_numpy_ndarrays()
    rounds_s = [after_s - before_s for before_s, after_s in pairwise(times_s)]
    print(json.dumps({"rounds_s": rounds_s, "number": float(array.mean(dtype=np.float64))}), flush=True)
