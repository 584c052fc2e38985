"""Questions that do not follow from the plan that a site has joined are refused."""

import re
from dataclasses import replace

import consortium as made
import pytest

from cupola.analysis.plan_file import load
from cupola.federation import Question
from cupola.training import build
from cupola.training.plan_check import deviation

PERSONAL = {
    **made.PLAN,
    "sum": "plain",
    "data": {**made.PLAN["data"], "partition": {"kind": "iid", "sites": 3, "test": 0.2}},
    "personalise": {
        "methods": ["pfa", "finetune"],
        "rounds": 2,
        "release": {"noise_multiplier": 3.0},
    },
}
SHARES = {
    **made.PLAN,
    "local": {**made.PLAN["local"], "weighting": "uniform"},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 4.0, "colluders": 1},
}
JUDGED = {**PERSONAL, "personalise": {"methods": ["finetune"]}, "evaluation": {"on": "sites"}}


def training(plan):
    """The first question of a plan."""
    program = build.training(plan, build.host(plan))
    return program.ask(program.start()).question


@pytest.mark.parametrize("given", [made.PLAN, made.PRIVATE, PERSONAL, SHARES])
def test_a_plans_own_questions_follow_from_it(given):
    plan = load(given)
    assert deviation(plan, training(plan)) is None


@pytest.mark.parametrize(
    ("given", "changes", "said"),
    [
        (made.PLAN, {"lr": 0.2}, r"local\.lr"),
        (made.PLAN, {"lr": float("nan")}, r"local\.lr"),
        (made.PLAN, {"lr": "0.1"}, r"local\.lr"),
        (made.PLAN, {"lr": None}, r"local\.lr"),
        (made.PLAN, {"local": {"lr": 0.1, "batch_size": 1}}, "local training"),
        (made.PLAN, {"report_loss": True}, "more than the plan"),
        (made.PLAN, {"more": 1}, "more than the plan"),
        (made.PLAN, {"transforms": {"list": [], "seed": 0}}, "transforms"),
        (SHARES, {"transforms": {"list": [], "seed": 0}}, "transforms"),
        (made.PLAN, {"participation": {"stragglers": 0.5}}, "participation"),
        (made.PLAN, {"privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0}}, "mechanism"),
        (made.PRIVATE, {"clip": 1e6}, r"privacy\.clip"),
        (made.PRIVATE, {"clip": 1e-6}, r"privacy\.clip"),
        (made.PRIVATE, {"augmentations": 2}, r"privacy\.augmentations"),
        (made.PRIVATE, {"noise": 0.5}, "less noise"),
        (SHARES, {"colluders": 0}, r"privacy\.colluders"),
        (SHARES, {"noise": 3.9}, "less noise"),
    ],
)
def test_other_training_does_not_follow(given, changes, said):
    plan = load(given)
    question = training(plan)
    inside = set(changes) <= {"clip", "augmentations", "noise", "colluders"}
    if inside:
        changes = {"privacy": {**question.options["privacy"], **changes}}
    changed = replace(question, options={**question.options, **changes})
    assert re.search(said, deviation(plan, changed) or "")


def test_more_noise_than_the_plans_follows():
    plan = load(made.PRIVATE)
    question = training(plan)
    asked = {**question.options["privacy"], "noise": 2.0}
    assert (
        deviation(plan, replace(question, options={**question.options, "privacy": asked})) is None
    )


def test_vectors_that_a_plan_noises_are_not_told_without_noise():
    plan = load(PERSONAL)
    layers = [["0", [1, 2]]]
    assert deviation(plan, Question("sparsity", {}, {"layers": layers, "noise": 3.0})) is None
    for noise in (None, 0.0, 2.9, float("nan")):
        found = deviation(plan, Question("sparsity", {}, {"layers": layers, "noise": noise}))
        assert found == "there is less noise than in the plan"
    assert deviation(plan, Question("sparsity", {}, {"layers": layers})) is not None
    exact = load({**PERSONAL, "personalise": {"methods": ["pfa"]}})
    assert deviation(exact, Question("sparsity", {}, {"layers": layers})) is None


JUDGE = {"split": "test", "auroc": 0, "batch_size": 512}


@pytest.mark.parametrize(
    ("changes", "follows"),
    [
        ({}, True),
        ({"split": "train"}, False),
        ({"split": "validation"}, False),
        ({"split": "__class__"}, False),
        ({"auroc": 10**9}, False),
        ({"batch_size": 1}, False),
        ({"more": 1}, False),
    ],
)
def test_metrics_are_those_of_the_plan(changes, follows):
    plan = load(JUDGED)
    assert (deviation(plan, Question("evaluate", {}, {**JUDGE, **changes})) is None) == follows


def test_a_plan_that_is_judged_elsewhere_asks_sites_for_no_metrics():
    assert deviation(load(made.PLAN), Question("evaluate", {}, JUDGE)) is not None


@pytest.mark.parametrize(
    "changes",
    [{"rounds": 10**6}, {"method": "scratch"}, {"local": {"epochs": 99}}, {"split": "train"},
     {"auroc": 7}, {"more": 1}],
)  # fmt: skip
def test_personalisation_is_the_plans(changes):
    plan = load(PERSONAL)
    choice, judge = plan.personalise, plan.evaluation
    options = {
        "method": "finetune",
        "local": plan.local.model_dump(exclude_defaults=True, mode="json"),
        "rounds": choice.rounds,
        "every": judge.every,
        "metric": judge.metric,
        "alpha": choice.alpha,
        "temperature": choice.temperature,
        "strength": choice.strength,
        **JUDGE,
    }
    assert deviation(plan, Question("adapt", {}, options)) is None
    assert deviation(plan, Question("adapt", {}, {**options, **changes})) is not None
