"""A study of components alone, from its plan to its tables."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from cohorts import cut
from test_components import THREE, N, drawn, exact

import cupola
from cupola.analysis.plan_file import load
from cupola.analysis.protocol import OwnSite
from cupola.association.component_plan import ComponentsPlan
from cupola.association.component_study import ComponentsAnalysis
from cupola.association.forecast import foresee_study
from cupola.errors import DataError, PlanError
from cupola.site.settings import TotalLimits

LIMITS = {"people": 20, "directions": 100, "carriers": 0}


def _plan(folder, **options):
    cohorts = [{"name": f"c{i}", "bfile": f"c{i}"} for i in range(3)]
    found = {"count": 3, "block": 4, "sums": 14, "maf": 0.01, "residual": 1e-6}
    given = {"kind": "pca", "components": found, "limits": LIMITS, "cohorts": cohorts,
             "folder": str(folder), "sum": "masked", **options}  # fmt: skip
    return load(given, of=ComponentsPlan)


@pytest.fixture
def folder(tmp_path):
    data = drawn()
    data.cc[:] = -9  # nobody has a trait, and there are no tables of traits
    for base in cut(tmp_path, data, THREE):
        base.with_suffix(".pheno").unlink()
        base.with_suffix(".cov").unlink()
    return tmp_path


def test_people_without_any_trait_have_components(folder):
    result = cupola.run(_plan(folder), folder / "run").result
    values, vectors = exact(drawn(), 3)
    np.testing.assert_allclose(result["components"]["eigenvalues"], values, rtol=1e-7)
    assert sum(result["components"]["shares"]) < 1
    rows = {}
    for i in range(3):
        table = (folder / "run/sites" / f"c{i}.components.tsv").read_text().splitlines()
        assert table[0].split() == ["FID", "IID", "PC1", "PC2", "PC3"]
        rows |= {line.split()[1]: [float(x) for x in line.split()[2:]] for line in table[1:]}
        assert "<circle" in (folder / "run/sites" / f"c{i}.components.svg").read_text()
    found = np.array([rows[f"p{i}"] for i in range(N)])
    np.testing.assert_allclose(np.abs(found), np.abs(vectors), atol=1e-5)
    assert "Principal components" in (folder / "run/report.html").read_text()


def test_a_plan_that_was_written_out_can_be_read_again(folder):
    plan = _plan(folder)
    (folder / "again.toml").write_text(plan.to_toml())
    assert load(folder / "again.toml", of=ComponentsPlan) == plan


def test_loadings_give_the_scores_again(folder):
    cupola.run(_plan(folder), folder / "run", report=False)
    head, *lines = (folder / "run/study.loadings.tsv").read_text().splitlines()
    assert head.split()[:6] == ["CHR", "SNP", "POS", "A1", "A2", "A1_FREQ"]
    data = drawn()
    at = {name: i for i, name in enumerate(data.variants.name.tolist())}
    total = np.zeros((N, 3))
    for line in lines:
        _, name, _, a1, _, f, *weights = line.split()
        copies = data.copies[at[name]].astype(float)
        told, f = copies != 3, float(f)
        if data.variants.a1[at[name]] != a1:
            copies = 2 - copies
        z = np.where(told, (copies - 2 * f) / np.sqrt(2 * f * (1 - f)), 0)
        total += z[:, None] * np.array(weights, float)
    again = (folder / "run/sites/c0.components.tsv").read_text().splitlines()[1:]
    found = np.array([line.split()[2:] for line in again], float)
    np.testing.assert_allclose(found, total[: len(found)], atol=1e-9)


def test_what_is_sent_is_foreseen(folder):
    plan = _plan(folder, components={"count": 3, "block": 3, "sums": 4, "maf": 0.01,
                                     "residual": 1e-9, "density": True})  # fmt: skip
    told = foresee_study(plan)
    result = cupola.run(plan, folder / "run", report=False).result
    assert (told.down, told.up) == (result["bytes_down"], result["bytes_up"])
    density = np.array(result["components"]["density"])
    assert 0 < density.sum() < N  # small squares are empty
    assert density[density > 0].min() >= 5


@pytest.mark.parametrize("key", ["covariates", "trend", "sex"])
def test_what_is_about_a_test_is_refused(folder, key):
    value = ["AGE"] if key == "covariates" else True
    with pytest.raises(PlanError, match=f"{key}: components have no trait"):
        _plan(folder, **{key: value})


REFUSED = {
    "people": (41, r"'c0': has 40 people; for components it needs 41 \(limits.people\)"),
    "directions": (1.3, r"'c0': has 40 people; the study may ask for 56 directions .*1.3 a person"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_too_few_people_are_refused_before_anything_is_spent(folder, key):
    value, said = REFUSED[key]
    plan = _plan(folder, limits={**LIMITS, key: value})
    with pytest.raises(DataError, match=said):
        foresee_study(plan)
    with pytest.raises(DataError, match=said):
        cupola.run(plan, folder / "run", report=False)
    told = [json.loads(line) for line in (folder / "run/ledger.jsonl").read_text().splitlines()]
    assert {entry["task"] for entry in told} <= {"gwas people"}


@pytest.mark.parametrize("key", REFUSED)
def test_a_real_site_that_has_too_few_people_is_told_before_it_consents(folder, key):
    value, said = REFUSED[key]
    rules = SimpleNamespace(name="c0", budget=None, limits=TotalLimits(), salt=None)
    own = OwnSite(0, 3, {"bfile": "c0"}, folder, folder, rules)
    assert ComponentsAnalysis(_plan(folder)).data_problems(own) == []
    found = ComponentsAnalysis(_plan(folder, limits={**LIMITS, key: value})).data_problems(own)
    assert len(found) == 1
    assert re.search(said, found[0])


def test_people_who_are_not_loaded_do_not_count(folder):
    (folder / "some.keep").write_text("".join(f"f{i} p{i}\n" for i in range(30)))
    plan = _plan(folder, limits={**LIMITS, "people": 40})
    few = plan.cohorts[0].model_copy(update={"keep": "some.keep"})
    with pytest.raises(DataError, match="'c0': has 30 people"):
        foresee_study(plan.model_copy(update={"cohorts": (few, *plan.cohorts[1:])}))


def test_components_that_are_not_determined_are_named(folder):
    found = {"count": 6, "block": 4, "sums": 3, "maf": 0.01}
    result = cupola.run(_plan(folder, components=found), folder / "run", report=False).result
    assert not all(result["components"]["determined"])
    assert any("not determined" in line for line in result["warnings"])
    assert any("not as exact as asked for" in line for line in result["warnings"])
    assert json.loads((folder / "run/result.json").read_text())["components"]["sums"] == 3
