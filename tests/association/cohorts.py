"""Small cohorts on disk, with everything that goes wrong in real ones if asked for."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cupola.association import Association, Files, Site, Study, StudyHost, Wanted, results
from cupola.association.bed import write_bed
from cupola.association.files import Variants
from cupola.association.study_choices import WholeGenome
from cupola.association.tasks import UNMASKED
from cupola.engines import InProcess, masked_sums
from cupola.federation import drive
from cupola.secure import simulated_parties

CALLS = np.array([3, 2, 0, 1], np.uint8)  # by copies of a1; 3 stands for missing


@dataclass
class People:
    """copies: (variants, people) 0, 1, 2 copies of a1, 3 missing."""

    copies: np.ndarray
    variants: Variants
    sex: np.ndarray
    cc: np.ndarray
    qt: np.ndarray
    age: np.ndarray
    dose: np.ndarray

    def __len__(self):
        return len(self.sex)


def people(seed, n=90, m=12, missing=0.05, chromosomes=(1,)):
    rng = np.random.default_rng(seed)
    frequency = rng.uniform(0.15, 0.5, m)
    chromosome = np.sort(rng.choice(chromosomes, m)).astype(np.uint8)
    sex = rng.integers(1, 3, n)
    copies = rng.binomial(2, frequency[:, None], (m, n))
    single = np.isin(chromosome, (24, 26))[:, None] | (
        (chromosome == 23)[:, None] & (sex == 1)[None]
    )
    copies[single & (copies == 1)] = 2
    copies[rng.random((m, n)) < missing] = 3
    age, dose = rng.normal(50, 10, n).round(1), rng.normal(0, 2, n).round(3)
    effect = 0.5 * np.where(copies[0] == 3, 0, copies[0]) + 0.03 * (age - 50)
    cc = 1 + (rng.random(n) < 1 / (1 + np.exp(-(effect - 0.4)))).astype(float)
    qt = (effect + rng.normal(size=n)).round(4)
    bases = rng.permuted(np.tile(list("ACGT"), (m, 1)), axis=1)
    a1, a2 = bases[:, 0], bases[:, 1]
    names = np.array([f"rs{seed}_{i}" for i in range(m)])
    listed = Variants(chromosome, 1000 * np.arange(1, m + 1), names, a1, a2)
    return People(copies, listed, sex, cc, qt, age, dose)


def write(folder, name, data, who=None, order=None):
    """A cohort's files: people `who`, variants in `order`."""
    folder = Path(folder)
    who = np.arange(len(data)) if who is None else np.asarray(who)
    order = np.arange(len(data.variants)) if order is None else np.asarray(order)
    base = folder / name
    write_bed(base.with_suffix(".bed"), CALLS[data.copies[order][:, who]])
    write_bim(base.with_suffix(".bim"), data.variants[order])
    ids = [f"f{i} p{i}" for i in who]
    base.with_suffix(".fam").write_text(
        "".join(f"{p} 0 0 {s} {c:g}\n" for p, s, c in zip(ids, data.sex[who], data.cc[who]))
    )
    rows = zip(ids, data.cc[who], data.qt[who])
    base.with_suffix(".pheno").write_text(
        "FID IID CC QT\n" + "".join(f"{p} {_text(c)} {_text(q)}\n" for p, c, q in rows)
    )
    rows = zip(ids, data.age[who], data.dose[who])
    base.with_suffix(".cov").write_text(
        "FID IID AGE DOSE\n" + "".join(f"{p} {_text(a)} {_text(d)}\n" for p, a, d in rows)
    )
    return base


def _text(value):
    return "-9" if np.isnan(value) else f"{value:g}"


def write_bim(path, v):
    rows = zip(v.chromosome, v.name, v.position, v.a1, v.a2)
    path.write_text("".join(f"{c}\t{n}\t0\t{p}\t{a}\t{b}\n" for c, n, p, a, b in rows))


def cut(folder, data, parts):
    """Cohorts of these people, as bases of file names."""
    return [write(folder, f"c{i}", data, who) for i, who in enumerate(parts)]


def sites(study, bases, salt=b"salt", apart=1):
    regression = study.regression
    wanted = Wanted(
        study.trait.column,
        study.own_covariates if regression else (),
        study.sex and regression,
        study.ambiguous_sex,
        study.quality.person_missing,
        study.quality.kinship,
        dosages=study.dosages,
        founders=study.quality.founders and not study.trend,
        traitless=study.test is None,
        scores=study.scores if regression else (),
    )
    return [
        Site(
            Files(
                base.name,
                *(base.with_suffix(e) for e in (".bed", ".bim", ".fam", ".pheno", ".cov")),
            ),
            wanted,
            salt,
            whole_genome=study.whole_genome or WholeGenome(),
            limits=study.limits,
            least_cohorts=study.least_cohorts or 0,
            apart=apart,
            study=study,
        )
        for base in bases
    ]


def carry_out(study, cohorts, listed=None, masked=False, seed=1, engine=InProcess, apart=1):
    """The program, its last state and its federation."""
    program = Association(study, len(cohorts), listed, apart=apart)
    host = StudyHost(cohorts)
    if masked:
        minimum = min(3, len(cohorts))
        parties = simulated_parties(
            "study", seed=seed, sites=len(cohorts), minimum=minimum, unmasked=UNMASKED
        )
        made = InProcess(host, workers=1, quorum=1.0, parties=parties.member)
        reach = masked_sums(made, parties)
    else:
        reach = engine(host, workers=min(2, len(cohorts)), quorum=1.0)
    with reach:
        state = drive(program, reach)
    return program, state, reach


def found(study, bases, listed=None, masked=False):
    program, state, _ = carry_out(study, sites(study, bases), listed, masked)
    return results(program, state)


def study(test, **options):
    column = "QT" if test in ("linear", "mixed") else "CC"
    covariates = () if test in ("chi-square", None) else ("AGE", "DOSE")
    facts = {"trait": {"column": column}, "covariates": covariates, "people_per_column": 0,
             "fingerprints": False}  # fmt: skip
    return Study(**{"test": test, **facts, **options})
