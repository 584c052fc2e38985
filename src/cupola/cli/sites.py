"""cupola site, cupola compensator: what a party decides for itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cupola.base.files import write_atomically
from cupola.cli.runs import AsJson
from cupola.cli.shell import compensator, print_json, site
from cupola.errors import DataError, PlanError

Folder = Annotated[
    Path, typer.Option("--folder", "-f", metavar="DIR", help="The party's own folder.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="As it will stand in rosters.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan or a study: a TOML file.")]
RosterFile = Annotated[Path, typer.Option("--roster", metavar="FILE", help="The study's roster.")]
StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="Its name in the roster.")]
DataName = Annotated[
    str | None, typer.Option("--data", metavar="NAME", help="Which of the site's data sets.")
]

_SITE = """\
# What this site allows. Nothing runs without an entry under [studies], which `cupola site join`
# writes after `cupola site preview`.
name = {name}
tasks = ["train", "evaluate"]  # what may run here; ["gwas *"] for association studies
unmasked_tasks = []            # tasks whose answers may leave without masks
minimum = 3                    # sites in a total, at least

# [budget]                     # of each data set, over all studies
# epsilon = 3.0
# delta = 1e-5

# [data.patients]              # by the name that plans use
# loader = "csv"
# path = "patients.csv"
# target = "outcome"
# test = 0.0                   # all rows are this site's; none are public

# [data.cohort]                # PLINK's files, for association studies
# bfile = "chip"               # chip.bed, chip.bim, chip.fam; or pfile, bgen, vcf
# pheno = "traits.pheno"
# cov = "people.cov"
"""


@site.command("init")
def init_site(name: Name, folder: Folder = Path(), as_json: AsJson = False) -> None:
    """Make a site's settings and keys; the private keys never leave this folder."""
    from cupola.site.settings import SITE

    _init(folder, SITE, _SITE.format(name=json.dumps(name, ensure_ascii=False)), name, as_json)


@compensator.command("init")
def init_compensator(name: Name, folder: Folder = Path(), as_json: AsJson = False) -> None:
    """Make a compensator's settings and keys."""
    from cupola.site.settings import COMPENSATOR

    text = (
        "# Nothing is answered without an entry under [studies], which "
        f"`cupola compensator join` writes.\nname = {json.dumps(name, ensure_ascii=False)}\n"
    )
    _init(folder, COMPENSATOR, text, name, as_json)


def _init(folder: Path, file: str, text: str, name: str, as_json: bool) -> None:
    from cupola.secure.roster import party_to_json
    from cupola.site.open import make_keys

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / file
    if path.exists():
        raise PlanError(f"{path} exists; edit it, or choose another folder (--folder)")
    identity = make_keys(folder, name)
    write_atomically(path, text.encode(), private=True)
    public = folder / "public.json"
    public.write_text(json.dumps(party_to_json(identity.public), indent=1) + "\n")
    facts = {
        "settings": str(path),
        "public": str(public),
        "fingerprint": identity.public.fingerprint,
    }
    if as_json:
        print_json(facts)
        return
    typer.echo(f"settings: {path}")
    typer.echo(f"public keys, for the roster: {public}")
    typer.echo(f"fingerprint, to compare by telephone: {identity.public.fingerprint}")


@site.command()
def preview(
    plan: PlanFile,
    roster: RosterFile,
    data: DataName = None,
    folder: Folder = Path(),
    as_json: AsJson = False,
) -> None:
    """Show every answer a study asks for, its size, protection and recipients. Joins nothing."""
    from cupola.site.consent_preview import preview as look

    found = look(folder, plan, roster, data)
    if as_json:
        print_json(found.as_dict())
        return
    _show(found.as_dict())


def _show(found: dict[str, Any]) -> None:
    from cupola.base import formatting

    typer.echo(f"study      {found['study']}")
    typer.echo(f"plan       {found['plan']}\nroster     {found['roster']}")
    for name, fingerprint in found["members"]:
        typer.echo(f"  {name}: {fingerprint}")
    for row in found["answers"]:
        times = "as often as needed" if row["times"] is None else formatting.times(row["times"])
        size = "" if row["bytes"] is None else f", {formatting.size(row['bytes'])} each"
        typer.secho(f"\n{row['task']}: {times}{size}", bold=True)
        typer.echo(f"  tells       {row['reveals']}")
        typer.echo(f"  goes to     {row['to']}")
        typer.echo(f"  protection  {row['protection']}")
    if not found["complete"]:
        typer.echo("\nLater questions depend on answers, or are more of the same.")
    for party, what in found["parties"]:
        typer.echo(f"\n{party} learns {what}")
    cost = found["epsilon"]
    if cost is not None:
        budget = "no budget" if cost["budget"] is None else f"budget {cost['budget']:g}"
        typer.echo(
            f"\nepsilon {cost['epsilon']:.3g} at delta {cost['delta']:g} ({cost['neighbours']}) "
            f"for each {cost['unit']}, against {cost['against']} ({budget})"
        )
        for what in cost["unprotected"]:
            typer.echo(f"unprotected: {what}")
    for line in found["limits"]:
        typer.echo(f"limits: {line}")
    for line in found["objections"]:
        typer.secho(f"cannot join: {line}", fg="yellow")


@site.command()
@compensator.command()
def withdraw(study: StudyName, folder: Folder = Path()) -> None:
    """Answer nothing more in a study, for good. What was told stays told."""
    from cupola.site.consent import withdraw as leave
    from cupola.site.join import tell_left

    leave(folder, study)
    told = "; its server was told" if tell_left(folder, study) else ""
    typer.echo(f"withdrawn from '{study}': no question of it is answered any more{told}")


@site.command("go-on")
@compensator.command("go-on")
def go_on(
    study: StudyName,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="SITE", help="A site that is lost; all of them at once."),
    ] = None,
    of: Annotated[
        list[Path] | None,
        typer.Option("--of", metavar="FILE", help="Another site's agreement, to believe it."),
    ] = None,
    folder: Folder = Path(),
) -> None:
    """Agree that a study goes on without a site that is lost for good, which then stays out.

    The difference of totals with and without it tells its answer to the coordinator: ask there
    first. Every site that stays signs (or the lost one itself), and the compensator, with pairwise
    masks every site, believes the files by --of.
    """
    from cupola.site.consent import agree_to_go_on, believe, look
    from cupola.site.settings import SITE, CompensatorSettings, SiteSettings

    kind: Any = SiteSettings if (folder / SITE).exists() else CompensatorSettings
    if not without and not of:
        raise PlanError("say who is lost (--without), or whose agreement to believe (--of)")
    if without:
        if kind is not SiteSettings:
            raise PlanError("sites agree; a compensator believes their agreements (--of)")
        text, awaited = agree_to_go_on(folder, study, without)
        path = folder / "go-on.json"
        path.write_text(text + "\n", encoding="utf-8")
        typer.echo(f"signed: hand {path} to the compensator, or without one to all other sites")
        _say_awaited(without, awaited)
    for file in of or ():
        try:
            body = file.read_bytes()
        except OSError:
            raise DataError(f"{file} cannot be read") from None
        lost, awaited = believe(look(folder, study, kind), body)
        _say_awaited(sorted(lost), awaited)


def _say_awaited(lost: list[str], awaited: tuple[str, ...]) -> None:
    who = ", ".join(lost)
    if awaited:
        typer.echo(f"without {who}: not yet; here, these have not signed: {', '.join(awaited)}")
    else:
        typer.echo(f"the study goes on without {who}, for good")


@site.command()
@compensator.command()
def revoke(
    of: Annotated[
        Path | None,
        typer.Option("--of", metavar="FILE", help="Another party's revocation, to believe it."),
    ] = None,
    folder: Folder = Path(),
) -> None:
    """Revoke this party's keys, or believe another party's revocation of its own.

    Every study with these keys stops here. Hand the written file to all other parties.
    """
    from cupola.secure.identity import Identity
    from cupola.secure.revocation import keep_revocation, revocation
    from cupola.site.settings import KEYS

    if of is not None:
        try:
            text = of.read_bytes()
        except OSError:
            raise DataError(f"{of} cannot be read") from None
        party = keep_revocation(folder, text)
        typer.echo(f"studies with the keys of '{party.name}' are no longer answered")
        return
    text_own = revocation(Identity.open(folder / KEYS))
    party = keep_revocation(folder, text_own)
    path = folder / "revocation.json"
    path.write_text(text_own + "\n", encoding="utf-8")
    typer.echo(f"the keys of '{party.name}' are revoked; hand {path} to all other parties")


@site.command()
@compensator.command()
def ledger(
    study: StudyName,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it: .csv or .json.")
    ] = None,
    folder: Folder = Path(),
    as_json: AsJson = False,
) -> None:
    """List every question of a study that reached this party, what was sent, and what it cost."""
    from itertools import groupby

    from cupola.base.formatting import count, size
    from cupola.site.ledger import as_csv, read_ledger, spent, summed_up
    from cupola.site.settings import SITE

    lines = read_ledger(folder, study)
    cost = spent(folder, study) if (folder / SITE).exists() else None
    told = summed_up(lines)
    facts = {"study": study, "spent": cost, "told": told, "questions": lines}
    if out is not None:
        whole = json.dumps(facts, indent=1)
        out.write_text(as_csv(lines) if out.suffix == ".csv" else whole, encoding="utf-8")
    if as_json:
        print_json(facts)
        return
    answers = sum(row["answers"] for row in told)
    typer.echo(f"{study}: {count(len(lines), 'question')}, {answers:,} answered")
    for to, rows in groupby(told, lambda row: row["to"]):
        tasks = list(rows)
        sent = size(sum(row["bytes"] for row in tasks))
        named = ", ".join(f"{row['task']} {row['answers']:,}" for row in tasks)
        typer.echo(f"  {to.replace(': ', ', ')}: {sent} ({named})")
    if cost is None:
        return
    typer.echo(f"data set '{cost['data']}', all studies:")
    if cost["epsilon"] or cost["budget"] is not None:
        budget = "" if cost["budget"] is None else f" of {cost['budget']:g}"
        typer.echo(
            f"  spent: epsilon {cost['epsilon']:.4g}{budget} at delta {cost['delta']:g} "
            f"({cost['neighbours']})"
        )
    if exact := sum(cost["unprotected"].values()):
        typer.echo(f"  without noise: {count(exact, 'answer')}, masked ones among them")
    if cost["released"]:
        typer.echo(f"  numbers a person told by regressions and components: {cost['released']:.2f}")
