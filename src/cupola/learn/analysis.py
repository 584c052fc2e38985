"""Training as an analysis: from a plan to a model, personalisation included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import save as to_safetensors

from cupola.analysis.checkpoint import json_line, write_sealed
from cupola.analysis.protocol import Analysis, OwnSite, Progress, Watch
from cupola.base.files import write_atomically
from cupola.data import FederatedData, SiteData
from cupola.errors import PlanError
from cupola.federation import Program, State
from cupola.learn import Training, TrainingHost, build
from cupola.learn.changing_sites import may_change
from cupola.learn.forecast import forecast
from cupola.learn.plan import Plan
from cupola.learn.summary import TrainingResult, partition_table, result
from cupola.learn.training import without_matrices
from cupola.learn.twin import run_twin
from cupola.personalize import Personalisation
from cupola.personalize.files import write_group_models, write_personal

if TYPE_CHECKING:
    from cupola.analysis.run_folder import Run
    from cupola.federation.site import Host
    from cupola.pages.folder import RunFolder


class TrainingAnalysis(Analysis[Plan]):
    """Federated training, and what follows from the federated model."""

    kind = "training"
    Plan = Plan
    Result = TrainingResult
    fixed = ("partition.json",)
    files = (
        "partition.json", "model.safetensors", "personal.json", "personal.safetensors",
        "twin/plan.toml", "twin/history.jsonl", "twin/model.safetensors", "twin/result.json",
        "twin",
    )  # fmt: skip
    progress_part = "round"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._host: TrainingHost | None = None
        self.training: Training | None = None
        self.whole: Program | None = None
        self._twin: dict[str, Any] | None = None

    # Data and program

    def host(self) -> TrainingHost:
        return build.host(self.plan)

    def own_host(self, site: OwnSite) -> TrainingHost:
        from cupola.learn.own_data import own_host

        return own_host(self.plan, site)

    def known_host(self, names: Sequence[str], public: Callable[[str], Path]) -> TrainingHost:
        """Kind, shape and classes, from a public data set; sites that hold nothing here."""
        plan = build.with_public_data(self.plan, public)
        known = build.federated_data(plan)
        data = FederatedData(
            len(names),
            lambda _: SiteData(known.site(0).train.subset(slice(0, 0))),
            kind=known.kind,
            classes=known.classes,
            input_shape=known.input_shape,
            class_names=known.class_names,
            public=known.public,
            site_name=names.__getitem__,
            name=known.name,
            **known.token_facts,
        )
        return TrainingHost(build.problem(plan, data), data)

    def require_real(self) -> None:
        plan = self.plan
        if plan.twin:
            raise PlanError("twin = true: nobody has all data of real sites in one place")
        if plan.privacy.by_coordinator:
            raise PlanError(
                f"privacy.mechanism = '{plan.privacy.mechanism}': the coordinator's noise would "
                "come from the plan's seed, which everybody knows; choose one whose noise sites "
                "draw (dp-sgd, output, objective, distributed)"
            )
        if plan.privacy.on and plan.privacy.epsilon is not None:
            raise PlanError(
                "privacy.epsilon: the noise it needs depends on the sites' numbers of samples, "
                "which stay with them; give privacy.noise (`cupola check` finds it in a simulation)"
            )

    def program(self, host: Host) -> Program:
        assert isinstance(host, TrainingHost)
        self._host = host
        self.training = build.training(self.plan, host)
        self.whole = build.program(self.plan, host, self.training)
        return self.whole

    # What sites are asked

    @property
    def openly(self) -> tuple[str, ...]:
        if self.plan.personalise is not None:
            return ("evaluate", "sparsity", "adapt")
        return ("evaluate",) if self.plan.evaluation.per_site else ()

    @property
    def changes(self) -> bool:
        return may_change(self.plan)

    # A run

    def prepare(self, folder: Path, real: bool) -> None:
        assert self._host is not None
        assert self.training is not None
        assert self.whole is not None
        if self.plan.engine.quorum and not real:
            forecast(self.plan, self._host, self.training, self.whole)  # refuses what misses it
        table = folder / "partition.json"
        if not table.exists():
            write_sealed(table, json_line(partition_table(self._host.sites)))

    def record(self, before: State, after: State) -> dict[str, Any] | None:
        new = after.values["round"] > before.values["round"]
        return without_matrices(after.values["last"]) if new else None

    def progress(self, state: State) -> tuple[str, int, int]:
        if "personal" in state.values:
            assert isinstance(self.whole, Personalisation)
            return "personalise", *self.whole.progress(state)
        return "round", state.values.get("round", 0), self.plan.rounds

    def ended(self, state: State) -> str | None:
        return state.values["stopped"]

    def finish(self, state: State, folder: Path, watch: Watch) -> None:
        assert self.training is not None
        assert self._host is not None
        arrays = self.training.model(state)
        if self.plan.twin:
            self._twin = self._run_twin(state, folder, watch)
        write_atomically(folder / "model.safetensors", to_safetensors(arrays))
        if isinstance(self.whole, Personalisation):
            write_group_models(state, folder)

    def _run_twin(self, state: State, folder: Path, watch: Watch) -> dict[str, Any]:
        assert self.training is not None
        assert self._host is not None
        rounds = self.training.training_round(state.values["round"])
        place = folder / "twin"

        def between(record: dict[str, Any]) -> None:
            rate = record["round"] / max(record["seconds"], 1e-9)
            left = (rounds - record["round"]) / rate
            watch(Progress("round", record["round"], rounds, record, rate, left, place))

        ours = self.training.model(state)
        return run_twin(self.plan, place, self.training, self._host, rounds, ours, between)

    def summary(self, state: State, folder: Path, status: str, real: bool) -> dict[str, Any]:
        del status
        personal = None
        if "personal" in state.values and isinstance(self.whole, Personalisation):
            assert self._host is not None
            personal = write_personal(self.whole, state, self._host, folder)
        return result(
            self.plan,
            folder,
            state.values.get("last") or {},
            self._host,
            self.training,
            twin=self._twin,
            personal=personal,
            real=real,
        )

    # What people see

    def model(self, run: Run) -> Any:
        from cupola.learn.saved_model import load_model

        return load_model(run)

    def chips(self, run: RunFolder) -> list[tuple[str, str]]:
        from cupola.learn.report_sections import chips

        return chips(run)

    def sections(self, run: RunFolder) -> list[str]:
        from cupola.learn.report_sections import sections

        return sections(run)

    def parties(self) -> list[tuple[str, str]]:
        from cupola.learn.changing_sites import told
        from cupola.learn.disclosure import learned

        assert self.training is not None
        return learned(self.training, told(self.plan))

    def check(self) -> dict[str, Any]:
        from cupola.learn.check import facts

        return facts(self.plan)

    def check_lines(self, facts: Mapping[str, Any]) -> list[str]:
        from cupola.learn.check_text import lines

        return lines(facts)

    def show(self, run: Run, quiet: bool) -> list[Any]:
        from cupola.learn.show import show

        return show(run, quiet)
