"""cupola site join, site open, compensator join: a party's way into a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cupola.cli.runs import AsJson
from cupola.cli.shell import compensator, print_json, site
from cupola.cli.sites import Folder, _show
from cupola.errors import CupolaError, FederationError, PlanError

if TYPE_CHECKING:
    from cupola.site.join import Joining

What = Annotated[
    str, typer.Argument(metavar="URL|PLAN", help="Of a web application; or a plan or study file.")
]
Token = Annotated[
    str | None, typer.Argument(metavar="[TOKEN]", help="What its coordinator sent you, with a URL.")
]
RosterFile = Annotated[
    Path | None, typer.Option("--roster", metavar="FILE", help="With a plan: the study's roster.")
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Accept what is asked; the roster is still to be compared.")
]
Compared = Annotated[
    str | None,
    typer.Option(
        metavar="FINGERPRINT", help="Of the roster, as the others told you: no other is accepted."
    ),
]
Decline = Annotated[bool, typer.Option("--decline", help="Read what is asked, and decline.")]
Wait = Annotated[
    float,
    typer.Option(
        min=0, metavar="MINUTES", help="To stay when the study is stopped, in case it is resumed."
    ),
]


@site.command()
def join(
    what: What,
    token: Token = None,
    roster: RosterFile = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="NAME[=...]",
            help="A data set of the site's settings; or a new one: NAME=FILE (a table, or PLINK "
            "files), NAME={loader = ...} as in settings.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="With --data NAME=TABLE: the column to predict.")
    ] = None,
    unmasked_tasks: Annotated[
        list[str] | None,
        typer.Option(help="A task whose answers may leave without masks, for a new site."),
    ] = None,
    openly: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget of each data set, for a new site.")
    ] = None,
    cores: Annotated[int, typer.Option(min=1, help="To compute with.")] = 1,
    wait: Wait = 60.0,
    yes: Yes = False,
    compared: Compared = None,
    decline: Decline = False,
    folder: Folder = Path(),
    as_json: AsJson = False,
) -> None:
    """Join a study: of a web application by its URL and your token, or by its plan and roster.

    With a token it shows what is asked, takes part if you accept, and ends with the study; results
    are in the folder's `results`. The same command goes on with what was broken off.
    """
    from cupola.site.dataset_settings import named_data
    from cupola.site.join import Choice

    if not _is_url(what):
        from cupola.site.consent import join_site

        _pinned(join_site(folder, Path(what), _needed(roster, token), data), as_json)
        return
    joining = _began(folder, what, token, roster, "site")
    analysis = None if joining.terms is None else joining.proposal.analysis
    name, new = named_data(data, analysis, target) if data else (None, None)
    if openly:
        typer.echo("--openly is now called --unmasked-tasks", err=True)
    unmasked = (*(unmasked_tasks or ()), *(openly or ()))
    choice = Choice(name, new, unmasked, epsilon, cores)
    _way(joining, choice, yes, compared, decline, wait, as_json)


@compensator.command("join")
def join_third(
    what: What,
    token: Token = None,
    roster: RosterFile = None,
    wait: Wait = 60.0,
    yes: Yes = False,
    compared: Compared = None,
    decline: Decline = False,
    folder: Folder = Path(),
    as_json: AsJson = False,
) -> None:
    """Be the compensator of a study: of a web application by URL and token, or by plan and roster.

    It must not be run by whoever coordinates: together they can read every site's answers.
    """
    from cupola.site.join import Choice

    if not _is_url(what):
        from cupola.site.consent import join_compensator, nearly_before

        pinned = _needed(roster, token)
        _pinned(join_compensator(folder, Path(what), pinned), as_json)
        for _, line in () if as_json else nearly_before(folder, pinned):
            typer.echo(f"the coordinator learns {line}")
        return
    began = _began(folder, what, token, roster, "compensator")
    _way(began, Choice(), yes, compared, decline, wait, as_json)


def _is_url(what: str) -> bool:
    return what.lower().startswith(("http://", "https://"))


def _needed(roster: Path | None, token: str | None) -> Path:
    if roster is None or token is not None:
        raise PlanError(
            "a plan is joined with --roster FILE; a token goes with a URL (https://...)"
        )
    return roster


def _began(folder: Path, url: str, token: str | None, roster: Path | None, role: str) -> Joining:
    from cupola.site.join import begin

    if token is None or roster is not None:
        raise PlanError("a URL goes with the token that the study's coordinator sent you")
    return begin(folder, url, token, role)


def _way(
    joining: Joining,
    choice: Any,
    yes: bool,
    compared: str | None,
    decline: bool,
    wait: float,
    as_json: bool,
) -> None:
    """From what is asked to the end of the study."""
    from cupola.analysis.folder_lock import signals

    if not joining.answered:
        _asked(joining, choice)
        if decline or not (yes or typer.confirm("\nTake part?", err=True)):
            joining.decline()
            typer.echo("declined; the token is used up", err=True)
            return
        joining.accept(choice)
        typer.echo("accepted; waiting for the others", err=True)
    if joining.terms is not None and not _agree(joining, compared):
        return
    with signals(_interrupt):  # so that a party's FLARE process ends with this one
        last = joining.take_part(_Line(), choice.cores, wait=60 * wait)
    facts = {"status": last["status"], "reason": last.get("reason")}
    if last["status"] != "finished":
        raise FederationError(
            f"the study ended as '{last['status']}': {last.get('reason') or 'no reason given'}; "
            "if it is resumed, give the same command again"
        )
    if joining.role == "site":
        facts["results"] = str(joining.results)
    if as_json:
        print_json(facts)
    else:
        typer.echo("finished" + (f"; results: {facts['results']}" if "results" in facts else ""))


def _asked(joining: Joining, choice: Any) -> None:
    """What the study asks: in words worked out here, for real sites."""
    from cupola.site.server import plain

    terms = joining.terms
    if terms is None:
        typer.echo(f"{joining.site}: simulated on the server; nothing leaves this machine")
    else:
        typer.echo(f"federation {terms.federation}, coordinator {terms.coordinator}")
        typer.echo(f"authority  {terms.authority}\n           (compare it by telephone)")
    if terms is not None and joining.role == "site":
        found = joining.look(choice)
        _show(found.as_dict())
        if found.objections:
            raise PlanError("this site cannot take part as it is set up; its token is kept for "
                            "the same command with other options")  # fmt: skip
        return
    if terms is not None:
        from cupola.analysis.disclosure import learned

        told = dict(learned(joining.proposal.plan.sum))
        typer.echo(f"\nthe compensator learns {told.get('compensator', 'nothing')}")
        return
    for row in joining.questions():
        typer.secho(f"\n{plain(row.get('task'))}", bold=True)
        for what, key in (("tells", "reveals"), ("goes to", "to"), ("protection", "protection")):
            typer.echo(f"  {what:<12}{plain(row.get(key))}")


def _agree(joining: Joining, compared: str | None) -> bool:
    """Wait for the roster, have it compared, pin it."""
    import time

    while (found := joining.agreed()) is None:
        status = joining.progress()["status"]
        if status in ("failed", "stopped", "finished"):
            raise CupolaError(f"the study ended as '{status}' before it began")
        time.sleep(1.0)
    roster, plan = found
    third = [] if roster.compensator is None else [roster.compensator]
    typer.echo(f"\nwho takes part in {roster.study}:", err=True)
    for party in (*roster.sites, *third):
        mark = " (compensator)" if party in third else ""
        typer.echo(f"  {party.name}{mark}: {party.fingerprint}", err=True)
    typer.secho(f"roster     {roster.fingerprint}", bold=True, err=True)
    if not joining.pinned(roster) and not _is_same(roster.fingerprint, compared):
        joining.leave()
        typer.echo("left the study; nothing was told", err=True)
        return False
    joining.pin(roster, plan)
    return True


def _is_same(fingerprint: str, compared: str | None) -> bool:
    """Whether the roster is the others' too: a person says so, or said before which one it is.
    Nobody is taken at their word who could not have read it."""
    if compared is not None:
        if compared.strip().lower() == fingerprint:
            return True
        raise FederationError(
            f"the roster is not {compared.strip()}, which you compared: do not go on, and tell the "
            "others"
        )
    typer.echo("Compare it with the others by telephone: who told you cannot be asked.", err=True)
    try:
        return typer.confirm("Do all have the same?", err=True)
    except typer.Abort:
        raise CupolaError(
            "nobody has compared the roster: do so by telephone, then give the same command with "
            f"--compared {fingerprint}"
        ) from None


def _interrupt() -> None:
    raise KeyboardInterrupt("stopped; the same command goes on")


class _Line:
    """Progress in a line for every change."""

    def __init__(self) -> None:
        self.said = ""

    def __call__(self, now: dict[str, Any]) -> None:
        from cupola.site.join import progress_text

        text = progress_text(now)
        if text != self.said:
            self.said = text
            typer.echo(text, err=True)


def _pinned(consent: Any, as_json: bool) -> None:
    if as_json:
        print_json(consent.model_dump())
        return
    typer.echo("joined; compare with the other parties:")
    typer.echo(f"plan       {consent.plan}\nroster     {consent.roster}")


@site.command("open")
def open_page(
    folder: Folder = Path(),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Serve a page, for this machine only, on which a study is joined without a terminal."""
    try:
        from cupola.web.site_page import serve
    except ImportError as error:
        raise CupolaError(f"the page needs {error.name}: pip install 'cupola[web]'") from None
    serve(folder, port, browser)
