"""cupola federation, coordinator, submit, and how sites and the compensator start: real parties."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from cupola.cli.runs import AsJson, Out, PlanFile, Quiet, Settings, show
from cupola.cli.shell import app, compensator, site
from cupola.errors import PlanError

federation = typer.Typer(no_args_is_help=True, help="Set up a federation of real parties.")
coordinator = typer.Typer(no_args_is_help=True, help="Run the coordinator.")
app.add_typer(site, name="site")
app.add_typer(compensator, name="compensator")
app.add_typer(federation, name="federation")
app.add_typer(coordinator, name="coordinator")

Own = Annotated[Path, typer.Option("--folder", "-f", metavar="DIR", help="The party's own folder.")]
Organiser = Annotated[
    Path, typer.Option("--federation", metavar="DIR", help="The organiser's folder.")
]


@federation.command("init")
def init(
    settings: Annotated[
        Path, typer.Argument(metavar="FEDERATION", help="Who takes part: federation.toml.")
    ] = Path("federation.toml"),
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR")] = Path("federation"),
    trial: Annotated[
        bool, typer.Option("--trial", help="Make all parties' kits here, to try it on one machine.")
    ] = False,
) -> None:
    """Make a federation's authority and an invitation for every party."""
    from cupola.engines.flare import launch, provision
    from cupola.engines.flare.federation_settings import load_federation

    launch.check_installed()
    whole = load_federation(settings)
    if trial:
        for folder in provision.trial(whole, out).values():
            typer.echo(f"{folder}")
        return
    invitations = provision.init(whole, out)
    typer.echo(f"authority: {provision.fingerprint(out / 'ca' / 'rootCA.pem')}")
    typer.echo("send each party its invitation, and tell it the authority's fingerprint by voice:")
    for path in invitations:
        typer.echo(f"  {path}")


@federation.command("request")
def request(
    invitation: Annotated[Path, typer.Argument(metavar="INVITATION")],
    folder: Own = Path(),
) -> None:
    """Make this party's key, and the request that the organiser signs. The key stays here."""
    from cupola.engines.flare import launch, provision

    launch.check_installed()
    made = provision.request(invitation, folder)
    typer.echo(f"authority: {provision.load_invitation(folder / provision.INVITATION).authority}")
    typer.echo("compare it with what the organiser tells you; then send the organiser:")
    typer.echo(f"  {made}")


@federation.command("approve")
def approve(
    requests: Annotated[list[Path], typer.Argument(metavar="REQUEST...")],
    folder: Organiser = Path("federation"),
) -> None:
    """Sign requests of invited parties."""
    from cupola.engines.flare import launch, provision

    launch.check_installed()
    for path in requests:
        typer.echo(f"send back: {provision.approve(path, folder)}")


@federation.command("install")
def install(
    signed: Annotated[Path, typer.Argument(metavar="SIGNED", help="What the organiser sent back.")],
    folder: Own = Path(),
) -> None:
    """Make this party's start-up kit from its key and its certificate."""
    from cupola.engines.flare import launch, provision

    launch.check_installed()
    typer.echo(f"start-up kit: {provision.install(signed, folder)}")


@federation.command("roster")
def roster(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="The study's name.")],
    sites: Annotated[list[Path], typer.Argument(metavar="SITE...", help="Sites' public.json.")],
    compensator: Annotated[
        Path | None, typer.Option("--compensator", metavar="FILE", help="Its public.json.")
    ] = None,
    minimum: Annotated[int, typer.Option(help="Fewest sites in a masked sum.")] = 3,
    changes: Annotated[
        bool,
        typer.Option(
            "--changes",
            help="Sites may change from total to total: differences can tell of single sites.",
        ),
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE")] = Path("roster.json"),
) -> None:
    """Write down who takes part in a study, from the public keys that the parties sent.

    Every party compares fingerprints with the others before it joins."""
    from cupola.secure.roster import Roster

    if out.exists():
        raise PlanError(f"{out} exists; choose another file (--out)")
    third = None if compensator is None else _public(compensator)
    parties = tuple(_public(path) for path in sites)
    made = Roster(study, parties, third, minimum, changes=changes)
    out.write_text(made.to_json())
    typer.echo(f"{out}: roster {made.digest.hex()}")
    for party in (*made.sites, *([third] if third else [])):
        typer.echo(f"  {party.name}: {party.fingerprint}")


def _public(path: Path) -> Any:
    import json

    from cupola.secure.roster import party_from_json

    try:
        return party_from_json(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise PlanError(f"{path} is not a party's public.json (see `cupola site init`)") from None


@coordinator.command("start")
def start_coordinator(folder: Own = Path()) -> None:
    """Run the coordinator until it is stopped (Ctrl-C)."""
    from cupola.engines.flare.launch import start

    start(folder, "coordinator")


@site.command("start")
def start_site(folder: Own = Path()) -> None:
    """Be there for the studies that this site has joined, until stopped (Ctrl-C)."""
    from cupola.engines.flare.launch import start

    start(folder, "site")


@compensator.command("start")
def start_compensator(folder: Own = Path()) -> None:
    """Be there for the studies that this compensator has joined, until stopped (Ctrl-C)."""
    from cupola.engines.flare.launch import start

    start(folder, "compensator")


@app.command()
def submit(
    plan: PlanFile,
    roster: Annotated[
        Path, typer.Option("--roster", metavar="FILE", help="Who takes part in the study.")
    ],
    user: Annotated[
        Path, typer.Option("--as", metavar="DIR", help="Folder with your own start-up kit.")
    ],
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a plan at real sites, follow it, and fetch its folder; the same command resumes it."""
    from cupola import report
    from cupola.analysis.header import PlanHeader
    from cupola.analysis.kinds import analysis_of
    from cupola.analysis.plan_file import load
    from cupola.analysis.run_folder import Run, free_folder
    from cupola.analysis.tracking import require_installed, tracked
    from cupola.cli.display import watching
    from cupola.engines.flare import launch
    from cupola.engines.flare.jobs import Job
    from cupola.engines.flare.submit import submit as hand_in
    from cupola.site.coordinator import checked, take_over

    launch.check_installed()
    given: PlanHeader = load(plan, settings or (), elsewhere=True)
    require_installed(given)
    whole = analysis_of(given.change({"track": None})).for_real_sites()
    folder = free_folder(whole) if out is None else out
    try:
        job = Job.of(whole.to_toml(), roster.read_text())
    except OSError as error:
        raise PlanError(f"{roster}: {error.strerror}") from None
    checked(job)
    if folder.exists() and any(folder.iterdir()):
        raise PlanError(f"{folder} is not empty; choose another folder (--out)")
    with watching(quiet, log=not as_json) as watch:
        end, packed = hand_in(job, user, _follow(watch, folder))
    take_over(end, packed, folder, whole)
    report.write(folder, analysis_of(whole))  # not by what the plan that came back may name
    with tracked(given, folder):
        pass  # all of it at once
    show([Run(folder, whole)], as_json, quiet)


_BEFORE = {"starting": "the parties get ready", "running": "at work"}
_WAITING = "waiting for the coordinator to begin"


def _follow(watch: Any, folder: Path) -> Any:
    """What the coordinator tells, as the progress of a run."""
    from cupola.analysis.run_progress import Progress

    said: set[str] = set()
    begun: list[bool] = []

    def tell(told: dict[str, Any]) -> None:
        then = "waiting for it" if told.get("waits") else "going on without it"
        for name in told.get("away", []):
            if name not in said:
                typer.echo(f"no answer from {name}: {then}", err=True)
        said.clear()
        said.update(told.get("away", []))
        if watch is None:
            return
        if not told.get("part"):  # before the first answers are there
            state = str(told.get("state"))
            words = "fetching the results" if begun else _BEFORE.get(state, _WAITING)
            watch(Progress(words, 0, 0, {}, 0, inf, folder))
            return
        begun.append(True)
        facts = {fact: told[fact] for fact in ("part", "done", "whole", "record", "rate")}
        facts["said"] = told.get("said", "")
        left, step = told["seconds_left"], tuple(told.get("step") or (1, 1))
        watch(
            Progress(**facts, seconds_left=inf if left is None else left, folder=folder, step=step)
        )

    return tell
