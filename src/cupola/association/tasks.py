"""What a cohort answers. Everything but the proposal and the fingerprints is meant for `sum`."""

from __future__ import annotations

import numpy as np

from cupola.association import agreement, dosage_sums, kernels, variant_list_codec
from cupola.association.cohort import Cohort
from cupola.association.design import Design, calls, children, founders, haploid, kinds, present
from cupola.association.enough_people import require_own_people
from cupola.association.files import CohortError
from cupola.association.genotypes import blocks
from cupola.association.limits import WITHHELD, on_grid, small, small_cells, thin, without
from cupola.association.reference_frequencies import other_strand
from cupola.association.site import FINGERPRINTS, LARGEST, NULL_ITERATIONS, Site, guarded
from cupola.association.structure.predictions import design_of, model_of
from cupola.association.variant_sums import DosageSums, VariantSums, variant_sums
from cupola.federation.message import Arrays, Contribution, Declined, Question, Spec
from cupola.federation.site import SiteContext, task

PROPOSE, GROUPS = "gwas propose", "gwas groups"
UNMASKED = (PROPOSE, FINGERPRINTS)  # answered to gather
_BLOCK = 4096  # variants whose calls are in memory at once


def sized(site: SiteContext, question: Question, arrays: Arrays) -> Contribution:
    """Numbers in the fewest bytes that their bounds need; masked sums have an encoding of their
    own."""
    if site.hidden is not None:
        return Contribution(arrays)
    expects = question.expects
    return Contribution({name: a.astype(smallest(expects[name])) for name, a in arrays.items()})


def smallest(spec: Spec) -> np.dtype:
    """The type of the fewest bytes that numbers within their bound need."""
    if spec.kind == "int" and spec.bound is not None:
        return np.min_scalar_type(-int(spec.bound) - 1)
    return np.dtype(np.float32 if spec.bits == 32 else np.float64)


def groups(cohort: Cohort, binary: bool, least: int) -> np.ndarray:
    """(3, people): cases, controls, others; for a quantitative trait everybody is in the last.
    least: the smallest count that is told."""
    y, people = cohort.traits(binary), counted(cohort, least)
    if not binary:
        nobody = np.zeros(len(y), bool)
        return np.stack([nobody, nobody, people])
    return np.stack([y == 1, y == 0, np.isnan(y)]) & people


def counted(cohort: Cohort, least: int) -> np.ndarray:
    """Who is counted: those loaded, but for fewer than `least` who are not tested: their counts, or
    all counts less those of the test, would be single genotypes. 0 is a number, or no trait in a
    binary one; whichever it will be, either kind of people is many or nobody."""
    told = ~np.isnan(cohort.traits(False))
    zero = np.zeros_like(told)
    if cohort.looks_binary:
        zero = told & np.isnan(cohort.traits(True))
    whole = cohort.tested(False, True)
    untested = (~told, zero & whole, zero & ~whole, told & ~zero & ~whole)
    found = cohort.loaded.copy()
    for people in untested:
        if (cohort.loaded & people).sum() < least:
            found &= ~people
    return found


@task("gwas people")
@guarded
def people(own: Site, site: SiteContext, question: Question) -> Contribution:  # noqa: ARG001
    """Counts of people: by group, of males among them, and of those tested, for either reading of
    the trait; and whether the trait can be read as binary."""
    cohort = own.cohort
    if own.study is not None:
        require_own_people(own.study, cohort)
    own.pin("people", [question.options[n] for n in ("binary", "regression", "one_sided")])
    stated, regression = question.options["binary"], bool(question.options["regression"])
    binary = cohort.looks_binary if stated is None else bool(stated)
    found = groups(cohort, binary, own.limits.least_cell)
    counts = [*found.sum(axis=1), *(found & cohort.male).sum(axis=1)]
    tested = cohort.tested(binary, regression)
    y = cohort.traits(binary)
    if binary and not question.options["one_sided"]:
        for value, name in ((1, "cases"), (0, "controls")):
            if not (tested & (y == value)).any():
                raise CohortError(
                    f"no-{name}",
                    f"cohort '{own.files.name}'",
                    f"has no {name} among those tested ({cohort.trait_file}; one_sided = true lets "
                    "it take part)",
                )
    counts += [tested.sum(), (tested & (y == 1)).sum(), int(not binary)]
    quantitative = cohort.tested(False, regression).sum()
    return Contribution({"people": np.array([*counts, quantitative], np.int64)})


@task("gwas moments")
@guarded
def moments(own: Site, site: SiteContext, question: Question) -> Contribution:  # noqa: ARG001
    """Sums over tested people of values, of distances from the shift, or of squares."""
    cohort, options = own.cohort, question.options
    own.pin(("moments", options["of"]), [options[n] for n in ("binary", "shift", "width")])
    own.pin("largest", options["largest"])  # many such limits would tell the largest value
    binary = bool(options["binary"])
    tested = cohort.tested(binary, True)
    whole = np.column_stack([cohort.covariates, cohort.traits(binary)])[tested]
    beyond = np.argwhere(np.abs(whole) > float(options["largest"]))
    if len(beyond):
        row, column = beyond[0].tolist()
        where, name = cohort.source(int(np.flatnonzero(tested)[row]), column)
        raise CohortError(
            "value-too-large",
            where,
            f"{name} = {whole[row, column]:g} exceeds largest = {options['largest']:g}; is it a "
            "missing code?",
        )
    moved = (whole - np.array(options["shift"])) / np.array(options["width"])
    of = {"mean": moved, "distance": np.abs(moved), "square": moved**2}[options["of"]]
    return Contribution({"sums": of.sum(axis=0)})


@task(PROPOSE)
@guarded
def propose(own: Site, site: SiteContext, question: Question) -> Contribution:
    """This cohort's variants that are not on the list yet, but for rare ones and those with an
    unknown allele: first how many bytes they take, then the list of them."""
    least = int(question.options["rare"])
    if not own.proposes or least < own.rare:
        raise Declined("variants-not-proposed")
    rows, before = own.common(least), site.recall(question)
    if "listed" in before:
        rows = rows[~before["listed"][rows]]
    packed = variant_list_codec.pack(own.cohort.variants[rows])
    if "size" in question.expects:
        return Contribution({"size": np.array([len(packed)], np.int64)})
    return Contribution({"list": packed})


@task("gwas agree")
@guarded
def agree(own: Site, site: SiteContext, question: Question) -> Contribution:
    """What is found of a stretch of the proposed list; where the variants stand is kept.

    There is one list, told from its beginning to its end before anything is counted: many lists
    would tell which rare variants a cohort has. Which of its own variants are not on it, a cohort
    only counts.
    """
    start, sites = int(question.options["start"]), int(question.options["sites"])
    before = site.recall(question) if start else {}
    own.agreeing(start, len(before.get("local", ())), sites, question.arrays["list"])
    proposed, variants = variant_list_codec.unpack(question.arrays["list"]), own.cohort.variants
    found = agreement.compare(proposed, variants, own.index, before.get("local"))
    kept = {"local": found.row.astype(np.int32), "swapped": np.isin(found.status, (1, 3))}
    more: Arrays = {}
    if "strand" in question.expects:
        agreed = own.study is not None and own.study.quality.unknown_strand == "frequency"
        if proposed.frequency is None or not agreed:
            raise Declined("no-frequencies")
        more["strand"] = other_strand(own, proposed, found)
        kept["swapped"] = kept["swapped"] != (more["strand"][:, 0] > 0)
    listed = before["listed"].copy() if before else np.zeros(len(variants), bool)
    listed[found.taken] = True
    site.keep(
        question,
        {name: np.concatenate([before.get(name, v[:0]), v]) for name, v in kept.items()}
        | {"listed": listed},
    )
    own.leave_out(listed)
    unknown = (variants.a1 == "0") | (variants.a2 == "0")
    own_list = [found.renamed, len(variants), (~listed).sum(), (~listed & unknown).sum()]
    own_counts = np.array(own_list, np.int64)
    answer = {"found": agreement.digits(found.status, sites), "own": own_counts, **more}
    if "lacking" in question.expects:
        if not own.least_cohorts:
            raise Declined("variants-not-agreed")
        lacked = found.status == agreement.ABSENT
        answer["lacking"] = agreement.marks(lacked, site.index, sites)
    return sized(site, question, answer)


@task(GROUPS)
@guarded
def cohort_groups(own: Site, site: SiteContext, question: Question) -> Contribution:
    """People, males and those tested, in the row of this cohort's group: once and for all. Groups
    are what totals over different sets of cohorts can tell of, and none may be too small."""
    options, cohort = question.options, own.cohort
    of_cohort = [int(group) for group in options["groups"]]
    own.pin("groups", of_cohort)
    if not own.least_cohorts or min(map(of_cohort.count, of_cohort)) < own.apart:
        raise Declined("groups-too-small")
    binary = bool(options["binary"])
    found = groups(cohort, binary, own.limits.least_cell)
    tested = cohort.tested(binary, bool(options["regression"]))
    people = np.zeros(question.expects["people"].shape, np.int64)
    people[of_cohort[site.index]] = [found.sum(), (found & cohort.male).sum(), tested.sum()]
    return Contribution({"people": people})


def listed_rows(
    own: Site, site: SiteContext, question: Question, lacking: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the cohort's files that a question selects, and where alleles are swapped. lacking:
    with -1 for those that the cohort lacks, if the study tests them in the others."""
    kept, options = site.recall(question), question.options
    own.pin("list", "in use")
    start, stop = int(options["start"]), int(options["stop"])
    if not kept or not 0 <= start < stop <= len(kept["local"]):
        raise Declined("variants-not-agreed")
    bits = np.unpackbits(question.arrays["variants"], count=stop - start).astype(bool)
    index = start + np.flatnonzero(bits)
    local, cohort = kept["local"][index], own.cohort
    here = local if local.min(initial=0) >= 0 else local[local >= 0]
    if len(here) < len(local) and not (lacking and own.pinned("groups")):
        raise Declined("variants-not-agreed")
    if (kinds(cohort.variants.chromosome[here]) != options["kind"]).any():
        raise Declined("variants-not-agreed")
    return local, kept["swapped"][index]


def chosen_variants(own: Site, site: SiteContext, question: Question) -> VariantSums:
    """The variants that a question selects, packed or as dosages."""
    rows = listed_rows(own, site, question, lacking=True)
    return variant_sums(own.cohort, *rows, int(question.options["kind"]))


def bounded(question: Question, shape: tuple[int, ...]) -> np.ndarray:
    """The coefficients that a question names, checked: kernels trust their shape."""
    beta = question.arrays["beta"].astype(np.float64)
    if beta.shape != shape or not (np.abs(beta) <= LARGEST).all():
        raise Declined("coefficients-refused")
    return beta


def _coefficients(
    own: Site, site: SiteContext, question: Question, made: Design, count: int
) -> np.ndarray:
    """Those of each variant, one row each; answered a limited number of times."""
    beta = bounded(question, (count, made.columns.shape[1] + 1))
    local = listed_rows(own, site, question, lacking=True)[0]
    own.count(question, question.task, local[local >= 0], len(own.cohort.variants))
    return beta


@task("gwas counts")
@guarded
def counts(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Copies of a1 and of both alleles, by group; with 'genotypes' also people by genotype among
    those with two copies, in cases and controls (or all)."""
    local, swapped = listed_rows(own, site, question, lacking=True)
    cohort, options = own.cohort, question.options
    kind, binary = int(options["kind"]), bool(options["binary"])
    own.pin("counts", [options[n] for n in ("binary", "groups", "genotypes")])
    asked = groups(cohort, binary, own.limits.least_cell)[list(options["groups"])]
    if own.wanted.dosages:
        return _dosage_counts(own, site, question, asked)
    asked &= present(cohort, kind)
    single = haploid(cohort, kind)
    if not (single.any() or options["genotypes"]):
        alleles = kernels.allele_counts(cohort.bed, np.maximum(local, 0), asked)
        alleles[local < 0] = 0
        alleles[swapped, :, 0] = alleles[swapped, :, 1] - alleles[swapped, :, 0]
        return sized(site, question, _cells(own, site, question, {"alleles": alleles}))
    people = [asked & ~single, asked & single]
    at = [i for i, group in enumerate(options["groups"]) if group < 2 or not binary]
    if options["genotypes"] and children(cohort).any():
        people.append(founders(cohort, asked[at]) & ~single)
    masks = np.concatenate(people)
    parts = [slice(start, start + _BLOCK) for start in range(0, len(local), _BLOCK)]
    found = np.concatenate(
        [kernels.genotype_counts(calls(cohort, local[p], swapped[p], kind), masks) for p in parts]
    )
    pair, alone, founding = np.split(found, [len(asked), 2 * len(asked)], axis=1)
    a1 = 2 * pair[..., 0] + pair[..., 1] + alone[..., 0]
    # Added up one by one: numpy's sum over an axis of three is slow.
    both = 2 * (pair[..., 0] + pair[..., 1] + pair[..., 2]) + alone[..., 0] + alone[..., 2]
    arrays: Arrays = {"alleles": np.stack([a1, both], axis=2)}
    if options["genotypes"]:
        founding = founding if len(people) > 2 else pair[:, at]
        arrays["genotypes"] = founding
        # Alleles less genotypes are those of children and of people with a single copy.
        more = (alone[:, at][..., ::2], pair[:, at] - founding)
        return sized(site, question, _cells(own, site, question, arrays, *more))
    return sized(site, question, _cells(own, site, question, arrays))


def _dosage_counts(
    own: Site, site: SiteContext, question: Question, asked: np.ndarray
) -> Contribution:
    """Copies of a1 and people with a dosage, by group, and squares of dosages over all of them."""
    chosen = chosen_variants(own, site, question)
    assert isinstance(chosen, DosageSums)
    k, together = len(chosen), np.asarray(asked.any(axis=0))
    copies, people = np.empty((k, len(asked))), np.empty((k, len(asked)), np.int64)
    squares = np.empty(k)
    for part, dosages in chosen.blocks():
        copies[part], people[part] = dosage_sums.allele_sums(dosages, asked)
        squares[part] = dosage_sums.square_sums(dosages, together)
    few = small_cells({"alleles": np.stack([copies, 2 * people], axis=2)}, own.limits.least_cell)
    arrays = {"copies": copies, "people": people, "squares": squares}
    arrays = on_grid(arrays, own.limits.grid)
    if own.limits.least_cell:
        arrays = without(site, question, arrays, few)
    return sized(site, question, arrays)


def _cells(
    own: Site, site: SiteContext, question: Question, arrays: Arrays, *more: np.ndarray
) -> Arrays:
    """Counts, but for variants of which one is too small to be told; more: what follows from
    them."""
    least = own.limits.least_cell
    return without(site, question, arrays, small_cells(arrays, least, *more)) if least else arrays


def withheld_for_cells(own: Site, least: int, binary: bool, genotypes: bool) -> int:
    """How many of a cohort's variants (as on autosomes) it would withhold for a small count."""
    cohort, count = own.cohort, 0
    asked = groups(cohort, binary, least)
    if own.wanted.dosages:
        for _, dosages in blocks(cohort.bed, np.arange(len(cohort.variants))):
            copies, people = dosage_sums.allele_sums(dosages, asked)
            cells = {"alleles": np.stack([copies, 2 * people], axis=2)}
            count += int(small_cells(cells, least).sum())
        return count
    for start in range(0, len(cohort.variants), _BLOCK):
        part = slice(start, min(start + _BLOCK, len(cohort.variants)))
        found = kernels.genotype_counts(cohort.bed.rows(part), asked)
        a1 = 2 * found[..., 0] + found[..., 1]
        arrays = {"alleles": np.stack([a1, 2 * found.sum(axis=2)], axis=2)}
        if genotypes:
            arrays["genotypes"] = found[:, :2] if binary else found[:, 2:]
        count += int(small_cells(arrays, least).sum())
    return count


@task("gwas shared")
@guarded
def shared(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Sums that do not depend on a variant: linear, products of columns and trait; logistic,
    gradient and information of the model without a genotype."""
    made = design_of(own, site, question)
    if "beta" not in question.arrays:
        return Contribution({"products": made.products.sum(axis=0)})
    beta = bounded(question, (made.columns.shape[1],))
    null = f"null {model_of(question)}"
    own.count(question, null, np.zeros(1, int), 1, NULL_ITERATIONS + 1)
    weight, residual = weights_and_residuals(made.columns, made.y, beta)
    i, j = np.triu_indices(made.columns.shape[1])
    information = (made.columns[:, i] * made.columns[:, j] * weight[:, None]).sum(axis=0)
    return Contribution({"gradient": made.columns.T @ residual, "information": information})


def weights_and_residuals(
    columns: np.ndarray, y: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """p (1 - p) and y - p of each person under a logistic model."""
    p = 1 / (1 + np.exp(-np.clip(columns @ beta, -700, 700)))
    return p * (1 - p), y - p


@task("gwas linear")
@guarded
def linear(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Per variant: people by copies, genotype times covariates and trait, and what people without a
    call take off the shared products."""
    chosen, made = chosen_variants(own, site, question), design_of(own, site, question)
    off = made.products[:, 1:] if question.options["missing"] else no_columns(made)
    if own.wanted.dosages:
        whole = np.column_stack([made.columns, made.y])
        found = chosen.sums(made, whole, np.ones((len(whole), 1)), off)
    else:
        whole = np.column_stack([made.columns[:, 1:], made.y])
        found = chosen.sums(made, whole, no_columns(made), off)
    arrays = {"cross": found.cross, "counts": found.counts}
    if question.options["missing"]:
        arrays["off"] = found.off
    arrays = on_grid(arrays, own.limits.grid)
    if WITHHELD in question.expects:
        lost = len(made.people) - arrays["counts"][:, -1]
        arrays = without(site, question, arrays, small(lost, own.limits.least_cell))
    return sized(site, question, arrays)


def no_columns(made: Design) -> np.ndarray:
    """Where sums want numbers of each person and there are none."""
    return np.zeros((len(made.people), 0))


@task("gwas first")
@guarded
def first(own: Site, site: SiteContext, question: Question) -> Contribution:
    """The first logistic iteration: weights are those of the model without a genotype."""
    chosen, made = chosen_variants(own, site, question), design_of(own, site, question)
    beta = bounded(question, (made.columns.shape[1],))
    own.pin(("null", model_of(question)), beta.tolist())  # there is one such model
    weight, residual = weights_and_residuals(made.columns, made.y, beta)
    spread = np.column_stack([weight, weight**2, np.ones(len(weight))])
    off = no_columns(made)
    if question.options["missing"]:
        i, j = np.triu_indices(made.columns.shape[1])
        parts = [made.columns[:, i] * made.columns[:, j] * weight[:, None],
                 made.columns * residual[:, None], spread]  # fmt: skip
        off = np.concatenate(parts, axis=1)
    once = np.column_stack([made.columns * weight[:, None], residual])
    found = chosen.sums(made, once, weight[:, None], off)
    exact = [-1] if own.wanted.dosages else [0, -1]
    arrays = {"cross": found.cross, "counts": found.counts[:, exact]}
    lost = np.zeros((len(chosen), 3))
    if question.options["missing"]:
        arrays["off"], lost = found.off[:, :-3], found.off[:, -3:]
    few = thin(spread.sum(axis=0) - lost, own.limits.effective)
    few |= small(np.rint(lost[:, 2]), own.limits.least_cell)
    arrays = on_grid(arrays, own.limits.grid)
    return sized(site, question, without(site, question, arrays, few))


@task("gwas newton")
@guarded
def newton(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Gradient and information of the log-likelihood at each variant's coefficients."""
    chosen, made = chosen_variants(own, site, question), design_of(own, site, question)
    beta = _coefficients(own, site, question, made, len(chosen))
    gradient, information, spread = chosen.logistic_sums(made, beta)
    own_columns = of_genotype(beta.shape[1])
    arrays = {
        "gradient": gradient,
        "fixed": information[:, ~own_columns],
        "genotype": information[:, own_columns],
    }
    few = thin(np.column_stack([information[:, 0], spread]), own.limits.effective)
    arrays = on_grid(arrays, own.limits.grid)
    return sized(site, question, without(site, question, arrays, few))


def of_genotype(p: int) -> np.ndarray:
    """Which entries of an upper triangle involve the last column."""
    return np.triu_indices(p)[1] == p - 1


@task("gwas firth")
@guarded
def firth(own: Site, site: SiteContext, question: Question) -> Contribution:
    """The part that Firth's penalty adds to the gradient, given the pooled inverse information."""
    chosen, made = chosen_variants(own, site, question), design_of(own, site, question)
    beta = _coefficients(own, site, question, made, len(chosen))
    inverse = question.arrays["inverse"]
    if inverse.shape != (len(beta), beta.shape[1] ** 2):
        raise Declined("coefficients-refused")
    found = []
    for genotype, b, flat in zip(chosen.genotypes(made), beta, inverse):
        x = np.column_stack([made.columns, genotype])[~np.isnan(genotype)]
        p = 1 / (1 + np.exp(-np.clip(x @ b, -700, 700)))
        leverage = p * (1 - p) * np.einsum("ni,ij,nj->n", x, flat.reshape(len(b), -1), x)
        found.append(x.T @ (leverage * (0.5 - p)))
    arrays = {"penalty": np.array(found).reshape(beta.shape)}
    return Contribution(on_grid(arrays, own.limits.grid))
