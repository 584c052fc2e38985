"""cupola gwas run, check, list, resume, split, compare: association studies over cohorts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from cupola.cli.runs import AsJson, Quiet, Settings
from cupola.cli.shell import Shell, app, print_json
from cupola.errors import PlanError

gwas = typer.Typer(no_args_is_help=True, help="Association studies over cohorts.")
app.add_typer(gwas, name="gwas")

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="A study: a TOML file.")]
StudyFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a study.")]


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
    """Carry out a study whose cohorts are all in one place."""
    # Before numpy is loaded: clearing huge pages takes longer than what is written to them.
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    from cupola.plan.study import load_study
    from cupola.plan.study_run import run_study

    Shell.json = as_json
    plan = load_study(study, settings or ())
    folder = out or Path("runs") / plan.name
    with _showing(quiet or as_json) as watch:
        found = run_study(plan, folder, leaving=without or (), overwrite=overwrite, watch=watch)
    show_study(found, folder, as_json)


@gwas.command()
def check(study: StudyFile, settings: Settings = None, as_json: AsJson = False) -> None:
    """Say what a study will send, question by question, which variants it leaves out, and which
    limits are on."""
    from cupola.plan.grounds import of_study
    from cupola.plan.study import load_study
    from cupola.plan.study_forecast import foresee_study

    Shell.json = as_json
    plan = load_study(study, settings or ())
    told = foresee_study(plan)
    grounds = [ground.to_json() for ground in of_study(plan.sum, len(plan.cohorts))]
    if as_json:
        sent = {"down": told.down, "up": told.up, "total": told.total, "usual": told.usual,
                "told": told.told}  # fmt: skip
        more = {"at_most": list(told.at_most), "rows": list(told.rows)}
        facts = {"name": plan.name, "test": plan.test, "cohorts": len(plan.cohorts)}
        print_json(
            {
                **facts,
                "variants": told.variants,
                "people": told.people,
                **told.counted,
                "list_hash": told.list_hash,
                "bytes": sent | more,
                "limits": list(told.limits),
                "grounds": grounds,
            }
        )
        return
    from cupola.base import formatting

    typer.echo(
        f"{plan.name}: {plan.test}, {formatting.count(len(plan.cohorts), 'cohort')}, "
        f"{told.people:,} people, {formatting.count(told.variants, 'variant')}"
    )
    for row in told.rows:
        each = f"{formatting.size(row['down'])} down, {formatting.size(row['up'])} up"
        typer.echo(f"  {row['task']:<18} {formatting.count(row['questions'], 'time')}: {each}")
    most = "at most " if told.at_most else ""
    usual = (
        f" ({formatting.size(told.usual)} as it usually goes)" if told.usual < told.total else ""
    )
    typer.echo(f"{most}{formatting.size(told.total)} sent in all{usual}")
    for reason in told.at_most:
        typer.echo(f"  at most: {reason}")
    show_counted(told.counted)
    typer.echo(
        f"real cohorts follow the study by themselves and are told every total: {most}"
        f"{formatting.size(told.told)} more"
    )
    for line in told.limits:
        typer.echo(f"limits: {line}")
    from rich.console import Console

    from cupola.cli.look import ground_lines

    for line in ground_lines(grounds):
        Console(highlight=False).print(line, soft_wrap=True)


@gwas.command("list")
def list_of_variants(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A public list: a .bim file.")],
    as_json: AsJson = False,
) -> None:
    """Print how many variants a public list has, and the hash by which a study names it."""
    from cupola.gwas import read_variants, variant_list_codec

    Shell.json = as_json
    variants = read_variants(file)
    facts = {"variants": len(variants), "variants_hash": variant_list_codec.fingerprint(variants)}
    if as_json:
        print_json(facts)
        return
    typer.echo(f"{file}: {len(variants):,} variants; write in the study:")
    typer.echo(f'variants_hash = "{facts["variants_hash"]}"')


@gwas.command()
def resume(folder: StudyFolder, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Go on with a study that was stopped, killed, or waits for a cohort."""
    from cupola.plan.study_run import resume_study

    Shell.json = as_json
    with _showing(quiet or as_json) as watch:
        found = resume_study(folder, watch=watch)
    show_study(found, folder, as_json)


@gwas.command()
def split(
    bfile: Annotated[str, typer.Argument(metavar="BFILE", help="Name of .bed, .bim and .fam.")],
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
        str | None, typer.Option(metavar="A,B,C", help="Share of cases in each cohort.")
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Relative sizes of the cohorts.")
    ] = None,
    trait: Annotated[
        str | None, typer.Option(help="Column of --table with the trait; else the .fam file's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Cut one data set into cohorts: lists of people, for experiments."""
    from cupola.gwas import Files
    from cupola.gwas.files import read_people
    from cupola.gwas.split import by_cases, by_column, by_covariate, write_keeps

    Shell.json = as_json
    bed, bim, fam = (Path(f"{bfile}.{ending}") for ending in ("bed", "bim", "fam"))
    files = Files("all", bed, bim, fam, pheno=table, cov=table)
    if cases is not None:
        shares, weights = _numbers("--cases", cases), sizes and _numbers("--sizes", sizes)
        found = by_cases(files, trait, shares, weights or None, seed)
    elif table is None or column is None:
        raise PlanError("say how to cut: --cases A,B,C, or --table FILE --column NAME [--parts N]")
    elif parts is not None:
        found = by_covariate(files, column, parts)
    else:
        found = by_column(read_people(fam).person, table, column)
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
    from cupola.gwas.compare import compare_results, read_results

    Shell.json = as_json
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


def _showing(silent: bool) -> Any:
    """Progress, if it is wanted; what shows it is slow to load."""
    if silent:
        return nullcontext()
    from cupola.cli.display import showing

    return showing(silent)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.6f}"


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise PlanError(f"{option} {text}: say numbers with commas, for example 0.75,0.5") from None


def show_counted(found: Mapping[str, Any]) -> None:
    """What is in no table, what cohorts call otherwise, and warnings."""
    from cupola.gwas.accounting import missing

    for words, n in missing(found):
        typer.echo(f"  {words}: {n:,}")
    if renamed := found["agreement"].get("renamed"):
        typer.echo(f"  other names in cohorts, matched by position and alleles: {renamed:,}")
    for warning in found["warnings"]:
        typer.secho(f"warning: {warning}", fg="yellow")


def show_study(found: dict[str, Any], folder: Path, as_json: bool) -> None:
    """The result of a study."""
    if as_json:
        print_json({"folder": str(folder), **found})
        return
    from cupola.base import formatting

    people = found["people"]
    typer.echo(
        f"{found['tested']:,} of {found['variants']:,} variants tested in {people['tested']:,} "
        f"people of {len(found['cohorts'])} cohorts; {found['hits']['5e-8']:,} hits below 5e-8, "
        f"inflation {found['inflation'] or float('nan'):.3f}"
    )
    sent = found["bytes_down"] + found["bytes_up"]
    typer.echo(f"{formatting.size(sent)} sent, {formatting.duration(found['seconds'])}")
    show_counted(found)
    for a, b, n in found["shared_people"]:
        typer.secho(f"warning: cohorts '{a}' and '{b}' share {n:,} people", fg="yellow")
    for file in (*found["files"], "report.html"):
        typer.echo(str(folder / file))
