"""Training as an analysis: from a plan to a model, personalisation included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from safetensors.numpy import save as to_safetensors

from cupola.analysis.checkpoint import json_line, write_sealed
from cupola.analysis.explain import partitions
from cupola.analysis.forms import Form
from cupola.analysis.overrides import changed
from cupola.analysis.protocol import Analysis, OwnSite, SiteRules, Watch
from cupola.analysis.run_progress import Progress
from cupola.base.files import write_atomically
from cupola.data.dataset import FederatedData, SiteData
from cupola.errors import PlanError
from cupola.federation.message import Question
from cupola.federation.program import Program, State
from cupola.nn.peft_format import write_peft
from cupola.training import build, plan_names, plan_objects
from cupola.training.adapters import base_name, metadata
from cupola.training.changing_sites import may_change, told
from cupola.training.forecast import forecast
from cupola.training.label_maps import TASK, may_ask_sites
from cupola.training.loop import Training
from cupola.training.metrics import without_matrices
from cupola.training.personalise.personal_files import write_group_models, write_personal
from cupola.training.personalise.personal_program import Personalisation
from cupola.training.plan import Plan as TrainingPlan
from cupola.training.plan_check import deviation
from cupola.training.selection import kept, require_validation
from cupola.training.summary import TrainingResult, partition_table, result, show
from cupola.training.twin import run_twin
from cupola.training.workspace import TrainingHost

if TYPE_CHECKING:
    from cupola.analysis.preview import Preview
    from cupola.analysis.run_folder import Run
    from cupola.federation.site import Host
    from cupola.pages.folder import RunFolder
    from cupola.secure.roster import Roster

_STEPS = 6  # of a round: a map of labels, training, and four ways of judging, at most


class TrainingAnalysis(Analysis[TrainingPlan]):
    """Federated training, and what follows from the federated model."""

    kind = "training"
    Plan = TrainingPlan
    Result = TrainingResult
    fixed = ("partition.json", plan_objects.FILE)
    files = (
        "partition.json", plan_objects.FILE, "model.safetensors", "personal.json",
        "personal.safetensors",
        "twin/plan.toml", "twin/history.jsonl", "twin/model.safetensors", "twin/result.json",
        "twin", "adapter/adapter_config.json", "adapter/adapter_model.safetensors", "adapter",
    )  # fmt: skip
    progress_part = "round"
    comparable = True
    file_notes = MappingProxyType(
        {
            "model.safetensors": "the model",
            "personal.safetensors": "the groups' models",
            "personal.json": "groups and results of every site",
            "partition.json": "who holds what",
            "adapter/adapter_model.safetensors": "the adapter, as peft loads it",
            plan_objects.FILE: "what was passed as objects: hashes of code, weights and rows",
        }
    )
    not_from_browsers = MappingProxyType(
        {
            "task": "leave it out: it names code",
            "data.path": "names a file of this server",
            "data.folder": "names a folder of this server",
            "data.download": "this server downloads nothing; use `cupola data get` on it",
            "model.weights": "names a file of this server",
            "model.vectors": "names a file of this server",
            "model.path": "names a folder of this server",
            "model.download": "this server downloads nothing",
            "trainable.adapter.base": "names a file of this server",
            "privacy.budget.file": "leave it out: budgets are kept with the study",
        }
    )
    #: More than a demonstration needs; a study at real sites is not limited by the server.
    browser_limits = MappingProxyType(
        {
            "rounds": 10_000,
            "data.partition.sites": 10_000,
            "data.partition.sites_per_type": 10_000,
            "data.partition.parts": 1000,
            "personalise.rounds": 10_000,
        }
    )
    browser_words = frozenset({"device", "data.class_names"})

    def __init__(self, plan: TrainingPlan) -> None:
        super().__init__(plan)
        self._host: TrainingHost | None = None
        self.training: Training | None = None
        self.whole: Program | None = None
        self._twin: dict[str, Any] | None = None

    # Objects, data and program

    @classmethod
    def with_objects(cls, given: Mapping[str, Any], objects: Mapping[str, Any]) -> Any:
        return plan_objects.with_names(given, objects)

    def host(self) -> TrainingHost:
        return build.host(self.plan)

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
        if reason := plan_objects.refused_elsewhere(plan):
            raise PlanError(reason)
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
                "which stay with them; give privacy.noise_multiplier (`cupola check` finds it in a "
                "simulation)"
            )

    def program(self, host: Host) -> Program:
        assert isinstance(host, TrainingHost)
        self._host = host
        self.training = build.training(self.plan, host)
        self.whole = build.program(self.plan, host, self.training)
        return self.whole

    # What sites are asked

    @property
    def tasks(self) -> tuple[str, ...]:
        more = () if self.plan.personalise is None else ("sparsity", "adapt")
        more = (*more, TASK) if may_ask_sites(self.plan) else more
        return (plan_names.site_task(self.plan.task), "evaluate", *more)

    @property
    def unmasked(self) -> tuple[str, ...]:
        if self.plan.personalise is not None:
            return ("evaluate", "sparsity", "adapt")
        return ("evaluate",) if self.plan.evaluation.per_site else ()

    @property
    def changes(self) -> bool:
        return may_change(self.plan)

    # At a real site

    @property
    def sites(self) -> int | None:
        count = getattr(self.plan.data.partition, "sites", None)
        return count if isinstance(count, int) else None

    def agreement(self) -> dict[str, Any]:
        """As the first edition hashed it: studies under way stay joined."""
        return {**super().agreement(), "kind": "plan"}

    @classmethod
    def without_sites(cls, given: dict[str, Any]) -> dict[str, Any]:
        data = given.get("data")
        part = data.get("partition") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(part, dict):
            return given
        kept = {key: value for key, value in part.items() if key != "sites"}
        return {**given, "data": {**data, "partition": kept}}

    @property
    def differences(self) -> str | None:
        return told(self.plan)

    def may_ask(self, step: int) -> bool:
        personal = self.plan.personalise
        most = self.plan.rounds * _STEPS
        if personal is not None:
            jobs = len(personal.methods) * (self.sites or 1000)
            most += _STEPS * (jobs + 1) * (personal.rounds + 2)
        return 0 <= step < most + _STEPS

    def allows(self, question: Question) -> str | None:
        return deviation(self.plan, question)

    @property
    def private(self) -> bool:
        return self.plan.privacy.on

    def objections(self, rules: SiteRules) -> list[str]:
        found, privacy = super().objections(rules), self.plan.privacy
        if privacy.by_coordinator:  # it is not the operating system's
            found.append(
                "the coordinator's noise comes from the plan's seed, which every party knows"
            )
        if rules.budget is None and privacy.epsilon is not None:  # the noise is in questions only
            found.append(
                "the coordinator finds this study's noise: set a [budget] to hold it to that"
            )
        return found

    @property
    def data_name(self) -> str | None:
        called = self.plan.data.options.get("called")
        return called if isinstance(called, str) else self.plan.data.name

    def describe(self, path: Path, target: str | None) -> dict[str, Any]:
        from cupola.training.own_data import describe

        return describe(path, target)

    def own_host(self, site: OwnSite) -> TrainingHost:
        from cupola.training.own_data import own_host

        return own_host(self.plan, site)

    def preview(self, site: OwnSite, roster: Roster) -> Preview:
        from cupola.training.site_preview import preview

        return preview(self.plan, site, roster)

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
        plan_objects.record(self.plan, self._host.problem, folder)

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
        named = metadata(self.plan, self.training)
        write_atomically(folder / "model.safetensors", to_safetensors(arrays, named))
        if named is not None:
            base = base_name(self.plan)
            write_peft(self.training.space.module, arrays, folder / "adapter", base)
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

    def summary(self, state: State, folder: Path, real: bool) -> dict[str, Any]:
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

    # Sweeps

    @property
    def metric(self) -> str:
        return self.plan.evaluation.metric

    def require_score(self) -> None:
        require_validation(self.plan)

    def score(self, run: RunFolder) -> float | None:
        return kept(run, self.metric, validation=True)

    # What people see

    def model(self, run: Run) -> Any:
        from cupola.training.saved_model import load_model

        return load_model(run)

    def chips(self, run: RunFolder) -> list[tuple[str, str]]:
        from cupola.training.report_sections import chips

        return chips(run)

    def sections(self, run: RunFolder) -> list[str]:
        from cupola.training.report_sections import sections

        return sections(run)

    def parties(self) -> list[tuple[str, str]]:
        from cupola.training.changing_sites import told
        from cupola.training.disclosure import learned

        assert self.training is not None
        return learned(self.training, told(self.plan))

    def check(self) -> dict[str, Any]:
        from cupola.training.check import facts

        return facts(self.plan)

    def check_lines(self, facts: Mapping[str, Any]) -> list[str]:
        from cupola.training.check_text import lines

        return lines(facts)

    def show(self, run: Run, quiet: bool) -> list[Any]:
        return show(run, quiet)

    # In the web

    @classmethod
    def forms(cls) -> Mapping[str, Form]:
        from cupola.training.web_form import forms

        return forms()

    @classmethod
    def takes_sites(cls, given: Mapping[str, Any], real: bool = False) -> bool:
        """Whether the plan's way of spreading data takes a number of sites."""
        del real
        data = given.get("data")
        part = data.get("partition") if isinstance(data, dict) else None
        kind = part.get("kind", "iid") if isinstance(part, dict) else "iid"
        model = partitions().get(str(kind))
        return model is not None and "sites" in model.model_fields

    @classmethod
    def with_sites(
        cls, given: Mapping[str, Any], sites: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        if not sites or not cls.takes_sites(given):
            return dict(given)
        return changed(given, {"data.partition.sites": len(sites)})

    @classmethod
    def needs_real_sites(cls, given: Mapping[str, Any]) -> bool:
        data = given.get("data")
        return isinstance(data, dict) and data.get("name") == "elsewhere"

    def foresee(self, folder: Path) -> dict[str, Any]:
        del folder
        from cupola.training.web_forecast import foresee

        return foresee(self)

    @classmethod
    def foreseen_sections(cls, facts: Mapping[str, Any]) -> list[str]:
        from cupola.training.web_forecast import sections

        return sections(facts)

    def in_short(self, run: RunFolder) -> dict[str, Any]:
        from cupola.training.report_sections import in_short

        return in_short(run)
