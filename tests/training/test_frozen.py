"""FedPT: what is frozen, what travels, that it is Algorithm 1, and that it goes with everything."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import small
import torch
from pydantic import ValidationError
from torch import nn

from cupola.base.randomness import permutations
from cupola.engines import SeparateProcesses
from cupola.errors import FederationError, PlanError
from cupola.federation import Ledger, drive
from cupola.nn import build
from cupola.nn.regenerate import values
from cupola.training import Evaluation, Local, Participation, Privacy, Server, Upcycle
from cupola.training.choices import Level, Sum, Trainable
from cupola.training.frozen import frozen_names, levels_of, partly, share
from cupola.training.privacy_promise import guarantee
from cupola.training.recipes import find_recipe
from cupola.training.workspace import Workspace

SIZES = (12, 9, 14, 6)
DENSE = Trainable(freeze=("1",))  # the first linear layer of 64-8-10
SGD = Local(batch_size=6, lr=0.2)
SIMPLE = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(72, 3))


def frozen(data, choice=DENSE, make=None, seed=5, **more):
    return partly(small.problem(data, make, **more), choice, seed)


def training(data, choice=DENSE, make=None, what=None, **choices):
    return small.training(data, what=what or frozen(data, choice, make), **choices)


# Which


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (Trainable(freeze=("0",)), ["0.weight", "0.bias"]),
        (Trainable(freeze=("*.weight",)), ["0.weight", "3.weight"]),  # norms stay
        (Trainable(freeze=("*.weight",), norms=True), ["0.weight", "1.weight", "3.weight"]),
        (Trainable(only=("3",)), ["0.weight", "0.bias"]),
        (Trainable(only=("3.bias",)), ["0.weight", "0.bias", "3.weight"]),
        (Trainable(), []),
    ],
)
def test_patterns_of_parameters_and_modules(choice, names):
    assert frozen_names(choice, SIMPLE) == names


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"freeze": ["conv"]}, "names no trainable parameter or module"),
        ({"freeze": ["1"]}, "norms = true"),
        ({"freeze": ["*"], "norms": True}, "nothing is left"),
    ],
)
def test_refused_patterns(choice, words):
    with pytest.raises(PlanError, match=words):
        frozen_names(Trainable.model_validate(choice), SIMPLE)


@pytest.mark.parametrize(
    "choice",
    [
        {"freeze": ["a"], "only": ["b"]},
        {"level": [{"freeze": ["a"]}]},
        {"level": [{"freeze": ["a"], "share": 0.5, "sites": [1]}]},
        {"level": [{"share": 0.5}]},
        {"level": [{"freeze": ["a"], "share": 0.6}, {"freeze": ["b"], "share": 0.6}]},
        {"seed": -1},
    ],
)
def test_refused_choices(choice):
    with pytest.raises(ValidationError):
        Trainable.model_validate(choice)


def test_tied_weights_go_by_any_of_their_names():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(5, 3), nn.Linear(3, 5)
            self.out.weight = self.words.weight

    assert frozen_names(Trainable(freeze=("out.weight",)), Tied()) == ["words.weight"]


def test_what_the_model_froze_itself_is_left_as_it_is():
    data = small.digits(SIZES)

    def make():
        made = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10))
        made[1].requires_grad_(False)
        return made

    problem = frozen(data, Trainable(freeze=("2",)), make)
    program = training(data, what=problem)
    model = program.model(program.start())
    assert np.array_equal(model["1.weight"], problem.build()[1].weight.double().numpy())
    assert not np.array_equal(model["2.weight"], problem.build()[2].weight.double().numpy())


def test_emnist_cnn_trains_what_the_paper_says():
    choice = Trainable(freeze=("dense",))
    module = build("cnn", (1, 28, 28), 62, seed=1)
    found = frozen_names(choice, module)
    assert [tuple(module.get_parameter(n).shape) for n in found] == [(512, 3136), (512,)]
    for name in found:
        module.get_parameter(name).requires_grad_(False)
    counted = share(module)
    assert (counted.parameters, counted.trained) == (1_690_174, 84_030)
    assert round(100 * counted.trainable, 2) == 4.97


# Algorithm 1


def test_algorithm_1_written_out():
    data, program = small.digits(SIZES), training(small.digits(SIZES), rounds=2, local=SGD)
    start = program.start()
    assert sorted(start.arrays) == [
        "frozen/checksum", "frozen/seed", "model/3.bias", "model/3.weight",
    ]  # fmt: skip
    z = int(start.arrays["frozen/seed"])
    w = values(z, "1.weight", (8, 64), (2 / 64) ** 0.5, 0.0)
    y = {n: start.arrays[f"model/3.{n}"].copy() for n in ("weight", "bias")}
    for t in (1, 2):
        change = dict.fromkeys(y, 0.0)
        for i, size in enumerate(SIZES):
            train = data.site(i).train
            x = np.tanh(np.float64(train.x.float() / 255).reshape(size, -1) @ w.T)
            own = {n: a.copy() for n, a in y.items()}
            (order,) = permutations(5, "shuffle 0", t, [i], [size])
            for at in range(0, size, 6):
                rows = order[at : at + 6]
                out = x[rows] @ own["weight"].T + own["bias"]
                p = np.exp(out - out.max(1, keepdims=True))
                d = (p / p.sum(1, keepdims=True) - np.eye(10)[train.y[rows]]) / len(rows)
                own["weight"] -= 0.2 * d.T @ x[rows]
                own["bias"] -= 0.2 * d.sum(0)
            for n in y:
                change[n] += size * (own[n] - y[n]) / sum(SIZES)
        y = {n: y[n] + change[n] for n in y}
    model = small.model_after(program, data)
    assert np.array_equal(model["1.weight"], w)
    assert not model["1.bias"].any()
    for n in y:
        assert np.abs(model[f"3.{n}"] - y[n]).max() < 1e-12


def test_the_trainable_part_starts_as_in_full_training():
    data = small.digits(SIZES)
    whole, part = small.training(data).start().arrays, training(data).start().arrays
    assert np.array_equal(whole["model/3.weight"], part["model/3.weight"])


# What travels


def test_neither_questions_nor_answers_hold_frozen_tensors():
    data = small.digits(SIZES, held=4)
    judge = Evaluation(on="sites", train=True)
    program = training(data, evaluation=judge, site_splits=frozenset({"test"}), rounds=1)
    ledger, asked = Ledger(), []
    with small.engine(program, data, ledger=ledger) as reach:
        state = program.start()
        while (ask := program.ask(state)) is not None:
            asked.append(ask.question)
            state = program.answer(state, reach.sum(ask.question, ask.sites))
    sent = {"model/3.weight", "model/3.bias", "frozen/seed", "frozen/checksum"}
    assert [set(q.arrays) for q in asked] == [sent] * 3
    assert set(asked[0].expects) == {"model/3.weight", "model/3.bias"}
    assert ledger.bytes_up < 4 * (90 * 8 + 300) + 8 * 3000


def test_bytes_fall_as_parameters_do():
    data = small.digits(SIZES)
    wide = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 400), nn.Tanh(), nn.Linear(400, 10))  # noqa: E731
    down, up = [], []
    for choice in (Trainable(), DENSE):
        ledger = Ledger()
        small.run(training(data, choice, wide, rounds=2), data, ledger=ledger)
        down.append(ledger.bytes_down), up.append(ledger.bytes_up)
    parameters = np.array([400 * 65 + 401 * 10, 401 * 10]) * 8 * 2 * len(SIZES)
    assert np.abs(np.array(up) - parameters).max() < 2 * 4 * 400
    assert np.abs(np.array(down) - parameters).max() < 2 * 4 * 1200


def question_of(program):
    return program.ask(program.start()).question


@pytest.mark.parametrize("mode", ["one-by-one", "together"])
@pytest.mark.parametrize(
    "change",
    [
        {"frozen/seed": np.array(6)},
        {"frozen/checksum": np.zeros(16, np.uint8)},
        {"frozen/checksum": None},
        {"frozen/seed": None, "frozen/checksum": None},
        {"frozen/seed": np.array([1, 2])},
        {"frozen/seed": np.array(1.0)},
        {"frozen/checksum": np.zeros(15, np.uint8)},
        {"model/1.weight": np.zeros((8, 64))},  # smuggled
    ],
)
def test_another_frozen_part_is_found_out_before_training(change, mode):
    data, program = small.digits(SIZES), training(small.digits(SIZES))
    question = question_of(program)
    arrays = {n: a for n, a in {**question.arrays, **change}.items() if a is not None}
    words = "frozen part|freezes nothing|no trainable parameter"
    with small.engine(program, data, mode) as reach, pytest.raises(FederationError, match=words):
        reach.sum(replace(question, arrays=arrays), [0, 1])


@pytest.mark.parametrize(
    "other",
    [Trainable(), Trainable(freeze=("3",)), Trainable(freeze=("1.weight",))],
)
def test_another_section_at_a_site_is_found_out(other):
    data, program = small.digits(SIZES), training(small.digits(SIZES))
    elsewhere = replace(program, problem=frozen(data, other))
    with small.engine(elsewhere, data) as reach, pytest.raises(FederationError):
        reach.sum(question_of(program), [0])


def test_another_way_of_drawing_is_found_out(monkeypatch):
    data, program = small.digits(SIZES), training(small.digits(SIZES))
    question = question_of(program)
    import cupola.training.frozen as module

    last = lambda *facts, **how: np.nextafter(values(*facts, **how), 9)  # noqa: E731  one bit of every number
    monkeypatch.setattr(module, "values", last)
    with (
        small.engine(program, data) as reach,
        pytest.raises(FederationError, match="another version of cupola"),
    ):
        reach.sum(question, [0])


def test_a_site_follows_the_seed_that_it_is_sent():
    data, program = small.digits(SIZES), training(small.digits(SIZES))
    other = training(data, what=frozen(data, seed=99))
    with small.engine(other, data) as reach:
        found = reach.sum(question_of(program), [0]).arrays
    with small.engine(program, data) as reach:
        assert np.array_equal(
            found["model/3.weight"], reach.sum(question_of(program), [0]).arrays["model/3.weight"]
        )


# No gradient, no state, no activation


def test_frozen_tensors_have_no_gradient_and_no_state():
    data = small.digits(SIZES)
    server = Server(optimizer="adam", lr=0.1)
    state = small.run(training(data, local=Local(momentum=0.9), server=server), data)
    assert not [n for n in state.arrays if "1.weight" in n]
    space = Workspace(frozen(data))
    assert space.flat.numel() == 90
    space.gradient(*space.batch(data.site(0).train, slice(0, 4)))
    assert all(p.grad is None for p in space.module.parameters())


def test_a_frozen_dense_layer_keeps_no_input():
    """torch keeps the input of a linear layer for the gradient of its weight only."""
    kept = []
    for trained in (True, False):
        layer = nn.Linear(300, 10)
        layer.weight.requires_grad_(trained)
        x = torch.randn(50, 300, requires_grad=True) * 1.0
        saved: list[torch.Size] = []

        def pack(tensor, saved=saved):
            saved.append(tensor.shape)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            layer(x)
        kept.append((50, 300) in saved)
    assert kept == [True, False]


# With everything else

RECIPES = [
    "fedavg",
    "fedprox",
    "fedavgm",
    "fedadam",
    "fedyogi",
    "fednova",
    "scaffold",
    "fedsmb",
    "fedcmb+wga",
    "fedfgd",
    "upcycled-fedprox",
]


def by_recipe(data, name, choice=DENSE, rounds=3):
    recipe = find_recipe(name)
    local = {"batch_size": 6, "lr": 0.1, **recipe.local}
    return training(
        data,
        choice,
        rounds=rounds,
        local=Local.model_validate(local),
        server=Server.model_validate(recipe.server),
        participation=Participation.model_validate(recipe.participation),
    )


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_the_part_and_leaves_the_rest(name):
    data = small.digits(SIZES)
    program = by_recipe(data, name)
    before, after = program.model(program.start()), small.model_after(program, data)
    for n in before:
        assert np.array_equal(before[n], after[n]) == n.startswith("1."), n


@pytest.mark.parametrize("mode", ["together", "stacked", "auto"])
@pytest.mark.parametrize("name", ["fedavg", "fednova", "fedsmb", "fedadam"])
def test_every_mode_gives_the_same(name, mode):
    data = small.digits(SIZES)
    program = by_recipe(data, name)
    if (name, mode) == ("fedsmb", "stacked"):
        return  # a single gradient needs no stack
    one, other = small.model_after(program, data), small.model_after(program, data, mode)
    assert small.largest_difference(one, other) < 1e-12


def convolutions():
    layers = [nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Conv2d(3, 2, 3), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32, 10))


@pytest.mark.parametrize("level", [(), (Level(freeze=("0",), sites=(1,)),)])
def test_frozen_convolutions_in_stacks(level):
    data = small.digits(SIZES)
    choice = Trainable(freeze=("3",), level=level)
    program = training(data, choice, convolutions, rounds=2, local=SGD)
    one, other = small.model_after(program, data), small.model_after(program, data, "stacked")
    assert small.largest_difference(one, other) < 1e-12
    assert not np.array_equal(one["0.weight"], program.model(program.start())["0.weight"])


def privately(data, mechanism, choice=DENSE, **more):
    options = {"noise_multiplier": 0.5, "clip": 0.7, **more}
    return training(
        data,
        choice,
        rounds=2,
        local=Local(batch_size=6, lr=0.1, weighting="uniform"),
        privacy=Privacy(mechanism=mechanism, **options),
        sum=Sum(kind="masked") if mechanism == "distributed" else Sum(),
    )


@pytest.mark.parametrize("mechanism", ["dp-sgd", "central", "dp-ftrl", "distributed"])
def test_every_mechanism_noises_the_trained_part_alone(mechanism):
    data = small.digits(SIZES)
    program = privately(data, mechanism)
    run = small.run_masked if mechanism == "distributed" else small.run
    state = run(program, data)
    model, start = program.model(state), program.model(program.start())
    assert np.array_equal(model["1.weight"], start["1.weight"])
    assert not np.array_equal(model["3.weight"], start["3.weight"])
    if mechanism == "dp-ftrl":
        assert state.arrays["ftrl/sum"].shape == (90,)
    # Accounting knows rates, rounds and noise only, and so does not change.
    whole = privately(data, mechanism, Trainable())
    sizes = np.array(SIZES)
    assert guarantee(program, sizes).epsilon == guarantee(whole, sizes).epsilon


def test_the_clip_is_of_the_trained_part_alone():
    data = small.digits(SIZES)
    total = {}
    for noise, clip in ((0.0, 1e6), (0.0, 0.01)):
        program = privately(data, "central", noise_multiplier=noise, clip=clip)
        with small.engine(program, data) as reach:
            sums = [reach.sum(question_of(program), [i]).arrays for i in range(4)]
        total[clip] = [np.concatenate([a.reshape(-1) for a in s.values()]) for s in sums]
    for free, clipped in zip(total[1e6], total[0.01]):
        assert len(free) == 90
        assert np.allclose(clipped, free * 0.01 / np.linalg.norm(free))


def test_private_gradients_of_the_part_against_vmap():
    from cupola.privacy.persample import PerSample

    data = small.digits(SIZES)
    space = Workspace(frozen(data))
    space.frozen.regenerate(3)
    x, y = space.batch(data.site(0).train, slice(0, 5))
    found = PerSample(space.module, space.problem.loss).clipped_sum(x, y, 0.05)
    each = [space.gradient(x[i : i + 1], y[i : i + 1]) for i in range(5)]
    norms = [float(torch.cat([g.reshape(-1) for g in own]).norm()) for own in each]
    assert np.allclose(found.norms, norms)
    expected = [sum(g * min(1, 0.05 / n) for g, n in zip(gs, norms)) for gs in zip(*each)]
    assert all(torch.allclose(a, b) for a, b in zip(found.sums, expected))


@pytest.mark.parametrize("protocol", ["compensator", "pairwise"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_masked_sums(protocol, name):
    data = small.digits(SIZES)
    plain = by_recipe(data, name, rounds=2)
    masked = replace(plain, sum=Sum(kind="masked", protocol=protocol))
    one, other = small.model_after(plain, data), masked.model(small.run_masked(masked, data))
    assert small.largest_difference(one, other) < 1e-9


def test_upcycling_moves_the_trained_part():
    data = small.digits(SIZES)
    program = training(data, rounds=4, local=SGD, server=Server(upcycle=Upcycle(factor=0.5)))
    state = small.run(program, data)
    assert not [n for n in state.arrays if n.startswith("before/") and "1." in n]


def frozen_host(sizes, level):
    """For separate processes."""
    from cupola.training import TrainingHost

    data = small.digits(tuple(sizes))
    choice = Trainable(freeze=("1",), level=tuple(Level.model_validate(v) for v in level))
    return TrainingHost(frozen(data, choice), data)


@pytest.mark.slow
def test_separate_processes_regenerate_the_same():
    data = small.digits(SIZES)
    level = [{"freeze": ["3.weight"], "sites": [2]}]
    choice = Trainable(freeze=("1",), level=tuple(Level.model_validate(v) for v in level))
    program = training(data, choice, rounds=2, local=SGD)
    ledgers = Ledger(), Ledger()
    one = small.run(program, data, ledger=ledgers[0])
    options = {"sizes": SIZES, "level": level}
    with SeparateProcesses(
        "test_frozen:frozen_host", options, 4, seed=5, ledger=ledgers[1], timeout=900
    ) as reach:
        other = drive(program, reach)
    assert len(ledgers[1].up) == 4
    assert small.largest_difference(program.model(one), program.model(other)) == 0
    assert ledgers[0].up == ledgers[1].up
    assert ledgers[0].down == ledgers[1].down


# Sites that train less

MIXED = Trainable(
    level=(Level(freeze=("1",), sites=(1, 3)), Level(freeze=("1.weight",), sites=(2,)))
)


def test_levels_by_list_and_by_share():
    choice = Trainable(
        level=(
            Level(freeze=("1",), share=0.3),
            Level(freeze=("3",), share=0.5),
            Level(freeze=("1",), sites=(7,)),
        )
    )
    found = levels_of(choice, 3, np.arange(20_000))
    assert found[7] == 2
    assert np.abs(np.bincount(found + 1)[:3] / 20_000 - [0.2, 0.3, 0.5]).max() < 0.01
    assert np.array_equal(levels_of(choice, 3, np.array([19_999, 5])), found[[19_999, 5]])
    first = Trainable(level=(Level(freeze=("1",), sites=(7,)), Level(freeze=("3",), sites=(7,))))
    assert levels_of(first, 3, np.array([7])) == [0]


@pytest.mark.parametrize("mode", ["one-by-one", "together", "auto"])
def test_a_tensor_is_the_mean_over_the_sites_that_train_it(mode):
    data = small.digits(SIZES)
    program = training(data, MIXED, rounds=1, local=SGD)
    question = question_of(program)
    assert question.partial
    with small.engine(program, data, mode) as reach:
        total = reach.sum(question, range(4))
    sizes = {"1.weight": 12, "1.bias": 12 + 14, "3.weight": 41, "3.bias": 41}
    assert total.weights == {f"model/{n}": size for n, size in sizes.items()}
    # Site 0 trains everything, and alone decides 1.weight.
    whole = small.training(data, rounds=1, local=SGD)
    with small.engine(whole, data) as reach:
        alone = reach.sum(question_of(whole), [0])
    assert np.allclose(total.mean("model/1.weight"), alone.mean("model/1.weight"), atol=1e-14)
    # A site at a level changes its part as if the rest stood still.
    with small.engine(program, data, mode) as reach:
        part = reach.sum(question, [1])
    assert sorted(part.arrays) == ["model/3.bias", "model/3.weight"]


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "fednova", "scaffold", "fedsmb"])
def test_recipes_with_levels_in_all_modes(name):
    data = small.digits(SIZES)
    program = by_recipe(data, name, MIXED)
    one = small.model_after(program, data)
    if name != "scaffold":
        assert small.largest_difference(one, small.model_after(program, data, "together")) < 1e-12
    whole = small.model_after(by_recipe(data, name, Trainable()), data)
    assert small.largest_difference(one, whole) > 1e-6


def test_what_nobody_trains_in_a_round_stays_with_its_state():
    data = small.digits(SIZES)
    some = Participation(kind="rotation", count=1)
    program = training(
        data, MIXED, rounds=4, local=SGD, participation=some, server=Server(momentum=0.5)
    )
    seen, kept = [program.start()], []
    with small.engine(program, data) as reach:
        drive(program, reach, seen[0], seen.append)
    for before, after in pairwise(seen):
        moved = not np.array_equal(before.arrays["model/1.weight"], after.arrays["model/1.weight"])
        kept.append(moved)
    assert sum(kept) == 1  # the round of site 0
    assert "server/momentum/1.weight" in seen[-1].arrays


def test_levels_with_central_noise_divide_by_public_numbers():
    data = small.digits(SIZES)
    exact = privately(data, "central", MIXED, noise_multiplier=0.0, clip=1e6)
    moved = small.run(replace(exact, rounds=1), data).arrays
    start = exact.start().arrays
    with small.engine(exact, data) as reach:
        total = reach.sum(question_of(exact), range(4))
    counts = {"1.weight": 1, "1.bias": 2, "3.weight": 4, "3.bias": 4}
    for n, many in counts.items():
        expected = start[f"model/{n}"] - total.arrays[f"model/{n}"] / many
        assert np.allclose(moved[f"model/{n}"], expected, atol=1e-12)
    # Half of the sites come: the divisor does not tell who.
    some = Participation(kind="poisson", fraction=0.5)
    half = replace(exact, rounds=1, participation=some)
    ask = half.ask(half.start())
    with small.engine(half, data) as reach:
        sent = reach.sum(ask.question, ask.sites)
    after = half.answer(half.start(), sent).arrays
    update = sent.arrays["model/3.bias"] / 2
    assert np.allclose(after["model/3.bias"], start["model/3.bias"] - update, atol=1e-12)


@pytest.mark.parametrize("mechanism", ["central", "dp-ftrl", "dp-sgd"])
def test_levels_with_noise(mechanism):
    data = small.digits(SIZES)
    program = privately(data, mechanism, MIXED)
    one = small.model_after(program, data)
    assert all(np.isfinite(a).all() for a in one.values())
    if mechanism != "dp-sgd":
        # Noise reaches every released number, also where nobody came.
        empty = program.answer(program.start(), type(_empty())(arrays={}, weight=0.0))
        for n, a in program.start().arrays.items():
            if n.startswith("model/"):
                assert (empty.arrays[n] != a).all()


def _empty():
    from cupola.federation import Total

    return Total()


def test_two_layers_can_be_made_to_say_the_same():
    """A coordinator's weights: then a site that trains one layer only is told by their difference,
    and levels of few sites are refused where sums are masked."""
    net = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3))
    nn.init.eye_(net[1].weight)
    torch.nn.functional.cross_entropy(net(torch.randn(7, 5)), torch.arange(7) % 3).backward()
    assert torch.allclose(net[0].bias.grad, net[1].bias.grad)
    data = small.digits((8,) * 8)
    even = Local(batch_size=6, lr=0.2, weighting="uniform")
    for sites, fine in (((1, 3), False), ((1, 3, 5), True)):
        choice = Trainable(level=(Level(freeze=("1",), sites=sites),))
        hidden = {"local": even, "sum": Sum(kind="masked", minimum=3)}
        with nullcontext() if fine else pytest.raises(PlanError, match="train the same tensors"):
            training(data, choice, rounds=1, **hidden)


@pytest.mark.parametrize("protocol", ["compensator", "pairwise"])
def test_levels_with_masked_sums(protocol):
    data = small.digits((8,) * 8)
    choice = Trainable(
        level=(Level(freeze=("1.weight",), sites=(1, 3, 5)), Level(freeze=("1",), sites=(0, 2, 4)))
    )
    even = Local(batch_size=6, lr=0.2, weighting="uniform")
    plain = training(data, choice, rounds=1, local=even)
    masked = replace(plain, sum=Sum(kind="masked", protocol=protocol, minimum=3))
    one, other = small.model_after(plain, data), masked.model(small.run_masked(masked, data))
    start = plain.model(plain.start())
    # Two sites only train 1.weight: too few to be told, so it stays.
    assert np.array_equal(other["1.weight"], start["1.weight"])
    assert not np.array_equal(one["1.weight"], start["1.weight"])
    for n in ("1.bias", "3.weight", "3.bias"):
        assert np.abs(one[n] - other[n]).max() < 1e-9


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"sum": Sum(kind="masked")}, "weighting = 'uniform'"),
        (
            {
                "sum": Sum(kind="masked"),
                "local": Local(weighting="uniform"),
                "privacy": Privacy(mechanism="distributed", noise_multiplier=1.0),
            },
            "adds no share of its noise",
        ),
        ({"task": "own"}, "task = 'train'"),
    ],
)
def test_levels_that_cannot_be_hidden_are_refused(choices, words):
    data = small.digits(SIZES)
    with pytest.raises(PlanError, match=words):
        training(data, MIXED, **choices)


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ([Level(freeze=("1",), sites=(9,))], "there is no site 9"),
        ([Level(freeze=("1",), sites=(0, 1, 2, 3))], "no site trains '1.weight'"),
        ([Level(freeze=("7",), sites=(0,))], r"trainable.level\[0\].freeze: '7'"),
    ],
)
def test_levels_that_make_no_sense_are_refused(level, words):
    with pytest.raises(PlanError, match=words):
        training(small.digits(SIZES), Trainable(level=tuple(level)))


def test_nothing_to_freeze_where_a_convex_problem_is_solved():
    data = small.digits(SIZES)
    make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))  # noqa: E731
    with pytest.raises(PlanError, match="there is no part to freeze"):
        training(
            data,
            Trainable(freeze=("1.weight",)),
            make,
            local=Local(proximal=0.1),
            privacy=Privacy(mechanism="output", noise_multiplier=1.0, neighbours="replace-one"),
        )
