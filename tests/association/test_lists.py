"""The list of variants: who names what, what is on no list, and who is told so."""

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
from cohorts import carry_out, cut, people, sites, study, write, write_bim
from typer.testing import CliRunner

import cupola
from cupola.analysis.plan_file import load
from cupola.association import results, variant_list_codec
from cupola.association.agreement import KEPT
from cupola.association.files import Variants
from cupola.association.plan import StudyPlan
from cupola.cli import app
from cupola.errors import DataError, FederationError

PARTS = [np.arange(0, 60), np.arange(60, 120), np.arange(120, 240)]


def _rare_in(data, variant, parts, copies=2):
    for part in parts:
        data.copies[variant, PARTS[part]] = 0
        data.copies[variant, PARTS[part][:copies]] = 1


def _data(seed=51):
    """Three variants are rare in the first cohort, two of them elsewhere, one everywhere."""
    data = people(seed, n=240, m=12, missing=0)
    _rare_in(data, 3, [0])
    _rare_in(data, 5, [0, 1])
    _rare_in(data, 8, [0, 1, 2])
    return data


def _study(folder, names=("c0", "c1", "c2"), **options):
    cohorts = [{"name": n, "bfile": n, "pheno": f"{n}.pheno", "cov": f"{n}.cov"} for n in names]
    return load({"test": "chi-square", "trait": {"column": "CC"}, "cohorts": cohorts,
                       "folder": str(folder), "workers": 1, **options}, of=StudyPlan)  # fmt: skip


def test_what_is_rare_in_the_first_cohort_is_tested(tmp_path):
    data = _data()
    bases = cut(tmp_path, data, PARTS)
    chosen = study("logistic")
    program, state, _ = carry_out(chosen, sites(chosen, bases))
    assert state.values["proposed"] == [9, 1, 1]
    found = results(program, state)
    expected = np.delete(data.variants.name, 8).tolist()
    assert found.variants.name.tolist() == expected  # along the genome, whoever named them
    listed, whole, _ = carry_out(chosen, sites(chosen, bases), data.variants)
    everything = results(listed, whole)
    for name, column in found.columns.items():
        np.testing.assert_array_equal(column, np.delete(everything.columns[name], 8))


@pytest.mark.parametrize("masked", [False, True])
def test_the_order_of_cohorts_does_not_matter(tmp_path, masked):
    data = _data()
    bases = cut(tmp_path, data, PARTS)
    chosen = study("linear")
    tables = []
    for order in ([0, 1, 2], [2, 0, 1]):
        own = sites(chosen, [bases[i] for i in order])
        program, state, _ = carry_out(chosen, own, masked=masked)
        tables.append(results(program, state))
    assert tables[0].variants.name.tolist() == tables[1].variants.name.tolist()
    np.testing.assert_allclose(tables[0].columns["P"], tables[1].columns["P"], rtol=1e-6)


def test_no_cohort_names_what_is_rare_with_it(tmp_path):
    data = _data()
    chosen = study("chi-square")
    own = sites(chosen, cut(tmp_path, data, PARTS))
    named = []
    for i, site in enumerate(own):
        common = data.variants.name[site.common(5)].tolist()
        copies = data.copies[:, PARTS[i]].sum(axis=1)
        assert not {data.variants.name[v] for v in np.flatnonzero(copies < 5)} & set(common)
        named += common
    _, state, _ = carry_out(chosen, own)
    assert len(state.arrays["reason"]) == len(set(named)) == 11


def _with_names(data, names):
    return replace(data, variants=replace(data.variants, name=np.array(names)))


def test_two_conventions_of_names_are_one_study(tmp_path):
    """rs numbers, chr:pos:ref:alt in another order with 'chr' before chromosomes, and no names."""
    data = people(52, n=240, m=12, missing=0.02, chromosomes=(1, 2, 23))
    v = data.variants
    places = [f"{c}:{p}:{a}:{b}" for c, p, a, b in zip(v.chromosome, v.position, v.a1, v.a2)]
    same = cut(tmp_path, data, PARTS)
    shuffled = np.random.default_rng(1).permutation(12)
    second = write(tmp_path, "second", _with_names(data, places), PARTS[1], shuffled)
    bim = second.with_suffix(".bim")
    bim.write_text("".join(
        "chr" + line.replace("23\t", "X\t", 1) + "\n" for line in bim.read_text().splitlines()
    ))  # fmt: skip
    third = write(tmp_path, "third", _with_names(data, ["."] * 12), PARTS[2])
    for test in ("chi-square", "logistic"):
        chosen = study(test)
        program, state, _ = carry_out(chosen, sites(chosen, [same[0], second, third]))
        expected = carry_out(chosen, sites(chosen, same))
        ours, theirs = results(program, state), results(*expected[:2])
        assert ours.variants.name.tolist() == theirs.variants.name.tolist() == v.name.tolist()
        for name, column in ours.columns.items():
            np.testing.assert_array_equal(column, theirs.columns[name])
        assert state.values["found"]["renamed"] == 24
        assert expected[1].values["found"]["renamed"] == 0


def test_one_place_with_several_alleles_is_told_apart(tmp_path):
    """A split multi-allelic variant: one name and place twice, with other alleles."""
    data = people(53, n=240, m=4, missing=0)
    v = data.variants
    position, name = v.position.copy(), np.array(v.name)
    position[1], name[1] = position[0], name[0]
    data.variants = replace(v, position=position, name=name, a1=np.array(list("AAAA")),
                            a2=np.array(list("CGCC")))  # fmt: skip
    bases = cut(tmp_path, data, PARTS[:2])
    bases.append(write(tmp_path, "other", data, PARTS[2], [1, 0, 2, 3]))
    chosen = study("chi-square")
    program, state, _ = carry_out(chosen, sites(chosen, bases))
    alone, whole, _ = carry_out(chosen, sites(chosen, [write(tmp_path, "all", data)]))
    found, pooled = results(program, state), results(alone, whole)
    assert len(found.variants) == 4
    np.testing.assert_allclose(found.columns["CHISQ"], pooled.columns["CHISQ"])


def test_another_genome_build_is_named_and_chance_meetings_are_no_matches(tmp_path):
    data = people(54, n=240, m=12, missing=0)
    v = data.variants
    data.variants = replace(v, a1=np.full(12, "A"), a2=np.full(12, "C"))
    other = replace(data, variants=replace(data.variants, position=v.position + 1000))
    bases = [write(tmp_path, "a", data, PARTS[0]), write(tmp_path, "b", other, PARTS[1])]
    chosen = study("chi-square")
    with pytest.raises(DataError, match="another genome build"):
        carry_out(chosen, sites(chosen, bases))


def _said(folder):
    """What a user sees: the terminal and the report."""
    runner = CliRunner()
    (folder / "study.toml").write_text(_study(folder).to_toml())
    out = ["--out", str(folder / "again")]
    shown = runner.invoke(app, ["gwas", "run", str(folder / "study.toml"), "--quiet", *out])
    assert shown.exit_code == 0, shown.output
    return shown.output, (folder / "again" / "report.html").read_text()


def test_what_is_left_out_is_counted_everywhere(tmp_path):
    data = _data()
    cut(tmp_path, data, PARTS[:2])
    absent = np.delete(np.arange(12), 10)
    write(tmp_path, "c2", data, PARTS[2], absent)
    result = cupola.run(_study(tmp_path), tmp_path / "run").result
    assert result["proposed"] == [["c0", 9], ["c1", 1], ["c2", 1]]
    assert result["agreement"]["unlisted"] == 3  # one variant, in three files
    assert result["left_out"] == {"absent in a cohort": 1}
    assert "3 of 35 variants (8.6%" in result["warnings"][0]
    named = (tmp_path / "run" / "study.dropped.tsv").read_text()
    assert data.variants.name[10] in named
    assert data.variants.name[8] not in named
    for said in _said(tmp_path):
        assert "left out: absent in a cohort" in said
        assert "on no list, all cohorts" in said
        assert "3 of 35 variants" in said
    own = (tmp_path / "run" / "sites" / "c1.unlisted.tsv").read_text()
    assert own.splitlines()[1:] == [_line(data.variants, 8)]


def _line(v, i):
    return "\t".join(map(str, (v.chromosome[i], v.name[i], v.position[i], v.a1[i], v.a2[i])))


def test_check_counts_it_before_anything_is_sent(tmp_path):
    cut(tmp_path, _data(), PARTS)
    (tmp_path / "study.toml").write_text(_study(tmp_path).to_toml())
    shown = CliRunner().invoke(app, ["gwas", "check", str(tmp_path / "study.toml")])
    assert "on no list, all cohorts' files added up: 3" in shown.output
    assert "3 of 36 variants" in shown.output.replace("\n", " ")
    found = CliRunner().invoke(app, ["gwas", "check", str(tmp_path / "study.toml"), "--json"])
    assert json.loads(found.output)["agreement"]["unlisted"] == 3


def test_a_public_list_leaves_nothing_unnamed(tmp_path):
    data = _data()
    chosen = study("chi-square")
    own = sites(chosen, cut(tmp_path, data, PARTS))
    program, state, _ = carry_out(chosen, own, data.variants)
    assert len(results(program, state).variants) == 12
    assert state.values["own"]["unlisted"] == 0
    assert state.values["warnings"] == []


def test_a_public_list_that_changed_is_refused(tmp_path):
    data = _data()
    cut(tmp_path, data, PARTS)
    path = tmp_path / "public.bim"
    write_bim(path, data.variants)
    told = CliRunner().invoke(app, ["gwas", "list", str(path), "--json"])
    hashed = json.loads(told.output)["variants_hash"]
    chosen = _study(tmp_path, variants="public.bim", variants_hash=hashed)
    assert cupola.run(chosen, tmp_path / "run").result["list_hash"] == hashed
    write_bim(path, data.variants[slice(0, 11)])
    with pytest.raises(DataError, match="not the one that the study names"):
        cupola.run(chosen, tmp_path / "again")


def test_a_variant_under_many_names_is_told_once(tmp_path):
    """Else the noise in the place of what a cohort withholds would average away."""
    data = people(52, n=240, m=6, missing=0)
    bases = cut(tmp_path, data, PARTS)
    names = np.array(["rs0", *(f"alias{i}" for i in range(9)), data.variants.name[2]])
    v = data.variants[np.full(11, 2)]
    swapped = np.arange(11) % 2 == 1
    a1, a2 = np.where(swapped, v.a2, v.a1), np.where(swapped, v.a1, v.a2)
    crafted = Variants(v.chromosome, v.position, names, a1, a2)
    for chunk in (4096, 8):  # in one question, and in two
        chosen = study("chi-square", chunk=chunk)
        listed = variant_list_codec.pack(crafted, chunk)
        program, state, _ = carry_out(chosen, sites(chosen, bases), listed)
        kept = program.variants(state).name[state.arrays["reason"] == KEPT]
        assert kept.tolist() == [data.variants.name[2] if chunk == 4096 else "rs0"]


def _crafted(names, a1=None):
    """A list as bytes that no cohort of ours would pack."""
    n = len(names)
    columns = [bytes([1]) * n, bytes(8 * n), "\n".join(names).encode()]
    columns += ["\n".join(a1 or ["A"] * n).encode(), b"\n".join([b"G"] * n)]
    parts = [zlib.compress(column) for column in columns]
    head = np.array([n, *map(len, parts)], "<i8").tobytes()
    return np.frombuffer(head + b"".join(parts), np.uint8)


@pytest.mark.parametrize(
    "name", ["rs1 9", "rs1\t9", "", "rs\0", "rs\r", "rs\x85", "rs\u2028", "\x7f"]
)
def test_a_name_is_one_word_of_a_table(name):
    with pytest.raises(FederationError, match="not well formed"):
        variant_list_codec.unpack(_crafted(["rs0", name, "rs2"]))
    assert variant_list_codec.unpack(_crafted(["rs0", "é<&=1", "rs2"])).name[1] == "é<&=1"


def test_one_long_allele_does_not_fill_the_memory_of_every_cohort():
    many = ["A"] * 65536
    packed = _crafted(many, [*many[1:], "A" * 100_000])  # 6.5 GB, were all as long
    assert len(packed) < 3000
    assert variant_list_codec.unpack(packed).nbytes < 4e6
    with pytest.raises(FederationError, match="not well formed"):  # 200 letters a variant at most
        variant_list_codec.unpack(_crafted(many, [*many[1:], "A" * 20_000_000]))
