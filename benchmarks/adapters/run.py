"""Cost of a DP-LoRA step: Cupola against the plain step and Opacus (hooks and ghost clipping).

    python benchmarks/adapters/run.py [--workloads bert,gpt2] [--repeat 7] [--seconds 2]

A model of transformers' own code with random weights (4 layers of width 256, texts of 64 tokens,
batch 32), LoRA of rank 8 in every dense layer, the head trained in full; one thread. All sides in
one process, in turn. A private side clips, sums, adds noise and steps; the plain one steps. Needs
transformers and Opacus. Prints one JSON document on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.nn.adapters import adapt
from cupola.nn.huggingface import HuggingFace
from cupola.nn.losses import find_loss
from cupola.privacy.persample import PerSample

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import turns

BATCH, LENGTH, WIDTH, LAYERS, TOKENS, CLASSES = 32, 64, 256, 4, 2000, 2
CLIP, RATE = 1.0, 1e-3
LIMIT = 1.5


def model(name: str) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    if name == "bert":
        config = transformers.BertConfig(
            vocab_size=TOKENS, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
            intermediate_size=4 * WIDTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        inner: Any = transformers.BertForSequenceClassification(config)
    else:
        config = transformers.GPT2Config(
            vocab_size=TOKENS, n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_positions=LENGTH,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=0, num_labels=CLASSES,
        )  # fmt: skip
        inner = transformers.GPT2ForSequenceClassification(config)
    made = HuggingFace(inner, fresh=("classifier" if name == "bert" else "score",))
    adapt(made, "lora", rank=8, modules_to_save=made.fresh)
    return made.train()


def samples() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(1)
    x = torch.randint(1, TOKENS, (BATCH, LENGTH), generator=chance)
    return x, torch.randint(0, CLASSES, (BATCH,), generator=chance)


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def plain(name: str) -> Callable[[], None]:
    module, (x, y) = model(name), samples()
    optimizer = torch.optim.SGD(trained(module), RATE)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()

    return step


def ours(name: str) -> Callable[[], None]:
    module, (x, y) = model(name), samples()
    engine, own = PerSample(module, find_loss("cross_entropy")), trained(module)

    def step() -> None:
        found = engine.clipped_sum(x, y, CLIP, expected=BATCH)
        with torch.no_grad():
            for p, total in zip(own, found.sums):
                p -= RATE / BATCH * (total + CLIP * torch.randn_like(total)).to(p.dtype)

    step()
    assert engine.form is not None
    turns.say(f"  {name}: fall-back {engine.fallback}, {engine.form.samples} samples at a time")
    return step


def opacus(name: str, mode: str) -> Callable[[], None]:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    module, (x, y) = model(name), samples()
    optimizer: Any = torch.optim.SGD(trained(module), RATE)
    criterion: Any = nn.CrossEntropyLoss()
    given = {"criterion": criterion} if mode == "ghost" else {}
    private: Any = PrivacyEngine().make_private(
        module=module, optimizer=optimizer, data_loader=DataLoader(TensorDataset(x, y), BATCH),
        noise_multiplier=1.0, max_grad_norm=CLIP, poisson_sampling=False, grad_sample_mode=mode,
        **given,
    )  # fmt: skip
    wrapped, optimizer = private[0], private[1]
    criterion = private[2] if mode == "ghost" else criterion

    def step() -> None:
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        optimizer.step()

    return step


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--workloads", default="bert,gpt2")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    document: dict[str, Any] = {
        "versions": {n: version(n) for n in ("torch", "transformers", "opacus")},
        "workloads": {},
    }
    for name in given.workloads.split(","):
        steps: dict[str, Callable[[], Any]] = {"plain": plain(name), "cupola": ours(name)}
        for mode in ("hooks", "ghost"):
            try:
                step = opacus(name, mode)
                step()
                steps[f"opacus, {mode}"] = step
            except Exception as error:  # what it cannot do is a result, too
                turns.say(f"  {name}: opacus, {mode}: {type(error).__name__}: {error}")
        found = turns.take_turns(name, steps, given.repeat, given.seconds)
        over = {
            side: turns.ratio(each["cpu"], found["plain"]["cpu"]) for side, each in found.items()
        }
        document["workloads"][name] = {
            "seconds": {side: each["seconds"] for side, each in found.items()},
            "processor time over plain": over,
            "time over plain": {
                s: turns.ratio(e["wall"], found["plain"]["wall"]) for s, e in found.items()
            },
            "held": over["cupola"] <= LIMIT,
        }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
