"""The test vectors of docs/protocol.md, from Cupola's own parties with fixed secrets.

    python tests/secure/vectors/make.py            # write them
    python tests/secure/vectors/make.py --check    # fail if the code makes others today

Keys, seeds and coefficients are hashes of labels, put in the place of the operating system's
randomness; nothing but this file can do that.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cupola.federation import (
    Contribution,
    Declined,
    Federation,
    Question,
    SiteContext,
    Spec,
    StateStore,
    task,
)
from cupola.federation.answering import Answering, OpenSite, read_answer
from cupola.federation.message import encode_question, question_fields
from cupola.secure import (
    canonical,
    checksum,
    compensator_messages,
    differences,
    encoding,
    graph,
    lost_sites,
    mask_stream,
    replayed_totals,
    secure_aggregation,
    shamir,
)
from cupola.secure import envelope as envelopes
from cupola.secure import member as members
from cupola.secure import pairwise_member as pair_members
from cupola.secure.compensator import Compensator
from cupola.secure.compensator_client import Masked
from cupola.secure.identity import Identity
from cupola.secure.pairwise import Pairwise
from cupola.secure.pairwise_keys import Cohort
from cupola.secure.roster import Roster, body_digest, consent, simulated_roster
from cupola.secure.wrapped_question import layout_of, question_hash

HERE = Path(__file__).resolve().parent
ATTEMPT = 1_700_000_000_000_000
CHECK = hashlib.sha256(b"the coordinator's key of checksums").digest()


@task("vector numbers")
def numbers(site: SiteContext, question: Question) -> Contribution:  # noqa: ARG001
    if site.data is None:
        raise Declined("not today")
    return Contribution(*site.data)


# Secrets that are none


class Draws:
    """Random bytes by label, which are hashes; what was drawn is kept for the vectors."""

    def __init__(self, party: str) -> None:
        self.party, self.drawn = party, defaultdict(list)

    def __call__(self, label: str, size: int) -> bytes:
        text = f"{self.party}, {label}, {len(self.drawn[label])}"
        self.drawn[label].append(hashlib.sha256(text.encode()).digest().ljust(size, b"\0"))
        return self.drawn[label][-1]


def secret(name: str, use: str) -> bytes:
    return hashlib.sha256(f"{name}, {use}".encode()).digest()


class Randomness:
    """Puts draws in the place of randomness. now: those of the party whose turn it is."""

    def __init__(self) -> None:
        self.now = Draws("nobody")

    def key(self, *labels: str) -> SimpleNamespace:
        turn = iter(())

        def generate() -> X25519PrivateKey:
            nonlocal turn
            label = next(turn, None)
            if label is None:
                turn = iter(labels)
                label = next(turn)
            return X25519PrivateKey.from_private_bytes(self.now(label, 32))

        return SimpleNamespace(generate=generate)

    def fixed(self, clock: Callable[[], int] = lambda: ATTEMPT) -> ExitStack:
        """clock: microseconds, where attempts must differ."""

        def below(_: int) -> int:
            return int.from_bytes(self.now("coefficients", 33), "little")

        drawn = SimpleNamespace(token_bytes=lambda _: CHECK)
        ticking = SimpleNamespace(time_ns=lambda: clock() * 1000)
        stack = ExitStack()
        for module, name, other in (
            (members, "new_seed", lambda: self.now("seed", 32)),
            (pair_members, "new_seed", lambda: self.now("seeds", 32)),
            (replayed_totals, "new_seed", lambda: self.now("witness", 32)),
            (envelopes, "X25519PrivateKey", self.key("envelope")),
            (pair_members, "X25519PrivateKey", self.key("mask", "seal")),
            (shamir, "secrets", SimpleNamespace(randbelow=below)),
            (secure_aggregation, "secrets", drawn),
            (secure_aggregation, "time", ticking),
        ):
            stack.enter_context(patch.object(module, name, other))
        return stack


# Parties that pass bytes


class Wire(Federation):
    """Sites behind bytes, whoever wrote them: number -> question -> answer. It notes messages."""

    def __init__(self, parties, names, messages=None):
        super().__init__(len(parties))
        self.parties, self.names = parties, names
        self.messages = [] if messages is None else messages

    def ask(self, question, sites):
        for site in sites:
            data = encode_question(question)
            answer = self.parties[site](data)
            self.messages.append(("coordinator", self.names[site], data))
            self.messages.append((self.names[site], "coordinator", answer))
            yield site, read_answer(answer)


def site_of_cupola(roster, number, answer, memory=None, **facts):
    """A site that holds `answer`: arrays and weight, or None if it declines."""
    name = roster.sites[number].name
    identity = Identity(name, secret(name, "sign"), secret(name, "seal"))
    own = [] if memory is None else [memory]
    member = members.Member(identity, roster, number, *own, **facts)
    context = SiteContext(number, answer, None, StateStore(), 1, party=member)
    return Answering(lambda: OpenSite(context)).answer


def compensator_of_cupola(roster, memory=None):
    name = roster.compensator.name
    identity = Identity(name, secret(name, "sign"), secret(name, "seal"))
    context = SiteContext(0, Compensator(identity, roster, memory), None, StateStore(), 1)
    return Answering(lambda: OpenSite(context, closes=(context.data,))).answer


def coordinator_of_cupola(roster, sites, compensator=None, messages=None):
    """Masked sums over parties behind bytes."""
    names = [site.name for site in roster.sites]
    messages = [] if messages is None else messages
    engine = Wire(sites, names, messages)
    if compensator is None:
        return Pairwise(engine, roster)
    return Masked(engine, Wire([compensator], ["compensator"], messages), roster)


def roster_of(sites, minimum, third, leaves=(), changes=False):
    names = [f"site {number}" for number in range(sites)]

    def identity(name):
        return Identity(name, secret(name, "sign"), secret(name, "seal"))

    parties = tuple(identity(name).public for name in names)
    own = identity("compensator").public if third else None
    body = body_digest("vectors", parties, own, minimum, changes)
    given = {names[i]: consent(identity(names[i]), body, "leaves") for i in leaves}
    return Roster("vectors", parties, own, minimum, {"leaves": given}, changes)


# Cases


def whole(sites):
    """Every kind of array; two rows of a checksum; weights that are and are not whole."""
    expects = {
        "x": Spec((3,), "float", 40.0),
        "short": Spec((2, 2), "float", 1.5, 32),
        "n": Spec((3,), "int", 50_000),
        "large": Spec((2,), "int", 2.0**50),
        "flags": Spec((1030,), "bool", 10),
    }
    question = Question(
        "vector numbers",
        {"model": np.array([0.5, -1.25], np.float32)},
        {"rate": 1e-05, "name": "é", "deep": {"list": [1, None, True]}},
        expects,
        step=3,
        round=7,
        reveals="numbers",
        heaviest=10.0,
    )
    random = np.random.Generator(np.random.PCG64(24))
    answers = []
    for number in range(sites):
        arrays = {
            "x": random.uniform(-4, 4, 3).astype(np.float32 if number else np.float64),
            "short": random.uniform(-0.1, 0.1, (2, 2)).astype(np.float32),
            "n": random.integers(-5000, 5001, 3),
            "large": random.integers(-(2**46), 2**46, 2),
            "flags": random.uniform(size=1030) < 0.5,
        }
        answers.append((arrays, [3.0, 8.0, 2.5, 7.0][number % 4]))
    return question, answers


def partial(sites):
    """Sites with different arrays: two have 'rare', fewer than the minimum."""
    expects = {
        "rare": Spec((2,), "float", 8.0),
        "x": Spec((2,), "float", 8.0),
        "n": Spec((1,), "int", 100),
    }
    question = Question("vector numbers", {}, {}, expects, step=0, round=1, partial=True)
    random = np.random.Generator(np.random.PCG64(25))
    answers = []
    for number in range(sites):
        arrays = {
            "x": random.uniform(-4, 4, 2),
            "rare": random.uniform(-4, 4, 2),
            "n": random.integers(-100, 101, 1),
        }
        left_out = {0: (), 1: ("n",), 2: ("rare",), 3: ("rare",), 4: ("rare", "n")}[number]
        answers.append(({k: a for k, a in arrays.items() if k not in left_out}, 1.0))
    return question, answers


CASES = {
    "compensator": ("compensator", 4, whole, {2: "declines"}),
    "compensator-partial": ("compensator", 5, partial, {}),
    "pairwise": ("pairwise", 4, whole, {1: "declines"}),
    "pairwise-partial": ("pairwise", 5, partial, {}),
}


def made(name):
    """A sum by Cupola's own parties: inputs, secrets, messages and total, as JSON values."""
    protocol, sites, numbers, away = CASES[name]
    third = protocol == "compensator"
    roster = roster_of(sites, 3, third, leaves=(1,))
    question, answers = numbers(sites)
    answers = [None if number in away else answer for number, answer in enumerate(answers)]
    random, messages = Randomness(), []
    draws = [Draws(party.name) for party in roster.sites]
    parties = [
        _turn(random, draws[number], site_of_cupola(roster, number, answer))
        for number, answer in enumerate(answers)
    ]
    with random.fixed():
        compensator = compensator_of_cupola(roster) if third else None
        total = coordinator_of_cupola(roster, parties, compensator, messages).sum(
            question, range(sites)
        )
    layout = layout_of(question, sites)
    names = [party.name for party in roster.sites] + (["compensator"] if third else [])
    return {
        "protocol": protocol,
        "roster": json.loads(roster.to_json()),
        "private keys": {
            party: {use: secret(party, use).hex() for use in ("sign", "seal")} for party in names
        },
        "question": {
            **question_fields(question),
            **{k: getattr(question, k) for k in ("step", "round", "confirmed")},
            "arrays": {k: _array(a) for k, a in question.arrays.items()},
        },
        "attempt": ATTEMPT,
        "check": CHECK.hex(),
        "sites": [
            {
                "answer": answer and {k: _array(a) for k, a in answer[0].items()},
                "weight": answer and answer[1],
                "draws": {k: [value.hex() for value in v] for k, v in drawn.drawn.items()},
            }
            for answer, drawn in zip(answers, draws, strict=True)
        ],
        "hashes": {
            "roster": roster.digest.hex(),
            "question": question_hash(question).hex(),
            "scales": encoding.scales_hash(layout).hex(),
            "layout": encoding.layout_hash(layout).hex(),
        },
        "messages": [[sender, to, data.hex()] for sender, to, data in messages],
        "total": {
            "sites": total.sites,
            "weight": total.weight,
            "weights": total.weights,
            "arrays": {k: np.asarray(a).reshape(-1).tolist() for k, a in total.arrays.items()},
        },
    }


def _turn(random, draws, party):
    def answer(data):
        random.now = draws
        return party(data)

    return answer


def _array(array):
    return {"type": array.dtype.name, "shape": list(array.shape), "data": array.tobytes().hex()}


# Single values


def primitives():
    key = hashlib.sha256(b"a key").digest()
    values = [None, b"\x00\xff", "é", -12, [1, ["a"], b""]]
    numbers = [(-1) ** j * (j * j + 1) for j in range(2100)]
    residues = {
        f"int{bits}": checksum.checksum(key, "x", np.array(numbers[:many], f"int{bits}"))
        for bits, many in ((16, 100), (32, 1025), (64, 2100))
    }
    masks = np.zeros(5, np.int32)
    mask_stream.add_mask(masks, key, 3)
    return {
        "pack": {"values": ["nothing", "bytes 00ff", "é", -12, [1, ["a"], "bytes "]],
                 "bytes": canonical.pack(*values).hex()},
        "derive": {"secret": key.hex(), "purpose": ["a", 1],
                   "bytes": mask_stream.derive(key, "a", 1, length=48).hex()},
        "stream": {"key": key.hex(), "start": 21, "bytes": mask_stream.stream(key, 21, 40).hex()},
        "mask": {"key": key.hex(), "bits": 32, "start": 3, "numbers": masks.tolist(),
                 "checksum": str(mask_stream.mask_residue(key))},
        "checksum": {"key": key.hex(), "array": "x", "residues": {
            k: str(v) for k, v in residues.items()}},
        "entries": [
            [list(facts), [found.bits, found.fraction]]
            for facts in ENTRIES
            for found in [encoding.entry("x", (), *facts)]
        ],
        "chunks": [[arrays, list(compensator_messages.chunks(arrays))] for arrays in CHUNKED],
        "graph": [
            [sites, minimum, [found.picks, found.threshold, found.quorum]]
            for sites, minimum in GRAPHS
            for found in [graph.graph(sites, minimum)]
        ],
        "edges": _edges(),
        "shamir": _shamir(),
        "roster": _rosters(),
        "parts": [[sets, _parts(sets)] for sets in CUT],
    }  # fmt: skip


CUT = [
    [[0, 1, 2, 3]],
    [[0, 1, 2, 3, 4], [0, 1, 2, 3]],
    [[0, 1, 2, 3, 4, 5], [0, 1, 2], [2, 3, 4]],
    [[0, 1, 2], [3, 4, 5], [0, 1, 2, 6, 7, 8]],
]


def _parts(sets):
    found = differences.parts(frozenset(map(str, one)) for one in sets)
    return sorted(sorted(map(int, part)) for part in found)


def _rosters():
    """With sites that stay the same, and that may change; and an agreement to go on."""
    whole = roster_of(4, 3, True)
    changing = Roster(whole.study, whole.sites, whole.compensator, whole.minimum, changes=True)
    own = Identity("site 0", secret("site 0", "sign"), secret("site 0", "seal"))
    return {
        "rosters": [
            {
                "roster": json.loads(one.to_json()),
                "body": one.body.hex(),
                "digest": one.digest.hex(),
            }
            for one in (whole, changing)
        ],
        "go-on": json.loads(lost_sites.go_on(own, whole, ["site 1", "site 3"])),
    }


ENTRIES = [
    ("float", 1.0, 3, 64), ("float", 64.0, 20, 64), ("float", 0.1, 7, 32), ("float", 3.0, 5, 16),
    ("float", 0.0, 5, 64), ("float", 1e-300, 3, 64), ("float", 2.0**60, 9, 64),
    ("int", 10_922, 3), ("int", 10_923, 3), ("int", 0.4, 3), ("int", 0.5, 40_000),
    ("bool", 1, 40_000), ("int", 2.0**61, 3),
]  # fmt: skip
CHUNKED = [
    {"a": (64, 3), "b": (16, 5)},
    {"a": (64, 2**19), "b": (16, 1)},
    {"a": (16, 3), "b": (64, 2**20), "c": (32, 7)},
    {},
]
GRAPHS = [(3, 3), (4, 3), (10, 3), (10, 5), (129, 3), (150, 3), (150, 10), (200, 3)]


def _edges():
    """Whom sites of a sparse cohort drew, and with whom they mask."""
    sites = tuple(range(1, 151))
    roster, _, _ = simulated_roster(1, "edges", 151, compensator=False)
    cohort = Cohort(roster, None, sites, (b"",) * len(sites))
    picks = {
        site: sorted((site + step * step) % 150 + 1 for step in range(1, 6)) for site in sites[:40]
    }
    picks = {site: sorted(set(drawn) - {site}) for site, drawn in picks.items()}
    edges = cohort.edges(picks)
    return {
        "sites": list(sites),
        "picks": {str(site): drawn for site, drawn in picks.items()},
        "edges": edges.hex(),
        "neighbours": {
            str(site): cohort.neighbours(site, list(sites[:60]), edges) for site in (1, 2, 40, 60)
        },
    }


def _shamir():
    draws, points = Draws("shamir"), [1, 3, 4, 9]
    secret = hashlib.sha256(b"one").digest() + hashlib.sha256(b"two").digest()

    def below(_):
        return int.from_bytes(draws("coefficients", 33), "little")

    with patch.object(shamir, "secrets", SimpleNamespace(randbelow=below)):
        shares = shamir.split(secret, points, 3)
    return {
        "secret": secret.hex(),
        "points": points,
        "threshold": 3,
        "coefficients": [value.hex() for value in draws.drawn["coefficients"]],
        "shares": [share.hex() for share in shares],
    }


def texts():
    """File name -> what it holds."""
    found = {"primitives.json": primitives()} | {f"{name}.json": made(name) for name in CASES}
    return {name: json.dumps(value, indent=1) + "\n" for name, value in found.items()}


def main() -> int:
    stale = 0
    for name, text in texts().items():
        path = HERE / name
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale += 1
        if "--check" not in sys.argv[1:]:
            path.write_text(text, "utf-8")
        print(name)
    return int("--check" in sys.argv[1:] and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
