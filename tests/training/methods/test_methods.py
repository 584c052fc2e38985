"""Methods of a plan: each against its paper by hand; robust rules; refusals; resume."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from scipy.optimize import minimize
from torch.nn import functional as F

import cupola
from cupola.base.randomness import permutations
from cupola.errors import PlanError
from cupola.federation import Declined, SiteContext, Spec, StateStore
from cupola.federation.federation import Total
from cupola.federation.message import Contribution
from cupola.training import Local, Participation, Privacy, Server, Upcycle, Workspace
from cupola.training.choices import Sum
from cupola.training.local import train
from cupola.training.methods import METHODS, Method, method_of, told_of
from cupola.training.methods.feddyn import FedDyn
from cupola.training.methods.fedntd import FedNtd
from cupola.training.methods.geometric_median import GeometricMedian
from cupola.training.methods.krum import Krum
from cupola.training.methods.moon import Moon
from cupola.training.methods.trimmed_mean import Median, TrimmedMean

SEED, SIZES, BATCH, RATE, EPOCHS, ROUNDS = 5, (20, 9, 14, 6), 6, 0.2, 2, 3
LOCAL = Local(batch_size=BATCH, lr=RATE, epochs=EPOCHS, weighting="uniform")
ROBUST = [TrimmedMean(trim=0.25), Median(), Krum(bad=1), GeometricMedian(group=1)]


def training(data, method, rounds=ROUNDS, local=LOCAL, **more):
    return small.training(data, rounds, seed=SEED, local=local, method=method, **more)


def by_hand(data, step, rounds=ROUNDS):
    """Rounds of local steps in the order of the package's own batches. step(site, model, start, x,
    y): the gradients of a batch. Gives the model after each round, and after each site's work."""
    what = small.problem(data)
    model = what.module()
    weights = [p.detach().clone() for p in model.parameters()]
    for round in range(1, rounds + 1):
        ends = []
        for site in range(len(data)):
            train = data.site(site).train
            with torch.no_grad():
                for p, w in zip(model.parameters(), weights):
                    p.copy_(w)
            for epoch in range(EPOCHS):
                order = permutations(SEED, f"shuffle {epoch}", round, [site], [len(train)])[0]
                for part in torch.from_numpy(np.array(order)).split(BATCH):
                    x, y = train.inputs(part).double(), train.y[part]
                    grads = step(site, model, weights, x, y)
                    with torch.no_grad():
                        for p, g in zip(model.parameters(), grads):
                            p -= RATE * g
            ends.append([p.detach().clone() for p in model.parameters()])
        weights = yield weights, ends


def run_by_hand(data, step, combine):
    rounds = by_hand(data, step)
    start, ends = next(rounds)
    for _ in range(ROUNDS - 1):
        start, ends = rounds.send(combine(start, ends))
    return combine(start, ends)


def plain(model, x, y):
    return torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))


def mean_of(ends):
    return [torch.stack(parts).mean(0) for parts in zip(*ends)]


def assert_same(program, data, weights):
    found = small.model_after(program, data)
    for array, by_hand_ in zip(found.values(), weights):
        np.testing.assert_allclose(array, by_hand_.numpy(), atol=1e-10)


def test_feddyn_is_its_algorithm():
    """Acar et al. 2021, algorithm 1."""
    data, alpha = small.digits(SIZES), 0.3
    own, h = {}, [0.0] * 4

    def step(site, model, start, x, y):
        lagrange = own.get(site, [0.0] * 4)
        return [
            g - h_k + alpha * (p.detach() - w)
            for g, h_k, p, w in zip(plain(model, x, y), lagrange, model.parameters(), start)
        ]

    def combine(start, ends):
        for site, end in enumerate(ends):
            before = own.get(site, [0.0] * 4)
            own[site] = [b - alpha * (e - w) for b, e, w in zip(before, end, start)]
        for i, (w, parts) in enumerate(zip(start, zip(*ends))):
            h[i] = h[i] - alpha / len(ends) * sum(p - w for p in parts)
        return [mean - each / alpha for mean, each in zip(mean_of(ends), h)]

    assert_same(training(data, FedDyn(alpha=alpha)), data, run_by_hand(data, step, combine))


@pytest.mark.slow
def test_feddyn_reaches_the_optimum_of_all_sites_where_fedavg_stays_away():
    """Convex, unlike sites: the fixed point of FedDyn is the pooled optimum, FedAvg's is not."""
    data = small.digits((12, 12, 12))
    linear = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))  # noqa: E731
    local = Local(lr=0.5, batch_size=12, epochs=20, weighting="uniform", weight_decay=0.05)

    def excess(method):
        what = small.problem(data, linear)
        found = small.model_after(training(data, method, 120, local, what=what), data)
        x = torch.cat([data.site(i).train.inputs(slice(None)) for i in range(3)]).double()
        y = torch.cat([data.site(i).train.y for i in range(3)])
        weight, bias = (torch.tensor(a, requires_grad=True) for a in found.values())
        loss = F.cross_entropy(x.flatten(1) @ weight.T + bias, y)
        loss = loss + 0.025 * (weight.square().sum() + bias.square().sum())
        return float(sum(g.norm() for g in torch.autograd.grad(loss, [weight, bias])))

    assert excess(FedDyn(alpha=0.1)) < 1e-3 < 1e-2 < excess(None)


def test_moon_is_its_loss():
    data = small.digits(SIZES)
    last = {}

    def step(site, model, start, x, y):
        def z(weights):
            w = dict(zip(dict(model.named_parameters()), weights))
            return torch.tanh(F.linear(x.flatten(1), w["1.weight"], w["1.bias"]))

        own, near = z(list(model.parameters())), z(start)
        far = z(last.get(site, start))
        a, b = (F.cosine_similarity(own, other) / 0.7 for other in (near, far))
        contrast = -(a - torch.logaddexp(a, b)).mean()
        loss = F.cross_entropy(model(x), y) + 0.4 * contrast
        return torch.autograd.grad(loss, list(model.parameters()))

    def combine(_, ends):
        last.update(enumerate(ends))
        return mean_of(ends)

    method = Moon(mu=0.4, temperature=0.7)
    assert_same(training(data, method), data, run_by_hand(data, step, combine))


def test_fedntd_is_its_loss():
    data = small.digits(SIZES)

    def step(site, model, start, x, y):
        del site
        w = dict(zip(dict(model.named_parameters()), start))
        said = F.linear(torch.tanh(F.linear(x.flatten(1), w["1.weight"], w["1.bias"])),
                        w["3.weight"], w["3.bias"])  # fmt: skip
        output, soft = model(x), 0.0
        for own, theirs, label in zip(output, said, y):
            rest = [c for c in range(10) if c != label]
            p, q = (theirs[rest] / 2).softmax(0), (own[rest] / 2).log_softmax(0)
            soft = soft + (p * (p.log() - q)).sum()
        loss = F.cross_entropy(output, y) + 0.6 * 4 * soft / len(y)
        return torch.autograd.grad(loss, list(model.parameters()))

    method = FedNtd(beta=0.6, temperature=2)
    assert_same(training(data, method), data, run_by_hand(data, step, lambda _, e: mean_of(e)))


@pytest.mark.parametrize("method", ROBUST, ids=told_of)
def test_a_robust_rule_sees_every_sites_update(method):
    """And makes of them what its definition says, where definitions are easy."""
    data = small.digits((*SIZES, 11))
    start, ends = next(by_hand(data, lambda _s, m, _w, x, y: plain(m, x, y), 1))
    updates = [{str(i): (w - e).numpy() for i, (w, e) in enumerate(zip(start, end))}
               for end in ends]  # fmt: skip
    made = method.aggregate(updates, [1.0] * len(updates))
    expected = [w - torch.from_numpy(np.asarray(u)) for w, u in zip(start, made.values())]
    assert_same(training(data, method, 1), data, expected)


def test_robust_rules_are_their_definitions():
    rng = np.random.default_rng(0)
    updates = [{"a": rng.normal(size=(2, 3)), "b": rng.normal(size=4)} for _ in range(9)]
    rows = np.array([np.concatenate([u["a"].ravel(), u["b"]]) for u in updates])
    flat = lambda made: np.concatenate([made["a"].ravel(), made["b"]])  # noqa: E731
    weights = rng.uniform(1, 3, 9)

    trimmed = flat(TrimmedMean(trim=0.25).aggregate(updates, weights))
    np.testing.assert_allclose(trimmed, np.sort(rows, 0)[2:-2].mean(0))
    np.testing.assert_allclose(flat(Median().aggregate(updates, weights)), np.median(rows, 0))

    def distance(point):
        return (weights * np.linalg.norm(rows - point, axis=1)).sum()

    median = flat(GeometricMedian().aggregate(updates, weights))
    best = minimize(distance, rows.mean(0), tol=1e-12)
    assert distance(median) <= best.fun * (1 + 1e-9)

    scores = [
        sum(sorted(((a - b) ** 2).sum() for j, b in enumerate(rows) if j != i)[: 9 - 2 - 2])
        for i, a in enumerate(rows)
    ]
    krum = flat(Krum(bad=2).aggregate(updates, weights))
    np.testing.assert_array_equal(krum, rows[int(np.argmin(scores))])


@pytest.mark.parametrize("most", [1e9, 1e30, 1e200])
@pytest.mark.parametrize("method", [TrimmedMean(trim=0.2), Median(), Krum(bad=2, take=3),
                                    GeometricMedian(group=1)], ids=told_of)  # fmt: skip
def test_bad_sites_cannot_carry_a_robust_rule_away(method, most):
    """However large what they send: it sets no scale that others are measured by."""
    rng = np.random.default_rng(1)
    honest = [{"a": 1 + 0.1 * rng.normal(size=50)} for _ in range(8)]
    bad = [{"a": np.full(50, -1e6)}, {"a": np.full(50, most)}]
    made = method.aggregate([*honest, *bad], [1.0] * 10)["a"]
    assert np.abs(made - 1).max() < 0.4


@pytest.mark.parametrize("weight", [0.0, 1e6, 1.7e308])
@pytest.mark.parametrize("sent", [0.0, -50.0, 1e200])
@pytest.mark.parametrize("method", [TrimmedMean(trim=0.2), Median(), Krum(), Krum(take=3),
                                    GeometricMedian(group=1)], ids=told_of)  # fmt: skip
def test_a_bad_site_says_neither_what_it_weighs_nor_what_comes_beside(method, sent, weight):
    """With a weight of its own it would be most of the federation, or a division by zero."""
    honest = [(1 + i / 1000, 1.0) for i in range(9)]
    parts = [Total() for _ in range(10)]
    for site, (number, claimed) in enumerate([*honest, (sent, weight)]):
        answer = {name: np.full(3, number) for name in ("model/a", "buffer/b", "beyond")}
        parts[site].add(site, Contribution(answer, claimed))
    total = training(small.digits((4,) * 10), method).methods._aggregated(parts)
    for name in ("model/a", "buffer/b", "beyond"):
        assert total.mean(name) == pytest.approx(1.004, abs=5e-3)


@pytest.mark.parametrize("method", [FedDyn(alpha=0.2), Moon(), Median(), GeometricMedian(group=2)],
                         ids=told_of)  # fmt: skip
def test_every_step_can_be_resumed_from(method):
    data = small.digits((12, 9, 14, 6))
    program = training(data, method, 2)
    found = small.states(program, data)
    small.assert_resumes(program, data, "one-by-one", found)


def test_groups_are_a_partition_and_only_their_sums_are_told():
    data = small.digits((5,) * 7)
    program = training(data, GeometricMedian(group=3), 2)
    asked, reveals = [], []

    class Watched:
        start, answer = program.start, program.answer

        @staticmethod
        def ask(state):
            ask = program.ask(state)
            if ask is not None:
                asked.append((ask.question.round, ask.kind, tuple(ask.sites)))
                reveals.append(ask.question.reveals)
            return ask

    small.run(program, data)
    with small.engine(program, data) as reach:
        from cupola.federation import drive

        drive(Watched, reach)
    by_round = {r: [s for n, _, s in asked if n == r] for r, _, _ in asked}
    assert {kind for _, kind, _ in asked} == {"sum"}
    for groups in by_round.values():
        assert sorted(itertools.chain(*groups)) == list(range(7))
        assert min(map(len, groups)) >= 3
    assert by_round[1] != by_round[2]  # drawn anew
    assert sorted({len(sites) for _, _, sites in asked}) == [3, 4]
    for (_, _, sites), said in zip(asked, reveals):
        assert f"summed over a group of {len(sites)} sites" in said


@pytest.mark.parametrize("protocol", ["compensator", "pairwise"])
def test_groups_can_be_masked(protocol):
    data = small.digits((6,) * 6)
    choice = Sum(kind="masked", minimum=3, protocol=protocol)
    program = training(data, GeometricMedian(group=3), 2, sum=choice)
    masked = program.model(small.run_masked(program, data))
    order = program.methods.groups(range(6), 1)
    assert order == program.methods.groups(range(6), 2)  # or differences would tell of sites
    plain_ = training(data, GeometricMedian(group=3), 2)
    plain_.methods.groups = program.methods.groups
    assert small.largest_difference(masked, small.model_after(plain_, data)) < 1e-4


def test_a_trimmed_mean_of_fewer_sites_than_asked_still_leaves_out_the_extremes():
    updates = [{"a": np.array([float(number)])} for number in (1, 1, 1, 100)]
    assert TrimmedMean(trim=0.2).aggregate(updates, [1.0] * 4)["a"] == 1
    assert TrimmedMean(trim=0.2).aggregate(updates[-2:], [1.0] * 2)["a"] == 50.5
    hundred = [{"a": np.array([1e6 if site >= 71 else 1.0])} for site in range(100)]
    assert TrimmedMean(trim=0.29).aggregate(hundred, [1.0] * 100)["a"] == 1


def test_upcycling_goes_with_a_method():
    data = small.digits(SIZES)
    program = training(data, FedDyn(), 4, server=Server(upcycle=Upcycle(factor=0.5)))
    assert all(np.isfinite(a).all() for a in small.model_after(program, data).values())


def test_scaffold_and_fednova_go_with_a_method():
    data = small.digits(SIZES)
    for more in ({"control_variates": True}, {"proximal": 0.1}):
        local = LOCAL.model_copy(update=more)
        assert small.run(training(data, Median(), 2, local), data).values["round"] == 2


REFUSED = [
    ("told more than a sum", {"method": Median(), "privacy": Privacy(mechanism="central",
                                                                     noise_multiplier=1)}),
    ("averages bad ones", {"method": Krum(take=6)}),
    ("at least 6 sites a round", {"method": GeometricMedian(group=3),
                                  "participation": Participation(kind="fraction", count=5)}),
    ("adds noise for a sum", {"method": GeometricMedian(group=2), "privacy": Privacy(
        mechanism="central", noise_multiplier=1)}),
    ("clipped and noised one by one", {"method": Moon(), "privacy": Privacy(
        mechanism="dp-sgd", noise_multiplier=1)}),
    ("a method by itself", {"method": FedDyn(), "privacy": Privacy(
        mechanism="dp-ftrl", noise_multiplier=1)}),
    ("masked sums hide", {"method": Krum(), "sum": Sum(kind="masked")}),
    ("below sum.minimum", {"method": GeometricMedian(group=2), "sum": Sum(kind="masked")}),
    ("at least 8 sites", {"method": GeometricMedian(group=4)}),
    ("participation.kind = 'all'", {"method": GeometricMedian(group=3), "sum": Sum(kind="masked"),
                                    "participation": Participation(kind="fraction", count=6)}),
    ("weighting = 'uniform'", {"method": FedDyn(), "local": Local()}),
    ("send = 'change'", {"method": FedDyn(), "local": Local(send="gradients")}),
    ("leaves out nobody", {"method": TrimmedMean(trim=0.05)}),
    ("at least 9 sites", {"method": Krum(bad=3)}),
    ("task = 'train'", {"method": FedDyn(), "task": "other"}),
]  # fmt: skip


def test_one_site_may_move_what_is_made_of_groups_by_more_than_a_sum():
    """Why the coordinator's noise, which is made for a sum, does not go with a median."""
    half = [{"a": np.ones(1)}] * 4 + [{"a": -np.ones(1)}] * 4
    one, other = (
        GeometricMedian(group=1).aggregate([*half, {"a": np.full(1, by)}], [1.0] * 9)["a"]
        for by in (1.0, -1.0)
    )
    assert 9 * abs(one - other) > 2 + 1  # a sum moves by 2, twice the clip


@pytest.mark.parametrize(("said", "choices"), REFUSED, ids=[said for said, _ in REFUSED])
def test_what_does_not_go_together_is_refused(said, choices):
    data = small.digits((6,) * 6)
    with pytest.raises(PlanError, match=said):
        small.training(data, 2, **{"local": LOCAL, **choices})


class Talkative(Method):
    def expects(self, arrays):  # noqa: ARG002
        return {"more": Spec(())}

    def answer(self, turn, steps):  # noqa: ARG002
        return {"more": np.array(1.0)}


def test_a_site_adds_nothing_of_a_method_to_a_noised_update():
    """A plan with both is refused; a crafted question is declined."""
    data = small.digits((12, 9))
    program = training(data, Talkative(), 1)
    question = program.ask(program.start()).question
    private = {"privacy": {"mechanism": "dp-sgd", "noise": 1.0}}
    site = SiteContext(0, data.site(0), Workspace(program.problem), StateStore(), SEED)
    assert "more" in train(site, question).arrays
    with pytest.raises(Declined, match="nothing that a method adds"):
        train(site, replace(question, options={**question.options, **private}))


# In plans

PLAN = {
    "name": "method",
    "rounds": 2,
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 5, "samples_per_site": 10}},
    "model": {"name": "linear"},
    "local": {"weighting": "uniform"},
}
NEEDY = [{"name": "trimmed-mean", "trim": 0.1}, {"name": "krum", "bad": 3},
         {"name": "geometric-median", "group": 5}]  # fmt: skip


@pytest.mark.parametrize("method", NEEDY, ids=lambda method: method["name"])
def test_check_does_not_need_the_sites_that_a_method_needs(method):
    """Its probe has six at most."""
    cut = {"kind": "iid", "sites": 12, "samples_per_site": 5}
    found = cupola.check({**PLAN, "data": {"name": "digits", "partition": cut}, "method": method})
    assert found["utility"]["difference"] is None
    assert not found["utility"]["preserved"]
    assert "no probe: the method needs more sites than one has" in str(found)


@pytest.mark.parametrize("name", ["median", "feddyn", "geometric-median"])
def test_a_method_is_why_a_full_gradient_is_not_centralised_training(name):
    one = {"work": "gradient", "weighting": "uniform"}
    method = {"name": name, **({"group": 1} if name == "geometric-median" else {})}
    for given, preserved in (({}, True), ({"method": method}, False)):
        found = cupola.check({**PLAN, **given, "local": one})["utility"]
        failing = [row["name"] for row in found["conditions"] if not row["holds"]]
        assert failing == ([] if preserved else ["plain descent and a plain mean"])
        assert found["preserved"] is preserved


PARTITION = {"kind": "iid", "sites": 5, "samples_per_site": 10, "test": 0.3}
NORMED = {"name": "resnet8", "norm": "group"}
DEEP = {"model": {"name": "mlp"}, "evaluation": {"on": "sites"},
        "data": {"name": "digits", "partition": PARTITION}}  # fmt: skip


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_plan_names_a_method(tmp_path, name):
    options = {"group": 2} if name == "geometric-median" else {}
    needs = {
        "fedper": DEEP,
        "fedrep": DEEP,
        "fedbn": {**DEEP, "model": {"name": "resnet8", "norm": "group"}},
    }
    plan = {**PLAN, **needs.get(name, {}), "method": {"name": name, **options}}
    run = cupola.run(plan, tmp_path / "run")
    assert run.status == "finished"
    ledger = (tmp_path / "run" / "ledger.jsonl").read_text()
    told = {"gather": ["of each site"], "sum": ["summed over sites"],
            "groups": ["over a group of 2 sites", "over a group of 3 sites"]}  # fmt: skip
    assert all(said in ledger for said in told[METHODS[name].asks])


def test_check_says_that_the_totals_of_groups_are_told_apart():
    masked = {**PLAN, "sum": {"kind": "masked", "minimum": 2}}
    groups = {**masked, "method": {"name": "geometric-median", "group": 2}}
    said = "in every round the total of each group of 2 or more sites apart"
    for plan, expected in ((groups, True), (masked, False)):
        found = cupola.check(plan)
        parties = [row["learns"] for row in found["parties"] if row["party"] == "coordinator"]
        assert any(said in learns for learns in parties) is expected
        assert (said in " ".join(str(found).split())) is expected


def test_wrong_options_are_refused_in_words():
    for given, said in [
        ({"name": "fedyn"}, "did you mean feddyn"),
        ({"name": "feddyn", "alfa": 1}, "method.alfa is unknown; did you mean method.alpha"),
        ({"name": "feddyn", "alpha": -1}, "method.alpha: .*greater than 0"),
        ({"name": "pathlib:Path"}, "must be a subclass"),
    ]:
        with pytest.raises(PlanError, match=said):
            cupola.load({**PLAN, "method": given})


def test_a_recipe_brings_its_method_and_options_go_on_top():
    plan = cupola.load({**PLAN, "recipe": "feddyn", "method": {"alpha": 0.7}})
    assert method_of({"name": "feddyn", **plan.method.options}) == FedDyn(alpha=0.7)
    assert cupola.load({**PLAN, "recipe": "feddyn"}, ["method.alpha=0.2"]).method.alpha == 0.2
    assert cupola.load({**PLAN, "recipe": "feddyn", "method": "median"}).method.name == "median"


def test_a_method_is_the_default_until_it_says_otherwise():
    data = small.digits(SIZES)

    class Nothing(Method):
        pass

    own, none = (small.model_after(training(data, m), data) for m in (Nothing(), None))
    assert all((own[n] == a).all() for n, a in none.items())
