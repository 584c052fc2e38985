"""A coordinator that lies to real parties, over the bytes that it sends: it gains nothing.

Sites and compensator are opened from their folders as in a real study; between them and the
coordinator pass bytes only.
"""

from dataclasses import replace

import numpy as np
import pytest

from cupola.analysis.simulated import federation
from cupola.engines import InProcess
from cupola.errors import FederationError
from cupola.federation import Contribution, Failure, Question, drive, read_answer
from cupola.federation.message import decode_question, encode_question
from cupola.secure import Masked
from cupola.secure.compensator_messages import Request
from cupola.site import read_ledger, spent
from cupola.training import build
from cupola.training.analysis import TrainingAnalysis


def opened(trial):
    sites, third = trial.open()
    return sites, third, Masked(sites, third, trial.roster)


def asked(trial, step=0, **changes):
    """The inner question of the first round."""
    program = trial.training()
    question = replace(program.ask(program.start()).question, step=step)
    return replace(question, **changes)


def ask(trial, question, i=0):
    data = question if isinstance(question, bytes) else encode_question(question)
    return read_answer(trial.opened[i].answer(data))


def model(total):
    return np.concatenate([a.reshape(-1) for n, a in sorted(total.arrays.items())])


def test_noise_is_not_drawn_anew_for_a_later_attempt(private):
    _, _, reach = opened(private)
    question = asked(private)
    first = model(reach.sum(question, range(3)))
    again = model(reach.sum(question, range(3)))  # other masks, another checksum key
    _, _, reach = opened(private)  # everybody starts anew
    third = model(reach.sum(question, range(3)))
    assert (first == again).all()
    assert (first == third).all()
    assert len(read_ledger(private.site(0), private.study)) == 3


def test_the_same_question_under_another_step_has_new_noise_and_is_charged(private):
    _, _, reach = opened(private)
    one = model(reach.sum(asked(private, 0), range(3)))
    cost = spent(private.site(0), private.study)["epsilon"]
    two = model(reach.sum(asked(private, 1, round=2), range(3)))
    assert (one != two).any()
    assert spent(private.site(0), private.study)["epsilon"] > cost > 0


def test_nothing_seeds_what_privacy_rests_on(private, tmp_path):
    import consortium as made

    other = made.copied(private, tmp_path / "other")  # the same keys, plan and data
    totals = []
    for trial in (private, other):
        _, _, reach = opened(trial)
        totals.append(model(reach.sum(asked(trial), range(3))))
        trial.close()
    assert (totals[0] != totals[1]).all()


def test_a_budget_ends_a_study_and_a_restart_does_not_renew_it(private):
    _, _, reach = opened(private)
    reach.sum(asked(private), range(3))
    first = spent(private.site(0), private.study)["epsilon"]
    path = private.site(0) / "cupola-site.toml"
    path.write_text(path.read_text().replace("epsilon = 20.0", f"epsilon = {first * 1.1}"))
    for step in (1, 2):
        _, _, reach = opened(private)
        total = reach.sum(asked(private, step, round=step + 1), range(3))
        assert total.failed[0].startswith("privacy budget of epsilon")
        assert not total.arrays
    assert spent(private.site(0), private.study)["epsilon"] == first


def test_a_lie_about_what_is_confirmed_gains_nothing(private):
    sites, _, reach = opened(private)
    first = model(reach.sum(asked(private, 5), range(3)))
    lying = replace(asked(private, 5), confirmed=10**9)
    for step in (0, 3, 4):
        told = ask(private, replace(decode_question(sites.seen[0][1]), step=step, confirmed=99))
        assert told == Failure("a later step was answered: this one is over")
    reach.sum(lying, range(3))
    assert (model(reach.sum(asked(private, 5), range(3))) == first).all()


@pytest.mark.parametrize(
    "privacy",
    [None, {"mechanism": "dp-sgd", "noise_multiplier": 0.1, "clip": 1.0}, {"mechanism": "none"},
     {"mechanism": "dp-sgd", "noise_multiplier": 1.0, "clip": 1.0, "neighbours": "replace-one"}],
)  # fmt: skip
def test_weaker_privacy_than_the_plans_is_refused(private, privacy):
    _, _, reach = opened(private)
    question = asked(private)
    options = {**question.options, "privacy": privacy}
    if privacy is None:
        del options["privacy"]
    reach.quorum = 1.0
    with pytest.raises(FederationError, match="plan"):
        reach.sum(replace(question, options=options), range(3))
    assert spent(private.site(0), private.study) is None  # refused before anything was charged


def test_other_training_than_the_plans_is_refused(trial):
    _, _, reach = opened(trial)
    question = asked(trial)
    local = {**question.options["local"], "epochs": 50}
    total = reach.sum(replace(question, options={**question.options, "local": local}), range(3))
    assert set(total.failed.values()) == {"local training is not the plan's"}


def test_a_site_answers_unmasked_what_it_agreed_to_only(trial):
    opened(trial)
    assert ask(trial, asked(trial)) == Failure("this site answers this in masked sums only")
    assert ask(trial, asked(trial, task="adapt")) == Failure("this site does not run this task")
    for strange in ("settle", "unmask", "no such task", "gwas people", "../x"):
        assert isinstance(ask(trial, Question(strange)), Failure)


def test_a_task_hidden_in_a_masked_question_is_refused(trial):
    sites, _, reach = opened(trial)
    reach.sum(asked(trial), range(3))
    outer = decode_question(sites.seen[0][1])
    for task in ("adapt", "masked", "settle"):
        inner = {**outer.options["inner"], "task": task}
        told = ask(trial, replace(outer, step=1, options={**outer.options, "inner": inner}))
        assert isinstance(told, Failure), task


def test_another_roster_is_refused_by_everybody(trial):
    sites, third, reach = opened(trial)
    reach.sum(asked(trial), range(3))
    outer = decode_question(sites.seen[0][1])
    hidden = {**outer.options["hidden"], "roster": "00" * 32}
    told = ask(trial, replace(outer, step=1, options={**outer.options, "hidden": hidden}))
    assert told == Failure("the roster is not the one this site agreed to")
    settle = decode_question(third.seen[0][1])
    told = ask(trial, replace(settle, options={**settle.options, "roster": "00" * 32}), -1)
    assert told == Failure("roster differs")


def test_another_question_under_a_step_is_refused_also_after_a_restart(trial):
    _, _, reach = opened(trial)
    reach.sum(asked(trial), range(3))
    other = asked(trial)
    other = replace(other, arrays={n: a + 1 for n, a in other.arrays.items()})
    for _ in range(2):
        total = reach.sum(other, range(3))
        assert set(total.failed.values()) == {"another question was answered under this step"}
        _, _, reach = opened(trial)


def test_the_compensator_answers_once_also_after_a_restart(trial):
    _, third, reach = opened(trial)
    reach.sum(asked(trial), range(3))
    settle = third.seen[0][1]
    first = [read_answer(answer).arrays for _, _, answer in third.seen]
    for _ in range(2):  # the same request: the same masks, bit for bit
        _, third, reach = opened(trial)
        told = [ask(trial, data, -1) for _, data, _ in [(0, settle, 0)]]
        assert (told[0].arrays["granted"] == first[0]["granted"]).all()
    request = Request.from_question(decode_question(settle))
    fewer = replace(request, sites=request.sites[:2], layouts=request.layouts[:2],
                    envelopes=request.envelopes[:2])  # fmt: skip
    assert "too few" in ask(trial, fewer.to_question(), -1).code
    later = replace(request, step=1)
    assert "bad envelope" in ask(trial, later.to_question(), -1).code
    swapped = replace(request, envelopes=request.envelopes[::-1])
    assert isinstance(ask(trial, swapped.to_question(), -1), Failure)


def test_an_old_answer_cannot_be_added_to_a_new_sum(trial):
    sites, _, reach = opened(trial)
    reach.sum(asked(trial), range(3))
    old = sites.seen[0][2]
    sites.change = lambda site, answer: old if site == 0 else answer
    with pytest.raises(FederationError, match="bad envelope"):
        reach.sum(asked(trial, 1, round=2), range(3))


def test_every_question_is_in_the_sites_own_ledger(trial):
    _, _, reach = opened(trial)
    reach.sum(asked(trial), range(3))
    ask(trial, asked(trial))
    ask(trial, b"garbage")
    lines = read_ledger(trial.site(0), trial.study)
    assert [line.get("task") for line in lines] == ["train", "train", None]
    assert lines[0]["to"] == "coordinator, masked"
    assert lines[0]["bytes"] > 0
    assert lines[1]["refused"] == "this site answers this in masked sums only"
    assert lines[2]["refused"] == "message is not well formed"


@pytest.mark.slow
def test_real_sites_give_the_model_of_the_simulation(tmp_path):
    """The same plan and seed, with masks: equal up to the encoding, and the same bytes."""
    import consortium as made

    trial = made.consortium(tmp_path / "all", made.DIGITS)
    sites, _, reach = opened(trial)
    real = drive(trial.training(), reach)
    host = build.host(trial.plan)
    alone = InProcess(host, seed=trial.plan.seed)
    simulated = drive(trial.training(), alone)
    for name, array in simulated.arrays.items():
        assert np.abs(real.arrays[name] - array).max() < 1e-6
    with federation(TrainingAnalysis(trial.plan), host) as masked:
        drive(trial.training(), masked)
        for site in range(3):
            assert sites.ledger.up[site] <= masked.ledger.up[site] + 200
            assert sites.ledger.down[site] <= masked.ledger.down[site] + 200
    trial.close()


def test_a_plan_has_so_many_steps_and_no_more(trial):
    _, _, reach = opened(trial)
    total = reach.sum(asked(trial, 10**6), range(3))
    assert set(total.failed.values()) == {"the plan has no such step"}


def test_two_protocols_cannot_tell_two_cohorts(trial):
    opened(trial)
    for task in ("keys", "shares", "masked", "survivors", "unmask"):
        told = ask(trial, Question(f"pairwise {task}"))
        assert told == Failure("the plan's sums are made by another protocol")


def test_settings_that_become_stricter_count_at_once(private):
    _, _, reach = opened(private)
    reach.sum(asked(private), range(3))
    path = private.site(0) / "cupola-site.toml"
    path.write_text(path.read_text().replace("epsilon = 20.0", "epsilon = 0.01"))
    total = reach.sum(asked(private, 1, round=2), range(3))  # the same processes
    assert total.failed[0] == "privacy budget of epsilon 0.01 would be exceeded"


def test_no_number_and_other_tricks_do_not_weaken_the_noise(private):
    _, _, reach = opened(private)
    question = asked(private)
    reach.quorum = 1.0
    for noise in (float("nan"), -1.0, None, "1", [1.0], 0.999):
        asks = {**question.options["privacy"], "noise": noise}
        options = {**question.options, "privacy": asks}
        with pytest.raises(FederationError, match="0 of 3 sites answered"):
            reach.sum(replace(question, options=options), range(3))


def test_an_answer_is_a_contribution_of_integers_only(trial):
    sites, _, reach = opened(trial)
    reach.sum(asked(trial), range(3))
    told = read_answer(sites.seen[0][2])
    assert isinstance(told, Contribution)
    assert all(array.dtype.kind in "iu" for array in told.arrays.values())
