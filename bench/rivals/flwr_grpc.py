"""A synchronous parameter server on Flower's gRPC streams: the server, or one of its clients.

    python flwr_grpc.py server PORT ROUNDS PARAMETERS WORKERS
    python flwr_grpc.py client PORT

Runs in Flower's environment. The server prints {"rounds_s": [...], "number": the mean of the parameters}.
"""

import json
import sys
from itertools import pairwise
from time import perf_counter

import numpy as np
from flwr.client import NumPyClient, start_client
from flwr.common import NDArrays, Parameters, Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg

MESSAGE_BYTES = 512 * 1024 * 1024
"""The longest message that gRPC may carry, on both sides."""


class Timed(FedAvg):
    """FedAvg without evaluation, which notes when the server comes by: before the first round, and after each."""

    def __init__(self, parameters: int, workers: int) -> None:
        start = ndarrays_to_parameters([np.zeros(parameters, np.float32)])
        super().__init__(
            initial_parameters=start, min_fit_clients=workers, min_available_clients=workers, fraction_evaluate=0.0
        )
        self.times_s: list[float] = []
        self.newest = start

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        self.times_s.append(perf_counter())
        self.newest = parameters
        return None


class Client(NumPyClient):
    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        return [array + np.float32(1) for array in parameters], 1, {}


def serve(port: str, rounds: str, parameters: str, workers: str) -> None:
    strategy = Timed(int(parameters), int(workers))
    start_server(
        server_address=f"127.0.0.1:{port}",
        config=ServerConfig(num_rounds=int(rounds)),
        strategy=strategy,
        grpc_max_message_length=MESSAGE_BYTES,
    )
    [array] = parameters_to_ndarrays(strategy.newest)
    rounds_s = [after_s - before_s for before_s, after_s in pairwise(strategy.times_s)]
    print(json.dumps({"rounds_s": rounds_s, "number": float(array.mean(dtype=np.float64))}))


def work(port: str) -> None:
    start_client(server_address=f"127.0.0.1:{port}", client=Client().to_client(), grpc_max_message_length=MESSAGE_BYTES)


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "server":
        serve(*arguments)
    else:
        work(*arguments)
