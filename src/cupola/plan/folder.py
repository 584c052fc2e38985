"""A run folder: who may write to it, and what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cupola.base.chain import checkpoint_facts, damaged, mark, read_json, read_result, read_sealed
from cupola.errors import CupolaError, DataError, PlanError
from cupola.learn.frozen import FrozenPart
from cupola.nn.models.pretrained import INSTALLED
from cupola.plan.checkpoint import json_line
from cupola.plan.compose import federated_data, problem
from cupola.plan.holding import ASIDE, HIDDEN, Aside, remove
from cupola.plan.holding import locked as locked
from cupola.plan.holding import read_lines as read_lines
from cupola.plan.load import load
from cupola.plan.plan import Plan

#: All that a run may leave in its folder.
CONTENTS = (
    "plan.toml", "history.jsonl", "ledger.jsonl", "checkpoint", "partition.json",
    "model.safetensors", "result.json", "twin", "sites", "report.html", "runs.json",
    "privacy.jsonl", "privacy.id", "audit.json", "personal.json", "personal.safetensors",
    "masked.id", "compensator", "receipts.json",
)  # fmt: skip
#: Of these, what stays as it was once it is written, and what only grows (see `cupola.base.chain`).
FIXED = ("partition.json", "privacy.id", "masked.id")
CHAINS = ("privacy.jsonl", "compensator/compensator.jsonl")
#: What a finished run's result.json names with its checksum.
FINISHED = (
    "plan.toml", *FIXED, *CHAINS, "history.jsonl", "ledger.jsonl", "model.safetensors",
    "personal.json",
    "personal.safetensors", "twin/plan.toml", "twin/history.jsonl", "twin/model.safetensors",
    "twin/result.json",
)  # fmt: skip


class Run:
    """What a plan's execution left in its folder, finished or not."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in this folder."""
        folder = Path(folder)
        if (folder / "runs.json").exists():
            raise CupolaError(f"{folder} holds several runs; open one of its folders")
        if not (folder / "plan.toml").exists():
            raise CupolaError(f"{folder} holds no run (there is no plan.toml)")
        return cls(folder, held_plan(folder))

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per finished round."""
        path = self.folder / "history.jsonl"
        return list(read_lines(path)) if path.exists() else []

    @property
    def result(self) -> dict[str, Any]:
        """The summary in result.json; empty while the run is under way or was killed."""
        return read_result(self.folder)

    @property
    def status(self) -> str:
        """'finished', 'stopped' or 'failed'; 'unfinished' if it was killed or is under way."""
        return self.result.get("status", "unfinished")

    def model(self) -> nn.Module:
        """The trained model, on the CPU, in evaluation mode."""
        from safetensors.torch import load_file

        path = self.folder / "model.safetensors"
        if not path.exists():
            raise CupolaError(f"{self.folder} has no model yet; finish it with `{self.resume}`")
        read_result(self.folder, whole=True)
        made = problem(self.plan, federated_data(self.plan))
        module = made.build().to(made.dtype)
        source = self.result.get("source") if self.result else None
        if source and source != FrozenPart(module).installed:
            raise CupolaError(
                f"the weights of the source model '{self.plan.model.options['source']}' are not "
                f"those that {self.folder} was trained with; put that file back in its place"
            )
        self._fill(module, load_file(path))
        return module.eval()

    def _fill(self, module: nn.Module, saved: dict[str, Tensor]) -> None:
        """Put all saved values into a module. What it freezes itself must be among them, or it
        would keep what its code makes today; a source model's weights were compared before."""
        name, path = self.plan.model.name, self.folder / "model.safetensors"
        here = {**dict(module.named_buffers()), **module.state_dict()}
        for n in sorted(saved.keys() & here.keys()):
            if saved[n].shape != here[n].shape:
                raise CupolaError(
                    f"{path} does not fit the model '{name}': '{n}' is {list(saved[n].shape)} "
                    f"there, {list(here[n].shape)} here; open it with the code that made it"
                )
        missing, left = module.load_state_dict(saved, strict=False)
        for n in here.keys() & left:  # buffers that are no part of the state
            here[n].copy_(saved[n])
        strange = [n for n in left if n not in here]
        needed = dict(module.named_parameters())
        lost = [n for n in missing if n in needed and n not in getattr(module, INSTALLED, ())]
        if strange or any(needed[n].requires_grad for n in lost):
            raise CupolaError(
                f"{path} does not fit the model '{name}' of this version of cupola "
                f"('{[*strange, *lost][0]}'); open it with the version that made it"
            )
        if lost:
            raise CupolaError(
                f"{path} lacks '{lost[0]}', which '{name}' freezes itself: an earlier version of "
                "cupola left it out, and nothing tells whether the model's code makes the same "
                "values today. Run the plan again, or load the file into a model that you trust"
            )

    @property
    def resume(self) -> str:
        """The command that goes on with this run."""
        text = str(self.folder)
        return f"cupola resume {text!r}" if " " in text else f"cupola resume {text}"

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.status})"


def holds(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    return (folder / "plan.toml").exists() or (folder / "runs.json").exists()


def held_plan(folder: Path) -> Plan:
    """The plan of the run in this folder, verified."""
    path = folder / "plan.toml"
    if not path.is_file():
        raise damaged(path, "it is missing")
    _, verified = read_sealed(path)
    try:
        plan = load(path)
    except PlanError as error:
        if verified:
            raise
        raise damaged(path, str(error)) from None
    if checkpoint_facts(folder).get("plan") not in (None, "", likeness(plan)):
        raise damaged(path, "the checkpoint beside it is of another plan")
    return plan


def likeness(plan: Plan) -> str:
    """What a checkpoint is of: the plan, which may go on to more rounds."""
    return mark(json_line({**plan.to_dict(), "rounds": 0}).encode())


def claim(folder: Path, plan: Plan, overwrite: bool) -> Aside | None:
    """Make sure a new run of `plan` may fill this folder. With `overwrite` the old run goes: aside,
    until the new one has begun."""
    if overwrite and (holds(folder) or (folder / ASIDE).exists()):
        return Aside(folder, [*CONTENTS, *_inner(folder, plan)])
    if overwrite:
        clear(folder)
    elif holds(folder):
        what = Run(folder, plan)
        same = not (folder / "runs.json").exists() and same_plan(folder, plan)
        if same and what.status == "finished":
            raise PlanError(
                f"{folder} already holds this run, finished; "
                "choose another folder (--out) or run it again with --overwrite"
            )
        if same:
            raise PlanError(
                f"{folder} already holds this run, not finished; go on with `{what.resume}` "
                "or begin again with --overwrite"
            )
        raise PlanError(
            f"{folder} holds a run of another plan; choose another folder (--out), "
            "or replace it with --overwrite"
        )
    elif folder.is_dir() and any(_foreign(folder)):
        raise PlanError(f"{folder} holds other files; choose a new folder (--out)")
    return None


def _inner(folder: Path, plan: Plan) -> list[str]:
    """The folders of runs that a folder of several holds; as far as is known, those of `plan` if it
    is damaged."""
    path = folder / "runs.json"
    if not path.exists():
        return []
    try:
        names = [Path(entry["folder"]).name for entry in read_json(path)]
    except DataError:
        names = [label for label, _ in plan.settings()]
    return [name for name in names if holds(folder / name)]


def same_plan(folder: Path, plan: Plan) -> bool:
    """Whether the run in this folder is of this plan."""
    try:
        return load(folder / "plan.toml") == plan
    except CupolaError:
        return False


def clear(folder: Path) -> None:
    """Remove what runs leave behind, and nothing else. The plan goes last: a crash leaves a run."""
    for name in reversed(CONTENTS):
        remove(folder / name)


def _foreign(folder: Path) -> Iterator[Path]:
    return (p for p in folder.iterdir() if p.name not in HIDDEN and p.suffix != ".part")


def _status(folder: Path) -> str:
    try:
        return read_result(folder).get("status", "unfinished")
    except CupolaError:
        return "damaged"


def free_folder(plan: Plan, root: Path = Path("runs")) -> Path:
    """runs/NAME, or the first of runs/NAME-2, ... that is free; an unfinished run of the same
    plan is not passed over: it wants to be resumed."""
    for number in range(1, 100_000):
        folder = root / (plan.name if number == 1 else f"{plan.name}-{number}")
        if not folder.exists() or not (holds(folder) or any(_foreign(folder))):
            return folder
        if same_plan(folder, plan) and _status(folder) in ("unfinished", "stopped"):
            return folder
    raise PlanError(f"{root} is full; choose a folder with --out")
