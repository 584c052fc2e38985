"""One private round at many logistic sites: Cupola's batched form, and a loop over Opacus.

    python benchmarks/dpsgd/sites.py [--sites 1000] [--repeat 3]

Every site: 200 samples of 60 features, 10 classes, 5 Poisson steps of expected size 32, clip 1,
noise 1. Opacus makes each site private anew, as it must: its engine belongs to one data set. It is
timed on some of the sites, in turn with Cupola, and scaled up. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cupola.data import Dataset, FederatedData, SiteData
from cupola.engines import InProcess
from cupola.nn import find_loss
from cupola.training import Evaluation, Local, Privacy, Problem, Training, TrainingHost

SAMPLES, FEATURES, CLASSES, STEPS, BATCH, RATE = 200, 60, 10, 5, 32, 0.1
OPACUS_SITES = 20  # timed in each turn


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES))


def make_sites(count: int) -> list[SiteData]:
    generator = torch.Generator().manual_seed(1)
    held = []
    for _ in range(count):
        x = torch.randn(SAMPLES, FEATURES, generator=generator)
        y = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
        held.append(SiteData(Dataset(x, y)))
    return held


def opacus_round(sites: list[SiteData]) -> None:
    """What a site does in a round, one site after another."""
    from opacus import PrivacyEngine

    for site in sites:
        network = model()
        optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
        loader = DataLoader(TensorDataset(site.train.x, site.train.y), batch_size=BATCH)
        network, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
            module=network, optimizer=optimizer, data_loader=loader,
            noise_multiplier=1.0, max_grad_norm=1.0,
        )  # fmt: skip
        for step, (x, y) in enumerate(loader, 1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
            if step == STEPS:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    sites = make_sites(chosen.sites)
    data = FederatedData.from_arrays(
        sites, kind="classification", classes=CLASSES, input_shape=(FEATURES,)
    )
    problem = Problem(
        model, find_loss("cross_entropy"), "classification", CLASSES, (FEATURES,), "cpu"
    )
    training = Training(
        problem,
        len(sites),
        10**6,
        local=Local(work="batches", batches=STEPS, batch_size=BATCH, lr=RATE, weighting="uniform"),
        evaluation=Evaluation(every=10**6),
        privacy=Privacy(mechanism="dp-sgd", noise_multiplier=1.0),
    )
    ours: list[float] = []
    theirs: list[float] = []
    with InProcess(TrainingHost(problem, data)) as engine:
        state = training.start()

        def cupola_round() -> None:
            nonlocal state
            ask = training.ask(state)
            assert ask is not None
            state = training.answer(state, engine.sum(ask.question, ask.sites))

        cupola_round()
        opacus_round(sites[:2])
        for _ in range(chosen.repeat):
            start = time.perf_counter()
            for _ in range(3):
                cupola_round()
            middle = time.perf_counter()
            opacus_round(sites[:OPACUS_SITES])
            end = time.perf_counter()
            ours.append((middle - start) / 3)
            theirs.append((end - middle) / OPACUS_SITES * len(sites))
    print(
        json.dumps(
            {
                "sites": len(sites),
                "cupola_seconds": ours,
                "opacus_loop_seconds": theirs,
                "ratio": median(theirs) / median(ours),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
