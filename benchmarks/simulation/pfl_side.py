"""pfl-research: SimulatedBackend, FederatedAveraging and PyTorchModel, in one or two processes.

Two processes are pfl's own distributed mode: the script starts itself under torchrun, every
process trains its share of the cohort and the sums meet by all-reduce (gloo). Left out on pfl's
behalf: evaluation, printing of metrics, making the sites' data sets anew in every round.
"""

from __future__ import annotations

import contract

contract.set_threads(1)

import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import types  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import models  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import workloads  # noqa: E402
from torch.nn import functional as F  # noqa: E402

MODES = ("2-processes", "1-process")
# pfl's scheduling by site size, worth its extra sampling processes only where sizes differ
BALANCED = "2-processes-balanced"
FILLING_SECONDS = 5  # a sampling process draws 10,000 sites ahead before it comes to rest


def site_order(name: str) -> Callable[[], int]:
    """Sampler of pfl's kind: every call gives the next site of the common cohorts."""

    def endless() -> Iterator[int]:
        round = 0
        while True:
            yield from workloads.cohort(name, round).tolist()
            round += 1

    return partial(next, endless())


def train(name: str, mode: str, rounds: int) -> None:
    """One process' part; rank 0 reports."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    w = workloads.WORKLOADS[name]
    np.random.seed(0)  # noqa: NPY002 - pfl wants the same global seed in all processes

    network = models.build(name)

    def loss(self: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self(x), y)

    network.loss = types.MethodType(loss, network)
    # pfl evaluates the first round's sites whatever the frequency: nothing to do, and not timed
    network.metrics = types.MethodType(lambda *_: {}, network)
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    )
    data = [PyTorchTensorDataset(models.site(name, i), user_id=str(i)) for i in range(w.sites)]
    weights = dict(enumerate(workloads.sizes(name).tolist())) if mode == BALANCED else None
    sites = FederatedDataset(data.__getitem__, site_order(name), weights)
    if mode == BALANCED:
        time.sleep(FILLING_SECONDS)

    class Clock(TrainingProcessCallback):
        started = ended = 0.0

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            del aggregate_metrics, model
            if central_iteration == w.warmup - 1:
                self.started = time.perf_counter()
            self.ended = time.perf_counter()
            return False, Metrics()

    clock = Clock()
    total = w.warmup + rounds
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=total,
            evaluation_frequency=total + 1,
            train_cohort_size=w.per_round,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=sites, val_data=sites, postprocessors=[WeightByDatapoints()]
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=w.rate, local_batch_size=w.batch
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    # a process counts itself and its sampling process; the launcher of torchrun is left out
    peak = pytorch_ops.distributed.all_reduce([torch.tensor([contract.tree_peak_rss_mb()])])[0]
    if pytorch_ops.distributed.global_rank == 0:
        contract.report(
            "pfl", name, mode, rounds, clock.ended - clock.started, models.parameters(network),
            ["numpy", "torch", "pfl"], float(peak),
        )  # fmt: skip
    if torch.distributed.is_initialized():
        # a rank that ends with the group open may abort, and torchrun would then end the other
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def main() -> None:
    options = contract.arguments("pfl-research", [*MODES, BALANCED]).parse_args()
    if options.mode == "list":
        uneven = workloads.WORKLOADS[options.workload].spread == "lognormal"
        contract.print_modes([*MODES, BALANCED] if uneven else MODES)
    elif options.mode == "1-process" or "TORCHELASTIC_RUN_ID" in os.environ:
        train(options.workload, options.mode, options.rounds)
    else:
        launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2"]
        meet = ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
        local = ["--local_addr", "localhost"]
        command = [sys.executable, *launch, *meet, *local, *sys.argv]
        sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
