"""What totals may tell about single people: variants that cohorts withhold, and options."""

import numpy as np
import pytest
from cohorts import carry_out, cut, found, people, sites, study

from cupola.association import fit, results
from cupola.association.agreement import R_CELL
from cupola.association.limits import Released, small_cells, thin, without
from cupola.association.site import released_numbers
from cupola.association.study_choices import Limits
from cupola.federation import Declined, Question, SiteContext, Spec
from cupola.federation.site import StateStore
from cupola.secure.durable_dict import Memory
from cupola.secure.encoding import encode
from cupola.secure.wrapped_question import layout_of

THIRDS = np.array_split(np.arange(240), 3)


def thirds(data):
    return np.array_split(np.arange(len(data)), 3)


def carried_out(folder, chosen, data, masked):
    """A study whose cohorts keep its limits; program, last state, results."""
    cohorts = sites(chosen, cut(folder, data, thirds(data)))
    for site in cohorts:
        site.limits = chosen.limits
    program, state, _ = carry_out(chosen, cohorts, data.variants, masked)
    return program, state, results(program, state)


def unequal():
    """People of whom a variant all but decides the trait, so that its weights fall on few."""
    data = people(5, n=150, missing=0.02)
    likely = np.array([0.03, 0.97, 0.97, 0.5])[data.copies[4]]
    data.cc = 1.0 + (np.random.default_rng(1).random(150) < likely)
    return data


def test_effective_people():
    equal, one = np.full(100, 0.25), np.r_[0.25, np.zeros(99)]
    for weights, few in ((equal, False), (one, True)):
        facts = np.array([[weights.sum(), weights @ weights, 100.0]])
        assert thin(facts, 0.2).tolist() == [few]
    assert not thin(np.zeros((1, 3)), 0.2).any()  # nobody


def test_carriers_of_a_rare_disease_are_not_few():
    """Ten carriers of whom half are cases, where one person in a thousand is."""
    weights = np.r_[np.full(13_323, 0.001), np.full(10, 0.25)]
    effective = weights.sum() ** 2 / (weights @ weights)
    assert 50 < effective < 0.2 * len(weights)
    assert not thin(np.array([[weights.sum(), weights @ weights, len(weights)]]), 0.2).any()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("firth", [False, True])
def test_a_variant_with_few_effective_people_is_withheld_and_no_other(tmp_path, masked, firth):
    data = unequal()
    newton = {"firth": firth}
    bases = cut(tmp_path, data, thirds(data))
    plain = found(study("logistic", newton=newton), bases, data.variants)
    limits = Limits(effective=0.8)
    chosen = study("logistic", limits=limits, newton=newton)
    _, _, ours = carried_out(tmp_path, chosen, data, masked)
    withheld = ours.status == fit.WITHHELD
    assert 0 < withheld.sum() < len(withheld)
    assert np.isnan(ours.columns["P"][withheld]).all()
    same = ours.columns["P"][~withheld], plain.columns["P"][~withheld]
    np.testing.assert_allclose(*same, rtol=1e-6)


def test_the_total_of_a_withheld_variant_is_not_that_of_the_other_cohorts(tmp_path, monkeypatch):
    from cupola.association.regression import Regression

    told, plain = [], Regression.answer

    def answer(self, total):
        told.append((self.part, total))
        return plain(self, total)

    monkeypatch.setattr(Regression, "answer", answer)
    data = unequal()
    limits = Limits(effective=0.8)
    carried_out(tmp_path, study("logistic", limits=limits), data, True)
    totals = [total.arrays for part, total in told if part == "newton"]
    rows = [a["genotype"][np.rint(a["withheld"]) > 0] for a in totals]
    blind = np.concatenate(rows)
    assert len(blind)
    bound = 2 * (1.01 * 150 + 10)
    fine = np.concatenate([a["genotype"][np.rint(a["withheld"]) == 0] for a in totals])
    assert np.abs(fine).mean() < 0.2 * bound < np.abs(blind).mean()


def test_the_last_digits_of_a_withheld_total_are_not_those_of_the_other_cohorts():
    """A number of 53 bits beyond 1 has no last digits where the masks' integers of 64 bits have
    some: those would be the others' own, which tell apart whatever is known of them."""
    expects = {"sums": Spec((400, 5), "float", 313.0), "withheld": Spec((400,), "int", 1)}
    question = Question("gwas newton", expects=expects)
    layout = layout_of(question, 3)
    (place,) = (entry for entry in layout if entry.name == "sums")

    def sent(withheld, sums):
        site = SiteContext(0, None, None, StateStore(), None, hidden=layout, real=True)
        told = without(site, question, {"sums": sums}, np.full(400, withheld))
        return encode(place, told["sums"]).astype(object)

    others = np.random.default_rng(1).normal(0, 0.3, (2, 400, 5))
    blind = sent(True, np.zeros((400, 5)))
    total = blind + sent(False, others[0]) + sent(False, others[1])
    for bits in range(1, 24):
        if not (blind % 2**bits).any():  # these digits of the total are the others'
            assert not (total % 2**bits).any()


@pytest.mark.parametrize("test", ["linear", "logistic"])
@pytest.mark.parametrize("lacks", ["trait", "covariate"])
@pytest.mark.parametrize("least", [0, 2])
def test_who_alone_is_not_tested_is_told_by_a_difference_unless_the_limit_is_on(
    tmp_path, monkeypatch, test, lacks, least
):
    """Counts of everybody less those of the people tested are one person's genotypes."""
    from cupola.association.regression import Regression

    told, plain = [], Regression.answer

    def answer(self, total):
        told.append((self.part, total, self.state.arrays["alleles"]))
        return plain(self, total)

    monkeypatch.setattr(Regression, "answer", answer)
    data = people(8, n=150, missing=0)
    if lacks == "covariate":
        data.age[7] = np.nan
    else:
        data.cc[7] = data.qt[7] = np.nan
    carried_out(tmp_path, study(test, limits=Limits(least_cell=least)), data, True)
    (total, alleles), *_ = [(t.arrays["counts"], a) for part, t, a in told if part == "sums"]
    rest = alleles[..., 0].sum(axis=1) - np.rint(total[:, 0])
    assert (rest == (0 if least else data.copies[:, 7])).all()


@pytest.mark.parametrize("test", ["linear", "logistic"])
@pytest.mark.parametrize("least", [0, 2])
def test_who_alone_has_no_call_keeps_covariates_and_trait(tmp_path, monkeypatch, test, least):
    """What those without a call take off is one person's row; the limit withholds the variant."""
    from cupola.association.regression import Regression

    told, plain = [], Regression.answer

    def answer(self, total):
        told.append((self.part, total.arrays, self.state.values))
        return plain(self, total)

    monkeypatch.setattr(Regression, "answer", answer)
    data = people(8, n=150, missing=0)
    data.copies[3, 7] = 3
    _, _, ours = carried_out(tmp_path, study(test, limits=Limits(least_cell=least)), data, True)
    (total, values), *_ = [(t, v) for part, t, v in told if part == "sums"]
    off = total["off"][3]  # products of columns: the first, 1 x 1, is not asked for if linear
    age = off[0] if test == "linear" else off[1] / off[0]
    read = values["shift"][0] + values["width"][0] * age
    assert (abs(read - data.age[7]) < 1e-3) == (least == 0)
    assert (ours.status == fit.WITHHELD).tolist() == [least > 0 and i == 3 for i in range(12)]


def test_small_cells():
    alleles = np.array([[[0, 40], [9, 40]], [[3, 40], [9, 40]], [[38, 40], [9, 40]]])
    assert small_cells({"alleles": alleles}, 5).tolist() == [False, True, True]
    genotypes = np.array([[[0, 9, 11]], [[9, 9, 2]], [[9, 9, 9]]])
    told = small_cells({"alleles": alleles[:1].repeat(3, 0), "genotypes": genotypes}, 5)
    assert told.tolist() == [False, True, False]


def test_males_on_x_are_not_few_either(tmp_path):
    """Alleles less genotypes, which are women's, are the men's."""
    data = people(9, n=240, missing=0, chromosomes=(23,))
    men = np.flatnonzero(data.sex == 1)
    data.copies[3, men] = 0
    few = men[(men < 80) & (data.cc[men] == 2)][:2]
    data.copies[3, few] = 2
    chosen = study("chi-square", trend=True, limits=Limits(least_cell=3))
    _, state, _ = carried_out(tmp_path, chosen, data, True)
    assert state.arrays["reason"][3] == R_CELL


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("test", ["chi-square", "logistic"])
def test_variants_with_a_small_count_are_left_out_and_counted(tmp_path, test, masked):
    data = people(6, n=240, missing=0)
    case = np.flatnonzero(data.cc == 2)
    data.copies[3] = 0
    data.copies[3, THIRDS[1][:40]] = 1  # common, and yet
    data.copies[3, case[case < 80][:3]] = 1  # three copies among the first cohort's cases
    control = np.flatnonzero(data.cc == 1)
    data.copies[3, control[control < 80][:9]] = 1
    plain = found(study(test), cut(tmp_path, data, THIRDS), data.variants)
    chosen = study(test, limits=Limits(least_cell=5))
    _, state, ours = carried_out(tmp_path, chosen, data, masked)
    assert np.flatnonzero(state.arrays["reason"] == R_CELL).tolist() == [3]
    keep = np.arange(len(data.variants)) != 3
    np.testing.assert_allclose(ours.columns["P"], plain.columns["P"][keep], rtol=1e-6)


def test_sums_are_on_the_grid_and_results_near(tmp_path):
    data = people(7, n=240)
    plain = found(study("logistic"), cut(tmp_path, data, THIRDS), data.variants)
    chosen = study("logistic", limits=Limits(grid=0.01))
    for masked in (False, True):
        _, _, ours = carried_out(tmp_path, chosen, data, masked)
        assert (ours.status == fit.OK).all()
        off = np.abs(ours.columns["STAT"] - plain.columns["STAT"])
        assert 0 < off.max() < 0.02


def test_covariates_of_unusual_people_are_shortened(tmp_path):
    data = unequal()
    chosen = study("logistic", limits=Limits(outliers=1.5))
    cohorts = sites(chosen, cut(tmp_path, data, thirds(data)))
    for site in cohorts:
        site.limits = chosen.limits
    carry_out(chosen, cohorts, data.variants)
    (made,) = cohorts[0]._designs.values()
    length = np.sqrt((made.columns[:, 1:] ** 2).sum(axis=1))
    assert length.max() == pytest.approx(1.5 * np.sqrt(2))
    assert (length < 1.5).any()


def test_numbers_that_a_study_may_tell():
    assert released_numbers(study("chi-square")) == 0
    assert released_numbers(study("linear")) == 6
    assert released_numbers(study("logistic")) == 72


@pytest.mark.parametrize(
    ("many", "people", "newton"), [(4, 917, {"firth": True}), (14, 917, {}), (14, 483, {})]
)
def test_honest_studies_of_hapmap_are_within_a_sites_limit(many, people, newton):
    """Also with 5 % cases, of whom 483 people are left; the largest has room for no second one."""
    from cupola.site.settings import TotalLimits

    chosen = study("logistic", covariates=tuple(map(str, range(many))), newton=newton)
    assert released_numbers(chosen) / people < TotalLimits().released


def test_a_data_set_tells_so_many_numbers_and_no_more(tmp_path):
    def book(name):
        return Released(Memory(tmp_path / "released.jsonl"), name, 60, 0.5)

    for name in ("a", "a", "b"):  # the same study again is charged once
        opened = book(name)
        opened.charge(300)
        opened.close()
    for _ in range(2):  # a restart does not renew it
        opened = book("c")
        with pytest.raises(Declined, match="too-many-numbers-released"):
            opened.charge(300)
        assert opened.entries() == {"a": 0.2, "b": 0.2}
        opened.charge(1000)  # more people, fewer numbers a person
        assert sum(opened.entries().values()) == pytest.approx(0.46)
        opened.close()
        (tmp_path / "released.jsonl").write_text(
            "".join((tmp_path / "released.jsonl").read_text().splitlines(True)[:2])
        )


def test_a_study_that_is_joined_anew_with_a_larger_plan_is_charged_for_the_rest(tmp_path):
    def charged(numbers):
        book = Released(Memory(tmp_path / "released.jsonl"), "one", numbers, 0.5)
        try:
            book.charge(100)
            return book.entries()
        finally:
            book.close()

    assert charged(20) == {"one": 0.2}
    assert charged(10) == {"one": 0.2}
    assert charged(40) == {"one": 0.4}
    with pytest.raises(Declined, match="too-many-numbers"):
        charged(60)
