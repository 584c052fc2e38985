"""Who takes part, and what stragglers and drop-outs do."""

import sys
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import small

from cupola.errors import PlanError
from cupola.federation import Question, SiteContext, StateStore
from cupola.training import Local, Participation
from cupola.training.batches import share_out
from cupola.training.participation import draw
from cupola.training.recipes import find_recipe

FRACTION = Participation(kind="fraction", fraction=0.1)
COUNT = Participation(kind="fraction", count=7)
POISSON = Participation(kind="poisson", fraction=0.2)
ONCE = Participation(kind="at-most-once", count=3)


def test_sizes():
    assert draw(Participation(), 5, 1, 1) == [0, 1, 2, 3, 4]
    for sites, expected in ((100, 10), (25, 3), (24, 2), (3, 1)):  # halves go up, never nobody
        assert len(draw(FRACTION, sites, 1, 1)) == expected
    assert len(draw(COUNT, 20, 1, 1)) == 7
    assert draw(COUNT, 7, 1, 1) == list(range(7))


@pytest.mark.parametrize("choice", [FRACTION, COUNT, POISSON, ONCE])
def test_a_draw_depends_on_seed_and_round_alone(choice):
    draws = [draw(choice, 60, 1, r) for r in range(1, 9)]
    assert draws == [draw(choice, 60, 1, r) for r in range(1, 9)]
    assert draws != [draw(choice, 60, 2, r) for r in range(1, 9)]
    assert len({tuple(d) for d in draws}) > 1
    for drawn in draws:
        assert drawn == sorted(set(drawn))
        assert all(type(i) is int and 0 <= i < 60 for i in drawn)


def test_nobody_twice():
    drawn = [i for r in range(1, 21) for i in draw(ONCE, 60, 3, r)]
    assert sorted(drawn) == list(range(60))


def test_poisson_statistics():
    draws = [draw(POISSON, 50, 1, r) for r in range(1, 401)]
    sizes = np.array([len(d) for d in draws])
    assert abs(sizes.mean() - 10) < 4 * np.sqrt(8 / 400)
    assert 6 < sizes.var() < 10.5  # 50 * 0.2 * 0.8 = 8
    each = np.bincount(np.concatenate(draws), minlength=50) / 400
    assert abs(each - 0.2).max() < 4 * np.sqrt(0.16 / 400)
    both = np.mean([0 in d and 1 in d for d in draws])
    assert abs(both - 0.04) < 4 * np.sqrt(0.04 * 0.96 / 400)  # sites are independent


def test_every_site_is_drawn_alike():
    counts = Counter(i for r in range(1, 501) for i in draw(COUNT, 20, 1, r))
    assert max(abs(n / 500 - 0.35) for n in counts.values()) < 4 * np.sqrt(0.35 * 0.65 / 500)


def test_more_sites_than_there_are():
    with pytest.raises(PlanError, match="count = 7, but there are 6 sites"):
        draw(COUNT, 6, 1, 1)
    data = small.digits()
    with pytest.raises(PlanError, match="count = 7, but there are 4 sites"):
        small.training(data, participation=COUNT)
    with pytest.raises(PlanError, match="3 rounds of 3 sites need 9 sites, there are 4"):
        small.training(data, participation=ONCE)


def operations(function):
    """Calls that Python makes while the function runs."""
    seen = 0

    def count(_, event, __):
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize(
    ("few", "many"),
    [
        (COUNT, COUNT),
        (
            Participation(kind="poisson", fraction=1e-2),
            Participation(kind="poisson", fraction=1e-5),
        ),
    ],
)
def test_a_draw_costs_what_is_drawn(few, many):
    draw(few, 1000, 1, 1)
    assert (
        operations(lambda: draw(many, 1_000_000, 1, 2))
        <= operations(lambda: draw(few, 1000, 1, 2)) + 30
    )
    tracemalloc.start()
    try:
        draw(many, 1_000_000, 1, 3)
        assert tracemalloc.get_traced_memory()[1] < 100_000  # bytes: no list of a million
    finally:
        tracemalloc.stop()


def test_at_most_once_orders_a_million_sites_once():
    draw(ONCE, 1_000_000, 9, 1)
    assert operations(lambda: draw(ONCE, 1_000_000, 9, 2)) < 50


# Stragglers and drop-outs


def work_of(local, participation, sites=400, size=12, round=1):
    data = small.digits((size,)).site(0)
    store = StateStore()
    contexts = [SiteContext(i, data, None, store, 1) for i in range(sites)]
    options = {"participation": participation.model_dump(mode="json")}
    return share_out(contexts, Question("train", options=options, round=round), local)


def test_drop_outs_give_no_answer():
    work = work_of(Local(), Participation(dropouts=0.3))
    share = np.mean([w.declined == "dropped out" for w in work])
    assert abs(share - 0.3) < 4 * np.sqrt(0.21 / 400)
    assert all(w.declined is None for w in work_of(Local(), Participation()))
    assert {w.declined for w in work_of(Local(), Participation(dropouts=1.0))} == {"dropped out"}


PARTS = {
    # local work of 12 samples, mini-batches when complete, mini-batches a straggler may make
    "epochs": (Local(epochs=5, batch_size=4), 15, [3, 6, 9, 12]),
    "one epoch": (Local(batch_size=3), 4, [1, 2, 3]),
    "mini-batches": (Local(work="batches", batches=4, batch_size=3), 4, [1, 2, 3]),
}


@pytest.mark.parametrize("name", PARTS)
def test_stragglers_do_a_part_each_as_often(name):
    local, whole, parts = PARTS[name]
    work = work_of(local, Participation(stragglers=0.5))
    made = Counter(len(w.batches) for w in work)
    assert set(made) == {*parts, whole}
    assert abs(made[whole] / 400 - 0.5) < 4 * np.sqrt(0.25 / 400)
    late = 400 - made[whole]
    share = 1 / len(parts)
    for part in parts:
        assert abs(made[part] / late - share) < 4 * np.sqrt(share * (1 - share) / late)
    assert all(w.declined is None for w in work)
    if local.work == "batches":
        assert all(w.used == 3 * len(w.batches) and w.cursor == len(w.batches) for w in work)
    elif local.epochs == 1:
        assert all(w.used == 3 * len(w.batches) for w in work)
    else:
        assert all(w.used == 12 for w in work)


def test_a_single_gradient_has_no_part():
    local = Local(work="gradient", send="gradients")
    assert all(len(w.batches[0]) == 12 for w in work_of(local, Participation(stragglers=1.0)))


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_fedavg_drops_stragglers_and_fedprox_keeps_their_work(name):
    data = small.digits((10,) * 20)
    recipe = find_recipe(name)
    choice = Participation(stragglers=0.5, **recipe.participation)
    local = Local(epochs=3, batch_size=5, **recipe.local)
    program = small.training(data, rounds=1, local=local, participation=choice)
    with small.engine(program, data) as reach:
        ask = program.ask(program.start())
        total = reach.sum(ask.question, ask.sites)
    if name == "fedavg":
        assert 0 < len(total.sites) < 20
        assert set(total.failed.values()) == {"straggler"}
    else:
        assert total.sites == list(range(20))
        assert not total.failed
