"""Mechanisms: one object each, known by name in one place, and nothing is claimed by default."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import small
from pydantic import ValidationError
from torch import nn

import cupola
from cupola.audit.registry import AUDITED
from cupola.errors import CupolaError, FederationError
from cupola.federation import Declined, SiteContext, StateStore
from cupola.privacy.events import Gaussian
from cupola.training import Local, Privacy, Server, Workspace
from cupola.training.local import charge, train
from cupola.training.mechanisms import MECHANISMS, OWNERS, Mechanism, mechanism_for, mechanism_of

SOURCE = Path(cupola.__file__).parent
FOREIGN = {
    "noise_multiplier": 1.0,
    "answer_epsilon": 1.0,
    "augmentations": 2,
    "clip_shares": {"0": 0.5},
    "quantile": 0.5,
    "counts_noise": 1.0,
    "colluders": 1,
    "restart": 2,
}
UNIFORM = Local(weighting="uniform", batch_size=5)


def strength(kind):
    return {kind.strength: 1.0} if kind.on else {}


def training(privacy, **choices):
    data = small.digits()
    what = small.problem(data, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    return small.training(data, 4, what, privacy=privacy, **{"local": UNIFORM, **choices}), data


def site(program, data, index=0, **how):
    return SiteContext(index, data.site(index), Workspace(program.problem), StateStore(), 3, **how)


def test_every_name_of_a_plan_is_one_mechanism_and_every_one_is_audited():
    assert set(MECHANISMS) == set(get_args(Privacy.model_fields["mechanism"].annotation))
    assert set(AUDITED) == {kind for kind in MECHANISMS.values() if kind.on}
    assert set(OWNERS) == set(FOREIGN)


def test_nobody_else_compares_names():
    for path in SOURCE.rglob("*.py"):
        inside = path.relative_to(SOURCE).as_posix()
        if not inside.startswith(("privacy/", "training/mechanisms/")):
            assert not named_in_comparisons(path.read_text()), inside


def named_in_comparisons(code):
    """Comparisons of something called a mechanism with the name of one."""
    nodes = ast.walk(ast.parse(code)) if "mechanism" in code else ()
    compared = [node for node in nodes if isinstance(node, ast.Compare)]
    return [
        ast.unparse(node)
        for node in compared
        if "mechanism" in ast.unparse(node)
        and any(isinstance(n, ast.Constant) and n.value in MECHANISMS for n in ast.walk(node))
    ]


@pytest.mark.parametrize(
    "line",
    [
        "privacy.mechanism == 'central'",
        "mechanism.name in ('dp-sgd', 'central')",
        "spent['mechanism'] == 'distributed'",
        "plan.get('mechanism', 'none') != 'none'",
        "'output' == mechanism",
    ],
)
def test_a_comparison_of_a_name_is_found(line):
    assert named_in_comparisons(f"if {line}:\n    pass")
    assert not named_in_comparisons("if mechanism.on or 'mechanism' in spent:\n    pass")


def test_mechanisms_know_nothing_of_audits_and_plans():
    files = list((SOURCE / "training/mechanisms").glob("*.py"))
    assert len(files) > 7
    for path in files:
        text = path.read_text()
        assert not re.search(r"cupola\.(audit|training\.plan|site|cli)\b", text), path.name


def test_nothing_is_claimed_by_default():
    assert not Mechanism.noised_at_site
    assert not Mechanism.stackable
    assert not Mechanism.by_coordinator
    assert Mechanism.sends == "updates"
    with pytest.raises(NotImplementedError):
        Mechanism(Privacy()).answer_events(Local(), 10)


@pytest.mark.parametrize("key", FOREIGN)
@pytest.mark.parametrize("kind", MECHANISMS.values(), ids=MECHANISMS)
def test_a_crafted_question_with_the_options_of_another_mechanism_is_refused(kind, key):
    if key in kind.keys:
        return
    program, data = training(Privacy())
    question = program.ask(program.start()).question
    given = {"mechanism": kind.name, **strength(kind), key: FOREIGN[key]}
    asked = replace(question, options={**question.options, "privacy": given})
    for act in (mechanism_for, lambda q: charge(site(program, data), q)):
        with pytest.raises(ValidationError, match=r"belongs to|need a mechanism"):
            act(asked)
    with pytest.raises((ValidationError, FederationError)):
        train(site(program, data), asked)


@pytest.mark.parametrize("kind", [k for k in MECHANISMS.values() if k.on], ids=lambda k: k.name)
def test_a_question_without_its_noise_is_not_answered(kind):
    """A target alone: only the coordinator could know the noise."""
    program, data = training(Privacy())
    question = program.ask(program.start()).question
    given = {"mechanism": kind.name, "epsilon": 1.0}
    asked = replace(question, options={**question.options, "privacy": given, "pattern": PATTERN})
    with pytest.raises((AssertionError, Declined, ValueError)):
        charge(site(program, data), asked)


@pytest.mark.parametrize("names", [("noise", "noise_multiplier"), ("noise_multiplier", "noise")])
def test_noise_by_two_names_is_no_question(names):
    """One could be looked at when consent is checked, and the other when noise is drawn."""
    program, data = training(Privacy())
    question = program.ask(program.start()).question
    given = {"mechanism": "dp-sgd", **dict(zip(names, (1.0, 1e-3)))}
    asked = replace(question, options={**question.options, "privacy": given})
    for act in (mechanism_for, lambda q: charge(site(program, data), q)):
        with pytest.raises(ValidationError, match="Extra inputs"):
            act(asked)


@pytest.mark.parametrize(
    "given",
    [
        {"mechanism": "dp-sgd", "noise": float("nan")},
        {"mechanism": "dp-sgd", "noise": float("inf")},
        {"mechanism": "dp-sgd", "noise": -1.0},
        {"mechanism": "dp-sgd", "noise": 1.0, "clip": 0.0},
        {"mechanism": "dp-sgd", "noise": 1.0, "clip": float("nan")},
        {"mechanism": "dp-sgd", "noise": 1.0, "clip": float("inf")},
        {"mechanism": "output", "noise": 0.0},
        {"mechanism": "output", "noise": float("inf")},
        {"mechanism": "output", "noise": 1.0, "feature_norm": float("inf")},
        {"mechanism": "objective", "answer_epsilon": float("inf")},
        {"mechanism": "objective", "answer_epsilon": 1e-300},
    ],
    ids=str,
)
def test_numbers_that_hide_nothing_or_cannot_be_drawn_give_no_answer(given):
    """Refused when it is charged, or when noise is drawn: soon, and whatever the data are."""
    program, data = training(Privacy())
    question = program.ask(program.start()).question
    local = {"weighting": "uniform", "batch_size": 5, "proximal": 0.1}
    asked = replace(question, options={**question.options, "local": local, "privacy": given})
    with pytest.raises((ValidationError, CupolaError, OverflowError)):
        train(site(program, data, real=True), asked)


PATTERN = {"after": 0, "steps": 4, "participations": 4, "separation": 1}


@pytest.mark.parametrize("other", ["central", "none"])
def test_another_mechanism_does_not_pay_for_a_period_of_dp_ftrl(other):
    """A question of another mechanism with a pattern leaves nothing that looks paid for."""
    program, data = training(
        Privacy(mechanism="dp-ftrl", noise_multiplier=1.0), server=Server(momentum=0.5)
    )
    question = program.ask(program.start()).question
    mine, here = question.options["privacy"], site(program, data)
    theirs = {**mine, "mechanism": other}
    if other == "none":
        theirs = {"clip": mine.get("clip", 1.0)}
    first = replace(question, options={**question.options, "privacy": theirs}, step=0)
    train(here, first)
    second = replace(question, step=1, round=2)
    (event,) = charge(here, second).events
    assert isinstance(event, Gaussian)
    assert event.noise < 1.0
    train(here, second)
    assert charge(here, replace(question, step=2, round=3)).events == ()


def test_sites_together_draw_noise_from_the_system_where_they_are_real():
    """All examples in one step: nothing but the noise differs."""
    local = Local(work="gradient", lr=1.0)
    program, data = training(Privacy(mechanism="dp-sgd", noise_multiplier=1.0), local=local)
    question = program.ask(program.start()).question

    def answer(real):
        space = Workspace(program.problem)
        sites = [SiteContext(i, data.site(i), space, StateStore(), 3, real=real) for i in (0, 1)]
        return np.concatenate(
            [a.reshape(-1) for p in train.batched(sites, question) for a in p.arrays.values()]
        )

    assert np.array_equal(answer(False), answer(False))
    assert np.abs(answer(True) - answer(True)).max() > 1e-3


@pytest.mark.parametrize("kind", MECHANISMS.values(), ids=MECHANISMS)
def test_what_is_charged_is_charged_under_its_own_name(kind):
    mechanism = mechanism_of(Privacy(mechanism=kind.name, **strength(kind)))
    assert type(mechanism) is kind
    assert mechanism.describe(1.0).split(",")[0] == kind.name
    assert mechanism.privacy.on == kind.on
    assert mechanism.privacy.of_sites == (kind.unit == "site")
