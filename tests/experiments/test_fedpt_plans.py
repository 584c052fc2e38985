"""Tables of FedPT: every level trains the share that its row claims, and epsilons are equal where
they must be."""

import pytest
import torch

from cupola.nn.models import building
from cupola.privacy.accounting import epsilon
from cupola.training.frozen import frozen_names
from cupola.training.mechanisms import mechanism_of
from reproduce import find_table

#: input, classes, per cent that rows train
LEVELS = {
    "fedpt-emnist": ((1, 28, 28), 10, [100, 3.45]),
    "fedpt-cifar": ((3, 24, 24), 10, [100, 26.15, 7.69, 3.07, 1.75]),
    "fedpt-words": ((20,), 10_004, [100, 91.28, 82.56, 73.84]),
    "fedpt-ftrl": ((20,), 1_004, [100, 71.28, 44.14] * 2),
    "fedpt-wide": ((20,), 1_004, [100, 53.13, 9.00]),
}


@pytest.mark.parametrize("name", LEVELS)
def test_rows_train_the_shares_they_claim(name):
    shape, classes, shares = LEVELS[name]
    table = find_table(name)
    assert len(table.seeds) >= 3
    plans = {cell.row: table.plan_of(cell, 1) for cell in table.cells()}
    model = next(iter(plans.values())).model
    with torch.device("meta"):
        module = building._MODELS.find(model.name)(shape, classes, **model.options)
    every = sum(p.numel() for p in module.parameters())
    for plan, share in zip(plans.values(), shares, strict=True):
        assert plan.model == model
        frozen = frozen_names(plan.trainable, module)
        left = every - sum(module.get_parameter(n).numel() for n in frozen)
        assert 100 * left / every == pytest.approx(share, abs=0.0051)


def test_new_seeds_confirm_what_was_run():
    """The cells of `fedpt-confirm` are those it names, but for the seed."""
    first = {"4.03": ("fedpt-ftrl", "{}, Toeplitz"), "wide, 8.83": ("fedpt-wide", "{}")}
    confirm = find_table("fedpt-confirm")
    for cell in confirm.cells():
        name, row = first[cell.column]
        table, column = find_table(name), cell.column.split()[-1]
        same = next(c for c in table.cells() if (c.row, c.column) == (row.format(cell.row), column))
        assert confirm.plan_of(cell, 4) == table.plan_of(same, 4)
    assert not set(confirm.seeds) & set(find_table("fedpt-wide").seeds)


def test_both_matrices_have_one_epsilon():
    found: dict[str, set[float]] = {}
    tables = [find_table(name) for name in ("fedpt-ftrl", "fedpt-wide", "fedpt-confirm")]
    for cell, plan in ((cell, of.plan_of(cell, 1)) for of in tables for cell in of.cells()):
        if cell.column != "0":
            events = mechanism_of(plan.privacy).run_events(plan.participation, 777, plan.rounds)
            found.setdefault(cell.column.split()[-1], set()).add(round(epsilon(events, 1e-5), 3))
        if "tree" in cell.row:
            assert plan.privacy.noise_multiplier == float(cell.column)
    assert {key: len(each) for key, each in found.items()} == {"1.13": 1, "4.03": 1, "8.83": 1}
