"""What a person says of a data set on the way into a study, as the site's settings hold it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from cupola.analysis.protocol import Analysis
from cupola.base.files import write_atomically
from cupola.errors import DataError, PlanError
from cupola.site.proposal import Proposal
from cupola.site.settings import SITE, Budget, SiteSettings, read_settings

_DATA = (".csv", ".npz", ".parquet", ".arrow", ".feather", ".bed", ".keep",
         ".pgen", ".bgen", ".vcf", ".vcf.gz")  # ends of files  # fmt: skip

_HEAD = """\
# What this site allows. Made when it first joined a study; it is yours to change. Nothing runs
# without an entry under [studies].
"""


def named_data(
    text: str, analysis: Analysis[Any] | None, target: str | None = None
) -> tuple[str, dict[str, Any] | None]:
    """'NAME' of a data set in the settings; 'NAME=FILE', in the analysis' words; 'NAME={...}',
    as TOML writes its settings. analysis None: of a simulated site, whose data the server has.
    target: the column of a table that is to be predicted."""
    name, given, value = (part.strip() for part in text.partition("="))
    if not name:
        raise PlanError("--data is NAME, NAME=FILE or NAME={...}")
    if not given or analysis is None:
        return name, None
    if value.startswith("{"):
        try:
            return name, tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError as error:
            raise PlanError(f"--data {name}: {error}") from None
    return name, analysis.describe(Path(value).expanduser().absolute(), target)


def files_here(folder: Path, most: int = 200) -> list[str]:
    """Files below a folder that could be a data set."""
    found: list[str] = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        own = inside.parts[0] in ("kit", "key", "studies", "results", "spent", "revoked", "page")
        if not own and path.name.endswith(_DATA) and path.is_file():
            found.append(inside.as_posix())
        if len(found) >= most:
            break
    return found


def settings_for(
    folder: Path,
    name: str,
    proposal: Proposal,
    data: dict[str, dict[str, Any]],
    unmasked_tasks: tuple[str, ...] = (),
    epsilon: float | None = None,
) -> SiteSettings:
    """The site's settings, or, if it has none, some that allow what this study asks for and no
    more. data: sets to add. Nothing is written."""
    if not (folder / SITE).exists():
        budget = None if epsilon is None else Budget(epsilon=epsilon)
        found = SiteSettings(
            name=name,
            tasks=proposal.analysis.tasks,
            unmasked_tasks=unmasked_tasks,
            budget=budget,
        )
    else:
        found = read_settings(folder, SiteSettings)
        if found.name != name:
            raise DataError(f"{folder} is the folder of '{found.name}', the token is for '{name}'")
        if unmasked_tasks or epsilon is not None:
            raise PlanError(f"what the site allows is said in {folder / SITE}; change it there")
    for one, facts in data.items():
        if one in found.data and found.data[one] != facts:
            raise DataError(f"the settings have another data set '{one}'; choose another name")
    return found.model_copy(update={"data": {**found.data, **data}})


def write_settings(folder: Path, settings: SiteSettings) -> None:
    """Keep settings that `settings_for` made: a new file, or new data sets at the end of it. For
    the owner's eyes only: they can hold the salt of people's fingerprints."""
    path = folder / SITE
    if not path.exists():
        facts = settings.model_dump(mode="json", exclude_none=True, exclude={"studies"})
        write_atomically(path, _HEAD + tomli_w.dumps(facts), private=True)
        return
    known = read_settings(folder, SiteSettings).data
    new = {name: facts for name, facts in settings.data.items() if name not in known}
    if new:
        text = "\n" + tomli_w.dumps({"data": new})
        write_atomically(path, path.read_bytes() + text.encode(), private=True)
