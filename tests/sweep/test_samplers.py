"""What Optuna draws for a sweep: typed values, no setting twice, the same after a resume."""

from __future__ import annotations

import pytest

pytest.importorskip("optuna", reason="the extra 'sweep' is not installed")

from cupola.sweep.samplers import Tried, draw
from cupola.sweep.search_space import parse_over

LR = parse_over("local.lr=0.001..1:log")
EPOCHS = parse_over("local.epochs=1..5")
HIDDEN = parse_over("model.hidden=[32,64],[64]")


def drawn(over, strategy, trials, seed=1, score=lambda _: None, lower=(False,)):
    tried: list[Tried] = []
    while len(tried) < trials and (one := draw(over, strategy, seed, tried, lower, 5)) is not None:
        tried.append((one, score(one)))
    return tried


def test_values_can_be_typed_again():
    for settings, _ in drawn([LR, EPOCHS, HIDDEN], "random", 20):
        assert 0.001 <= settings["local.lr"] <= 1
        assert float(f"{settings['local.lr']:.3g}") == settings["local.lr"]
        assert settings["local.epochs"] in range(1, 6)
        assert settings["model.hidden"] in ([32, 64], [64])
    narrow = parse_over("local.lr=0.12341..0.12349")  # three digits are outside
    assert draw([narrow], "random", 1, [])["local.lr"] in (0.12341, 0.12349)


@pytest.mark.parametrize("strategy", ["random", "tpe"])
def test_all_combinations_and_none_twice(strategy):
    over = [parse_over("a=1,2"), parse_over("b=x,y,z")]
    found = [settings for settings, _ in drawn(over, strategy, 10, score=lambda s: [s["a"]])]
    assert len(found) == 6
    assert len({repr(one) for one in found}) == 6


def test_the_seed_decides():
    assert drawn([LR], "random", 8) == drawn([LR], "random", 8)
    assert drawn([LR], "random", 8) != drawn([LR], "random", 8, seed=2)
    assert drawn([LR], "random", 5) == drawn([LR], "random", 8)[:5]  # more trials may follow


def bowl(settings):
    """Best at 0.1; diverges above 0.5."""
    lr = settings["local.lr"]
    return None if lr > 0.5 else [-abs(lr - 0.1)]


def test_tpe_learns_and_random_does_not():
    near = [sum(abs(s["local.lr"] - 0.1) < 0.05 for s, _ in drawn([LR], k, 40, score=bowl)[20:])
            for k in ("tpe", "random")]  # fmt: skip
    assert near[0] >= 2 * near[1] + 2


def test_a_trial_follows_from_those_before_it():
    whole = drawn([LR, EPOCHS, HIDDEN], "tpe", 15, score=bowl)
    for n in (3, 9, 14):
        assert draw([LR, EPOCHS, HIDDEN], "tpe", 1, whole[:n], (False,), 5) == whole[n][0]


def test_several_objectives():
    """Accurate where both are large, cheap where epochs are few: TPE stays near the front."""

    def score(s):
        return [-abs(s["local.lr"] - 0.1) + 0.01 * s["local.epochs"], float(s["local.epochs"])]

    late = drawn([LR, EPOCHS], "tpe", 40, score=score, lower=(False, True))[20:]
    assert sum(abs(s["local.lr"] - 0.1) < 0.08 for s, _ in late) > 10
    assert {s["local.epochs"] for s, _ in late} >= {1, 3}  # not one end alone
