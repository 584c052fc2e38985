"""Methods that make a model for each site, against their papers by hand; what never leaves it."""

from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from torch import nn
from torch.nn import functional as F

import cupola
from cupola.base.randomness import permutations
from cupola.errors import PlanError
from cupola.federation import drive
from cupola.federation.message import Declined, Spec
from cupola.training import Evaluation, Local, Participation, Privacy, Server, Upcycle
from cupola.training.choices import Sum
from cupola.training.forecast import foresee
from cupola.training.local import train
from cupola.training.methods import METHODS, told_of
from cupola.training.methods.ditto import Ditto
from cupola.training.methods.local_parts import FedBN, FedPer, FedRep
from cupola.training.methods.own_parts import HANDED
from cupola.training.methods.pfedme import PFedMe
from cupola.training.plan_check import deviation
from cupola.training.transforms.top_k import TopK

SEED, SIZES, BATCH, RATE, EPOCHS, ROUNDS = 5, (20, 9, 14, 6), 6, 0.1, 2, 3
LOCAL = Local(batch_size=BATCH, lr=RATE, epochs=EPOCHS, weighting="uniform", drop_last=True)
SITES = Evaluation(on="sites")
NORMED = small.perceptron(lambda: nn.BatchNorm1d(8), nn.Tanh)
PLAIN = small.perceptron(nn.Tanh)
HEAD = ("4.weight", "4.bias")
NORM = ("2.weight", "2.bias", "2.running_mean", "2.running_var")
PERSONAL = [Ditto(strength=0.7), PFedMe(strength=4, rate=0.1, steps=3), FedPer(), FedRep(), FedBN()]
PARTS = PERSONAL[2:]


def name_of(method):
    return told_of(method)["name"]


def federation():
    return small.digits(SIZES, held=5, public=False)


def training(data, method, rounds=ROUNDS, local=LOCAL, make=NORMED, **more):
    more = {"evaluation": SITES, "site_splits": frozenset({"test"}), **more}
    what = small.problem(data, make)
    return small.training(data, rounds, what, seed=SEED, local=local, method=method, **more)


# By hand


def batches(data, site, round):
    """In the order of the package's own."""
    own, found = data.site(site).train, []
    used = len(own) - len(own) % BATCH if len(own) > BATCH else len(own)
    for epoch in range(EPOCHS):
        order = permutations(SEED, f"shuffle {epoch}", round, [site], [len(own)])[0][:used]
        for part in torch.from_numpy(np.array(order)).split(BATCH):
            found.append((own.inputs(part).double(), own.y[part]))
    return found


def state_of(model):
    return {n: t.clone() for n, t in model.state_dict().items() if "num_batches" not in n}


def descend(model, given, only=None, rate=RATE, pull=0.0, to=None):
    """SGD, also on pull/2 |w - to|^2."""
    params = {n: p for n, p in model.named_parameters() if only is None or n in only}
    for x, y in given:
        grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(params.values()))
        with torch.no_grad():
            for (name, p), g in zip(params.items(), grads):
                p -= rate * (g + (pull * (p - to[name]) if to else 0))


def by_hand(data, work, stay=()):
    """Rounds of work(model, own, batches), which trains what is loaded in place and gives the
    site's own. stay: what is not averaged. Gives the averages, and every site's own."""
    model = small.problem(data, NORMED).module()
    common, own = state_of(model), [{} for _ in range(len(data))]
    for round in range(1, ROUNDS + 1):
        ends = []
        for site in range(len(data)):
            model.load_state_dict(common | {n: own[site][n] for n in stay if own[site]}, False)
            own[site] = work(model, own[site], batches(data, site, round))
            ends.append(state_of(model))
        means = {n: torch.stack([end[n] for end in ends]).mean(0) for n in common}
        common |= {n: mean for n, mean in means.items() if n not in stay}
    return common, own


def ditto(model, own, given):
    """Li et al. 2021, algorithm 1."""
    received = state_of(model)
    descend(model, given)
    shared = state_of(model)
    model.load_state_dict(own or received, False)
    descend(model, given, pull=0.7, to=received)
    personal = state_of(model)
    model.load_state_dict(shared, False)
    return personal


def pfedme(model, _, given):
    """Dinh et al. 2020, algorithm 1."""
    w = {n: p.detach().clone() for n, p in model.named_parameters()}
    for batch in given:
        descend(model, [batch] * 3, rate=0.1, pull=4, to=w)
        for n, theta in model.named_parameters():
            w[n] = w[n] - RATE * 4 * (w[n] - theta.detach())
    personal = state_of(model)
    model.load_state_dict(w, False)
    return personal


def fedper(model, _, given):
    descend(model, given)
    return {n: t for n, t in state_of(model).items() if n in HEAD}


def fedrep(model, _, given):
    """Collins et al. 2021, algorithm 1, with an epoch for the head and one for what is shared."""
    half = len(given) // 2
    descend(model, given[:half], HEAD)
    descend(model, given[half:], ("1.weight", "1.bias", "2.weight", "2.bias"))
    return {n: t for n, t in state_of(model).items() if n in HEAD}


def fedbn(model, _, given):
    descend(model, given)
    return {n: t for n, t in state_of(model).items() if n in NORM}


@pytest.mark.parametrize(
    ("method", "work", "stay"),
    [*zip(PERSONAL, (ditto, pfedme, fedper, fedrep, fedbn), ((), (), HEAD, HEAD, NORM))],
    ids=[name_of(m) for m in PERSONAL],
)
def test_is_its_algorithm_and_sites_are_judged_by_their_own_model(method, work, stay):
    data = federation()
    common, own = by_hand(data, work, stay)
    program = training(data, method)
    with small.engine(program, data) as reach:
        end = drive(program, reach)
        kept = reach.export(end.step)
    for name, array in program.model(end).items():
        expected = common[name] if name not in stay else program_start(program)[name]
        np.testing.assert_allclose(array, expected, atol=1e-10)
    for site, mine in enumerate(own):
        for name, tensor in mine.items():
            part = "buffer" if "running" in name else "model"
            found = kept[f"{site}/{method.named('own', part, name)}"]
            np.testing.assert_allclose(found, tensor, atol=1e-10)

    model, correct, loss = small.problem(data, NORMED).module().eval(), 0, 0.0
    for site, mine in enumerate(own):
        model.load_state_dict(common | mine, False)
        test = data.site(site).test
        with torch.no_grad():
            scores = model(test.inputs(slice(None)).double())
        correct += int((scores.argmax(1) == test.y).sum())
        loss += float(F.cross_entropy(scores, test.y, reduction="sum"))
    told = end.values["last"]["sites_test"]
    assert told["accuracy"] == pytest.approx(correct / 20)
    assert told["loss"] == pytest.approx(loss / 20)


def program_start(program):
    return {n.split("/", 1)[1]: a for n, a in program.start().arrays.items()}


def test_ditto_leaves_the_federated_model_as_fedavg_makes_it():
    data = federation()
    assert small.largest_difference(
        *(small.model_after(training(data, m), data) for m in (Ditto(), None))
    ) == 0  # fmt: skip


# In rounds


@pytest.mark.parametrize("method", PERSONAL, ids=name_of)
def test_every_step_can_be_resumed_from(method):
    data = federation()
    program = training(data, method, 2)
    small.assert_resumes(program, data, "one-by-one", small.states(program, data))


def test_judged_in_one_call_or_one_by_one():
    data, program = federation(), training(federation(), FedPer(), 2)
    told = [small.run(program, data, m).values["last"] for m in ("auto", "one-by-one")]
    assert told[0] == told[1]


@pytest.mark.parametrize("method", [Ditto(), FedBN(), FedRep()], ids=name_of)
def test_masked_sums_give_what_plain_ones_give(method):
    data = federation()
    plain = training(data, method, 2)
    masked = training(data, method, 2, sum=Sum(kind="masked", minimum=3))
    open_, hidden = small.run(plain, data), small.run_masked(masked, data)
    assert small.largest_difference(plain.model(open_), masked.model(hidden)) < 1e-6
    told = [end.values["last"]["sites_test"]["accuracy"] for end in (open_, hidden)]
    assert told[0] == told[1]


@pytest.mark.parametrize("method", PARTS, ids=name_of)
def test_what_stays_is_neither_sent_nor_asked_for(method):
    data = federation()
    program = training(data, method, 2)
    stay = {f"{'buffer' if 'running' in n else 'model'}/{n}"
            for n in (NORM if isinstance(method, FedBN) else HEAD)}  # fmt: skip
    assert program.methods.stay == stay
    state, asked = program.start(), []
    while (ask := program.ask(state)) is not None:
        asked.append(ask.question)
        state = program.skip(state)
    assert {q.task for q in asked} == {"train", "evaluate"}
    for question in asked:
        assert not stay & {*question.arrays, *question.expects}


def context(program, data):
    with small.engine(program, data) as reach:
        return reach.context(0)


def test_a_crafted_question_does_not_get_what_stays():
    data = federation()
    program = training(data, FedPer())
    question = program.ask(program.start()).question
    head = {n: a for n, a in program.start().arrays.items() if n.startswith("model/4.")}
    wanted = question.expects | {n: Spec.of(a) for n, a in head.items()}
    crafted = replace(question, arrays=question.arrays | head, expects=wanted)
    site = context(program, data)
    assert not {*train(site, crafted).arrays} & {*head}


def test_a_site_declines_what_nothing_would_protect():
    data = federation()
    program = training(data, FedPer())
    question = program.ask(program.start()).question
    site = context(program, data)
    privacy = {"mechanism": "central", "clip": 1.0, "noise": 1.0}
    with pytest.raises(Declined, match="some of them stay here"):
        train(site, replace(question, options=question.options | {"privacy": privacy}))
    with pytest.raises(Declined, match="has not received"):
        train(site, replace(question, options=question.options | {HANDED: True}))
    program = training(data, Ditto(), make=PLAIN)
    question = program.ask(program.start()).question
    own = {"privacy": {**privacy, "mechanism": "dp-sgd"}}
    with pytest.raises(Declined, match="a method makes its own"):
        train(context(program, data), replace(question, options=question.options | own))


def test_a_mechanism_protects_dittos_updates():
    data = federation()
    choice = Privacy(mechanism="central", noise_multiplier=1, clip=0.1)
    program = training(data, Ditto(), 2, make=PLAIN, privacy=choice)
    none = training(data, None, 2, make=PLAIN, privacy=choice)
    ends = [small.model_after(p, data) for p in (program, none)]
    assert small.largest_difference(*ends) == 0


@pytest.mark.parametrize("method", [Ditto(), PFedMe(strength=4), FedPer()], ids=name_of)
def test_upcycling_moves_the_shared_model(method):
    data = federation()
    program = training(data, method, 4, server=Server(upcycle=Upcycle(factor=0.5)))
    model = program.model(small.run(program, data))
    assert all(np.isfinite(a).all() for a in model.values())
    twice = training(data, method, 2, server=Server(lr=1.5))  # linear extrapolation is that
    same = twice.model(small.run(twice, data))
    trained = {n for n in model if "running" not in n}
    assert max(np.abs(model[n] - same[n]).max() for n in trained) < 1e-12


REFUSED = [
    ("send = 'change'", {"method": Ditto(), "local": Local(send="gradients")}),
    ("evaluation.best", {"method": Ditto(), "evaluation": Evaluation(on="sites", best=True)}),
    ("below 2", {"method": Ditto(strength=30)}),
    ("below 2", {"method": PFedMe(strength=30)}),
    ("leave local.momentum out", {"method": PFedMe(strength=4), "local": Local(momentum=0.9)}),
    ("clipped and noised one by one", {"method": Ditto(), "privacy": Privacy(
        mechanism="dp-sgd", noise_multiplier=1)}),
    ("method.name = 'ditto'", {"method": FedPer(), "privacy": Privacy(
        mechanism="central", noise_multiplier=1)}),
    ("leave local.control_variates out", {"method": FedPer(), "local": Local(
        control_variates=True, weighting="uniform")}),
    ("leave transforms out", {"method": FedRep(), "transforms": (TopK(share=0.5),)}),
    ("leaves nothing", {"method": FedPer(layers=3)}),
    ("all take part", {"method": FedPer(), "goes_on": True,
                       "participation": Participation(kind="fraction", fraction=0.5)}),
    ("evaluation.on = 'sites'", {"method": FedBN(), "public": small.digits().public,
                                 "evaluation": Evaluation(on="both")}),
]  # fmt: skip


@pytest.mark.parametrize(("said", "choices"), REFUSED, ids=[said for said, _ in REFUSED])
def test_what_does_not_go_together_is_refused(said, choices):
    with pytest.raises(PlanError, match=said):
        training(federation(), **{"method": None, **choices})


def test_fedbn_needs_normalisation():
    data = federation()
    with pytest.raises(PlanError, match="needs a model with normalisation"):
        small.training(data, 2, local=LOCAL, method=FedBN())


# In plans

PLAN = {
    "name": "personal",
    "rounds": 2,
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 4, "samples_per_site": 20,
                                             "test": 0.3}},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.05, "batch_size": 7},
    "evaluation": {"on": "sites"},
}  # fmt: skip


@pytest.mark.parametrize("name", ["ditto", "pfedme", "fedper", "fedrep"])
def test_a_recipe_runs_and_takes_the_bytes_that_were_foreseen(tmp_path, name):
    plan = cupola.load({**PLAN, "recipe": name})
    told = foresee(plan)
    run = cupola.run(plan, tmp_path / "run", report=False)
    assert (run.result["bytes_down"], run.result["bytes_up"]) == (told.down, told.up)
    assert run.result.final.sites_test.accuracy > 0.1
    assert told.bytes_vary == ()


def test_a_site_answers_the_plans_method_and_no_other():
    plan = cupola.load({**PLAN, "recipe": "fedper"})
    data = federation()
    judged = training(data, FedPer()).methods.judged()
    question = training(data, FedPer()).ask(training(data, FedPer()).start()).question
    options = {"split": "test", "auroc": 0, "batch_size": 512}
    asks = replace(question, task="evaluate", options=options | judged)
    assert deviation(plan, asks) is None
    other = {"method": told_of(Ditto())}
    assert deviation(plan, replace(asks, options=options | other)) is not None
    assert deviation(cupola.load({**PLAN}), asks) is not None
    assert set(METHODS) > {"ditto", "pfedme", "fedper", "fedrep", "fedbn"}
