"""On what grounds each guarantee stands: proven here, left to a library, or argued and unreviewed.

One table, from which `cupola check` prints what a plan uses and the documentation prints all. No
mark means that somebody outside the project has looked: nobody has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cupola.secure.sum_choice import Sum
    from cupola.training.loop import Training

Mark = Literal["proven here", "by library", "argued, unreviewed"]
PROVEN: Mark = "proven here"
LIBRARY: Mark = "by library"
ARGUED: Mark = "argued, unreviewed"

MEANING: dict[Mark, str] = {
    PROVEN: "a proof stands where the table says, with its assumptions; tests try to break it",
    LIBRARY: "the named library, of others, does it; how it is called is tested",
    ARGUED: "reasons stand where the table says, and tests attack it; there is no complete proof",
}


@dataclass(frozen=True)
class Ground:
    """guarantee: in a few words, what holds. where: pages, files or libraries to look at. of: what
    a plan must use for the guarantee to matter, any one of them."""

    guarantee: str
    mark: Mark
    where: tuple[str, ...]
    of: frozenset[str]

    def to_json(self) -> dict[str, object]:
        return {"guarantee": self.guarantee, "mark": self.mark, "where": list(self.where)}


def _ground(guarantee: str, mark: Mark, where: str, of: str) -> Ground:
    return Ground(guarantee, mark, tuple(where.split()), frozenset(of.split()))


GROUNDS: tuple[Ground, ...] = (
    _ground("one example moves DP-SGD's released sum by at most the clip and a thousandth of it, "
            "rounding included", PROVEN, "docs/privacy.md#the-clip-proven", "dp-sgd"),
    _ground("a sample's bits do not depend on its company (an assumption of that proof, tested on "
            "the machine)", ARGUED, "docs/privacy.md#the-clip-proven", "dp-sgd"),
    _ground("one site moves a total by at most the clip, rounding included", ARGUED,
            "docs/privacy.md#the-arithmetic-of-the-other-mechanisms",
            "central dp-ftrl distributed"),
    _ground("what all answers together tell is the epsilon that is printed", LIBRARY,
            "dp-accounting src/cupola/privacy/composition.py", "privacy"),
    _ground("what one answer about a random sample tells (closed forms, compared with the library)",
            ARGUED, "src/cupola/privacy/loss_distributions.py", "dp-sgd central"),
    _ground("noise on a grid gives nothing away by its last bits", ARGUED,
            "docs/privacy.md#noise-on-a-grid", "dp-sgd central dp-ftrl output release"),
    _ground("discrete noise has its exact law", ARGUED, "src/cupola/privacy/discrete.py",
            "distributed"),
    _ground("shares of noise add up to the noise that is promised", ARGUED,
            "docs/privacy.md#noise-in-shares src/cupola/privacy/distributed.py", "distributed"),
    _ground("correlated noise hides every participation that the pattern allows", ARGUED,
            "src/cupola/privacy/matrix.py src/cupola/privacy/worst_pattern.py", "dp-ftrl"),
    _ground("one example moves an exact solution by at most the stated sensitivity", ARGUED,
            "src/cupola/privacy/perturbation.py", "output objective"),
    _ground("a site is charged, durably, before it touches data", ARGUED,
            "docs/privacy.md#the-book-and-the-budget", "privacy"),
    _ground("the coordinator reads totals alone, if it and the compensator are two", ARGUED,
            "docs/protocol.md docs/masked-sums.md#what-is-assumed", "compensator"),
    _ground("the coordinator reads totals alone, if no more sites collude than agreed", ARGUED,
            "docs/protocol.md docs/masked-sums.md#without-a-third-party", "pairwise"),
    _ground("any combination of an array's totals tells of the minimum of sites, unless sites may "
            "change", PROVEN,
            "docs/masked-sums.md#differences-of-totals src/cupola/secure/differences.py",
            "compensator"),
    _ground("the same, if no more sites collude than agreed", ARGUED,
            "docs/masked-sums.md#differences-of-totals src/cupola/secure/pairwise_memory.py",
            "pairwise"),
    _ground("drawn neighbours cannot be surrounded", ARGUED, "src/cupola/secure/graph.py",
            "sparse"),
    _ground("a changed total is noticed by the coordinator, but for a chance of 2^-125", PROVEN,
            "src/cupola/secure/checksum.py", "masked"),
    _ground("a total of sites that keep to their bounds never wraps around, and errs by at most "
            "half a step a site", PROVEN,
            "docs/protocol.md#42-encoding src/cupola/secure/encoding.py", "masked"),
    _ground("signatures, key agreement, seals, key streams and hashes", LIBRARY, "cryptography",
            "masked real"),
    _ground("noise of real sites comes from the operating system, through AES", LIBRARY,
            "cryptography", "privacy"),
    _ground("an answer is given once, after crashes too", ARGUED, "docs/threat-model.md#faults",
            "real"),
    _ground("a folder that was damaged, edited or put back is noticed (put back as a whole: by the "
            "coordinator)", ARGUED, "docs/runs.md#damage src/cupola/federation/receipts.py",
            "real"),
    _ground("messages between machines are encrypted and authenticated (TLS)", LIBRARY, "nvflare",
            "real"),
    _ground("passwords are stored as Argon2 hashes", LIBRARY, "argon2-cffi", "web"),
    _ground("equal to centralised training, up to rounding (conditions, and a probe of the plan)",
            ARGUED, "docs/utility.md src/cupola/training/utility.py", "equal"),
    _ground("a real cohort answers only what its own copy of the study asks next", ARGUED,
            "docs/masked-sums.md#witnessed-totals src/cupola/federation/replay.py", "gwas"),
    _ground("a cohort does not believe a total that the coordinator made up, but for a chance of "
            "2^-125, if no cohort helps it", PROVEN,
            "docs/masked-sums.md#witnessed-totals src/cupola/secure/witness.py", "gwas"),
    _ground("of a variant that a cohort withholds no total of the others is told, but for noise as "
            "wide as its bounds", ARGUED,
            "docs/gwas.md#limits-on-what-totals-reveal src/cupola/association/limits.py", "gwas"),
    _ground("results equal to those of the pooled data, up to rounding (compared with PLINK)",
            ARGUED, "docs/gwas.md", "gwas"),
)  # fmt: skip


def used(uses: set[str]) -> list[Ground]:
    """What a plan that uses these things stands on."""
    return [ground for ground in GROUNDS if ground.of & uses]


def of_training(program: Training, equal: bool, release: bool = False) -> list[Ground]:
    """equal: whether the plan equals centralised training. release: whether sites' vectors are
    told with noise."""
    uses = of_sum(program.sum, program.sites)
    if program.privacy.on:
        uses |= {"privacy", program.privacy.mechanism}
    uses |= {"privacy", "release"} if release else set()
    return used(uses | ({"equal"} if equal else set()))


def of_study(choice: Sum, cohorts: int) -> list[Ground]:
    return used({"gwas"} | of_sum(choice, cohorts))


def of_sum(choice: Sum, sites: int) -> set[str]:
    if not choice.masked:
        return set()
    uses = {"masked", choice.protocol}
    if choice.protocol == "pairwise" and sites >= choice.minimum:
        from cupola.secure.graph import graph

        uses |= set() if graph(sites, choice.minimum).complete else {"sparse"}
    return uses
