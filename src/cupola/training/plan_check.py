"""Whether a question follows from the plan that a site has joined.

Which task is asked, and how often, is the gate's affair (`cupola.site.consent`). Here it is what a
question says beside the task: a coordinator chooses the model, and nothing else that the plan has
settled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from cupola.federation.message import Question
from cupola.training.choices import Local, Participation, Privacy
from cupola.training.label_maps import TASK, may_ask_sites
from cupola.training.mechanisms import NoMechanism
from cupola.training.methods import method_of, told_of
from cupola.training.methods.own_parts import HANDED
from cupola.training.plan import Plan

#: What of a plan's privacy no question tells (see `Training`): epsilon has become noise.
_UNTOLD = ("epsilon", "budget", "delta", "accountant", "published")
_MORE = "the question asks for more than the plan"


def deviation(plan: Plan, question: Question) -> str | None:
    """Why a question does not follow from the plan; None if it does."""
    checks: dict[str, Callable[[Plan, Mapping[str, Any]], str | None]] = {
        "evaluate": _judging,
        "sparsity": _sparsity,
        "adapt": _adapting,
        TASK: _counting_labels,
    }
    return checks.get(question.task, _training)(plan, question.options)


def _training(plan: Plan, options: Mapping[str, Any]) -> str | None:
    known = {"local", "lr", "participation", "privacy", "pattern", "report_loss", "shares",
             "method", "transforms", HANDED}  # fmt: skip
    if not options.keys() <= known:
        return _MORE
    asked = Local.model_validate(options.get("local", {}))
    plans = [plan, *([] if plan.personalise is None else [plan.adaptation()])]
    alike = [one for one in plans if one.local == asked]
    if not alike:
        return "local training is not the plan's"
    if not _is_up_to(options.get("lr"), asked.lr):  # schedules only lower it
        return "local.lr is not the plan's"
    if all(options.get("participation", {}) != _told(one.participation) for one in alike):
        return "participation is not the plan's"
    methods = [_method(one) for one in alike]
    methods += _federated(plan) if alike[-1] is not plan else []
    if options.get("method") not in methods:
        return "the method is not the plan's"
    told = [one.server.upcycle for one in alike if one.server.upcycle is not None]
    if options.get("report_loss") and not any(upcycle.adaptive for upcycle in told):
        return _MORE
    if _listed(options.get("transforms")) != _planned(plan):
        return "transforms are not the plan's"
    return _privacy(plan, options.get("privacy") or {})


def _listed(told: object) -> object:
    """The transforms that a question names; range and seed are the coordinator's to choose, since
    clip and noise come before them."""
    return told.get("list") if isinstance(told, Mapping) else told


def _planned(plan: Plan) -> object:
    """The same of a plan. None where it has none: an empty list would give the same update another
    name, under which masked sums know nothing of the totals before."""
    return [step.model_dump(mode="json") for step in plan.transforms] or None


def _method(plan: Plan) -> dict[str, Any] | None:
    """What a question says of the plan's own method."""
    if plan.method is None:
        return None
    return told_of(method_of({"name": plan.method.name, **plan.method.options}))


def _federated(plan: Plan) -> list[dict[str, Any] | None]:
    """Methods by which all sites adapt together."""
    choice = plan.personalise
    return [] if choice is None else [told_of(m) for m in choice.federated().values()]


def _told(choice: Participation) -> dict[str, Any]:
    """What a question says of participation: how sites pretend to be slow, in trials."""
    slow = choice.stragglers or choice.dropouts
    return choice.model_dump(exclude_defaults=True, mode="json") if slow else {}


def _privacy(plan: Plan, asked: Mapping[str, Any]) -> str | None:
    promised = plan.privacy
    if asked.get("mechanism", NoMechanism.name) != promised.mechanism:
        return "the privacy mechanism is not the plan's"
    if not promised.on:
        return None
    least = promised.noise_multiplier
    if least is not None and not asked.get("noise", 0.0) >= least:
        return "there is less noise than in the plan"
    most = promised.answer_epsilon
    if most is not None and not asked.get("answer_epsilon", math.inf) <= most:
        return "an answer costs more than in the plan"
    told = Privacy.model_validate(dict(asked))
    untold = (*_UNTOLD, "noise_multiplier", "answer_epsilon")
    settled = [key for key in Privacy.model_fields if key not in untold]
    other = [key for key in settled if getattr(told, key) != getattr(promised, key)]
    return f"privacy.{other[0]} is not the plan's" if other else None


def _judging(plan: Plan, options: Mapping[str, Any]) -> str | None:
    """Splits that the plan looks at, and no finer histogram of scores than it says."""
    judge, personal = plan.evaluation, plan.personalise is not None
    splits = {"validation"} if plan.data.partition.validation else set()
    if judge.on in ("sites", "both") or judge.per_site or personal:
        splits.add("test")
    if judge.train:
        splits.add("train")
    known = {"split", "auroc", "batch_size", "method", HANDED}
    if not options.keys() <= known or options.get("split") not in splits:
        return _MORE
    if options.get("method") not in (None, _method(plan), *_federated(plan)):
        return "the method is not the plan's"
    return _counting(plan, options)


def _counting(plan: Plan, options: Mapping[str, Any]) -> str | None:
    judge = plan.evaluation
    fine = options.get("auroc", 0) in (0, judge.auroc)
    return None if fine and options.get("batch_size") == judge.batch_size else _MORE


def _sparsity(plan: Plan, options: Mapping[str, Any]) -> str | None:
    from cupola.training.personalise.sparsity import noise_of

    assert plan.personalise is not None
    release = plan.personalise.release
    if not options.keys() <= {"layers", "noise"}:
        return _MORE
    if release is not None and not (options.get("noise") or 0.0) >= noise_of(release):
        return "there is less noise than in the plan"
    return None


def _counting_labels(plan: Plan, options: Mapping[str, Any]) -> str | None:
    return _MORE if options or not may_ask_sites(plan) else None


def _adapting(plan: Plan, options: Mapping[str, Any]) -> str | None:
    choice = plan.personalise
    assert choice is not None
    agreed = choice.alone(plan.evaluation)
    rest = {key: value for key, value in options.items() if key not in agreed}
    told = {key: options[key] for key in agreed if key in options}
    if told != agreed or not rest.keys() <= {"method", "local", "auroc", "batch_size"}:
        return "personalisation is not the plan's"
    # Groups that are too small, and those of grouped methods, are fine-tuned.
    if rest.get("method") not in (*choice.methods, "finetune"):
        return "personalisation is not the plan's"
    if Local.model_validate(rest.get("local", {})) != plan.adaptation().local:
        return "local training is not the plan's"
    return _counting(plan, rest)


def _is_up_to(number: object, most: float) -> bool:
    return type(number) in (int, float) and 0 <= number <= most  # type: ignore[operator]
