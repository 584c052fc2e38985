"""Which keys of a plan the form asks for, in which order, under which headings, and when."""

from __future__ import annotations

from typing import Any

from cupola.learn.recipes import RECIPES
from cupola.web.plans import ASSOCIATION, ELSEWHERE, PERSONALISATION, TRAINING

#: Shown if each of these keys has one of these values; with '!' before the key, none of them.
When = dict[str, list[str]]
Layout = list[tuple[str, list[tuple[str, When]]]]  # heading, then its keys

_MECHANISMS = ["dp-sgd", "central", "dp-ftrl", "distributed", "output", "objective"]
LABELS = {
    "name": "Name", "seed": "Seed", "rounds": "Rounds", "recipe": "Method", "data.name": "Data set",
    "data.called": "Called at the sites", "data.kind": "Task", "data.shape": "Shape of a sample",
    "data.class_names": "Classes",
    "data.partition.kind": "How data are spread", "data.partition.sites": "Sites",
    "data.partition.alpha": "Concentration (alpha)", "data.partition.k": "Classes at a site",
    "data.partition.test": "Held out for testing", "data.partition.validation":
    "Held out for validation", "data.partition.merge": "Sites", "model.name": "Model",
    "model.hidden": "Hidden layers",
    "local.lr": "Learning rate", "local.epochs": "Epochs", "local.batches": "Mini-batches",
    "local.batch_size": "Batch size", "local.proximal": "Proximal term (mu)",
    "participation.kind": "Who takes part in a round", "participation.fraction": "Share of sites",
    "participation.count": "Sites a round", "privacy.mechanism": "Mechanism",
    "privacy.epsilon": "Epsilon, at the end", "privacy.noise": "Noise, instead of epsilon",
    "privacy.delta": "Delta", "privacy.clip": "Clipping norm",
    "privacy.budget.epsilon": "Budget of every site", "sum.kind": "Sums", "sum.protocol":
    "Protocol", "sum.minimum": "Fewest sites in a sum", "evaluation.on": "Judged on",
    "evaluation.every": "Rounds between evaluations", "twin": "Centralised twin",
    "personalise.methods": "Methods", "personalise.rounds": "Rounds of adaptation",
    "personalise.groups": "Groups", "personalise.minimum": "Fewest sites in a group",
    "personalise.release.epsilon": "Epsilon of what makes the groups", "test": "Test",
    "trait.column": "Trait", "trait.kind": "Kind of trait", "covariates": "Covariates", "sex":
    "Sex as covariate", "trend": "Trend test", "covariate_rows": "Covariates' coefficients",
    "quality.maf": "Least minor allele frequency", "quality.missing": "Most missing calls, variant",
    "quality.person_missing": "Most missing calls, person", "quality.hardy_weinberg":
    "Least Hardy-Weinberg p", "quality.unknown_strand": "Unknown strand", "newton.firth":
    "Firth's fallback", "chunk": "Variants a question", "ssf": "GWAS-SSF table",
    "parquet": "Parquet table", "people_per_column": "Fewest people a column",
    "limits.effective": "Least effective people", "limits.least_cell": "Least count told",
    "limits.grid": "Totals rounded to", "limits.outliers": "Covariates shortened to",
}  # fmt: skip


def _local(key: str, value: str) -> When:
    """Recipes under which a local setting counts."""
    return {"recipe": [n for n, r in RECIPES.items() if r.local.get(key, "epochs") == value]}


def training() -> Layout:
    proximal = [n for n, r in RECIPES.items() if "proximal" in r.local or "proximal" in n]
    counted = {"participation.kind": ["at-most-once", "rotation"]}
    private: When = {"privacy.mechanism": _MECHANISMS}
    away: When = {"data.name": [ELSEWHERE]}
    kind = "data.partition.kind"
    spread = ["iid", "dirichlet", "classes", "quantity"]
    return [
        ("The study", [("name", {}), ("rounds", {}), ("seed", {})]),
        ("Data", [
            ("data.name", {}), ("data.called", away), ("data.kind", away), ("data.shape", away),
            ("data.class_names", away), (kind, {"!data.name": [ELSEWHERE]}),
            ("data.partition.sites", {kind: spread}),
            ("data.partition.alpha", {kind: ["dirichlet"]}),
            ("data.partition.k", {kind: ["classes"]}),
            ("data.partition.merge", {kind: ["natural"]}), ("data.partition.test", {}),
        ]),
        ("Model", [("model.name", {}), ("model.hidden", {"model.name": ["mlp"]})]),
        ("Method", [
            ("recipe", {}), ("local.lr", {}), ("local.epochs", _local("work", "epochs")),
            ("local.batches", _local("work", "batches")), ("local.batch_size", {}),
            ("local.proximal", {"recipe": proximal}), ("participation.kind", {}),
            ("participation.fraction", {"participation.kind": ["fraction", "poisson"]}),
            ("participation.count", counted),
        ]),
        ("Privacy", [
            ("privacy.mechanism", {}), ("privacy.epsilon", private), ("privacy.noise", private),
            ("privacy.delta", private), ("privacy.clip", private),
            ("privacy.budget.epsilon", private),
        ]),
        ("Sums", [
            ("sum.kind", {}), ("sum.protocol", {"sum.kind": ["masked"]}),
            ("sum.minimum", {"sum.kind": ["masked"]}),
        ]),
        ("Evaluation", [("evaluation.on", {}), ("evaluation.every", {}), ("twin", {})]),
    ]  # fmt: skip


def association() -> Layout:
    regression: When = {"test": ["linear", "logistic"]}
    return [
        ("The study", [("name", {}), ("test", {})]),
        ("Trait and covariates", [
            ("trait.column", {}), ("trait.kind", {}), ("covariates", regression),
            ("sex", regression), ("trend", {"test": ["chi-square"]}),
            ("newton.firth", {"test": ["logistic"]}), ("people_per_column", regression),
        ]),
        ("Quality", [
            ("quality.maf", {}), ("quality.missing", {}), ("quality.hardy_weinberg", {}),
            ("quality.person_missing", {}), ("quality.unknown_strand", {}),
        ]),
        ("What totals tell of single people", [
            ("limits.effective", {"test": ["logistic"]}), ("limits.least_cell", {}),
            ("limits.grid", regression), ("limits.outliers", regression),
        ]),
        ("Sums", [
            ("sum.kind", {}), ("sum.protocol", {"sum.kind": ["masked"]}),
            ("sum.minimum", {"sum.kind": ["masked"]}), ("chunk", {}),
        ]),
        ("Tables", [("parquet", {}), ("ssf", {}), ("covariate_rows", regression)]),
    ]  # fmt: skip


#: What a new study begins with.
STARTS: dict[str, dict[str, Any]] = {
    TRAINING: {
        "name": "digits", "rounds": 20, "recipe": "fedavg",
        "data": {"name": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3, "sites": 5}},
        "model": {"name": "mlp", "hidden": [64]}, "local": {"lr": 0.3, "batch_size": 16},
    },
    PERSONALISATION: {
        "name": "personal digits", "rounds": 15, "recipe": "fedavg",
        "data": {"name": "digits", "partition": {"kind": "classes", "k": 4, "sites": 9,
                                                 "test": 0.2}},
        "model": {"name": "mlp", "hidden": [64]}, "local": {"lr": 0.3, "batch_size": 16},
        "evaluation": {"on": "both"},
        "personalise": {"methods": ["pfa", "finetune"], "rounds": 5},
    },
    ASSOCIATION: {"name": "association", "test": "logistic", "parquet": True},
}  # fmt: skip
