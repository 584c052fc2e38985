"""What components would tell of single people without the limits that cohorts enforce."""

from dataclasses import replace

import numpy as np
import pytest
from cohorts import cut, sites
from test_components import chosen, drawn

from cupola.association import Association, StudyHost
from cupola.association.own_cohort import weaker_limits
from cupola.association.structure.component_results import used_markers
from cupola.engines import InProcess
from cupola.errors import FederationError
from cupola.federation.message import Declined
from cupola.federation.replay import Replay
from cupola.site.settings import TotalLimits

N = 60


class Rules:
    limits = TotalLimits()


def _people():
    """Of the first variant there is one carrier."""
    data = drawn(n=N, m=200, missing=0.0)
    data.variants.chromosome[:] = 1
    data.copies[0] = 0
    data.copies[0, 7] = 1
    return data


def _heard(folder, data, made):
    """V and Z'Z V of one cohort, as all others together would know them; its state at the end."""
    cohorts = sites(made, cut(folder, data, [np.arange(N)]))
    cohorts[0].rare = 0
    program, told = Association(made, 1), []
    state = program.start()
    with InProcess(StudyHost(cohorts), workers=1, quorum=1.0) as reach:
        while (ask := program.ask(state)) is not None:
            answered = {"sum": reach.sum, "gather": reach.gather, "alone": lambda *_: None}
            reply = answered[ask.kind](ask.question, ask.sites)
            if ask.question.task == "gwas directions":
                told.append((ask.question.arrays["v"], reply.arrays["product"]))
            state = program.answer(state, reply)
    return told, program, state


def _read(told, data, used):
    """The only carrier's genotypes, by Nystroem's estimate of Z'Z: the share that is right."""
    v, y = (np.concatenate(parts, axis=1) for parts in zip(*told))
    row = y @ np.linalg.pinv(v.T @ y, rcond=1e-9) @ y[0]
    copies, p = data.copies[used.index].astype(float), used.frequency
    p = np.where(copies.mean(axis=1) / 2 - p > 1e-9, 1 - p, p)
    scale, z0 = used.scale, (0 - 2 * p[0]) / used.scale[0]
    z = (copies - 2 * used.frequency[:, None]) / scale[:, None]
    alone = (row - z0 * z.sum(axis=1)) * used.scale[0]  # (z1 - z0) is 1 over the scale
    read = np.rint(alone * scale + 2 * used.frequency)
    return (read == copies[:, 7]).mean()


def _with(sums, block, **limits):
    components = {"count": 2, "block": block, "sums": sums, "maf": 1e-3, "residual": 1e-300}
    return chosen(components=components, limits={"carriers": 0, **limits}, rare=0)


def test_as_many_directions_as_people_tell_a_carriers_genotypes(tmp_path):
    data = _people()
    right = {}
    for name, sums in (("many", 30), ("few", 3)):
        (tmp_path / name).mkdir()
        told, program, state = _heard(tmp_path / name, data, _with(sums, 2))
        right[name] = _read(told, data, used_markers(program, state))
    assert right["many"] > 0.99
    assert right["few"] < 0.8
    with pytest.raises(FederationError, match="too-many-directions"):
        _heard(tmp_path, data, _with(30, 2, directions=0.5))


def test_a_marker_with_few_carriers_is_used_by_nobody(tmp_path):
    """Its row is that of its carrier: Z'(Z V) less what is known of all is the carrier's own."""
    data = _people()
    (tmp_path / "all").mkdir()
    told, program, state = _heard(tmp_path / "all", data, _with(3, 2))
    used = used_markers(program, state)
    assert 0 in used.index
    v, y = told[0]
    copies = data.copies[used.index].astype(float)
    z = (copies - 2 * used.frequency[:, None]) / used.scale[:, None]
    own = (y[0] - z[0, 0] * (z.sum(axis=1) @ v)) * used.scale[0]  # sums of z follow from counts
    np.testing.assert_allclose(own, z[:, 7] @ v, atol=1e-9)  # one person's projections
    _, program, state = _heard(tmp_path, data, _with(3, 2, carriers=10))
    assert 0 not in used_markers(program, state).index
    assert state.values["components"]["withheld"] >= 1


def _at_directions(folder):
    data, made = _people(), _with(3, 2)
    cohorts = sites(made, cut(folder, data, [np.arange(N)]))
    cohorts[0].rare = 0
    program = Association(made, 1)
    state, reach = program.start(), InProcess(StudyHost(cohorts), workers=1, quorum=1.0)
    while (ask := program.ask(state)).question.task != "gwas directions":
        answered = {"sum": reach.sum, "gather": reach.gather, "alone": lambda *_: None}
        state = program.answer(state, answered[ask.kind](ask.question, ask.sites))
    return data, program, state, reach


def test_a_direction_along_a_genome_asks_who_takes_part_and_is_refused_by_who_follows(tmp_path):
    data, program, state, reach = _at_directions(tmp_path)
    part = program.part(state)
    used = part.used

    def along(copies):
        z = (copies[used.index] - 2 * used.frequency) / used.scale
        v = (z / np.sqrt(z @ z))[:, None]
        question = replace(program.ask(state).question, arrays={"kept": part._kept(), "v": v})
        question = replace(question, expects={"product": replace(
            question.expects["product"], shape=v.shape)})  # fmt: skip
        return question, v

    rng = np.random.default_rng(1)
    others = rng.binomial(2, np.clip(data.copies.mean(axis=1) / 2, 0.01, 0.99))
    sizes = []
    for copies in (data.copies[:, 3], others):
        question, v = along(copies.astype(float))
        sizes.append(float((v * reach.sum(question, [0]).arrays["product"]).sum()))
        with pytest.raises(Declined, match="does not follow"):
            Replay(program, state).check(question, 0)
    assert sizes[0] > 1.2 * sizes[1]  # whoever takes part stands out


def test_questions_are_counted(tmp_path):
    _, program, state, reach = _at_directions(tmp_path)
    question = program.ask(state).question
    rng = np.random.default_rng(2)
    for i in range(3):
        v = np.linalg.qr(rng.normal(size=question.arrays["v"].shape))[0]
        asked = replace(question, arrays={**question.arrays, "v": v}, step=question.step + i)
        reach.sum(asked, [0])
    with pytest.raises(FederationError, match="asked-too-often"):
        reach.sum(replace(question, step=question.step + 9), [0])


def test_a_site_says_what_it_wants_at_least():
    made = chosen()
    told = weaker_limits(made, Rules())
    assert [line for line in told if "limits.people is 1; this site wants at least 200" in line]
    assert [line for line in told if "limits.carriers is 0; this site wants at least 10" in line]
    assert [line for line in told if "limits.directions is 100; this site wants at most" in line]
    assert weaker_limits(chosen(limits={"people": 200, "directions": 0.5, "carriers": 10}),
                         Rules()) == []  # fmt: skip


def test_a_cohort_that_lies_turns_the_next_direction_along_a_genome(tmp_path):
    """Cohorts are believed: replay holds the coordinator to the totals, and not a cohort to its
    data. The total that all are told then says whether a genome is among the others' people."""
    data, program, first, reach = _at_directions(tmp_path)
    used = program.part(first).used
    rng = np.random.default_rng(1)
    nobody = rng.binomial(2, np.clip(data.copies.mean(axis=1) / 2, 0.01, 0.99))
    honest, sizes = reach.sum(program.ask(first).question, [0]), []
    for copies in (data.copies[:, 3], nobody):
        genome = (copies[used.index] - 2 * used.frequency) / used.scale
        genome /= np.sqrt(genome @ genome)
        lie = {"product": honest.arrays["product"] + 1e9 * genome[:, None]}
        state = program.answer(first, replace(honest, arrays=lie))
        question = program.ask(state).question
        Replay(program, state).check(question, 0)  # it follows from the totals
        v = question.arrays["v"]
        along = v.T @ genome
        assert np.sqrt(along @ along) > 0.8  # the rest of the genome was asked along before
        sizes.append(along @ (v.T @ reach.sum(question, [0]).arrays["product"]) @ along)
    assert sizes[0] > 1.2 * sizes[1]
