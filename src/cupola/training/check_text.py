"""What `cupola check` prints of a training plan, from its facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cupola.analysis.check import ground_lines, party_lines
from cupola.base.formatting import count, duration, size
from cupola.training.utility import EQUAL

GROUPS_PRINTED = 5


def lines(facts: Mapping[str, Any]) -> list[str]:
    """Lines for a terminal, with `rich` markup."""
    data, model, sent, link = (facts[key] for key in ("data", "model", "bytes", "link"))
    held, runs = data["samples_per_site"], facts["runs"]
    told = [
        ("plan", f"{facts['name']}: {_method(facts)}, {_rounds(facts)}"),
        ("runs", f"{runs} (below: the first)" if runs > 1 else "1"),
        ("data", f"{data['name']}, {data['kind']}, {count(data['samples'], 'sample')}"),
        ("sites", f"{data['sites']:,}, {data['partition']}; samples {held['least']:,} to "
                  f"{held['most']:,}, median {held['median']:,}, {data['empty']:,} empty"),
        ("judged on", _judged(data)),
        ("model", f"{model['name']}, {count(model['parameters'], 'parameter')}"),
        *_trainable(model),
        ("a round", f"{sent['sites']:g} sites, {size(sent['per_site_down'])} down and "
                    f"{size(sent['per_site_up'])} up at each"),
        *_bytes(sent),
        ("links", f"a site's messages take {duration(link['seconds'])} a "
                  f"training round at {link['down']:g} MB/s down and {link['up']:g} up"),
    ]  # fmt: skip
    found = [f"[bold]{name:<10}[/] {text}" for name, text in told]
    found += _privacy(facts["privacy"]) if facts["privacy"] else []
    found += [_sum(facts["sum"]), *party_lines(facts["parties"])]
    found += _personalise(facts["personalise"]) if facts["personalise"] is not None else []
    return [*found, *_utility(facts["utility"]), *ground_lines(facts["grounds"])]


def _utility(utility: Mapping[str, Any]) -> list[str]:
    answer = "[green]yes" if utility["preserved"] else "[red]no"
    apart = utility["difference"]
    probe = "no probe: the method needs more sites than one has"
    if apart is not None:
        probe = f"weights of a probe in float64 differ by {apart:.1g}"
    found = [f"[bold]equals centralised training: {answer}[/][/] ({probe})"]
    if not utility["preserved"] and apart is not None and apart <= EQUAL:
        found.append(
            "  The probe's few small sites met the same samples as its centralised twin; "
            "the plan's own sites need not."
        )
    for condition in utility["conditions"]:
        mark = "[green]yes[/]" if condition["holds"] else "[red]no [/]"
        reason = f": {condition['reason']}" if condition["reason"] else ""
        found.append(f"  {mark}  {condition['name']}{reason}")
    return found


def _bytes(sent: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is sent, by phase, and why it may be less."""
    most = "at most " if sent["at_most"] else ""
    each, total = size(sent["per_round"]), size(sent["total"])
    whole = f"{each} a round, {most}{total} in all"
    phases: dict[str, float] = {}
    for row in sent["rows"]:
        phases[row["phase"]] = phases.get(row["phase"], 0) + row["down"] + row["up"]
    lines = [("bytes", whole)]
    if len(phases) > 1:
        lines.append(("", ", ".join(f"{name} {size(n)}" for name, n in phases.items())))
    return lines + [("", f"at most: {reason}") for reason in sent["at_most"]]


def _trainable(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How much of the model is trained, and travels."""
    if model["trainable"] == model["parameters"] and not model["levels"]:
        return []
    share = 100 * model["trainable"] / model["parameters"]
    lines = [("trainable", "; ".join([f"{model['trainable']:,} ({share:.2f} %)", *_frozen(model)]))]
    lines += [
        ("", f"{count(level['sites'], 'site')} train {level['trainable']:,} of them")
        for level in model["levels"]
    ]
    lines += [("labels", _labels(model["labels"]))] if model["labels"] else []
    return lines + (_adapter(model["adapter"]) if model["adapter"] else [])


def _labels(labels: Mapping[str, Any]) -> str:
    """When, and by whose examples, source classes are chosen anew."""
    how = "by counts that the sites add up"
    if labels["by"] == "public":
        how = f"by {count(labels['public'], 'public sample')}, which asks nobody"
    every = "every" if labels["every"] == 1 else f"every {labels['every']:,}"
    rounds = "training round" if labels["every"] == 1 else "training rounds"
    return f"mapped anew before {every} {rounds}, {how}"


def _adapter(adapter: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a mean over sites makes of an adapter."""
    what = f"{adapter['kind']}"
    if adapter["layers"]:
        what += f" of rank {adapter['rank']} in {count(adapter['layers'], 'layer')}"
    if adapter["exact"]:
        said = "the mean of what is trained is the mean of the models: the layers are linear in it"
    elif adapter["kind"] == "prompt":
        said = "the mean of prompts is trained on, which is not the mean of the models"
    else:
        said = "the mean of A times the mean of B is not the mean of the models"
        if adapter["difference"] is not None:
            said += (
                f": on a probe of two sites it misses {100 * adapter['difference']:.2g} % of the "
                "change after one local step each"
            )
        said += "; 'ffa-lora' and 'lora-sb' are exact"
    lines = [("adapter", f"{what}; {said}")]
    if adapter["idle"]:
        some = adapter["idle"][0]
        lines.append(
            ("", f"[red]never used: the model goes round '{some}', which learns nothing; leave it "
                 "out of trainable.adapter.targets[/]")
        )  # fmt: skip
    return lines


def _frozen(model: Mapping[str, Any]) -> list[str]:
    """What is not trained: how many parameters, where they come from, and that none are sent."""
    counts, mark = model["frozen"], f"(checksum {(model['checksum'] or '')[:8]})"
    origins = {
        "seed": "are frozen and come from a seed",
        "source": f"are frozen and come from '{_origin(model)}' at every site {mark}",
        "own": "are frozen by the model's own code: each site makes them, none are sent; a site "
        f"whose values differ is refused before it trains {mark}",
    }
    return [f"{counts[kind]:,} {said}" for kind, said in origins.items() if counts[kind]]


def _origin(model: Mapping[str, Any]) -> str:
    """The file or code that frozen weights come from."""
    adapter = model["adapter"]
    return adapter["base"] if adapter else model["source"]


def _method(facts: Mapping[str, Any]) -> str:
    """What sites run: the plan's method or a task of its own, with the recipe's settings."""
    task, method, recipe = facts["task"], facts["method"], facts["recipe"]
    own = [name for name in (method, None if task == "train" else task) if name]
    return recipe if own in ([], [recipe]) else f"{', '.join(own)} (settings of {recipe})"


def _rounds(facts: Mapping[str, Any]) -> str:
    said, free = (
        count(facts["rounds"], "round"),
        facts["rounds"] - facts["training_rounds"],
    )
    return said + (f", {free:,} of them by the coordinator alone" if free else "")


def _privacy(promise: Mapping[str, Any]) -> list[str]:
    """What a plan promises, to whom, and what nothing protects."""
    found: list[str] = []

    def line(name: str, text: str, colour: str = "bold") -> None:
        found.append(f"[{colour}]{name:<10}[/] {text}")

    noise = "" if promise["noise"] is None else f", noise {promise['noise']:.4g}"
    line(
        "privacy",
        f"{promise['mechanism']}{noise}: hides every {promise['unit']} from "
        f"{promise['against']} ({promise['neighbours']})",
    )
    most = "at most " if promise["at_most"] else ""
    line(
        "epsilon",
        f"{most}{promise['epsilon']:.4g} at delta {promise['delta']:g} "
        f"({promise['neighbours']}), after all that is asked",
    )
    for reason in promise["at_most"]:
        line("", f"at most: {reason}")
    for group in promise["groups"][:GROUPS_PRINTED]:
        if group["samples"]:
            line(
                "",
                f"{group['epsilon']:.4g} at {count(group['sites'], 'site')} of "
                f"{_samples(group)}, asked {count(group['answers'], 'time')}",
            )
    more = len(promise["groups"]) - GROUPS_PRINTED
    if more > 0:
        line("", f"and {more:,} more groups of sites, which spend less (--json lists them)")
    for figure in promise["published"]:
        line("published", figure)
    for told in promise["unprotected"]:
        line("open", f"nothing protects {told}", "yellow")
    for warning in promise["warnings"]:
        line("note", warning, "yellow")
    line("status", promise["status"])
    return found


def _samples(group: Mapping[str, Any]) -> str:
    least, most = group["least_samples"], group["samples"]
    return ("" if least == most else f"{least:,} to ") + count(most, "sample")


def _sum(sums: Mapping[str, Any] | None) -> str:
    """How contributions are added."""
    if sums is None:
        return "[bold]sum       [/] plain: nothing hides an answer from the coordinator"
    numbers = (
        f"modulo 2^{sums['bits']} with {sums['fraction']} fractional bits: a total "
        f"errs by at most {sums['error']:.2g}"
    )
    if sums["transforms"] and not sums["fraction"]:
        numbers = f"as small integers in words modulo 2^{sums['bits']}: their total is exact"
    return (
        f"[bold]sum       [/] masked, by {sums['protocol']}, at least {sums['minimum']} sites; "
        f"parameters {numbers}"
    )


def _judged(data: Mapping[str, Any]) -> str:
    parts = [f"{n:,} public {k} samples" for k, n in data["public"].items()]
    if data["evaluated_on"] == "public":
        return ", ".join(parts) or "nothing: there are no public data; set evaluation.on = 'sites'"
    return ", ".join(["what sites hold out", *parts])


def _personalise(facts: Mapping[str, Any]) -> list[str]:
    told = f"{', '.join(facts['methods'])}; {facts['rounds']} rounds of adaptation"
    said = _released(facts["release"])
    return [
        f"[bold]personal  [/] {told}",
        *(
            f"[bold]          [/] each site tells how often {layer['channels']} of "
            f"{layer['of']} channels of layer '{layer['name']}' are silent ({said})"
            for layer in facts["layers"]
        ),
    ]


def _released(release: Mapping[str, Any] | None) -> str:
    """What protects a site's vectors: an epsilon, and for which neighbours."""
    if release is None:
        return "exact: nothing protects it"
    said = f"epsilon {release['epsilon']:.3g} a site at delta {release['delta']:g} "
    said += f"({release['neighbours']})"
    if counted := release["in_total"]:
        other = "" if counted["delta"] == release["delta"] else f" at delta {counted['delta']:g}"
        said += f", {counted['epsilon']:.3g}{other} ({counted['neighbours']}) in the total"
    return said
