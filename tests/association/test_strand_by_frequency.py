"""A/T and C/G variants: cohorts on the other strand are put right by a reference's frequencies."""

from dataclasses import replace

import numpy as np
import pytest
from cohorts import carry_out, cut, people, sites, study, write_bim
from test_whole_genome import THIRDS

import cupola
from cupola.analysis.plan_file import load
from cupola.association import results, variant_list_codec
from cupola.association.agreement import KEPT, R_STRAND
from cupola.association.files import read_variants
from cupola.association.forecast import foresee_study
from cupola.association.reference_frequencies import with_frequencies
from cupola.association.study_choices import Quality
from cupola.errors import DataError, FederationError, PlanError

N, M = 240, 24
BY_FREQUENCY = Quality(unknown_strand="frequency")


def cohorts_of(folder, flipped=True):
    """People with A/T and C/G variants, cut in three; the second cohort's file is of the other
    strand at the first eight: a1 and a2 have their letters exchanged, and the calls stay."""
    data = people(3, n=N, m=M, missing=0.01)
    rng = np.random.default_rng(3)
    rate = np.concatenate([np.repeat([0.2, 0.8], M // 2)[: M - 2], [0.5, 0.5]])
    data.copies = rng.binomial(2, rate[:, None], (M, N))
    a1 = np.array(list("ACGT") * (M // 4))
    a2 = np.array(list("TGCA") * (M // 4))
    data.variants = type(data.variants)(
        data.variants.chromosome, data.variants.position, data.variants.name, a1, a2
    )
    bases = cut(folder, data, THIRDS)
    if flipped:
        one, two = a1.copy(), a2.copy()
        one[:8], two[:8] = a2[:8], a1[:8]
        v = data.variants
        write_bim(bases[1].with_suffix(".bim"), type(v)(v.chromosome, v.position, v.name, one, two))
    write_bim(folder / "public.bim", data.variants)
    write_afreq(folder / "public.afreq", data.variants, rate)
    return data, bases


def write_afreq(path, variants, rate):
    """As plink2 writes it; every other line counts the other allele."""
    lines = ["#CHROM\tID\tREF\tALT\tPROVISIONAL_REF?\tALT_FREQS\tOBS_CT"]
    rows = zip(variants.name.tolist(), variants.a1.tolist(), variants.a2.tolist(), rate)
    for i, (name, a1, a2, f) in enumerate(rows):
        ref, alt, told = (a2, a1, f) if i % 2 else (a1, a2, 1 - f)
        lines.append(f"1\t{name}\t{ref}\t{alt}\tY\t{told:.6g}\t2000")
    path.write_text("\n".join(lines) + "\n")


def listed(folder):
    return with_frequencies(read_variants(folder / "public.bim"), folder / "public.bim")


@pytest.mark.parametrize("masked", [False, True])
def test_a_cohort_of_the_other_strand_is_turned(tmp_path, masked):
    (tmp_path / "right").mkdir()
    _, right = cohorts_of(tmp_path / "right", flipped=False)
    _, bases = cohorts_of(tmp_path)
    given = study("logistic", quality=BY_FREQUENCY)
    program, state, _ = carry_out(given, sites(given, bases), listed(tmp_path), masked)
    reason = state.arrays["reason"]
    assert (reason[:-2] == KEPT).all()
    assert (reason[-2:] == R_STRAND).all()  # of one half nothing can be told
    assert state.values["found"]["flipped_by_frequency"] == 8
    assert state.values["found"]["unknown_strand"] == M
    assert not [name for name in state.arrays if name.startswith("strand/")]
    ours = results(program, state).columns
    program, state, _ = carry_out(given, sites(given, right), listed(tmp_path), masked)
    assert state.values["found"]["flipped_by_frequency"] == 0
    theirs = results(program, state).columns
    for name in ("BETA", "SE"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    kept = study("logistic", quality=Quality())
    program, state, _ = carry_out(kept, sites(kept, bases), listed(tmp_path), masked)
    wrong = results(program, state).columns["BETA"][:8]
    assert (np.abs(wrong - ours["BETA"][:8]) > 0.01).any()


def test_swapped_letters_are_told_apart_from_the_other_strand(tmp_path):
    """A file that counts the other allele has other letters and other calls: nothing is turned."""
    data, bases = cohorts_of(tmp_path, flipped=False)
    data.copies[:4] = 2 - data.copies[:4]
    v = data.variants
    a1, a2 = np.array(v.a1.tolist()), np.array(v.a2.tolist())
    a1[:4], a2[:4] = a2[:4].copy(), a1[:4].copy()
    data.variants = type(v)(v.chromosome, v.position, v.name, a1, a2)
    (tmp_path / "swapped").mkdir()
    swapped = cut(tmp_path / "swapped", data, THIRDS)
    given = study("linear", quality=BY_FREQUENCY)
    program, state, _ = carry_out(given, sites(given, bases), listed(tmp_path))
    ours = results(program, state).columns["BETA"]
    mixed = [bases[0], swapped[1], bases[2]]
    program, state, _ = carry_out(given, sites(given, mixed), listed(tmp_path))
    assert state.values["found"]["flipped_by_frequency"] == 0
    assert state.values["found"]["swapped"] == 4
    np.testing.assert_array_equal(ours, results(program, state).columns["BETA"])


def test_few_people_tell_no_strand(tmp_path):
    data, _ = cohorts_of(tmp_path)
    bases = cut(tmp_path, data, [np.arange(40), np.arange(40, 140), np.arange(140, 240)])
    given = study("linear", quality=BY_FREQUENCY)
    with pytest.raises(DataError, match="no variant is common"):
        carry_out(given, sites(given, bases), listed(tmp_path))


def test_a_list_without_frequencies_is_refused_by_cohorts(tmp_path):
    data, bases = cohorts_of(tmp_path)
    given = study("linear", quality=BY_FREQUENCY)
    with pytest.raises(FederationError, match="no-frequencies"):
        carry_out(given, sites(given, bases), data.variants)


def test_frequencies_travel_with_the_list_and_its_hash(tmp_path):
    data, _ = cohorts_of(tmp_path)
    whole = listed(tmp_path)
    again = variant_list_codec.unpack(variant_list_codec.pack(whole, 7))
    np.testing.assert_array_equal(again.frequency, whole.frequency)
    hashes = {variant_list_codec.fingerprint(v) for v in (whole, again)}
    assert len(hashes) == 1
    assert variant_list_codec.fingerprint(data.variants) not in hashes
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(whole.frequency[[0, 12, 23]], [0.2, 0.8, 0.5], rtol=1e-6)
    wrong = replace(whole, frequency=np.full(M, 1.5, np.float32))
    with pytest.raises(FederationError, match="not well formed"):
        variant_list_codec.unpack(variant_list_codec.pack(wrong))


def test_plans_and_lists_say_what_is_missing(tmp_path):
    cohorts_of(tmp_path)
    names = ("c0", "c1", "c2")
    cohorts = [{"name": n, "bfile": n, "pheno": f"{n}.pheno", "cov": f"{n}.cov"} for n in names]
    plan = {"kind": "association", "test": "linear", "trait": {"column": "QT"}, "cohorts": cohorts,
            "folder": str(tmp_path), "people_per_column": 0,
            "quality": {"unknown_strand": "frequency"}}  # fmt: skip
    with pytest.raises(PlanError, match=r"name one \(variants = 'public.bim'"):
        load(plan)
    whole = load({**plan, "variants": "public.bim"})
    told = foresee_study(whole)
    found = cupola.run(whole, tmp_path / "run", report=True).result
    assert found.bytes_down + found.bytes_up <= told.total
    assert found["agreement"]["flipped_by_frequency"] == 8
    assert "strand flipped by frequency" in (tmp_path / "run" / "report.html").read_text()
    (tmp_path / "public.afreq").unlink()
    with pytest.raises(DataError, match="needs frequencies beside"):
        cupola.run(whole, tmp_path / "again", report=False)


def test_plink_frequencies_are_read(tmp_path):
    cohorts_of(tmp_path)
    (tmp_path / "public.afreq").unlink()
    (tmp_path / "public.frq").write_text(
        " CHR SNP A1 A2 MAF NCHROBS\n  1 rs3_0 T A 0.3 200\n  1 rs3_1 C G NA 0\n"
    )
    found = listed(tmp_path).frequency
    assert found[0] == np.float32(0.7)
    assert np.isnan(found[1:]).all()
