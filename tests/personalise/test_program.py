"""Personalisation as a program: groups that train, rivals that work alone, what chooses models."""

from dataclasses import replace

import numpy as np
import pytest
import small
from torch import nn

from cupola.data import Dataset, SiteData
from cupola.engines import InProcess, masked_sums
from cupola.federation import Ledger, drive
from cupola.privacy.budget import Book
from cupola.secure.simulation import simulated_parties
from cupola.training import Evaluation, Local, Privacy, TrainingHost
from cupola.training.choices import Participation, Sum
from cupola.training.personalise import Personalisation, Personalise
from cupola.training.personalise.outcome import outcome

KINDS = ((0, 1), (2, 3))
LOCAL = Local(lr=0.3, epochs=1, batch_size=8, momentum=0.5)
UNIFORM = Local(lr=0.3, batch_size=8, weighting="uniform")


def sites(each=3, rows=(16, 8, 8), flipped=False):
    """`each` sites of two kinds, black on white or white on black, with digits 0 and 1 or 2 and 3.
    flipped: wrong labels in the test parts."""
    train, made = small.source().train, []
    for number, kind in enumerate(KINDS):
        own = np.flatnonzero(np.isin(train.y.numpy(), kind))
        for i in range(each):
            mine = np.split(own[i * sum(rows) : (i + 1) * sum(rows)], np.cumsum(rows)[:-1])
            parts = [train.subset(part) for part in mine]
            parts = [Dataset(p.x.max() - p.x if number else p.x, p.y) for p in parts]
            if flipped:
                parts[2] = Dataset(parts[2].x, 9 - parts[2].y)
            made.append(SiteData(*parts))
    return small.federation(made)


def program(
    data, methods=("pfa",), rounds=2, adapt_rounds=2, splits=("validation", "test"), **more
):
    settings, adapted = more.pop("settings", {}), more.pop("adapted", {})
    facts = {"channels": 8, "groups": 2, "minimum": 2, **more}
    choice = Personalise(methods=methods, rounds=adapt_rounds, **facts)
    settings = {"local": LOCAL, **settings}
    what = small.problem(data, small.perceptron(nn.ReLU))
    whole = small.training(
        data, rounds, what, site_splits=frozenset(splits), evaluation=Evaluation(), **settings
    )

    def make(members, seed):
        quiet = {"evaluation": Evaluation(), "site_splits": frozenset()}
        return replace(
            whole, rounds=adapt_rounds, sites=len(members), seed=seed, **quiet, **adapted
        )

    return Personalisation(whole, choice, make, frozenset(splits))


def run(made, data, after=None, book=None, ledger=None):
    host = TrainingHost(made.training.problem, data, book)
    with InProcess(host, seed=5, mode="one-by-one", workers=1, ledger=ledger) as reach:
        return drive(made, reach, after=after)


def personal(state):
    return state.values["personal"]


def test_kinds_are_told_apart_and_each_group_trains_as_a_federation_of_its_own():
    data = sites()
    made = program(data, splits=())
    end = run(made, data)
    assert personal(end)["groups"] == [0, 0, 0, 1, 1, 1]
    # the same by hand: the second group's sites alone, from the federated model
    whole = made.training
    host = TrainingHost(whole.problem, data)
    first = drive(whole, InProcess(host, seed=5, mode="one-by-one", workers=1))
    model = {n: a for n, a in first.arrays.items() if n.startswith(("model/", "buffer/"))}
    job = next(j for j in made.jobs(personal(end)) if j.kind == "train" and j.group == 1)
    alone = made.inner(job)
    state = replace(alone.start(), arrays={**alone.start().arrays, **model})

    class Shifted:
        """Its questions as the whole program numbers them."""

        def ask(self, state):
            ask = alone.ask(state)
            if ask is None:
                return None
            before = made.first_round(personal(end), job) - 1
            question = replace(ask.question, round=ask.question.round + before)
            return replace(ask, question=question, sites=[job.sites[i] for i in ask.sites])

        answer = alone.answer

    reach = InProcess(TrainingHost(whole.problem, data), seed=5, mode="one-by-one", workers=1)
    expected = drive(Shifted(), reach, state).arrays
    for name in model:
        assert np.array_equal(end.arrays[f"personal/1/{name}"], expected[name])
    assert not any(n.startswith(("group/", "judged/")) for n in end.arrays)


@pytest.mark.parametrize(
    "local",
    [
        LOCAL,
        Local(lr=0.3, work="batches", batches=3, batch_size=4, proximal=0.5),
        Local(lr=0.1, work="gradient"),
    ],
    ids=["epochs", "batches", "gradient"],
)
def test_fine_tuning_alone_is_a_federation_of_one_site(local):
    """Without validation data the last model stays: its counts are those of FedAvg at one site."""
    data = sites(each=1)
    made = program(data, ("finetune",), splits=("test",), settings={"local": local})
    for i in range(2):
        data.site(i).validation.x.resize_(0, *data.site(i).validation.x.shape[1:])
        data.site(i).validation.y.resize_(0)
    end = run(made, data)
    begin = {n: end.arrays[n] for n in end.arrays if n.startswith("model/")}
    for site in range(2):
        one = replace(made.training, rounds=made.choice.rounds, public={})
        state = replace(one.start(), arrays=begin)

        class Only:
            def ask(self, state, one=one, site=site):
                ask = one.ask(state)
                first = made.first_round(personal(end), made.jobs(personal(end))[-1])
                if ask is None or ask.kind != "sum" or ask.question.task != "train":
                    return None if ask is None else ask
                question = replace(ask.question, round=ask.question.round + first - 1)
                return replace(ask, question=question, sites=[site])

            answer = one.answer

        host = TrainingHost(made.training.problem, data)
        model = drive(Only(), InProcess(host, seed=5, workers=1), state).arrays
        judged = one.judge(model, data.site(site).test)
        told = personal(end)["scores"]["finetune"][str(site)]["test"]
        assert told["loss"] == pytest.approx(judged["loss"], rel=1e-9)


def test_rivals_do_what_they_say():
    data = sites(each=1)

    def loss(method, **more):
        """Mean over sites, and that of the federated model."""
        scores = personal(run(program(data, (method,), adapt_rounds=3, **more), data))["scores"]
        told = [[s["test"]["loss"] for s in scores[m].values()] for m in (method, "federated")]
        return np.mean(told, axis=1)

    tuned, base = loss("finetune")
    assert tuned < base
    # without its teacher distillation is fine-tuning; with nothing but a teacher it stays
    assert loss("distill", alpha=0.0)[0] == pytest.approx(tuned, rel=1e-9)
    assert tuned < loss("distill", alpha=0.999)[0] <= base + 1e-3
    # without a penalty EWC is fine-tuning; with a huge one the model hardly moves
    assert loss("ewc", strength=0.0)[0] == pytest.approx(tuned, rel=1e-9)
    assert abs(loss("ewc", strength=1e12)[0] - base) < 0.3 * (base - tuned)


def test_test_data_choose_nothing():
    """With wrong labels in every test part the same models and rounds are kept."""
    ends = []
    for flipped in (False, True):
        data = sites(flipped=flipped)
        ends.append(run(program(data, ("pfa", "finetune", "ewc"), adapt_rounds=3), data))
    assert personal(ends[0])["kept"] == personal(ends[1])["kept"]
    for name, array in ends[0].arrays.items():
        assert np.array_equal(array, ends[1].arrays[name])
    worse = [personal(e)["scores"]["pfa"]["0"]["test"]["accuracy"] for e in ends]
    assert worse[0] > worse[1]


def test_a_start_that_nothing_beats_on_validation_data_is_kept():
    data = sites()
    steep = {"local": Local(lr=1e4, batch_size=8)}  # whatever it was, it is no longer
    made = program(data, ("pfa", "finetune"), rounds=8, adapted=steep)
    end = run(made, data)
    scores, kept = personal(end)["scores"], personal(end)["kept"]
    assert set(kept["pfa"].values()) == {0}
    assert 0 in kept["finetune"].values()
    for site in kept["pfa"]:
        assert scores["pfa"][site] == scores["federated"][site]


def test_a_run_ends_in_the_same_bits_from_each_of_its_states():
    data = sites(each=2)
    made = program(data, ("pfa", "random", "ewc"), rounds=1, adapt_rounds=1)
    found = small.states(made, data)
    assert len(found) > 20
    small.assert_resumes(made, data, "one-by-one", [*found[:-1:4], found[-1]])


def test_groups_below_the_minimum_keep_the_federated_model_or_fine_tune_but_never_train_together():
    data = sites(each=3)
    for small_ones, methods in (("federated", set()), ("finetune", {"adapt"})):
        made = program(data, ("pfa",), small=small_ones)
        made.choice = made.choice.model_copy(update={"minimum": 4})
        entries = []
        end = run(made, data, ledger=Ledger(entries.append))
        asked = [e for e in entries if e["step"] > 5 and e["task"] in ("train", "adapt")]
        assert {e["task"] for e in asked if e["round"] > 2} == methods
        found = outcome(made, end, data.sizes(), np.repeat([0, 1], 3))
        assert found["groups"]["left_over"] == 6
        assert found["groups"]["training"] == 0
        assert found["methods"]["pfa"]["sites"] == 6
        if small_ones == "federated":
            assert found["sites"]["pfa"] == found["sites"]["federated"]


def test_outcome_says_what_was_gained_where_and_what_vectors_cost():
    data = sites()
    made = program(data, ("pfa", "random"), layers=(0, "1"))
    end = run(made, data)
    found = outcome(made, end, data.sizes(), np.repeat([0, 1], 3), ["a"] * 6)
    groups = found["groups"]
    assert groups["ari"] == 1.0
    assert groups["matched"] == 1.0
    assert groups["sizes"] == [3, 3]
    assert groups["numbers_bytes"] == 2 * 8 * 4 < groups["vector_bytes"] < 300
    assert [(h["layer"], h["channels"]) for h in groups["heat"]] == [("2", 8), ("1", 8)]
    assert groups["heat"][0]["separation"] > 1
    mean = np.mean([s["test"] for s in found["sites"]["pfa"].values()])
    assert found["methods"]["pfa"]["test"] == pytest.approx(mean)
    assert found["done"]
    assert len(found["history"]) == 2 * 2 * 2


# Privacy


def test_noise_is_never_drawn_twice_for_a_site():
    """dp-sgd in both phases: no two questions to a site share what its randomness is drawn for."""
    data = sites()
    private = Privacy(mechanism="dp-sgd", noise_multiplier=1.0)
    made = program(
        data, ("pfa", "random"), settings={"privacy": private}, release={"noise_multiplier": 1.0}
    )
    book, entries = Book(), []
    end = run(made, data, book=lambda *_: book, ledger=Ledger(entries.append))
    drawn = [
        (e["task"], e["round"], s) for e in entries for s in e["sites"] if e["task"] == "train"
    ]
    assert len(drawn) == len(set(drawn)) == 6 * (2 + 2 + 2)
    for site in range(6):
        kinds = {event.kind: event.count for event in book.history(site)}
        assert kinds == {"gaussian": 1, "sampled-gaussian": 6 * 2}
    assert book.unprotected["evaluate"] > 0
    assert "sparsity" not in book.unprotected
    assert personal(end)["groups"]


def test_the_coordinators_noise_differs_between_groups_and_from_the_training():
    data = sites()
    private = {"privacy": Privacy(mechanism="central", noise_multiplier=1.0), "local": UNIFORM}
    seeds = {5}
    made = program(data, ("pfa", "random"), settings=private)
    end = run(made, data)
    for job in made.jobs(personal(end)):
        if job.kind == "train":
            seeds.add(made.inner(job).coordinator.seed)
    assert len(seeds) == 1 + 4


def test_dp_ftrl_starts_a_new_pattern_for_its_groups():
    data = sites()
    private = {"privacy": Privacy(mechanism="dp-ftrl", noise_multiplier=1.0), "local": UNIFORM}
    made = program(data, ("pfa", "random"), settings=private)
    book = Book()
    end = run(made, data, book=lambda *_: book)
    assert {row["sites"] for row in personal(end)["history"]} == {3}
    assert [event.count for event in book.history(0)] == [3]  # a period each


def test_masked_sums_hide_sites_within_their_group():
    data = sites()
    plain = run(program(data, splits=("validation", "test")), data)
    made = program(data, settings={"sum": Sum(kind="masked")}, minimum=3)
    unmasked = ["evaluate", "sparsity", "adapt"]
    parties = simulated_parties("study", seed=5, sites=6, minimum=3, unmasked=unmasked)
    host = TrainingHost(made.training.problem, data)
    engine = InProcess(host, seed=5, workers=1, parties=parties.member)
    with masked_sums(engine, parties) as reach:
        end = drive(made, reach)
    assert personal(end)["groups"] == personal(plain)["groups"]
    for name, array in plain.arrays.items():
        if name.startswith("personal/"):
            assert np.allclose(array, end.arrays[name], atol=1e-7)


def test_sampling_within_a_group_asks_some_of_its_sites():
    data = sites(each=4)
    half = Participation(kind="fraction", fraction=0.5)
    made = program(data, settings={"participation": half})
    entries = []
    run(made, data, ledger=Ledger(entries.append))
    trained = [e["sites"] for e in entries if e["task"] == "train" and e["round"] > 2]
    assert all(len(s) == 2 for s in trained)
    assert all(max(s) < 4 or min(s) >= 4 for s in trained)
