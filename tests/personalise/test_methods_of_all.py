"""Personalisation by methods of all sites together, beside the others."""

import json

import pytest
import small
import torch
from test_personal_plans import PLAN as PERSONAL
from test_program import program, run, sites

import cupola
from cupola.analysis.folder_lock import read_lines
from cupola.analysis.plan_file import load
from cupola.errors import PlanError
from cupola.federation import drive
from cupola.training.forecast import foresee
from cupola.training.methods.ditto import Ditto

HEAD = {"model/3.weight", "model/3.bias"}
METHODS = ("finetune", "ditto", "fedper")
PLAN = {**PERSONAL, "personalise": {"methods": list(METHODS), "rounds": 2}}


def plan(*changes):
    return load(PLAN, changes)


def test_beside_the_others_with_bytes_and_what_is_revealed(tmp_path):
    told = foresee(plan())
    done = cupola.run(plan(), tmp_path / "run")
    assert (done.result["bytes_down"], done.result["bytes_up"]) == (told.down, told.up)
    assert told.bytes_vary == ()
    found = json.loads((tmp_path / "run" / "personal.json").read_text())
    assert set(found["methods"]) == {"federated", *METHODS}
    assert found["last_round"] == ["ditto", "fedper"]
    assert found["kept_rounds"]["ditto"] == {str(site): 2 for site in range(6)}
    assert {row["method"] for row in found["history"]} == {"ditto", "fedper"}
    for method in METHODS:
        assert found["methods"][method]["sites"] == 6
    ditto, fedper = (found["methods"][m] for m in ("ditto", "fedper"))
    assert fedper["bytes_up"] < ditto["bytes_up"]
    assert "summed over sites" in ditto["reveals"][0]
    ledger = list(read_lines(tmp_path / "run" / "ledger.jsonl"))
    asked = [e for e in ledger if "(fedper)" in e["reveals"] and e["task"] == "train"]
    assert [len(e["sites"]) for e in asked] == [6, 6]
    assert asked[0]["bytes_down"] > asked[1]["bytes_down"]  # the parts that stay, once
    page = (tmp_path / "run" / "report.html").read_text()
    assert "the last round counts" in page
    assert "What each method revealed" in page


@pytest.mark.parametrize(("method", "head"), [("ditto", set()), ("fedper", HEAD)])
def test_starts_from_the_federated_model_and_judges_each_sites_own(method, head):
    """The first question hands over all of it; what comes back and follows is without the head."""
    data = sites(each=2)
    made = program(data, (method,), adapt_rounds=2)
    asked = []

    class Watched:
        start, answer = made.start, made.answer

        @staticmethod
        def ask(state):
            ask = made.ask(state)
            if ask is not None and "method" in ask.question.options:
                asked.append((ask.question, made.federated(state)))
            return ask

    with small.engine(made.training, data) as reach:
        end = drive(Watched, reach)
        kept = reach.export(end.step)
    first, model = asked[0]
    assert set(first.arrays) == set(model)
    assert all((first.arrays[n] == a).all() for n, a in model.items())
    assert not head & set(first.expects)
    assert not any(head & {*q.arrays, *q.expects} for q, _ in asked[1:])
    assert {q.task for q, _ in asked} == {"train", "evaluate"}

    module, last = made.problem.module(), asked[-1][0].arrays
    for site in range(4):
        start = f"{site}/method/{method}/own/"
        own = {n.removeprefix(start): a for n, a in kept.items() if n.startswith(start)}
        assert set(own) == (head or set(model))
        whole = {n.removeprefix("model/"): torch.tensor(a) for n, a in {**last, **own}.items()}
        module.load_state_dict(whole)
        test = data.site(site).test
        guess = module(test.inputs(slice(None)).double()).argmax(1)
        told = end.values["personal"]["scores"][method][str(site)]["test"]["accuracy"]
        assert told == pytest.approx(float((guess == test.y).double().mean()))


def test_a_run_ends_in_the_same_bits_from_each_of_its_states():
    data = sites(each=2)
    made = program(data, ("ditto", "fedrep"), rounds=1, adapt_rounds=1)
    found = small.states(made, data)
    small.assert_resumes(made, data, "one-by-one", found)


def test_methods_one_after_another_are_what_each_is_alone():
    """None takes what another kept at its site."""
    data = sites(each=2)
    scores = [
        run(program(data, methods, splits=("test",)), data).values["personal"]["scores"]
        for methods in (("fedper",), ("fedper", "ditto", "fedrep"))
    ]
    assert scores[0]["fedper"] == scores[1]["fedper"]


def test_masked_sums_go_with_them(tmp_path):
    masked = ("sum=masked", "sum.minimum=3")
    done = [
        cupola.run(plan(*more), tmp_path / str(len(more)), report=False) for more in ((), masked)
    ]
    one, other = (run.result["personal"]["methods"]["ditto"]["test"] for run in done)
    assert one == pytest.approx(other)


def test_options_are_of_the_method():
    made = plan("personalise.options={ditto={strength=0.5}}")
    assert made.personalise.federated()["ditto"] == Ditto(strength=0.5)
    assert load(made.to_toml()) == made


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("personalise.options={fedrep={share=0.1}}",), "options are of those"),
        (("personalise.options={ditto={alpha=1}}",), "did you mean|known"),
        (("recipe=ditto",), "name this one in personalise.methods"),
        (("personalise.adapt.recipe=fedper",), "personalise.adapt.recipe"),
        (("personalise.adapt.recipe=fedfgd",), "'ditto' cannot adapt"),
        (("participation={kind='fraction',fraction=0.5}",), "let all take part"),
        (("privacy.mechanism=central", "privacy.noise_multiplier=1", "local.weighting=uniform"),
         "'fedper' cannot adapt"),
        (("sum=masked", "personalise.methods=['pfa','ditto']", "personalise.minimum=3"),
         "try them in two runs"),
        (("engine.mode=explicit",), "cannot be computed together"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(settings, why):
    with pytest.raises(PlanError, match=why):
        foresee(plan(*settings))
