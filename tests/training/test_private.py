"""Private training: every mechanism against its slow, obvious reference, and the forms of each."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from small import CROSS_ENTROPY, digits, perceptron, seeded
from torch import nn
from torch.func import functional_call, grad, vmap

from cupola.data import Dataset, SiteData
from cupola.engines import InProcess
from cupola.errors import PlanError
from cupola.federation import Declined, Question, SiteContext, StateStore, Total, drive
from cupola.privacy.accounting import epsilon
from cupola.privacy.events import Gaussian, SampledGaussian
from cupola.privacy.matrix import find
from cupola.privacy.noise import noise_scale, source
from cupola.privacy.persample import ROUNDING
from cupola.training import (
    Budget,
    Evaluation,
    Local,
    Participation,
    Privacy,
    Problem,
    Schedule,
    Server,
    Training,
    TrainingHost,
)
from cupola.training.batches import share_out
from cupola.training.local import charge, train
from cupola.training.mechanisms.central import CentralCoordinator
from cupola.training.mechanisms.dp_sgd import drawn_batches
from cupola.training.participation import draw, most_participations, separation
from cupola.training.privacy_promise import guarantee, resolve

LINEAR = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
SIZES = (20, 7, 33, 1, 12)


def problem(build=LINEAR, dtype=torch.float64, loss=CROSS_ENTROPY):
    return Problem(build, loss, "classification", 10, (1, 8, 8), "cpu", dtype)


def training(privacy, *, build=LINEAR, sites=5, rounds=3, **choices):
    choices.setdefault("evaluation", Evaluation(every=1000))
    return Training(problem(build), sites, rounds, seed=3, privacy=privacy, **choices)


def final(program, data=None, mode="auto", book=None):
    host = TrainingHost(program.problem, data or digits(SIZES, public=False), book)
    with InProcess(host, seed=3, mode=mode, workers=2) as federation:
        state = drive(program, federation)
    return state, federation


def flat(state):
    return np.concatenate([a.reshape(-1) for n, a in state.arrays.items() if n[:6] == "model/"])


# DP-SGD


def naive_private_sgd(program, data):
    """One site, as the paper writes it: every example's gradient by itself."""
    module = program.problem.module()
    names = [n for n, _ in module.named_parameters()]
    weights = [p.detach().clone() for p in module.parameters()]
    held, local, privacy = data.site(0).train, program.local, program.privacy
    n, rate = len(held), min(1.0, program.local.batch_size / len(held))
    x, y = held.inputs().double(), held.y

    def loss(params, xi, yi):
        output = functional_call(module, dict(zip(names, params)), (xi[None],))
        return nn.functional.cross_entropy(output, yi[None])

    for round in range(1, program.rounds + 1):
        lots = source(3, "privacy batches", round, 0).uniforms(local.batches * n)
        noise = source(3, "privacy noise", round, 0)
        for row in lots.reshape(local.batches, n):
            total = [torch.zeros_like(w) for w in weights]
            for i in np.flatnonzero(row < rate):
                gradient = grad(loss)(tuple(weights), x[i], y[i])
                norm = math.sqrt(sum(float(g.square().sum()) for g in gradient))
                for sum_, g in zip(total, gradient):
                    sum_ += g * min(1.0, privacy.clip / norm)
            size = sum(w.numel() for w in weights)
            scale = noise_scale(privacy.clip * (1 + ROUNDING), privacy.noise_multiplier, size)
            added = torch.from_numpy(noise.normals(size) * scale)
            start = 0
            for w, sum_ in zip(weights, total):
                z = added[start : start + w.numel()].view_as(w)
                w -= local.lr * (sum_ + z) / (rate * n)
                start += w.numel()
    return np.concatenate([w.reshape(-1).numpy() for w in weights])


@pytest.mark.parametrize("build", [LINEAR, seeded(perceptron(nn.Tanh))], ids=["linear", "mlp"])
def test_dp_sgd_is_what_the_paper_writes(build):
    data = digits((30,), public=False)
    program = training(
        Privacy(mechanism="dp-sgd", noise_multiplier=1.2, clip=0.5),
        build=build,
        sites=1,
        local=Local(work="batches", batches=4, batch_size=6, lr=0.4),
    )
    state, _ = final(program, data)
    assert np.abs(flat(state) - naive_private_sgd(program, data)).max() < 1e-7


LOCALS = {
    "batches": Local(work="batches", batches=3, batch_size=4, lr=0.3),
    "epochs": Local(epochs=2, batch_size=4, lr=0.3, momentum=0.5, proximal=0.1),
    "gradients": Local(work="batches", batches=3, batch_size=4, lr=0.3, send="gradients"),
    "adam": Local(work="batches", batches=3, batch_size=4, lr=0.01, optimizer="adam"),
    "full": Local(work="gradient", lr=0.3, send="gradients", weighting="uniform"),
}


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_dp_sgd_at_many_sites_together_equals_one_by_one(local):
    program = training(Privacy(mechanism="dp-sgd", noise_multiplier=1.0), local=local)
    one, together = (final(program, mode=mode)[0] for mode in ("one-by-one", "explicit"))
    assert np.abs(flat(one) - flat(together)).max() < 1e-12


def test_workers_and_stragglers_change_no_bit_of_private_training():
    program = training(
        Privacy(mechanism="dp-sgd", noise_multiplier=1.0),
        build=seeded(perceptron(nn.ReLU)),
        local=LOCALS["batches"],
        participation=Participation(stragglers=0.6),
    )
    host = TrainingHost(program.problem, digits(SIZES, public=False))
    models = []
    for workers in (1, 3):
        with InProcess(host, seed=3, workers=workers) as federation:
            models.append(flat(drive(program, federation)))
    assert np.array_equal(*models)


def context(n=30, seed=3, index=0):
    host = TrainingHost(problem(), digits((n,), public=False))
    return SiteContext(index, host.data(0), host.workspace(), StateStore(), seed)


def test_every_example_is_drawn_with_its_probability_and_empty_batches_come():
    site, n, rate, steps = context(), 40, 0.05, 4000
    batches = drawn_batches(site, 1, n, rate, steps)
    counts = np.bincount(np.concatenate(batches), minlength=n)
    deviation = math.sqrt(steps * rate * (1 - rate))
    assert np.abs(counts - steps * rate).max() < 5 * deviation
    empty = sum(len(b) == 0 for b in batches)
    assert abs(empty - steps * (1 - rate) ** n) < 5 * math.sqrt(steps * (1 - rate) ** n)
    together = np.array([[0 in b, 1 in b] for b in batches])
    both = together.all(1).sum()
    assert abs(both - steps * rate**2) < 5 * math.sqrt(steps) * rate


def test_an_empty_batch_is_a_step_of_noise():
    program = training(
        Privacy(mechanism="dp-sgd", noise_multiplier=1.0),
        sites=1,
        rounds=1,
        local=Local(work="batches", batches=1, batch_size=1, lr=1.0),
    )
    question = program.ask(program.start()).question
    site = next(
        c
        for c in (context(30, index=i) for i in range(60))
        if len(share_out([c], question, program.local)[0].order) == 0
    )
    answer = train(site, question)
    moved = np.concatenate([a.reshape(-1) for a in answer.arrays.values()])
    assert abs(moved.std() - 1.0) < 0.15
    assert answer.weight == 30, "the weight must not tell how large the batch was"


def test_a_real_site_draws_batches_and_noise_that_no_seed_tells():
    program = training(
        Privacy(mechanism="dp-sgd", noise_multiplier=1.0),
        sites=1,
        local=Local(work="batches", batches=2, batch_size=5),
    )
    question = program.ask(program.start()).question
    answers = [train(context(seed=None), question).arrays["model/1.weight"] for _ in range(2)]
    seeded_ones = [train(context(seed=3), question).arrays["model/1.weight"] for _ in range(2)]
    assert not np.array_equal(*answers)
    assert np.array_equal(*seeded_ones)
    assert not any("seed" in str(option) for option in question.options)


def test_noise_differs_between_sites_and_rounds():
    program = training(Privacy(mechanism="dp-sgd", noise_multiplier=1e6), local=LOCALS["batches"])
    state = program.start()
    seen = []
    for round in (1, 2):
        question = program.ask(state).question
        question = Question(**{**question.__dict__, "round": round})
        for index in (0, 1):
            site = context(index=index)
            seen.append(train(site, question).arrays["model/1.weight"].reshape(-1))
    correlations = np.corrcoef(seen) - np.eye(4)
    assert np.abs(correlations).max() < 0.2


def test_augmented_copies_are_averaged_before_clipping():
    calls = []

    class Shift:
        def __call__(self, x, generator):
            calls.append(len(x))
            return x + torch.rand((), generator=generator)

    data = digits((30,), public=False)
    held = data.site(0)
    object.__setattr__(held.train, "transform", Shift())
    program = training(
        Privacy(mechanism="dp-sgd", noise_multiplier=0.0, clip=0.1, augmentations=3),
        sites=1,
        rounds=1,
        local=Local(work="gradient", lr=1.0),
    )
    host = TrainingHost(program.problem, data)
    site = SiteContext(0, held, host.workspace(), StateStore(), 3)
    question = program.ask(program.start()).question
    got = train(site, question).arrays
    generator = torch.Generator().manual_seed(int(site.generator("augment", 1).integers(2**62)))
    x = held.train.inputs().double()
    copies = [x, *(x + torch.rand((), generator=generator) for _ in range(2))]
    module = program.problem.module()
    names = [n for n, _ in module.named_parameters()]

    def loss(params, xi, yi):
        output = functional_call(module, dict(zip(names, params)), (xi[None],))
        return nn.functional.cross_entropy(output, yi[None])

    params = tuple(p.detach() for p in module.parameters())
    per_copy = [vmap(grad(loss), (None, 0, 0))(params, c, held.train.y) for c in copies]
    mean = [sum(g) / 3 for g in zip(*per_copy)]
    norms = sum(g.flatten(1).square().sum(1) for g in mean).sqrt()
    scale = (0.1 / norms).clamp_max(1)
    for name, g in zip(names, mean):
        wanted = torch.tensordot(scale, g, 1) / 30
        assert np.allclose(got[f"model/{name}"], wanted.numpy(), rtol=1e-5, atol=1e-9)
    assert calls == [30, 30]


# Noise at the coordinator


UNIFORM = Local(epochs=2, batch_size=4, lr=0.3, weighting="uniform")


def updates(program, state, sites):
    """Every site's update without clipping, one by one."""
    plain = training(Privacy(), local=program.local, sites=program.sites)
    question = plain._ask_training(state, state.values["round"] + 1).question
    host = TrainingHost(plain.problem, digits(SIZES, public=False))
    found = []
    for i in sites:
        site = SiteContext(i, host.data(i), host.workspace(), StateStore(), 3)
        arrays = train(site, question).arrays
        found.append(np.concatenate([arrays[n].reshape(-1) for n in question.arrays]))
    return found


def test_central_noise_goes_onto_the_sum_of_clipped_updates():
    privacy = Privacy(mechanism="central", noise_multiplier=0.8, clip=0.3)
    program = training(privacy, local=UNIFORM, rounds=1)
    start = program.start()
    state, _ = final(program)
    clipped = [u * min(1, 0.3 / np.linalg.norm(u)) for u in updates(program, start, range(5))]
    size = len(clipped[0])
    scale = noise_scale(0.3 * (1 + ROUNDING), 0.8, size)
    noise = source(3, "coordinator noise", 1).normals(size) * scale
    wanted = flat(start) - (sum(clipped) + noise) / 5
    assert np.abs(flat(state) - wanted).max() < 1e-8


@pytest.mark.parametrize("mechanism", ["central", "dp-ftrl"])
@pytest.mark.parametrize("build", [LINEAR, seeded(perceptron(nn.ReLU))], ids=["linear", "mlp"])
def test_clipped_updates_computed_together_equal_one_by_one(mechanism, build):
    privacy = Privacy(mechanism=mechanism, noise_multiplier=0.5, clip=0.3)
    if mechanism == "central":
        privacy = privacy.model_copy(update={"quantile": 0.5})
    program = training(privacy, build=build, local=UNIFORM, rounds=4)
    one, *others = (final(program, mode=m)[0] for m in ("one-by-one", "explicit", "stacked"))
    for other in others:
        assert np.abs(flat(one) - flat(other)).max() < 1e-9
        assert other.values.get("clip") == one.values.get("clip")


def test_the_mean_is_over_the_expected_number_of_sites():
    privacy = Privacy(mechanism="central", noise_multiplier=1.0, clip=1.0)
    choice = Participation(kind="poisson", fraction=0.5)
    coordinator = CentralCoordinator(privacy, choice, Server(), 10, 5, 1)
    assert coordinator.expected == 5
    state = training(Privacy()).start()
    nobody, _ = coordinator.mean(state, Total(), 1)
    assert 0.1 < np.concatenate([a.reshape(-1) for a in nobody.values()]).std() < 0.3


def test_a_moving_clip_finds_its_quantile_and_is_paid_for():
    norms = np.linspace(0.5, 2.5, 201)  # of the sites' updates
    privacy = Privacy(mechanism="central", noise_multiplier=1.0, clip=0.1, quantile=0.7)
    coordinator = CentralCoordinator(privacy, Participation(), Server(), len(norms), 100, 1)
    state = training(Privacy()).start()
    for round in range(1, 101):
        clip = coordinator.clip(state)
        below = np.where(norms <= clip, 0.5, -0.5).sum()
        total = Total({"below": np.array(below)}, {}, 1.0)
        _, values = coordinator.mean(state, total, round)
        state = state.next(**values)
    assert abs(coordinator.clip(state) - np.quantile(norms, 0.7)) < 0.15
    # Sum and count together are one Gaussian of the stated multiplier.
    parts = [Gaussian(coordinator.update_noise), Gaussian(2 * coordinator.counts_noise)]
    assert epsilon(parts, 1e-5) == pytest.approx(epsilon([Gaussian(1.0)], 1e-5), rel=1e-6)


@pytest.mark.parametrize("matrix", ["tree", "tree-honaker", "toeplitz"])
@pytest.mark.parametrize("restart", [0, 2])
def test_dp_ftrl_follows_the_noised_sum_of_updates(matrix, restart):
    privacy = Privacy(
        mechanism="dp-ftrl", noise_multiplier=0.5, clip=0.3, matrix=matrix, restart=restart
    )
    program = training(privacy, local=UNIFORM, rounds=5, server=Server(momentum=0.5, lr=0.7))
    states = [program.start()]
    host = TrainingHost(program.problem, digits(SIZES, public=False))
    with InProcess(host, seed=3) as federation:
        drive(program, federation, states[0], states.append)
    size = len(flat(states[0]))
    scale = noise_scale(0.3 * (1 + ROUNDING) / 5, 0.5, 2 * (restart or 5) * size)
    for round in range(1, 6):
        after = (round - 1) // restart * restart if restart else 0
        step = round - after
        if step == 1:
            start, total, velocity = flat(states[round - 1]), 0.0, 0.0
        for u in updates(program, states[round - 1], range(5)):
            total = total + u * min(1, 0.3 / np.linalg.norm(u)) / 5
        noise = find(matrix).noise(
            step, lambda i, a=after: source(3, f"ftrl noise {i}", a).normals(size)
        )
        velocity = 0.5 * velocity + total + scale * noise
        assert np.abs(flat(states[round]) - (start - 0.7 * velocity)).max() < 1e-7


def test_sites_keep_to_the_pattern_whatever_the_coordinator_says():
    privacy = Privacy(mechanism="dp-ftrl", noise_multiplier=0.5)
    program = training(
        privacy,
        local=UNIFORM,
        sites=6,
        rounds=9,
        participation=Participation(kind="rotation", count=2),
    )
    pattern = program.coordinator.pattern(1)
    assert pattern == {"after": 0, "steps": 9, "participations": 3, "separation": 3}
    site = context()
    question = program._ask_training(program.start(), 1).question
    first = charge(site, question)
    assert first.events == (Gaussian(0.5 / find("toeplitz").sensitivity(9, 3, 3)),)
    train(site, question)
    richer = {**question.options, "pattern": {**pattern, "participations": 100}}
    other = Question(**{**question.__dict__, "round": 4, "step": 5, "options": richer})
    with pytest.raises(Declined, match="paid for"):
        charge(site, other)
    for round, allowed in ((2, False), (3, False), (4, True)):
        again = Question(**{**question.__dict__, "round": round, "step": round + 1})
        if allowed:
            assert charge(site, again).events == (), "the first charge covers the period"
        else:
            with pytest.raises(Declined, match="participation pattern"):
                charge(site, again)


def test_rotation_keeps_its_distance():
    choice = Participation(kind="rotation", count=3)
    rounds = [draw(choice, 10, 1, r) for r in range(1, 13)]
    assert separation(choice, 10) == 3
    for site in range(10):
        times = [r for r, cohort in enumerate(rounds) if site in cohort]
        assert all(b - a >= 3 for a, b in pairwise(times))
        assert len(times) <= most_participations(choice, 10, 12) == 4
    assert all(len(cohort) == 3 for cohort in rounds)


# Promises


def test_epsilon_gives_the_noise_and_every_site_stays_below_it():
    sizes = np.array([100, 250, 40, 0, 900])
    local = Local(epochs=1, batch_size=20)
    privacy = Privacy(mechanism="dp-sgd", epsilon=2.0)
    some = Participation(kind="fraction", count=3)
    found = resolve(privacy, local, some, sites=5, rounds=30, seed=3, sizes=sizes)
    program = training(found, local=local, participation=some, rounds=30)
    promise = guarantee(program, sizes)
    assert promise.noise == found.noise_multiplier
    assert 1.99 < promise.epsilon <= 2.0
    assert all(group.epsilon <= 2.0 for group in promise.groups)
    worst = promise.groups[0]
    steps = math.ceil(worst.samples / 20) * worst.answers
    event = SampledGaussian(min(1, 20 / worst.samples), found.noise_multiplier, steps)
    assert worst.epsilon == pytest.approx(epsilon([event], 1e-5))
    assert "not valid for release" in promise.status
    assert "number of samples" in promise.unprotected[0]


def test_what_sites_are_charged_is_what_was_promised():
    from cupola.privacy.budget import Book

    books = []

    def open_book(*_):
        books.append(Book())
        return books[-1]

    data = digits(SIZES, public=False)
    program = training(
        Privacy(mechanism="dp-sgd", noise_multiplier=1.0),
        local=LOCALS["epochs"],
        participation=Participation(kind="fraction", count=2),
        rounds=7,
    )
    final(program, data, book=open_book)
    promise = guarantee(program, np.array(SIZES))
    spent = {events: len(sites) for events, sites in books[0].histories().items()}
    assert spent == {group.events: group.sites for group in promise.groups}


def test_central_amplification_is_claimed_only_for_secret_sampling():
    privacy = Privacy(mechanism="central", noise_multiplier=2.0)

    def promise(participation, **changes):
        changed = privacy.model_copy(update=changes)
        program = training(changed, local=UNIFORM, participation=participation, rounds=10, sites=20)
        return guarantee(program, np.full(20, 5))

    everybody = promise(Participation())
    once = promise(Participation(kind="at-most-once", count=2))
    poisson = promise(Participation(kind="poisson", fraction=0.1))
    fixed = promise(Participation(kind="fraction", count=2))
    assert everybody.epsilon == pytest.approx(epsilon([Gaussian(2.0, 10)], 1e-5))
    assert once.epsilon == pytest.approx(epsilon([Gaussian(2.0)], 1e-5))
    assert poisson.epsilon < once.epsilon
    assert fixed.epsilon == everybody.epsilon, "no amplification for add-remove"
    replaced = promise(Participation(kind="fraction", count=2), neighbours="replace-one")
    assert replaced.epsilon < promise(Participation(), neighbours="replace-one").epsilon
    assert everybody.unit == "site"
    assert "not the coordinator" in everybody.against


def test_a_large_delta_is_warned_about():
    program = training(
        Privacy(mechanism="dp-sgd", noise_multiplier=1.0, delta=0.1), local=LOCALS["batches"]
    )
    assert "larger than 1/n" in guarantee(program, np.array(SIZES)).warnings[0]


CENTRAL = Privacy(mechanism="central", noise_multiplier=1.0)
FTRL = Privacy(mechanism="dp-ftrl", noise_multiplier=1.0)
REFUSED = {
    "weights by samples": (CENTRAL, {"local": Local()}, "weighting = 'uniform'"),
    "variates": (
        CENTRAL,
        {"local": Local(control_variates=True, weighting="uniform")},
        "no variates",
    ),
    "variates, dp-sgd": (
        Privacy(mechanism="dp-sgd", noise_multiplier=1.0),
        {"local": Local(control_variates=True, weighting="uniform")},
        "SCAFFOLD",
    ),
    "counts without noise": (
        Privacy(mechanism="central", noise_multiplier=1.0, quantile=0.5, counts_noise=0.1),
        {"local": UNIFORM},
        "counts_noise",
    ),
    "no pattern": (
        FTRL,
        {"local": UNIFORM, "participation": Participation(kind="poisson", fraction=0.5)},
        "keeps none",
    ),
    "server": (FTRL, {"local": UNIFORM, "server": Server(optimizer="adam")}, "'sgd' with momentum"),
    "schedule": (
        FTRL,
        {"local": UNIFORM, "server": Server(schedule=Schedule(kind="cosine"))},
        "schedule",
    ),
    "task": (CENTRAL, {"local": UNIFORM, "task": "mine"}, "task 'train'"),
    "batch norm": (
        Privacy(mechanism="dp-sgd", noise_multiplier=1.0),
        {"build": seeded(perceptron(lambda: nn.BatchNorm1d(8)))},
        "batch",
    ),
    "not convex": (
        Privacy(mechanism="output", noise_multiplier=1.0, neighbours="replace-one"),
        {"build": seeded(perceptron(nn.ReLU)), "local": Local(proximal=0.1)},
        "dp-sgd",
    ),
    "no proximal": (
        Privacy(mechanism="output", noise_multiplier=1.0, neighbours="replace-one"),
        {},
        "local.proximal above 0",
    ),
    "add-remove": (
        Privacy(mechanism="objective", answer_epsilon=1.0),
        {"local": Local(proximal=0.1)},
        "replace-one",
    ),
    "budget, no mechanism": (Privacy(budget=Budget(epsilon=1.0)), {}, "refuse every answer"),
    "budget, weights": (
        Privacy(mechanism="dp-sgd", noise_multiplier=1.0, budget=Budget(epsilon=1.0)),
        {},
        "number of samples",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_impossible_combinations_are_refused_with_the_way_out(case):
    privacy, choices, message = case
    with pytest.raises(PlanError, match=message):
        training(privacy, **choices)


@pytest.mark.parametrize("mechanism", ["output", "objective"])
def test_what_is_charged_does_not_depend_on_the_questions_word(mechanism):
    """Ten classes are ten problems, whatever the coordinator writes."""
    strength = {"noise_multiplier": 1.0} if mechanism == "output" else {"answer_epsilon": 1.0}
    program = training(
        Privacy(mechanism=mechanism, neighbours="replace-one", **strength),
        local=Local(proximal=0.05),
        sites=1,
    )
    question = program.ask(program.start()).question
    (event,) = charge(context(), question).events
    assert event.count == 10


@pytest.mark.parametrize("mechanism", ["output", "objective"])
def test_convex_mechanisms_train(mechanism):
    strength = {"noise_multiplier": 1.0} if mechanism == "output" else {"answer_epsilon": 1e4}
    program = training(
        Privacy(mechanism=mechanism, neighbours="replace-one", clip=5.0, **strength),
        local=Local(proximal=0.05, weighting="uniform"),
        sites=2,
        rounds=3,
    )
    data = digits((300, 300))
    state, _ = final(program, data)
    before = program.judge(program.start().arrays, data.public["test"])["accuracy"]
    after = program.judge(state.arrays, data.public["test"])["accuracy"]
    assert after > before + 0.3


def test_an_exact_solution_without_noise_is_the_proximal_point():
    program = training(
        Privacy(mechanism="output", noise_multiplier=1e-4, neighbours="replace-one", clip=1e6),
        local=Local(proximal=0.3, weighting="uniform"),
        sites=1,
        rounds=1,
    )
    data = digits((60,), public=False)
    state, _ = final(program, data)
    held = data.site(0).train
    x, y = held.inputs().double().flatten(1), held.y
    room = math.sqrt(0.75)
    x = x * (room / x.norm(dim=1).clamp_min(room))[:, None]
    rows = torch.cat([x, torch.full((len(x), 1), 0.5)], 1)
    w, b = (torch.from_numpy(a) for a in program.start().arrays.values())
    w0 = torch.cat([w, b[:, None] / 0.5], 1)
    found = torch.from_numpy(np.hstack([state.arrays["model/1.weight"],
                                        state.arrays["model/1.bias"][:, None] / 0.5]))  # fmt: skip
    signs = torch.where(y[:, None] == torch.arange(10), 1.0, -1.0).double()
    slope = -signs * torch.sigmoid(-signs * (rows @ found.T))
    gradient = slope.T @ rows / len(x) + 0.3 * (found - w0)
    assert gradient.abs().max() < 1e-4


def test_sampled_share_is_that_of_the_sites_drawn():
    """0.15 of 10 sites are 2, and 2 are accounted for."""
    privacy = Privacy(mechanism="central", noise_multiplier=2.0, neighbours="replace-one")
    some = Participation(kind="fraction", fraction=0.15)
    program = training(privacy, local=UNIFORM, participation=some, sites=10, rounds=4)
    (event,) = guarantee(program, np.full(10, 5)).groups[0].events
    assert len(draw(some, 10, 3, 1)) == 2
    assert event.rate == 0.2


@pytest.mark.parametrize("build", [LINEAR, seeded(perceptron(nn.ReLU))], ids=["linear", "mlp"])
@pytest.mark.parametrize("mode", ["one-by-one", "auto"])
@pytest.mark.parametrize("value", [1e200, float("inf")])
def test_an_example_whose_gradient_overflows_counts_as_zero(build, mode, value):
    """An error, or a NaN, would tell that it is there."""
    data = digits((20, 20), public=False)
    local = Local(work="gradient", lr=0.1, send="gradients", weighting="uniform")
    privacy = Privacy(mechanism="dp-sgd", noise_multiplier=0.0)
    program = training(privacy, build=build, sites=2, rounds=1, local=local)

    class Huge(TrainingHost):
        def data(self, site):
            made = super().data(site)
            if site == 0:
                x = made.train.inputs().double()
                x[-1] = value
                return SiteData(Dataset(x, made.train.y))
            return made

    with InProcess(Huge(program.problem, data), seed=3, mode=mode) as federation:
        state = drive(program, federation)
    assert np.isfinite(flat(state)).all()
    assert not np.array_equal(flat(state), flat(program.start()))


def test_a_real_site_draws_masks_and_augmentations_from_the_system():
    """All of a generator's state is secret, not 32 bits of a seed."""
    from cupola.privacy import secret_draws

    one, other = (secret_draws.secret_generator() for _ in range(2))
    state = one.get_state().numpy()
    key = state[secret_draws.STATE].view(np.uint64).astype(np.uint32)
    assert not np.array_equal(key, other.get_state().numpy()[secret_draws.STATE].view(np.uint64))
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}
    drawn = torch.rand(64, generator=one, dtype=torch.float32)
    expected = (twister.random_raw(64) & (2**24 - 1)) * 2.0**-24  # so the words are where we think
    assert np.array_equal(drawn.numpy(), expected.astype(np.float32))
