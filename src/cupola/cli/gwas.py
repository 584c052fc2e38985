"""cupola gwas run, check, list, relatives, project, resume, split, compare: association studies
over cohorts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cupola.cli.check_plan import check
from cupola.cli.runs import AsJson, Quiet, Settings, carry_out, resume
from cupola.cli.shell import app, print_json
from cupola.errors import PlanError

gwas = typer.Typer(
    no_args_is_help=True,
    help="Genome-wide association studies over cohorts. Begin with `cupola gwas example DIR`.",
)
app.add_typer(gwas, name="gwas")

_BFILE = "Name of .bed, .bim and .fam (or .pgen, .pvar and .psam; .bgen; .vcf.gz)."
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="A study: a TOML file.")]


@gwas.command()
def run(
    study: StudyFile,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="COHORT", help="Leave a cohort out; it must have agreed (may_leave)."),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the study that DIR holds.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Carry out a study: like `cupola run`, and can go on without a cohort."""
    # Before numpy is loaded: clearing huge pages takes longer than what is written to them.
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    from cupola.analysis.plan_file import load
    from cupola.association.plan import StudyPlan, leave

    plan = load(study, settings or (), of=StudyPlan)
    folder = out or Path("runs") / plan.name
    if without:
        plan, overwrite = leave(plan, folder, without), True
    carry_out(plan, folder, overwrite, as_json, quiet)


gwas.command("check")(check)
gwas.command("resume")(resume)


@gwas.command()
def example(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    as_json: AsJson = False,
) -> None:
    """Write three cohorts of people who do not exist, and a study of them, to begin with."""
    from cupola.association.example_cohorts import write_example

    study = write_example(folder)
    if as_json:
        print_json({"study": str(study)})
        return
    typer.echo(f"{study}: a study of three cohorts, 300 people each; go on with")
    typer.echo(f"  cupola check {study}\n  cupola run {study}")


@gwas.command("list")
def list_of_variants(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A public list: a .bim file.")],
    frequencies: Annotated[
        bool,
        typer.Option(
            "--frequencies",
            help="With those beside it (.afreq, .frq): unknown_strand = 'frequency'.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print how many variants a public list has, and the hash by which a study names it."""
    from cupola.association import variant_list_codec
    from cupola.association.reference_frequencies import public_list

    variants = public_list(file, "frequency" if frequencies else "keep")
    facts = {"variants": len(variants), "variants_hash": variant_list_codec.fingerprint(variants)}
    if as_json:
        print_json(facts)
        return
    typer.echo(f"{file}: {len(variants):,} variants; write in the study:")
    typer.echo(f'variants_hash = "{facts["variants_hash"]}"')


@gwas.command()
def relatives(
    bfile: Annotated[str, typer.Argument(metavar="BFILE", help=_BFILE)],
    least: Annotated[
        float,
        typer.Option(
            "--kinship",
            min=-1.0,
            max=0.5,
            metavar="K",
            help="Least kinship of a pair: 0.354 one "
            "person twice, 0.177 first degree, 0.0884 second.",
        ),
    ] = 0.0884,
    as_json: AsJson = False,
) -> None:
    """Print pairs of relatives in one cohort's files, by KING-robust kinship."""
    import numpy as np

    from cupola.association import relatives as pairs
    from cupola.association.file_sets import named_files
    from cupola.association.files import read_people, read_variants
    from cupola.association.genotypes import open_genotypes

    files = named_files(Path(bfile))
    person, variants = read_people(files.fam).person, read_variants(files.bim)
    bed = open_genotypes(files.bed, person, len(variants))
    found = pairs.related(bed, variants, np.arange(len(person)), least)
    gone = pairs.left_out(found)
    if as_json:
        rows = [[person[p.first], person[p.second], p.kinship] for p in found]
        print_json({"pairs": rows, "left_out": [person[i] for i in gone]})
        return
    typer.echo(pairs.as_lines(found, person, gone).decode(), nl=False)
    typer.echo(
        f"{len(found):,} pairs; a study with quality.kinship = {least:g} leaves out {len(gone):,} "
        f"of {len(person):,} people",
        err=True,
    )


@gwas.command()
def project(
    loadings: Annotated[
        Path, typer.Argument(metavar="LOADINGS", help="A study's table NAME.loadings.tsv.")
    ],
    bfile: Annotated[str, typer.Argument(metavar="BFILE", help=_BFILE)],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the scores go.")],
    as_json: AsJson = False,
) -> None:
    """Project other people on a study's principal components, by its loadings."""
    from cupola.association.file_sets import named_files
    from cupola.association.structure.projection import project, read_loadings, score_table
    from cupola.base.files import write_atomically

    found = project(read_loadings(loadings), named_files(Path(bfile)))
    write_atomically(out, score_table(found.person, found.scores))
    if as_json:
        facts = {k: v for k, v in vars(found).items() if k not in ("person", "scores")}
        print_json({**facts, "people": len(found.person), "file": str(out)})
        return
    typer.echo(
        f"{found.found:,} of {found.markers:,} markers with loadings found "
        f"({found.swapped:,} with alleles in the other order, {found.flipped:,} on the other "
        f"strand); {found.missing:.2%} of their calls are missing and count as the study's mean"
    )
    for reason, count in found.missed.items():
        typer.echo(f"not found: {count:,} {reason}")
    typer.echo(f"{out}: {len(found.person):,} people on {found.scores.shape[1]} components")


@gwas.command()
def split(
    bfile: Annotated[str, typer.Argument(metavar="BFILE", help=_BFILE)],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the lists.")],
    table: Annotated[
        Path | None, typer.Option(help="Table with FID, IID and columns.", metavar="FILE")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column that names the cohorts, or that is cut into parts.")
    ] = None,
    parts: Annotated[
        int | None, typer.Option(min=2, help="Cut the column into so many cohorts, low to high.")
    ] = None,
    cases: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Share of cases in each cohort: 0.75,0.5,0.25."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Relative sizes of the cohorts: 2,1,1. Enough alone."),
    ] = None,
    trait: Annotated[
        str | None, typer.Option(help="Column of --table with the trait; else the .fam file's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Cut one data set into cohorts: lists of people, for experiments."""
    from cupola.association.file_sets import named_files
    from cupola.association.files import read_people
    from cupola.association.split import by_cases, by_column, by_covariate, by_sizes, write_keeps

    files = replace(named_files(Path(bfile)), pheno=table, cov=table)
    if cases is not None:
        shares, weights = _numbers("--cases", cases), sizes and _numbers("--sizes", sizes)
        found = by_cases(files, trait, shares, weights or None, seed)
    elif sizes is not None and column is None:
        found = by_sizes(read_people(files.fam).person, _numbers("--sizes", sizes), seed)
    elif table is None or column is None:
        raise PlanError(
            "say how to cut: --sizes 1,1,1; or --cases 0.75,0.5,0.25 (shares of cases); or "
            "--table FILE --column NAME [--parts N]"
        )
    elif parts is not None:
        found = by_covariate(files, column, parts)
    else:
        found = by_column(read_people(files.fam).person, table, column)
    paths = write_keeps(found, out, Path(bfile).name)
    facts = {str(path): len(people) for path, people in zip(paths, found.values())}
    if as_json:
        print_json(facts)
        return
    for path, people in facts.items():
        typer.echo(f"{path}: {people:,} people")


@gwas.command()
def compare(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="A table of results.")],
    reference: Annotated[
        Path, typer.Argument(metavar="REFERENCE", help="Another: PLINK's, GWAMA's, ours.")
    ],
    p: Annotated[
        str | None,
        typer.Option(help="Column of p-values in REFERENCE, if it is none of the usual."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two result tables: correlation of -log10 p, largest difference, hits."""
    from cupola.association.compare import compare_results, read_results

    found = compare_results(read_results(result), read_results(reference, p))
    if as_json:
        print_json(found)
        return
    worst = found["largest_difference"]
    typer.echo(f"{found['compared']:,} variants compared of {found['variants']:,} in common")
    typer.echo(
        f"-log10 p: Pearson {_share(found['pearson'])}, Spearman {_share(found['spearman'])}, "
        f"largest difference {worst['log10_p']:.4g} ({worst['variant']})"
    )
    typer.echo(
        f"NA only in the first: {found['na_only_first']:,}, "
        f"only in the reference: {found['na_only_reference']:,}"
    )
    for name, hits in found["hits"].items():
        typer.echo(
            f"hits at {name}: {hits['both']} in both, {len(hits['gained'])} gained, "
            f"{len(hits['lost'])} lost"
        )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.6f}"


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise PlanError(f"{option} {text}: say numbers with commas, for example 0.75,0.5") from None
