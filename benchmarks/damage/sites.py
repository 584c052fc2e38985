"""Damaged folders of real parties: does a site or a compensator notice, or somebody else?

    python benchmarks/damage/sites.py --folders 100 --out benchmarks/damage/sites.json

Three sites and a compensator train (SCAFFOLD, so that sites keep state) or carry out an association
study (sites follow it) up to the middle. One file of one party is damaged, or its whole folder is
put back to an earlier time; then everybody is opened anew and goes on. Outcomes: 'identical' to the
undisturbed end; 'refused': the party says that its files are not usable, and its own log names the
file and the way out, or the coordinator refuses its receipt; 'different'; 'unclear'.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "site")]

import consortium as made  # noqa: E402
from harm import harm, tell  # noqa: E402
from runs import summary  # noqa: E402
from traits import association, hidden, witnessed  # noqa: E402

from cupola.association import Association  # noqa: E402
from cupola.errors import CupolaError  # noqa: E402
from cupola.federation import Federation, Program, State, drive  # noqa: E402
from cupola.federation.receipts import Receipts  # noqa: E402
from cupola.site import study_folder  # noqa: E402

PLAN = {**made.PLAN, "recipe": "scaffold", "rounds": 6}
PARTIES = ("site-0", "site-1", "compensator")


class Stopped(Exception):
    pass


class Trial:
    """Parties half way through; before: at an earlier time."""

    def __init__(self, kind: str, place: Path) -> None:
        self.kind, self.place = kind, place
        place.mkdir(parents=True)
        if kind == "training":
            self.begun = made.consortium(place / "begun", PLAN)
        else:
            self.begun, self.plan = association(place / "begun", "linear")
        self.states: list[State] = []
        steps = self.run(self._copied(self.begun, "counted"), None, None).step
        early, middle = max(1, steps // 3), max(2, steps * 2 // 3)
        self.states = []
        self.early = self._copied(self.begun, "early")
        self.run(self.early, None, early)
        self.half = self._copied(self.early, "half")
        self.state = self.run(self.half, self.states[-1], middle)
        whole = self._copied(self.half, "whole")
        self.end = self.run(whole, self.state, None)

    def _copied(self, trial: made.Consortium, name: str) -> made.Consortium:
        return made.copied(trial, self.place / name)

    def program(self, trial: made.Consortium) -> Program:
        return trial.training() if self.kind == "training" else Association(self.plan.study(), 3)

    def run(self, trial: made.Consortium, state: State | None, until: int | None) -> State:
        """Go on, up to a step; the state reached."""
        receipts, last = Receipts(trial.base / "receipts.json"), []
        sites, third = trial.open()
        for wire, label in ((sites, "site"), (third, "compensator")):
            wire.receipts, wire.label = receipts, label
        reach: Federation = (hidden if self.kind == "training" else witnessed)(trial, sites, third)
        reach.quorum = 1.0

        def after(new: State) -> None:
            last.append(new)
            self.states.append(new)
            reach.confirm(new.step - 1)
            if until is not None and new.step >= until:
                raise Stopped

        try:
            return drive(self.program(trial), reach, state, after)
        except Stopped:
            return last[-1]
        finally:
            trial.close()

    def damaged(self, seed: int) -> dict[str, Any]:
        folder = self.place / f"damaged-{seed}"
        copy = made.copied(self.half, folder)
        party = PARTIES[seed % len(PARTIES)]
        own = study_folder(folder / party, copy.study).relative_to(folder)
        if seed % 10 == 9:
            shutil.rmtree(folder / own)
            shutil.copytree(self.early.base / own, folder / own)
            what = f"old copy of all: {party}"
        else:
            old, other = self.early.base / own, self.half.base / "site-2" / own.relative_to(party)
            what = harm(folder / own, seed, old, other)
        found, said = self._outcome(copy, folder / own)
        shutil.rmtree(folder)
        return {"seed": seed, "run": self.kind, "party": party, "damage": what, "outcome": found,
                "said": said}  # fmt: skip

    def _outcome(self, trial: made.Consortium, own: Path) -> tuple[str, str]:
        try:
            end = self.run(trial, self.state, None)
        except CupolaError as error:
            log = own / "log.txt"
            text = log.read_text().splitlines()[-1] if log.exists() else ""
            told = str(error)
            local = "not usable" in told and "is damaged" in text and str(own) in text
            return ("refused" if local or "old or an edited copy" in told else "unclear",
                    f"{told} | {text}".replace(str(trial.base), "FOLDER"))  # fmt: skip
        except Exception as error:
            return "unclear", f"{type(error).__name__}: {error}"
        return ("identical" if same(end, self.end) else "different"), ""


def same(one: State, two: State) -> bool:
    return one.arrays.keys() == two.arrays.keys() and all(
        one.arrays[name].tobytes() == two.arrays[name].tobytes() for name in one.arrays
    )


def measure(folders: int, place: Path, make: Callable[[str, Path], Trial] = Trial) -> Any:
    trials = {kind: make(kind, place / kind) for kind in ("training", "study")}
    found = [
        trials["training" if seed % 5 < 3 else "study"].damaged(seed) for seed in range(folders)
    ]
    return summary(found, "run")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folders", type=int, default=100)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        found = measure(given.folders, Path(place))
    found["seconds"] = round(time.monotonic() - began)
    tell(found, given.out)


if __name__ == "__main__":
    main()
