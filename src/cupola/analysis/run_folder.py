"""A run folder: who may write to it, and what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Unpack

from cupola.analysis.checkpoint import json_line, write_sealed
from cupola.analysis.folder_lock import ASIDE, HIDDEN, Aside, read_lines, remove
from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import analysis_of, find_kind
from cupola.analysis.overrides import flat
from cupola.analysis.plan_file import Objects, load, require_known
from cupola.analysis.protocol import Analysis
from cupola.base.chain import checkpoint_facts, damaged, mark, read_json, read_result, read_sealed
from cupola.base.held_objects import is_absent, named_objects, word_of
from cupola.base.renaming import reading_kept
from cupola.errors import CupolaError, DataError, PlanError

PLAN = "plan.toml"
STUDY = "study.toml"  # what association studies of the first edition called their plan
#: Of all that a run may leave in its folder, what every kind has. The plan goes first.
CONTENTS = (
    PLAN, STUDY, "history.jsonl", "ledger.jsonl", "checkpoint", "result.json", "sites",
    "report.html", "runs.json", "privacy.jsonl", "privacy.id", "audit.json", "masked.id",
    "compensator", "receipts.json", "track.json",
)  # fmt: skip
#: Of these, what stays as it was once it is written, and what only grows (see `cupola.base.chain`).
FIXED = ("privacy.id", "masked.id")
CHAINS = ("privacy.jsonl", "compensator/compensator.jsonl")


class Run:
    """What a plan's execution left in its folder, finished or not.

    >>> import cupola
    >>> data = {"name": "digits", "partition": {"kind": "iid", "sites": 4}}
    >>> plan = {"name": "tiny", "rounds": 1, "data": data, "model": "linear"}
    >>> _ = cupola.run(plan, "runs/opened")
    >>> run = cupola.Run.open("runs/opened")
    >>> run.plan.recipe, run.result.sites, run.result["final"]["round"]
    ('fedavg', 4, 1)
    >>> sum(parameter.numel() for parameter in run.model().parameters())
    650
    """

    def __init__(self, folder: Path, plan: Any) -> None:
        self.folder = folder
        self.plan = plan

    @classmethod
    def open(cls, folder: str | Path, **objects: Unpack[Objects]) -> Run:
        """The run in this folder. Its model, if it is an object's, needs that object again."""
        folder = Path(folder)
        if (folder / "runs.json").exists():
            raise CupolaError(f"{folder} holds several runs; open one of its folders")
        if plan_file(folder) is None:
            raise CupolaError(f"{folder} holds no run (there is no {PLAN})")
        plan = held_plan(folder, elsewhere=True)  # its sites may be real
        return cls(folder, with_same_objects(plan, folder, objects))

    @property
    def analysis(self) -> Analysis[Any]:
        return analysis_of(self.plan)

    @property
    def history(self) -> History:
        """One record per finished round."""
        path = self.folder / "history.jsonl"
        return History(read_lines(path) if path.exists() else ())

    @property
    def result(self) -> Any:
        """The summary in result.json, as the analysis' own `Result`; with the status 'unfinished'
        while the run is under way or was killed."""
        return find_kind(self.plan.kind).Result.of(read_result(self.folder))

    @property
    def status(self) -> str:
        """'finished', 'stopped' or 'failed'; 'unfinished' if it was killed or is under way."""
        return self.result.status

    def model(self) -> Any:
        """The trained model, on the CPU, in evaluation mode."""
        return self.analysis.model(self)

    @property
    def resume(self) -> str:
        """The command that goes on with this run."""
        return resume_command(self.folder, self.plan)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.status})"


class History(list[dict[str, Any]]):
    """Records of rounds, as a list; `frame` makes a table of them."""

    def frame(self) -> Any:
        """A `pandas.DataFrame` with a row for each round, and a column for each number by its
        dotted name ('test.accuracy'). Needs pandas: `pip install 'cupola[pandas]'`."""
        try:
            import pandas
        except ImportError:
            raise CupolaError(
                "history.frame() needs pandas: pip install 'cupola[pandas]'"
            ) from None
        return pandas.DataFrame([dict(flat(record)) for record in self])


def resume_command(folder: Path, plan: PlanHeader | None = None) -> str:
    """How to go on with a run: a command, or a call where it was begun with objects."""
    text = str(folder)
    if plan is not None and (keywords := _keywords(plan)):
        return f"cupola.resume({text!r}, {', '.join(f'{key}=...' for key in keywords)})"
    return f"cupola resume {text!r}" if " " in text else f"cupola resume {text}"


def contents(plan: PlanHeader) -> tuple[str, ...]:
    """All that a run of this plan may leave in its folder."""
    own = (Path(name).parts[0] for name in find_kind(plan.kind).files_of(plan.name))
    return tuple(dict.fromkeys((*CONTENTS, *own)))


def plan_file(folder: Path) -> Path | None:
    """The plan of the run in this folder."""
    paths = [folder / name for name in (PLAN, STUDY)]
    return next((path for path in paths if path.exists()), None)


def holds(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    return plan_file(folder) is not None or (folder / "runs.json").exists()


def held_plan(folder: Path, elsewhere: bool = False) -> Any:
    """The plan of the run in this folder, verified. elsewhere: of real sites."""
    path = plan_file(folder) or folder / PLAN
    if not path.is_file():
        raise damaged(path, "it is missing")
    _, verified = read_sealed(path)
    try:
        with reading_kept():
            plan: PlanHeader = load(path, elsewhere=elsewhere)
    except PlanError as error:
        if verified:
            raise
        raise damaged(path, str(error)) from None
    if checkpoint_facts(folder).get("plan") not in (None, "", likeness(plan)):
        raise damaged(path, "the checkpoint beside it is of another plan")
    return plan


def begin(
    plan: PlanHeader, folder: Path, resume: bool, overwrite: bool, real: bool = False
) -> Aside | None:
    """Make this folder the plan's; the run that it replaces."""
    require_objects(plan, folder)
    if resume and holds(folder):
        if held_plan(folder, real) != plan:
            raise PlanError(f"{folder} holds a run of another plan; choose another folder")
        return None
    old = claim(folder, plan, overwrite)
    with old or nullcontext():
        write_sealed(folder / PLAN, plan.to_toml())
    return old


def is_complete(folder: Path) -> bool:
    """Whether there is nothing left to do: what is damaged of a finished run is made again."""
    try:
        return read_result(folder, whole=True).get("status") == "finished"
    except DataError:
        if not (folder / "checkpoint").exists():
            raise
        return False


def _keywords(plan: PlanHeader) -> dict[str, str]:
    """The keywords by which a plan's objects are passed, and what people call them."""
    found: dict[str, str] = {}
    for key, name in named_objects(plan.to_dict()):
        keyword = "metrics" if key.startswith("evaluation.metrics") else key.partition(".")[0]
        found[keyword] = f"{found[keyword]}, {word_of(name)}" if keyword in found else word_of(name)
    return found


def require_objects(plan: PlanHeader, folder: Path) -> None:
    """PlanError if objects that the plan names are not here."""
    if any(is_absent(name) for _, name in named_objects(plan.to_dict())):
        told = ", ".join(f"{key} ({word})" for key, word in _keywords(plan).items())
        raise PlanError(
            f"plan '{plan.name}' was made with objects of a Python program, which are not here: "
            f"{told}; pass them again: {resume_command(folder, plan)}"
        )


def with_same_objects(plan: Any, folder: Path, objects: Mapping[str, Any]) -> Any:
    """A plan that was read from a folder, with the objects that it was begun with; PlanError if
    these are others."""
    if not objects:
        return plan
    require_known(objects)
    names, _held = find_kind(plan.kind).with_objects({}, objects)
    told = dict(flat(plan.to_dict()))
    for key, name in flat(names):
        if told.get(key) != name:
            raise PlanError(
                f"{folder} was begun with {key} = '{told.get(key)}', and this is '{name}': a run "
                "goes on only with the same code, weights and rows (their hash is after '#'). "
                "Pass what it was begun with, or begin a new run in another folder"
            )
    return load(plan, **objects)


def likeness(plan: PlanHeader) -> str:
    """What a checkpoint is of: the plan, which may go on to more rounds."""
    facts = {key: value for key, value in plan.to_dict(lasting=True).items() if key != "kind"}
    return mark(json_line({**facts, "rounds": 0}).encode())


def claim(folder: Path, plan: PlanHeader, overwrite: bool) -> Aside | None:
    """Make sure a new run of `plan` may fill this folder. With `overwrite` the old run goes: aside,
    until the new one has begun."""
    if overwrite and (holds(folder) or (folder / ASIDE).exists()):
        return Aside(folder, [*_left_by(folder, plan), *_inner(folder, plan)])
    if overwrite:
        for name in reversed(_left_by(folder, plan)):  # the plan goes last: a crash leaves a run
            remove(folder / name)
    elif holds(folder):
        raise _taken(folder, plan)
    elif folder.is_dir() and any(_foreign(folder)):
        raise PlanError(f"{folder} holds other files; choose a new folder (--out)")
    return None


def _taken(folder: Path, plan: PlanHeader) -> PlanError:
    """Why a folder that holds a run is not free for this plan, and the way out."""
    if (folder / "runs.json").exists() or not same_plan(folder, plan):
        return PlanError(
            f"{folder} holds a run of another plan; choose another folder (--out), "
            "or replace it with --overwrite"
        )
    if Run(folder, plan).status == "finished":
        return PlanError(
            f"{folder} already holds this run, finished; "
            "choose another folder (--out) or run it again with --overwrite"
        )
    return PlanError(
        f"{folder} already holds this run, not finished; resume it with `{resume_command(folder)}` "
        "or begin again with --overwrite"
    )


def _left_by(folder: Path, plan: PlanHeader) -> list[str]:
    """What a run of this plan may leave, and what the run that is there may have left."""
    found = dict.fromkeys(contents(plan))
    with suppress(CupolaError):
        found |= dict.fromkeys(contents(held_plan(folder)))
    return list(found)


def _inner(folder: Path, plan: PlanHeader) -> list[str]:
    """The folders of runs that a folder of several holds; as far as is known, those of `plan` if it
    is damaged."""
    path = folder / "runs.json"
    if not path.exists():
        return []
    try:
        names = [Path(entry["folder"]).name for entry in read_json(path)]
    except DataError:
        names = [label for label, _ in plan.settings()]
    return [name for name in names if name not in ("", "..") and holds(folder / name)]


def same_plan(folder: Path, plan: PlanHeader) -> bool:
    """Whether the run in this folder is of this plan."""
    path = plan_file(folder)
    try:
        return path is not None and load(path) == plan
    except CupolaError:
        return False


def _foreign(folder: Path) -> Iterator[Path]:
    return (p for p in folder.iterdir() if p.name not in HIDDEN and p.suffix != ".part")


def _status(folder: Path) -> str:
    try:
        return read_result(folder).get("status", "unfinished")
    except CupolaError:
        return "damaged"


def free_folder(plan: PlanHeader, root: Path = Path("runs")) -> Path:
    """runs/NAME, or the first of runs/NAME-2, ... that is free; an unfinished run of the same
    plan is not passed over: it wants to be resumed."""
    for number in range(1, 100_000):
        folder = root / (plan.name if number == 1 else f"{plan.name}-{number}")
        if not folder.exists() or not (holds(folder) or any(_foreign(folder))):
            return folder
        if same_plan(folder, plan) and _status(folder) in ("unfinished", "stopped"):
            return folder
    raise PlanError(f"{root} is full; choose a folder with --out")
