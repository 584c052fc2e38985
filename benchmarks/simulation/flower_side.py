"""Flower: its simulation on Ray with two cores, message API, stock FedAvg.

Each actor keeps one model and the data of the sites it has met, so that a message costs what
Flower costs and no more. Flower draws its cohorts itself; evaluation is left out.
"""

from __future__ import annotations

import os

import contract

contract.set_threads(1)
os.environ.update(  # no calls home; before flwr and ray are imported
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",  # else ray warns about accelerators there are not
)

import logging  # noqa: E402
import random  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from functools import lru_cache  # noqa: E402
from typing import Any  # noqa: E402

import models  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import workloads  # noqa: E402
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from torch.nn import functional as F  # noqa: E402

CORES = 2
MODES = ("2-actors", "4-actors", "1-actor")


@lru_cache
def reused_model(name: str) -> torch.nn.Module:
    """An actor's one model."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    return models.build(name)


def train_site(name: str, message: Message, context: Context) -> Message:
    """What a site does with a training message."""
    w, model = workloads.WORKLOADS[name], reused_model(name)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = models.site(name, int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=w.rate)
    for xb, yb in zip(x.split(w.batch), y.split(w.batch)):
        optimizer.zero_grad()
        F.cross_entropy(model(xb), yb).backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
    )
    return Message(content=content, reply_to=message)


def make_client(name: str) -> ClientApp:
    """The app the actors run; it refers to this module by name, so that caches live on."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        import flower_side

        return flower_side.train_site(name, message, context)

    return app


def main() -> None:
    options = contract.arguments("Flower", MODES).parse_args()
    if options.mode == "list":
        # one actor a core was best wherever tried (w1: 3.8 rounds/s; four actors 2.9, one 2.2)
        contract.print_modes(MODES[:1])
        return
    warnings.simplefilter("ignore")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    name, w = options.workload, workloads.WORKLOADS[options.workload]
    total, marks, out = w.warmup + options.rounds, {}, {}
    actors = int(options.mode[0])
    server = ServerApp()

    def note_time(round: int, _: ArrayRecord) -> MetricRecord | None:
        marks[round] = time.perf_counter()
        if round == total:
            out["peak"] = contract.tree_peak_rss_mb()  # while the actors live

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        del context
        random.seed(workloads.SEED)  # Flower draws its cohorts with this generator
        strategy = FedAvg(
            fraction_train=w.per_round / w.sites,
            fraction_evaluate=0.0,
            min_train_nodes=w.per_round,
            min_available_nodes=w.sites,
        )
        first: dict[str, Any] = models.build(name).state_dict()
        result = strategy.start(
            grid=grid, initial_arrays=ArrayRecord(first), num_rounds=total, evaluate_fn=note_time
        )
        out["parameters"] = {k: np.array(v.numpy()) for k, v in result.arrays.items()}

    run_simulation(
        server_app=server,
        client_app=make_client(name),
        num_supernodes=w.sites,
        backend_config={
            "init_args": {"num_cpus": CORES, "log_to_driver": False},
            "client_resources": {"num_cpus": CORES / actors, "num_gpus": 0.0},
        },
    )
    seconds = marks[total] - marks[w.warmup]
    contract.report(
        "flwr", name, options.mode, options.rounds, seconds, out["parameters"],
        ["numpy", "torch", "flwr", "ray"], out["peak"],
    )  # fmt: skip


if __name__ == "__main__":
    main()
