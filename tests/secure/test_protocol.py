"""The written protocol: a second implementation, which shares no code, makes the same bytes and
takes part in sums with Cupola's parties."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import second
from vectors import make

HERE = Path(__file__).parent
PRIMITIVES = json.loads((HERE / "vectors" / "primitives.json").read_text("utf-8"))
each_case = pytest.mark.parametrize("name", sorted(make.CASES))


def vector(name):
    return json.loads((HERE / "vectors" / f"{name}.json").read_text("utf-8"))


def array(facts):
    return second.Array(facts["type"], tuple(facts["shape"]), bytes.fromhex(facts["data"]))


class SecondStudy:
    """The second implementation's parties of a vector. repeat: they draw what the vector says."""

    def __init__(self, facts, repeat=False):
        self.facts, self.repeat = facts, repeat
        self.roster = second.Roster.read(json.dumps(facts["roster"]))
        asked = facts["question"]
        arrays = {name: array(a) for name, a in asked["arrays"].items()}
        self.question = second.Question(**{**asked, "arrays": arrays})

    def site(self, number):
        facts = self.facts["sites"][number]

        def run(inner):  # noqa: ARG001
            if facts["answer"] is None:
                raise second.Refused("not today")
            return {k: array(a) for k, a in facts["answer"].items()}, facts["weight"]

        draws = {label: iter(values) for label, values in facts["draws"].items()}

        def draw(label, size):
            value = bytes.fromhex(next(draws[label]))
            assert len(value) == size
            return value

        keys = self.keys(f"site {number}")
        return second.Site(self.roster, number, run, *keys, draw if self.repeat else None)

    def keys(self, party):
        return [bytes.fromhex(self.facts["private keys"][party][use]) for use in ("sign", "seal")]

    def compensator(self):
        if self.roster.compensator is None:
            return None
        return second.Compensator(self.roster, *self.keys("compensator"))

    def sum(self, sites, compensator, attempt=None):
        """By the second coordinator: the total, and every message."""
        coordinator = second.Coordinator(self.roster, sites, compensator)
        way = coordinator.pairwise if compensator is None else coordinator.compensated
        attempt = self.facts["attempt"] if attempt is None else attempt
        check = bytes.fromhex(self.facts["check"])
        total = way(self.question, list(range(len(sites))), attempt, check)
        return total, coordinator.messages


class FirstStudy:
    """Cupola's parties of a vector, with randomness of the operating system."""

    def __init__(self, name, facts):
        protocol, count, numbers, _ = make.CASES[name]
        self.roster = make.roster_of(count, 3, protocol == "compensator", leaves=(1,))
        self.question, self.answers = numbers(count)
        away = [n for n, site in enumerate(facts["sites"]) if site["answer"] is None]
        self.answers = [None if n in away else a for n, a in enumerate(self.answers)]

    def site(self, number):
        return make.site_of_cupola(self.roster, number, self.answers[number])

    def compensator(self):
        return self.roster.compensator and make.compensator_of_cupola(self.roster)

    def sum(self, sites, compensator):
        coordinator = make.coordinator_of_cupola(self.roster, sites, compensator)
        return coordinator.sum(self.question, range(len(sites)))


def same(total, expected):
    assert total.sites == expected["sites"]
    assert total.weight == expected["weight"]
    assert total.weights == expected["weights"]
    assert set(total.arrays) == set(expected["arrays"])
    for name, numbers in expected["arrays"].items():
        assert np.asarray(total.arrays[name]).reshape(-1).tolist() == numbers


def test_the_vectors_are_what_cupola_makes():
    for name, text in make.texts().items():
        assert (HERE / "vectors" / name).read_text("utf-8") == text, (
            "bytes of the protocol have changed: docs/protocol.md says how versions do; "
            "then python tests/secure/vectors/make.py"
        )


def test_the_second_implementation_shares_no_code():
    tree = ast.parse((HERE / "second.py").read_text("utf-8"))
    found = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert found == {
        "cryptography", "dataclasses", "fractions", "hashlib", "json", "math", "os", "random",
        "struct",
    }  # fmt: skip


# Single values


def test_packing_and_derived_keys():
    found = PRIMITIVES["pack"]["bytes"]
    assert second.pack(None, b"\x00\xff", "é", -12, [1, ["a"], b""]).hex() == found
    facts = PRIMITIVES["derive"]
    key = bytes.fromhex(facts["secret"])
    assert second.derive(key, *facts["purpose"], length=48).hex() == facts["bytes"]


def test_streams_and_masks():
    facts = PRIMITIVES["stream"]
    found = second.stream(bytes.fromhex(facts["key"]), facts["start"], len(facts["bytes"]) // 2)
    assert found.hex() == facts["bytes"]
    facts = PRIMITIVES["mask"]
    key, start, numbers = bytes.fromhex(facts["key"]), facts["start"], facts["numbers"]
    assert list(second.mask(key, facts["bits"], start, start + len(numbers))) == numbers
    assert str(second.checksum_mask(key)) == facts["checksum"]


def test_checksums():
    facts = PRIMITIVES["checksum"]
    numbers = [(-1) ** j * (j * j + 1) for j in range(2100)]
    for kind, many in (("int16", 100), ("int32", 1025), ("int64", 2100)):
        found = second.checksum(bytes.fromhex(facts["key"]), facts["array"], numbers[:many])
        assert str(found) == facts["residues"][kind]


def test_encodings_and_chunks():
    for facts, (bits, fraction) in PRIMITIVES["entries"]:
        found = second.entry("x", (), *facts)
        assert (found.bits, found.fraction) == (bits, fraction), facts
    for arrays, parts in PRIMITIVES["chunks"]:
        assert second.chunks(arrays) == parts


@pytest.mark.parametrize(("sites", "minimum", "expected"), PRIMITIVES["graph"])
def test_graphs(sites, minimum, expected):
    found = second.graph(sites, minimum)
    assert [found.picks, found.threshold, found.quorum] == expected


def test_edges_of_a_sparse_graph():
    facts = PRIMITIVES["edges"]
    roster = second.Roster("edges", [("", b"", b"")] * 151, None, 3, {})
    cohort = second.Cohort(roster, b"", facts["sites"], [b""] * len(facts["sites"]))
    picks = {int(site): drawn for site, drawn in facts["picks"].items()}
    edges = cohort.edges(picks)
    assert edges.hex() == facts["edges"]
    for site, expected in facts["neighbours"].items():
        assert cohort.neighbours(int(site), facts["sites"][:60], edges) == expected


def test_shares():
    facts = PRIMITIVES["shamir"]
    drawn = iter(facts["coefficients"])
    points, secret = facts["points"], bytes.fromhex(facts["secret"])
    draw = lambda label, size: bytes.fromhex(next(drawn))  # noqa: ARG005, E731
    shares = second.split(secret, points, facts["threshold"], draw)
    assert [share.hex() for share in shares] == facts["shares"]
    for start, block in ((0, secret[:32]), (33, secret[32:])):
        parts = [share[start : start + 33] for share in shares[1:]]
        assert second.combine(points[1:], parts) == block


# Whole sums


@each_case
def test_the_second_implementation_makes_every_message(name):
    facts = vector(name)
    study = SecondStudy(facts, repeat=True)
    sites = [study.site(number) for number in range(len(facts["sites"]))]
    total, messages = study.sum(sites, study.compensator())
    for (sender, to, data), (expected_sender, expected_to, expected) in zip(
        messages, facts["messages"]
    ):
        assert (sender, to) == (expected_sender, expected_to)
        assert data.hex() == expected, f"{sender} to {to}: {data[:400]!r}"
    assert len(messages) == len(facts["messages"])
    same(total, facts["total"])
    assert study.roster.consents_hold()
    layout = second.layout_of(study.question, len(facts["sites"]))
    assert facts["hashes"] == {
        "roster": study.roster.digest.hex(),
        "question": second.question_hash(study.question).hex(),
        "scales": second.scales_hash(layout).hex(),
        "layout": second.layout_hash(layout).hex(),
    }


def parties(name, who):
    """Both studies, and the parties of a sum. who: 'first' or 'second' for each site in turn,
    then for the compensator."""
    facts = vector(name)
    studies = {"first": FirstStudy(name, facts), "second": SecondStudy(facts)}
    *turns, third = who
    sites = [studies[turns[n % len(turns)]].site(n) for n in range(len(facts["sites"]))]
    return studies, facts, sites, studies[third].compensator()


@each_case
@pytest.mark.parametrize("coordinator", ["first", "second"])
@pytest.mark.parametrize(
    "who", [("first", "second"), ("second", "first"), ("first", "second", "first")]
)
def test_both_implementations_take_part_in_one_sum(name, coordinator, who):
    """Real randomness, parties of both, in all roles; ('first', 'second'): Cupola's sites and the
    other compensator."""
    studies, facts, sites, compensator = parties(name, who)
    found = studies[coordinator].sum(sites, compensator)
    same(found[0] if coordinator == "second" else found, facts["total"])


def test_rosters_that_change_agreements_to_go_on_and_parts():
    facts = vector("primitives")
    for one in facts["roster"]["rosters"]:
        roster = second.Roster.read(json.dumps(one["roster"]))
        assert (roster.body.hex(), roster.digest.hex()) == (one["body"], one["digest"])
    roster = second.Roster.read(json.dumps(facts["roster"]["rosters"][0]["roster"]))
    said = facts["roster"]["go-on"]
    lost = "without " + " ".join(map(str, said["without"]))
    key = next(sign for name, sign, _ in roster.sites if name == said["site"])
    signature = bytes.fromhex(said["signature"])
    facts_signed = ("cupola consent 1", lost, roster.body, said["site"])
    assert second.is_signed(key, signature, *facts_signed)
    for sets, found in facts["parts"]:
        assert sorted(map(sorted, second.parts_made_by([set(one) for one in sets]))) == found


# Refusals that the page demands, of both


def replayed(name, number):
    """A message of the vector, as a question of the second implementation."""
    facts = vector(name)
    sent = [bytes.fromhex(data) for sender, _, data in facts["messages"] if sender == "coordinator"]
    return second.Question.read(sent[number])


@pytest.fixture(params=["first", "second"])
def implementation(request):
    return request.param


def test_a_site_refuses_another_roster_and_another_question(implementation):
    _, _, sites, _ = parties("compensator", (implementation, implementation))
    question = replayed("compensator", 0)
    good, hidden = question.write(), question.options["hidden"]
    question.options = {**question.options, "hidden": {**hidden, "roster": "00" * 32}}
    assert sites[0](question.write())[:1] == b"F"
    assert sites[0](good)[:1] == b"A"
    question = replayed("compensator", 0)
    question.options["inner"]["options"] = {"rate": 2.0}
    assert sites[0](question.write())[:1] == b"F"


def test_a_question_has_one_encoding(implementation):
    _, _, sites, _ = parties("compensator", (implementation, implementation))
    question = replayed("compensator", 0)
    assert sites[0](question.write())[:1] == b"A"
    question.options["inner"]["expects"]["x"] = [[3], "float", 39.0, 64]
    assert sites[0](question.write())[:1] == b"F"


@pytest.mark.parametrize("name", ["compensator", "compensator-partial"])
def test_a_compensator_settles_what_was_signed_and_nothing_else(implementation, name):
    _, facts, _, compensator = parties(name, (implementation, implementation))
    settle = next(
        n for n in range(len(facts["sites"]), 20) if replayed(name, n).task == "settle"
    )  # fmt: skip
    question = replayed(name, settle)
    for change in ("attempt", "step"):
        other = replayed(name, settle)
        other.options[change] += 1
        assert compensator(other.write())[:1] == b"F"
    swapped = replayed(name, settle)
    rows = swapped.arrays["envelopes"].data
    swapped.arrays["envelopes"].data = rows[144:288] + rows[:144] + rows[288:]
    assert compensator(swapped.write())[:1] == b"F"
    few = replayed(name, settle)
    for array, width in (("sites", 4), ("layout", 4), ("envelopes", 144)):
        short = few.arrays[array]
        few.arrays[array] = second.Array(short.type, (2, *short.shape[1:]), short.data[: 2 * width])
    assert compensator(few.write())[:1] == b"F"
    answer = compensator(question.write())
    assert answer.hex() == facts["messages"][2 * settle + 1][2]
    assert compensator(question.write()) == answer


@pytest.mark.parametrize("name", ["compensator-partial", "pairwise-partial"])
@pytest.mark.parametrize("leaving", [0, 1])
def test_a_nearly_equal_question_without_a_site_is_refused(implementation, name, leaving):
    """Unless it agreed to that, as site 1 did; by a coordinator who does not care."""
    studies, _, sites, third = parties(name, (implementation, implementation))
    study = studies["second"]
    assert study.sum(sites, third)[0].sites == [0, 1, 2, 3, 4]
    options = {**study.question.options, "nonce": 1}
    study.question = replace(study.question, options=options, step=study.question.step + 1)
    sites[leaving] = lambda _: b"Fnot today"
    if leaving == 1:
        total, _ = study.sum(sites, third, study.facts["attempt"] + 1)
        assert total.sites == [0, 2, 3, 4]
    else:
        with pytest.raises(second.Refused):
            study.sum(sites, third, study.facts["attempt"] + 1)


def test_flags_and_headers_are_read_in_one_way(implementation):
    _, _, sites, _ = parties("pairwise-partial", (implementation, implementation))
    data = replayed("pairwise-partial", 0).write()
    assert sites[0](data)[:1] == b"A"
    assert sites[0](data.replace(b'"seeds":4', b'"seeds":4,"seeds":4'))[:1] in (b"F", b"B")


def test_survivors_need_the_signatures_of_their_answers(implementation):
    studies, facts, sites, _ = parties("pairwise-partial", (implementation, implementation))
    changed = []

    def meddle(data):
        question = second.Question.read(data)
        if question.task == "pairwise survivors":
            flags = question.arrays["present"]
            flags.data = bytes([1 - flags.data[0]]) + flags.data[1:]
            changed.append(sites[0](question.write()))
            return changed[-1]
        return sites[0](data)

    studies["second"].sum([meddle, *sites[1:]], None)  # the others are a quorum
    assert changed
    assert all(answer[:1] == b"F" for answer in changed)
    assert facts["total"]["sites"] == [0, 1, 2, 3, 4]
