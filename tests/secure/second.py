"""A second implementation of masked sums, written from docs/protocol.md.

Plain Python and the primitives of `cryptography`: nothing here comes from Cupola, so that what both
compute alike is what the page says. It is slow, keeps its memory in the process, and is no model of
how to handle secrets. Numbers in comments are sections of the page.
"""

import hashlib
import json
import math
import os
import random
import struct
from dataclasses import dataclass, field
from fractions import Fraction

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

P = 2**127 - 1
Q = 2**256 + 297
CHUNK = 4 * 2**20
LETTERS = {
    "float16": "e", "float32": "f", "float64": "d", "int8": "b", "int16": "h", "int32": "i",
    "int64": "q", "uint8": "B", "bool": "?",
}  # fmt: skip
KINDS = {"float": "float", "int": "int", "uint": "int", "bool": "bool"}


class Refused(Exception):
    """A party says no; the text is its code."""


# 1.1 Canonical bytes


def pack(*values):
    return b"".join(map(_part, values))


def _part(value):
    if value is None:
        letter, body = b"n", b""
    elif isinstance(value, bytes):
        letter, body = b"b", value
    elif isinstance(value, str):
        letter, body = b"s", value.encode("utf-8")
    elif isinstance(value, int):
        letter, body = b"i", b"%d" % value
    else:
        letter, body = b"l", pack(*value)
    return letter + struct.pack("<Q", len(body)) + body


def digest(*values):
    return hashlib.sha256(pack(*values)).digest()


def derive(secret, *purpose, length=32):
    return HKDF(SHA256(), length, None, pack(*purpose)).derive(secret)


# 1 Primitives


def stream(key, start, size):
    first = start // 16
    cipher = Cipher(algorithms.AES256(key), modes.CTR(first.to_bytes(16, "big"))).encryptor()
    return cipher.update(bytes(start - 16 * first + size))[start - 16 * first :]


def agree(private, public):
    return X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(public)
    )


def public_of(private):
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private, *facts):
    return Ed25519PrivateKey.from_private_bytes(private).sign(pack(*facts))


def is_signed(public, signature, *facts):
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, pack(*facts))
    except (InvalidSignature, ValueError):
        return False
    return True


def lock(key, text, facts):
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, facts)


def unlock(key, sealed, facts):
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, facts)
    except InvalidTag:
        return None


# 2 Roster


@dataclass(frozen=True)
class Roster:
    """sites, compensator: (name, sign, seal). consents: what -> name -> signature."""

    study: str
    sites: list
    compensator: tuple | None
    minimum: int
    consents: dict
    changes: bool = False

    @classmethod
    def read(cls, text):
        facts = json.loads(text)

        def party(p):
            return (p["name"], bytes.fromhex(p["sign"]), bytes.fromhex(p["seal"]))

        third = facts["compensator"] and party(facts["compensator"])
        consents = {
            what: {name: bytes.fromhex(s) for name, s in by.items()}
            for what, by in facts["consents"].items()
        }
        sites = [party(p) for p in facts["sites"]]
        changes = facts.get("changes", False)
        return cls(facts["study"], sites, third, facts["minimum"], consents, changes)

    @property
    def body(self):
        sites = [list(site) for site in self.sites]
        third = self.compensator and list(self.compensator)
        more = ["changes"] if self.changes else []
        return digest("cupola roster body 1", self.study, self.minimum, sites, third, *more)

    @property
    def digest(self):
        given = [[what, sorted(by.items())] for what, by in sorted(self.consents.items()) if by]
        return digest("cupola roster 1", self.body, given)

    @property
    def free(self):
        """Numbers of the sites that differences of totals may tell of; nobody is lost here."""
        given = self.consents.get("leaves", {})
        return {number for number, (name, _, _) in enumerate(self.sites) if name in given}

    def consents_hold(self):
        keys = {name: key for name, key, _ in self.sites}
        return all(
            name in keys
            and is_signed(keys[name], signature, "cupola consent 1", what, self.body, name)
            for what, by in self.consents.items()
            for name, signature in by.items()
        )


# 3.1 Framing


@dataclass
class Array:
    """Numbers of a type, in C order, as they travel."""

    type: str
    shape: tuple
    data: bytes

    @classmethod
    def of(cls, type, numbers, shape=None):
        numbers = list(numbers)
        data = struct.pack(f"<{len(numbers)}{LETTERS[type]}", *numbers)
        return cls(type, (len(numbers),) if shape is None else tuple(shape), data)

    @property
    def numbers(self):
        letter = LETTERS[self.type]
        count = len(self.data) // struct.calcsize("<" + letter)
        return list(struct.unpack(f"<{count}{letter}", self.data))

    @property
    def kind(self):
        return KINDS[self.type.rstrip("0123456789")]


def raw(data, width=None):
    """Bytes as an array of uint8; width: in rows of so many."""
    if width is None:
        return Array("uint8", (len(data),), data)
    return Array("uint8", (len(data) // width, width), data)


def header(fields, arrays):
    layout = [[name, a.type, list(a.shape)] for name, a in arrays.items()]
    return json.dumps({**fields, "arrays": layout}, separators=(",", ":")).encode("ascii")


def frame(fields, arrays, weight):
    head = header(fields, arrays)
    whole = [b"CUP1", struct.pack("<Id", len(head), weight), head]
    return b"".join(whole + [a.data for a in arrays.values()])


def unframe(data):
    try:
        magic, size, weight = struct.unpack_from("<4sId", data)
        fields = json.loads(data[16 : 16 + size].decode("ascii"), object_pairs_hook=_once)
        if magic != b"CUP1" or size > 16 * 2**20:
            raise ValueError
        place, arrays = 16 + size, {}
        for name, type, shape in fields.pop("arrays"):
            end = place + math.prod(shape) * struct.calcsize("<" + LETTERS[type])
            if name in arrays or end > len(data):
                raise ValueError
            arrays[name] = Array(type, tuple(shape), data[place:end])
            if type == "bool" and set(data[place:end]) - {0, 1}:
                raise ValueError
            place = end
        if place != len(data):
            raise ValueError
    except (ValueError, KeyError, TypeError, struct.error):
        raise Refused("message is not well formed") from None
    return fields, arrays, weight


def _once(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError
    return dict(pairs)


@dataclass
class Question:
    task: str
    arrays: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    expects: dict = field(default_factory=dict)  # name -> the list of 3.1
    step: int = 0
    round: int = 0
    confirmed: int = -1
    partial: bool = False
    reveals: str = ""
    protection: str = "none"
    heaviest: float = 1.0

    @property
    def fields(self):
        names = ("task", "options", "expects", "partial", "reveals", "protection")
        found = {name: getattr(self, name) for name in names}
        return found | ({} if self.heaviest == 1 else {"heaviest": self.heaviest})

    @property
    def counters(self):
        return {"step": self.step, "round": self.round, "confirmed": self.confirmed}

    def write(self):
        counters = struct.pack("<3q", self.step, self.round, self.confirmed)
        return counters + frame(self.fields, self.arrays, 0.0)

    @classmethod
    def read(cls, data):
        if len(data) < 24:
            raise Refused("message is not well formed")
        step, round, confirmed = struct.unpack_from("<3q", data)
        fields, arrays, _ = unframe(data[24:])
        return cls(arrays=arrays, step=step, round=round, confirmed=confirmed, **fields)

    @property
    def inner(self):
        return Question(arrays=self.arrays, **self.counters, **self.options["inner"])


def contribution(arrays):
    return b"A" + frame({}, arrays, 1.0)


def read_contribution(data):
    if data[:1] != b"A":
        raise Refused(data[1:].decode("utf-8"))
    fields, arrays, weight = unframe(data[1:])
    if fields or weight != 1.0:
        raise Refused("message is not well formed")
    return arrays


# 3.2


def question_hash(inner, random=False):
    facts = {
        "task": inner.task,
        "options": inner.options,
        "round": inner.round if random else None,
    }
    head = header(facts, inner.arrays)
    body = b"".join(array.data for array in inner.arrays.values())
    return hashlib.sha256(struct.pack("<Q", len(head)) + head + body).digest()


# 4.1 Layout


@dataclass(frozen=True)
class Entry:
    name: str
    shape: tuple
    kind: str
    bits: int
    fraction: int
    bound: float
    sites: int

    @property
    def size(self):
        return math.prod(self.shape)


def entry(name, shape, kind, bound, sites, bits=64):
    def fits(bits, f):
        most = math.floor(Fraction(bound) * Fraction(2) ** f + Fraction(1, 2))
        return sites * most < 2 ** (bits - 1)

    fraction = 0
    if kind == "float":
        fraction = min(1000, bits - math.frexp(bound)[1])
        while not fits(bits, fraction):
            fraction -= 1
    else:
        bits = next(bits for bits in (16, 32, 64) if fits(bits, 0))
    return Entry(name, tuple(shape), kind, bits, fraction, float(bound), sites)


def layout_of(inner, sites):
    numbers = sum(math.prod(shape) for shape, *_ in inner.expects.values())
    weight = ((), "float", inner.heaviest, sites)
    entries = [entry("#weight", *weight), entry("#beyond", (), "int", 1 + numbers, sites)]
    for name in sorted(inner.expects):
        shape, kind, bound, *bits = inner.expects[name]
        if len(bits) > 1:
            raise Refused("a compact array cannot be masked")
        entries.append(entry(name, shape, kind, bound, sites, *bits))
        if inner.partial:
            entries.append(entry(f"#weight/{name}", *weight))
    return entries


def outline(entries):
    return [[e.name, e.bits, e.size] for e in entries]


def layout_hash(entries):
    return digest("cupola layout 1", outline(entries))


def scales_hash(entries):
    facts = [[e.name, list(e.shape), e.kind, e.bits, e.fraction, e.bound, e.sites] for e in entries]
    return digest("cupola scales 1", json.dumps(facts).encode("ascii"))


# 4.2 Encoding


def encode(inner, layout, arrays, weight):
    """Entry -> integers, for the entries that the answer holds."""
    for name, array in arrays.items():
        shape, kind, *_ = inner.expects[name]
        if array.shape != tuple(shape) or array.kind != kind:
            raise Refused(f"ill-shaped array '{name}'")
        if not all(math.isfinite(x) for x in array.numbers):
            raise Refused(f"NaN or infinity in '{name}'")
    beyond = int(weight > inner.heaviest)
    weight = min(weight, inner.heaviest)
    found = {}
    for e in layout:
        owner = e.name.removeprefix("#weight/")
        if e.name == "#weight" or (owner != e.name and owner in arrays):
            found[e] = [round(math.ldexp(weight, e.fraction))]
        elif e.name in arrays:
            found[e], cut = _integers(e, arrays[e.name].numbers, weight)
            beyond += cut
    found[layout[1]] = [beyond]
    return {e: found[e] for e in layout if e in found}


def _integers(e, numbers, weight):
    exact = e.kind != "float" and float(weight).is_integer()
    factor = int(weight) if exact else weight
    cut = 0
    if any(abs(factor * x) > e.bound for x in numbers):
        if e.kind == "float":
            limit = e.bound / weight * (1 - 2.0**-50)
        else:
            limit = math.floor(Fraction(e.bound) / Fraction(weight))
        cut = sum(abs(x) > limit for x in numbers)
        numbers = [max(-limit, min(limit, x)) for x in numbers]
    if exact:
        return [factor * x for x in numbers], cut
    return [round(math.ldexp(factor * float(x), e.fraction)) for x in numbers], cut


def signed(number, bits):
    number %= 2**bits
    return number - 2**bits if number >= 2 ** (bits - 1) else number


def decode(e, integers):
    if e.kind == "float":
        return [math.ldexp(n, -e.fraction) for n in integers]
    return list(integers)


# 4.3 Masks


def mask_key(seed, study, step, attempt, array):
    return derive(seed, "cupola mask 1", study, step, attempt, array)


def mask(key, bits, start, stop):
    letter = {16: "h", 32: "i", 64: "q"}[bits]
    data = stream(key, start * bits // 8, (stop - start) * bits // 8)
    return struct.unpack(f"<{stop - start}{letter}", data)


def checksum_mask(key):
    return int.from_bytes(derive(key, "cupola checksum mask 1", length=48), "little") % P


def added(numbers, masks, bits, sign=1):
    return [signed(n + sign * m, bits) for n, m in zip(numbers, masks, strict=True)]


def as_array(numbers, bits):
    return Array.of(f"int{bits}", numbers)


# 4.4 Checksums


def checksum(check, name, integers):
    u = _coefficients(check, name, "rows", -(-len(integers) // 1024))
    v = _coefficients(check, name, "columns", min(len(integers), 1024))
    return sum(u[j // 1024] * v[j % 1024] * z for j, z in enumerate(integers)) % P


def _coefficients(check, name, axis, count):
    data = stream(derive(check, "cupola checksum 1", name, axis), 0, 24 * count)
    pieces = struct.unpack(f"<{12 * count}H", data)
    return [sum((pieces[12 * i + k] % 2**11) << (11 * k) for k in range(12)) for i in range(count)]


def to_bytes(residue):
    return raw((residue % P).to_bytes(16, "little"))


def from_bytes(array):
    residue = int.from_bytes(array.data, "little")
    if residue >= P or array.type != "uint8" or array.shape != (16,):
        raise Refused("a checksum is not a residue")
    return residue


# 4.5


def statement(roster, step, attempt, question, layout, terms, site):
    facts = (roster.study, step, attempt, roster.digest, question, layout, terms, site)
    return pack("cupola statement 1", *facts)


class Party:
    """Answers questions. secrets: its two private keys. draw: of a label and a number of bytes,
    random ones; the operating system's unless a test gives its own."""

    def __init__(self, roster, sign=b"", seal=b"", draw=None):
        self.roster, self.sign, self.seal = roster, sign, seal
        self.draw = draw or (lambda label, size: os.urandom(size))  # noqa: ARG005
        self.memory = {}

    def __call__(self, data):
        try:
            question = Question.read(data)
            return contribution(self.answer(question))
        except Refused as refused:
            return b"F" + str(refused).encode("utf-8")[:200]

    def remember(self, key, value, code):
        if self.memory.setdefault(key, value) != value:
            raise Refused(code)


class Site(Party):
    """A site in both protocols. run: of an inner question, its arrays and weight, or Refused."""

    def __init__(self, roster, number, run, sign, seal, draw=None):
        super().__init__(roster, sign, seal, draw)
        self.number, self.run = number, run
        self.name = roster.sites[number][0]

    def answer(self, question):
        phases = {
            "masked": self.masked,
            "pairwise keys": self.keys,
            "pairwise shares": self.shares,
            "pairwise masked": self.pairwise_masked,
            "pairwise survivors": self.survivors,
            "pairwise unmask": self.unmask,
        }
        if question.task not in phases:
            raise Refused("this site answers in masked sums only")
        return phases[question.task](question)

    def agree(self, roster, step, question, scales):  # 5.1, 1 and 2
        if roster != self.roster.digest.hex():
            raise Refused("the roster is not the one this site agreed to")
        self.remember(("step", step), question, "another question was answered under this step")
        self.remember(("scales", question), scales, "the question was answered with other bounds")

    def values(self, inner, layout):  # 5.1, 3 and 4
        found = encode(inner, layout, *self.run(inner))
        self.remember(("answer", inner.step), list(found.values()), "not the same as before")
        return found

    # 5: C1 to C2

    def masked(self, question):
        inner, hidden = question.inner, question.options["hidden"]
        layout, asked = layout_of(inner, len(self.roster.sites)), question_hash(inner)
        self.agree(hidden["roster"], inner.step, asked, scales_hash(layout))
        check, attempt = bytes.fromhex(hidden["check"]), hidden["attempt"]
        values = self.values(inner, layout)
        seed = self.draw("seed", 32)
        arrays = {}
        for e, integers in values.items():
            key = mask_key(seed, self.roster.study, inner.step, attempt, e.name)
            numbers = added(integers, mask(key, e.bits, 0, e.size), e.bits)
            arrays[f"masked/{e.name}"] = as_array(numbers, e.bits)
            residue = checksum(check, e.name, integers) + checksum_mask(key)
            arrays[f"check/{e.name}"] = to_bytes(residue)
        terms = digest("cupola terms 1", scales_hash(layout), check)
        said = statement(
            self.roster, inner.step, attempt, asked, layout_hash(values), terms, self.name
        )
        arrays["envelope"] = raw(self._envelope(said, seed))
        return arrays

    def _envelope(self, said, seed):
        own, third = self.draw("envelope", 32), self.roster.compensator[2]
        public = public_of(own)
        key = derive(agree(own, third), "cupola envelope 1", public, third)
        sealed = lock(key, seed, said)
        return public + sealed + sign(self.sign, "cupola signature 1", said, public, sealed)

    # 6: P1 to P10

    def keys(self, question):
        hidden = question.options["hidden"]
        asked, scales = bytes.fromhex(hidden["question"]), bytes.fromhex(hidden["layout"])
        self.agree(hidden["roster"], question.step, asked, scales)
        facts = (question.step, hidden["attempt"], asked, scales, hidden["seeds"])
        if getattr(self, "facts", None) != facts:
            self.facts, self.cohort, self.stage, self.signed = facts, None, None, None
            self.own = {"mask": self.draw("mask", 32), "seal": self.draw("seal", 32)}
            publics = [public_of(self.own["mask"]), public_of(self.own["seal"])]
            said = self.said(self.name)
            signature = sign(self.sign, "cupola pairwise keys 1", said, *publics)
            self.public = b"".join(publics) + signature
        before = self.memory.get(("survivors", asked), {})
        if not before and not self.roster.changes:
            before = self.memory.get(("scales", scales), ())
        told = [number in before for number in range(len(self.roster.sites))]
        return {"keys": raw(self.public), "told": Array.of("bool", told)}

    def said(self, name):
        step, attempt, asked, scales, _ = self.facts
        return statement(self.roster, step, attempt, asked, scales, b"", name)

    def under_way(self, question):
        asked = (question.step, question.options["hidden"]["attempt"])
        if asked != getattr(self, "facts", ())[:2]:
            raise Refused("no such attempt is under way at this site")

    def shares(self, question):
        self.under_way(question)
        cohort = Cohort(self.roster, self.said(""), *_cohort_in(question))
        if self.cohort is None:
            if len(cohort.sites) < self.roster.minimum:
                raise Refused("too few sites")
            if cohort.keys.get(self.number) != self.public:
                raise Refused("this site's keys are not among the cohort's")
            for number, keys in cohort.keys.items():
                name, key, _ = self.roster.sites[number]
                if not is_signed(
                    key, keys[64:], "cupola pairwise keys 1", self.said(name), keys[:32],
                    keys[32:64],
                ):  # fmt: skip
                    raise Refused(f"keys that '{name}' did not sign")
            self.remember_survivors(cohort.sites, None)
            self._deal(cohort)
        elif self.cohort.digest != cohort.digest:
            raise Refused("shares were dealt to another cohort")
        return {"picks": Array.of("int32", self.picks), "sealed": self.sealed}

    def _deal(self, cohort):
        self.cohort, graph = cohort, cohort.graph
        others = [n for n in cohort.sites if n != self.number]
        self.picks = sorted(random.SystemRandom().sample(others, graph.picks))
        self.seeds = [self.draw("seeds", 32) for _ in range(self.facts[4])]
        secret = self.own["mask"] + b"".join(self.seeds)
        points = [self.number + 1, *(n + 1 for n in self.picks)]
        self.own_share, *dealt = split(secret, points, graph.threshold, self.draw)
        width = 33 * (1 + len(self.seeds)) + 16
        sealed = []
        for to, share in zip(self.picks, dealt, strict=True):
            key, facts = cohort.share_key(self.own["seal"], self.number, to, to)
            sealed.append(lock(key, share, facts))
        self.sealed = raw(b"".join(sealed), width)

    def pairwise_masked(self, question):
        self.under_way(question)
        cohort, hidden, inner = self.cohort, question.options["hidden"], question.inner
        if cohort is None or "mask" not in self.own:
            raise Refused("not the time for an answer")
        layout = layout_of(inner, len(self.roster.sites))
        seeds = 1 + len(inner.expects) if inner.partial else 1
        if (question_hash(inner), scales_hash(layout), seeds) != self.facts[2:]:
            raise Refused("another question than the one this site signed keys for")
        edges, check = bytes.fromhex(hidden["edges"]), bytes.fromhex(hidden["check"])
        dealt = cohort.dealt_in(bytes.fromhex(hidden["dealt"]))
        if self.number not in dealt or len(dealt) < cohort.graph.quorum:
            raise Refused("too few sites dealt shares")
        if cohort.drawn_by(self.number, edges) != self.picks:
            raise Refused("not the sites this site drew")
        own = self.own.pop("mask")
        values = self.values(inner, layout)
        table = Table(layout, self.roster.study, *self.facts[:2])
        for e, integers in values.items():
            table.numbers[e] = list(integers)
            table.checks[e] = checksum(check, e.name, integers)
        table.mask_own(inner, dict(enumerate(self.seeds)), 1)
        for other in cohort.neighbours(self.number, dealt, edges):
            table.mask_all(*cohort.pair(own, self.number, other))
        held = {e.name for e in values}
        present = bytes(name in held for name in sorted(inner.expects)) if inner.partial else b""
        self.names = sorted(inner.expects)
        self.dealt, self.stage = dealt, stage(cohort, dealt, edges, check)
        signature = sign(
            self.sign, "cupola pairwise masked 1", self.said(self.name), self.stage, present
        )
        return {
            "present": Array("bool", (len(present),), present),
            "signature": raw(signature),
            **table.arrays(),
        }

    def survivors(self, question):
        self.under_way(question)
        if self.stage is None:
            raise Refused("not the time to agree on survivors")
        these = question.arrays["survivors"].numbers
        present = _rows(question.arrays["present"], len(these))
        signed = survivors(self.stage, these, b"".join(present))
        if self.signed is None:
            least = max(self.cohort.graph.quorum, self.roster.minimum)
            if len(these) < least or self.number not in these or set(these) - set(self.dealt):
                raise Refused("survivors without this site, too few, or who dealt no shares")
            signatures = _rows(question.arrays["signatures"], len(these))
            for number, row, signature in zip(these, present, signatures, strict=True):
                name, key, _ = self.roster.sites[number]
                said = (self.said(name), self.stage, row)
                if not is_signed(key, signature, "cupola pairwise masked 1", *said):
                    raise Refused(f"an answer that '{name}' did not sign")
            self.remember_total(these, present)
            self.granted = self.remember_survivors(these, present)
            self.these, self.signed = these, signed
        elif self.signed != signed:
            raise Refused("this site has agreed to other survivors")
        return {"signature": raw(sign(self.sign, "cupola pairwise survivors 1", signed))}

    def remember_total(self, these, present):
        """6.1, 4, for all totals of a study: the same sites behind every array."""
        if self.roster.changes:
            return
        columns = list(zip(*present, strict=True)) or [(1,) * len(these)] * len(self.names)
        rows = zip(self.names, columns, strict=True)
        senders = {
            name: {s for s, yes in zip(these, row, strict=True) if yes} for name, row in rows
        }
        new = behind({"#weight": set(these), **senders}, self.roster.minimum)
        totals = self.memory.setdefault("totals", [])
        for old in totals:
            for name in compared(old, new):
                if (old[name] ^ new[name]) - self.roster.free:
                    raise Refused("a difference of totals would tell of too few sites")
        totals.append(new)
        self.memory["scales", self.facts[3]] = list(these)

    def remember_survivors(self, these, present):
        """6.1, 4; without the consent 'leaves', which no test of this file needs."""
        key = ("survivors", self.facts[2])
        if present is None:
            if key in self.memory and list(self.memory[key]) != list(these):
                raise Refused("the question was answered for other survivors")
            return None
        record = dict(zip(these, present, strict=True))
        self.remember(key, record, "the question was answered for other survivors")
        enough = [sum(column) >= self.roster.minimum for column in zip(*present, strict=True)]
        return [True, *enough]

    def unmask(self, question):
        self.under_way(question)
        if self.signed is None:
            raise Refused("not the time to unmask")
        signers = question.arrays["signers"].numbers
        signatures = _rows(question.arrays["signatures"], len(signers))
        if len(set(signers) & set(self.these)) < self.cohort.graph.quorum:
            raise Refused("too few signatures")
        for number, signature in zip(signers, signatures, strict=True):
            key = self.roster.sites[number][1]
            if not is_signed(key, signature, "cupola pairwise survivors 1", self.signed):
                raise Refused("survivors that a site did not sign")
        dealers = question.arrays["dealers"].numbers
        if self.number in dealers or set(dealers) - set(self.dealt):
            raise Refused("shares of sites that dealt none")
        rows, valid = [self._told(self.own_share[33:])], [True]
        for dealer, sealed in zip(
            dealers, _rows(question.arrays["sealed"], len(dealers)), strict=True
        ):
            key, facts = self.cohort.share_key(self.own["seal"], dealer, self.number, dealer)
            share = unlock(key, sealed, facts)
            valid.append(share is not None)
            if share is None:
                rows.append(bytes(33 * len(self.granted)))
            elif dealer in self.these:
                rows.append(self._told(share[33:]))
            else:
                rows.append(share[:33].ljust(33 * len(self.granted), b"\0"))
        return {
            "shares": raw(b"".join(rows), 33 * len(self.granted)),
            "valid": Array.of("bool", valid),
        }

    def _told(self, seeds):
        parts = [seeds[33 * i : 33 * (i + 1)] for i in range(len(self.granted))]
        return b"".join(p if yes else bytes(33) for p, yes in zip(parts, self.granted))


def _rows(array, count):
    width = len(array.data) // count if count else 0
    return [array.data[i * width : (i + 1) * width] for i in range(count)]


class Compensator(Party):
    """5.2: refuses what it must. Nobody is lost here."""

    def answer(self, question):
        if question.task == "settle":
            return self.settle(question)
        if question.task == "unmask":
            return self.unmask(question)
        if question.task == "settled":
            return self.settled(question.options["step"])
        raise Refused("this site is no compensator")

    def settle(self, question):
        options, roster = question.options, self.roster
        sites, places = (question.arrays[name].numbers for name in ("sites", "layout"))
        envelopes = _rows(question.arrays["envelopes"], len(sites))
        if options["study"] != roster.study or options["roster"] != roster.digest.hex():
            raise Refused("roster differs")
        if len(set(sites)) < len(sites) or not set(sites) <= set(range(len(roster.sites))):
            raise Refused("a site twice, or not in the roster")
        if len(sites) < roster.minimum:
            raise Refused("too few sites")
        outlines = [options["layouts"][place] for place in places]
        arrays = {}
        for lines in options["layouts"]:
            for name, bits, size in lines:
                if arrays.setdefault(name, (bits, size)) != (bits, size):
                    raise Refused(f"array '{name}' differs between sites")
        granted = {
            name: sum(name in {line[0] for line in lines} for lines in outlines) >= roster.minimum
            for name in arrays
        }
        if not any(granted.values()):
            raise Refused("no array has enough sites")
        step, attempt = options["step"], options["attempt"]
        hashes = [digest("cupola layout 1", lines) for lines in outlines]
        asked, terms = bytes.fromhex(options["question"]), bytes.fromhex(options["terms"])
        seeds = [
            self._open(
                number,
                envelope,
                statement(roster, step, attempt, asked, layout, terms, roster.sites[number][0]),
            )
            for number, layout, envelope in zip(sites, hashes, envelopes, strict=True)
        ]
        parts = sorted(zip(sites, hashes, envelopes, strict=True))
        before = self.memory.get(("step", step), (asked, parts_of(parts)))
        if before != (asked, parts_of(parts)):
            raise Refused("step settled for other survivors")
        senders = {}
        for site, lines in zip(sites, outlines, strict=True):
            for name, _, _ in lines:
                senders.setdefault(name, set()).add(site)
        self._keep_crowds(asked, behind(senders, roster.minimum))
        self.memory["step", step] = before
        facts = (roster.study, roster.digest, step, attempt, asked, terms)
        request = digest("cupola settle 1", *facts, parts)
        made = self.memory.setdefault(("attempts", step), {})
        if request not in made and made and attempt <= max(made.values()):
            raise Refused("this attempt or a later one was settled with other envelopes")
        made[request] = attempt
        self.memory["request", request] = (step, attempt, arrays, granted, outlines, seeds)
        return {"granted": Array.of("bool", granted.values())}

    def _keep_crowds(self, asked, new):
        """5.2, 5."""
        family = asked if self.roster.changes else None
        told = self.memory.setdefault(("totals", family), [])
        for name, sites in new.items():
            sets = [old[name] for old in told if name in compared(old, new)]
            for part in parts_made_by([*sets, sites]):
                if len(part) < self.roster.minimum and not part <= self.roster.free:
                    raise Refused("a difference of totals would tell of too few sites")
        told.append(new)

    def _open(self, number, envelope, said):
        _, key, _ = self.roster.sites[number]
        public, sealed, signature = envelope[:32], envelope[32:80], envelope[80:]
        if not is_signed(key, signature, "cupola signature 1", said, public, sealed):
            raise Refused("bad envelope")
        third = self.roster.compensator[2]
        secret = derive(agree(self.seal, public), "cupola envelope 1", public, third)
        seed = unlock(secret, sealed, said)
        if seed is None:
            raise Refused("bad envelope")
        return seed

    def unmask(self, question):
        request = bytes.fromhex(question.options["request"])
        if ("request", request) not in self.memory:
            raise Refused("this request is not settled")
        step, attempt, arrays, granted, outlines, seeds = self.memory["request", request]
        told, size = {}, 0
        for array, start, stop in question.options["parts"]:
            bits, whole = arrays.get(array, (0, 0))
            size += (stop - start) * bits // 8
            if not granted.get(array) or not 0 <= start <= stop <= whole or size > CHUNK:
                raise Refused("array was not granted, or has no such chunk")
            keys = [
                mask_key(seed, self.roster.study, step, attempt, array)
                for seed, lines in zip(seeds, outlines, strict=True)
                if array in {line[0] for line in lines}
            ]
            columns = zip(*(mask(key, bits, start, stop) for key in keys), strict=True)
            total = [signed(sum(column), bits) for column in columns]
            told[f"sum/{array}"] = as_array(total, bits)
            if start == 0:
                told[f"check/{array}"] = to_bytes(sum(map(checksum_mask, keys)))
        return told

    def settled(self, step):
        _, parts = self.memory.get(("step", step), (None, ()))
        there = {number for number, _ in parts}
        flags = [number in there for number in range(len(self.roster.sites))]
        attempts = self.memory.get(("attempts", step), {})
        latest = max(attempts.values(), default=-1)
        return {
            "settled": Array.of("bool", flags),
            "attempt": Array.of("int64", [latest], shape=()),
        }


def parts_of(parts):
    return tuple((number, layout) for number, layout, _ in parts)


# What a coordinator does


@dataclass
class Total:
    arrays: dict
    weights: dict
    weight: float
    sites: list


def chunks(arrays):
    """5, C5: name -> (bits, size), cut into lists of parts of 4 MiB."""
    found, parts, room = [], [], CHUNK
    for name, (bits, size) in arrays.items():
        start = 0
        while size - start > room * 8 // bits:
            stop = start + room * 8 // bits
            found.append([*parts, [name, start, stop]])
            parts, room, start = [], CHUNK, stop
        parts.append([name, start, size])
        room -= (size - start) * bits // 8
    return found + ([parts] if parts else [])


class Coordinator:
    """sites: number -> where bytes go and come back. It notes every message."""

    def __init__(self, roster, sites, compensator=None):
        self.roster, self.sites, self.compensator = roster, sites, compensator
        self.messages = []

    def ask(self, number, question):
        """The arrays of an answer, or None."""
        name = "compensator" if number is None else self.roster.sites[number][0]
        data = question.write()
        self.messages.append(("coordinator", name, data))
        answer = (self.compensator if number is None else self.sites[number])(data)
        self.messages.append((name, "coordinator", answer))
        try:
            return read_contribution(answer)
        except Refused:
            if number is None:
                raise
            return None

    def total(self, inner, numbers, survivors):
        """4.2, from entry -> integers."""
        told = {e.name: decode(e, integers) for e, integers in numbers.items()}
        if told["#beyond"] != [0]:
            raise Refused("numbers beyond their agreed bounds")
        names = [name for name in inner.expects if name in told]
        whole = told["#weight"][0]
        weights = {n: told[f"#weight/{n}"][0] if inner.partial else whole for n in names}
        return Total({n: told[n] for n in names}, weights, whole, survivors)

    # 5

    def compensated(self, inner, numbers, attempt, check):
        layout = layout_of(inner, len(self.roster.sites))
        hidden = {"roster": self.roster.digest.hex(), "attempt": attempt, "check": check.hex()}
        expects = {f"masked/{e.name}": [[e.size], "int"] for e in layout}
        expects |= {f"check/{e.name}": [[16], "int"] for e in layout}
        outer = Question(
            **vars(inner)
            | {
                "task": "masked",
                "options": {"inner": inner.fields, "hidden": hidden},
                "expects": expects | {"envelope": [[144], "int"]},
            }
        )
        came = {n: a for n in numbers if (a := self.ask(n, outer)) is not None}
        held = {n: [e for e in layout if f"masked/{e.name}" in a] for n, a in came.items()}
        outlines = []
        for entries in held.values():
            if outline(entries) not in outlines:
                outlines.append(outline(entries))
        asked = question_hash(inner)
        terms = digest("cupola terms 1", scales_hash(layout), check)
        facts = {
            "study": self.roster.study,
            "roster": self.roster.digest.hex(),
            "step": inner.step,
            "attempt": attempt,
            "question": asked.hex(),
            "terms": terms.hex(),
            "layouts": outlines,
        }
        arrays = list(dict.fromkeys(name for lines in outlines for name, _, _ in lines))
        envelopes = {n: a["envelope"].data for n, a in came.items()}
        settle = Question(
            "settle",
            {
                "sites": Array.of("int32", came),
                "layout": Array.of("int32", [outlines.index(outline(h)) for h in held.values()]),
                "envelopes": raw(b"".join(envelopes.values()), 144),
            },
            facts,
            {"granted": [[len(arrays)], "bool"]},
            step=inner.step,
            reveals="nothing: which arrays enough sites sent",
        )
        granted = self.ask(None, settle)["granted"].numbers
        yes = {name for name, told in zip(arrays, granted, strict=True) if told}
        parts = sorted((n, layout_hash(held[n]), envelopes[n]) for n in came)
        said = (self.roster.study, self.roster.digest, inner.step, attempt, asked, terms)
        request = digest("cupola settle 1", *said, parts)
        found = [e for e in layout if e.name in yes]
        sums, checks = self._added(found, came, held)
        masks, residues = self._masks(inner, request, found)
        for e in found:
            sums[e] = added(sums[e], masks[e.name], e.bits, -1)
            if checksum(check, e.name, sums[e]) != (checks[e] - residues[e.name]) % P:
                raise Refused("the checksum is wrong")
        return self.total(inner, sums, list(came))

    def _added(self, entries, came, held):
        sums, checks = {}, {}
        for e in entries:
            rows = [came[n][f"masked/{e.name}"].numbers for n in came if e in held[n]]
            sums[e] = [signed(sum(column), e.bits) for column in zip(*rows, strict=True)]
            mine = [came[n][f"check/{e.name}"] for n in came if e in held[n]]
            checks[e] = sum(map(from_bytes, mine)) % P
        return sums, checks

    def _masks(self, inner, request, found):
        masks, residues = {e.name: [] for e in found}, {}
        for parts in chunks({e.name: (e.bits, e.size) for e in found}):
            expects = {f"sum/{name}": [[stop - start], "int"] for name, start, stop in parts}
            expects |= {f"check/{name}": [[16], "int"] for name, start, _ in parts if start == 0}
            options = {"request": request.hex(), "parts": parts}
            told = self.ask(None, Question("unmask", {}, options, expects, step=inner.step))
            for name, start, _ in parts:
                masks[name] += told[f"sum/{name}"].numbers
                if start == 0:
                    residues[name] = from_bytes(told[f"check/{name}"])
        return masks, residues

    # 6

    def pairwise(self, inner, numbers, attempt, check):
        layout = layout_of(inner, len(self.roster.sites))
        seeds = 1 + len(inner.expects) if inner.partial else 1
        asked, scales = question_hash(inner), scales_hash(layout)

        def said(name):
            return statement(self.roster, inner.step, attempt, asked, scales, b"", name)

        def phase(task, arrays, expects, **facts):
            options = {"hidden": {"attempt": attempt, **facts}}
            return Question(task, arrays, options, expects, **inner.counters)

        first = phase(
            "pairwise keys",
            {},
            {"keys": [[128], "int"], "told": [[len(self.roster.sites)], "bool"]},
            roster=self.roster.digest.hex(),
            question=asked.hex(),
            layout=scales.hex(),
            seeds=seeds,
        )
        keys = {n: a["keys"].data for n in numbers if (a := self.ask(n, first)) is not None}
        cohort = Cohort(self.roster, said(""), list(keys), list(keys.values()))
        graph, width = cohort.graph, 33 * (1 + seeds) + 16
        second = phase(
            "pairwise shares",
            {"sites": Array.of("int32", keys), "keys": raw(b"".join(keys.values()), 128)},
            {"picks": [[graph.picks], "int"], "sealed": [[graph.picks, width], "int"]},
        )
        picks, sealed = {}, {n: {} for n in keys}
        for n in keys:
            if (a := self.ask(n, second)) is not None:
                picks[n] = a["picks"].numbers
                for to, share in zip(picks[n], _rows(a["sealed"], graph.picks), strict=True):
                    sealed[to][n] = share
        dealt, edges = list(picks), cohort.edges(picks)
        came = self._answers(inner, layout, cohort, dealt, edges, attempt, check, seeds)
        present = b"".join(a["present"].data for a in came.values())
        fourth = phase(
            "pairwise survivors",
            {
                "survivors": Array.of("int32", came),
                "present": Array("bool", (len(came), seeds - 1), present),
                "signatures": raw(b"".join(a["signature"].data for a in came.values()), 64),
            },
            {"signature": [[64], "int"]},
        )
        signed = {n: a["signature"].data for n in came if (a := self.ask(n, fourth)) is not None}
        if len(signed) < graph.quorum:
            raise Refused("too few signatures")
        quorum = dict(list(signed.items())[: graph.quorum])
        held = {n: {} for n in dealt}
        for n in signed:
            if all(len(shares) >= graph.threshold for shares in held.values()):
                break
            mine = dict(sorted(sealed[n].items()))
            rows = 1 + len(mine)
            fifth = phase(
                "pairwise unmask",
                {
                    "signers": Array.of("int32", quorum),
                    "signatures": raw(b"".join(quorum.values()), 64),
                    "dealers": Array.of("int32", mine),
                    "sealed": raw(b"".join(mine.values()), width),
                },
                {"shares": [[rows, 33 * seeds], "int"], "valid": [[rows], "bool"]},
            )
            if (a := self.ask(n, fifth)) is not None:
                for dealer, row, valid in zip(
                    [n, *mine], _rows(a["shares"], rows), a["valid"].numbers, strict=True
                ):
                    if valid:
                        held[dealer][n + 1] = row
        table = Table(layout, self.roster.study, inner.step, attempt)
        table.numbers, table.checks = self._added(layout, came, dict.fromkeys(came, layout))
        told = self._unmask(inner, table, cohort, dealt, edges, came, held, seeds)
        sums = {
            e: integers
            for e, integers in table.numbers.items()
            if not inner.partial or seed_of(e, inner) in told
        }
        for e, integers in sums.items():
            if checksum(check, e.name, integers) != table.checks[e] % P:
                raise Refused("the checksum is wrong")
        return self.total(inner, sums, list(came))

    def _answers(self, inner, layout, cohort, dealt, edges, attempt, check, seeds):
        expects = {"present": [[seeds - 1], "bool"], "signature": [[64], "int"]}
        for e in layout:
            expects[f"masked/{e.name}"] = [[e.size], "int"]
            expects[f"check/{e.name}"] = [[16], "int"]
        hidden = {
            "attempt": attempt,
            "check": check.hex(),
            "dealt": bits_to_bytes([n in dealt for n in cohort.sites]).hex(),
            "edges": edges.hex(),
        }
        third = Question(
            **vars(inner)
            | {
                "task": "pairwise masked",
                "options": {"inner": inner.fields, "hidden": hidden},
                "expects": expects,
                "partial": False,
            }
        )
        return {n: a for n in dealt if (a := self.ask(n, third)) is not None}

    def _unmask(self, inner, table, cohort, dealt, edges, came, held, seeds):
        """Take the masks off; which seeds were told."""
        threshold, restored = cohort.graph.threshold, {}
        for n in came:
            points = list(held[n])[:threshold]
            rows = [held[n][point] for point in points]
            restored[n] = {}
            for i in range(seeds):
                parts = [row[33 * i : 33 * (i + 1)] for row in rows]
                if all(any(part) for part in parts):
                    restored[n][i] = combine(points, parts)
        told = set.intersection(*(set(found) for found in restored.values()))
        for found in restored.values():
            table.mask_own(inner, {i: found[i] for i in told}, -1)
        for n in dealt:
            if n not in came:
                points = list(held[n])[:threshold]
                key = combine(points, [held[n][point][:33] for point in points])
                if public_of(key) != cohort.keys[n][:32]:
                    raise Refused("shares that do not fit a key")
                for other in cohort.neighbours(n, dealt, edges):
                    if other in came:
                        table.mask_all(*cohort.pair(key, n, other))
        return told


class Table:
    """6, P6: entry -> integers and checksums, masked entry by entry or over everything."""

    def __init__(self, layout, study, step, attempt):
        self.layout, self.facts = layout, (study, step, attempt)
        self.numbers = {e: [0] * e.size for e in layout}
        self.checks = dict.fromkeys(layout, 0)

    def mask_own(self, inner, seeds, sign):
        if not inner.partial:
            self.mask_all(seeds[0], sign)
            return
        for e in self.layout:
            if (seed := seeds.get(seed_of(e, inner))) is not None:
                key = mask_key(seed, *self.facts, e.name)
                masks = mask(key, e.bits, 0, e.size)
                self.numbers[e] = added(self.numbers[e], masks, e.bits, sign)
                self.checks[e] = (self.checks[e] + sign * checksum_mask(key)) % P

    def mask_all(self, seed, sign):
        for bits in (16, 32, 64):
            key, start = mask_key(seed, *self.facts, f"#int{bits}"), 0
            for e in self.layout:
                if e.bits == bits:
                    masks = mask(key, bits, start, start + e.size)
                    self.numbers[e] = added(self.numbers[e], masks, bits, sign)
                    start += e.size
        wide = stream(mask_key(seed, *self.facts, "#checks"), 0, 48 * len(self.layout))
        for i, e in enumerate(self.layout):
            residue = int.from_bytes(wide[48 * i : 48 * (i + 1)], "little")
            self.checks[e] = (self.checks[e] + sign * residue) % P

    def arrays(self):
        by_width = [e for bits in (16, 32, 64) for e in self.layout if e.bits == bits]
        found = {f"masked/{e.name}": as_array(self.numbers[e], e.bits) for e in by_width}
        return found | {f"check/{e.name}": to_bytes(self.checks[e]) for e in self.layout}


def seed_of(e, inner):
    owner = e.name.removeprefix("#weight/")
    return 1 + sorted(inner.expects).index(owner) if owner in inner.expects else 0


class Cohort:
    """The sites of an attempt, increasing, and their signed keys."""

    def __init__(self, roster, said, sites, keys):
        self.sites, self.keys = list(sites), dict(zip(sites, keys, strict=True))
        if self.sites != sorted(set(self.sites)):
            raise Refused("question is not well formed")
        self.digest = digest("cupola cohort 1", said, self.sites, list(keys))
        self.graph = graph(len(self.sites), roster.minimum)

    @property
    def complete(self):
        return self.graph.picks == len(self.sites) - 1

    def share_key(self, own, dealer, to, other):
        facts = pack("cupola share 1", self.digest, dealer, to)
        return derive(agree(own, self.keys[other][32:64]), facts), facts

    def pair(self, own, site, other):
        secret = agree(own, self.keys[other][:32])
        seed = derive(secret, "cupola pair 1", self.digest, sorted([site, other]))
        return seed, 1 if site < other else -1

    def dealt_in(self, data):
        bits = bytes_to_bits(data, len(self.sites))
        return [n for n, bit in zip(self.sites, bits, strict=True) if bit]

    def edges(self, picks):
        if self.complete:
            return b""
        return bits_to_bytes([to in picks.get(n, ()) for n in self.sites for to in self.sites])

    def drawn_by(self, site, edges):
        if self.complete:
            return [n for n in self.sites if n != site]
        size, row = len(self.sites), self.sites.index(site)
        bits = bytes_to_bits(edges, size * size)[row * size : (row + 1) * size]
        return [n for n, bit in zip(self.sites, bits, strict=True) if bit]

    def neighbours(self, site, dealt, edges):
        drawn = set(self.drawn_by(site, edges))
        return [n for n in dealt if n != site and (n in drawn or site in self.drawn_by(n, edges))]


def _cohort_in(question):
    sites = question.arrays["sites"].numbers
    return sites, _rows(question.arrays["keys"], len(sites))


def stage(cohort, dealt, edges, check):
    return digest("cupola stage 1", cohort.digest, list(dealt), edges, check)


def behind(senders, minimum):
    """The sites behind each array of a total that is told."""
    kept = {name: sites for name, sites in senders.items() if len(sites) >= minimum}
    return {n: sites for n, sites in kept.items() if n == "#weight" or not n.startswith("#")}


def compared(old, new):
    """The arrays of two totals whose sites are compared."""
    both = set(old) & set(new)
    named = both - {"#weight"}
    bare = not set(old) - {"#weight"} or not set(new) - {"#weight"}
    return both if named or bare else named


def parts_made_by(sets):
    """Sites that are in exactly the same of the sets."""
    found = {}
    for site in set().union(*sets):
        found.setdefault(tuple(site in one for one in sets), set()).add(site)
    return list(found.values())


def survivors(stage, these, present):
    return digest("cupola survivors 1", stage, list(these), present)


def bits_to_bytes(bits):
    text = "".join("1" if bit else "0" for bit in bits)
    text = text.ljust(-(-len(text) // 8) * 8, "0")
    return bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))


def bytes_to_bits(data, count):
    if len(data) != -(-count // 8):
        raise Refused("question is not well formed")
    return [bit == "1" for byte in data for bit in f"{byte:08b}"][:count]


# 7 Graph


@dataclass(frozen=True)
class Graph:
    picks: int
    threshold: int
    quorum: int


def graph(sites, minimum):
    quorum = (sites + minimum - 2) // 2 + 1
    most, low, high = (sites - 1) // 2, 1, min(8, (sites - 1) // 2)
    while high < most and _threshold(sites, minimum - 2, high) is None:
        low, high = high + 1, min(2 * high, most)
    if high < 1 or _threshold(sites, minimum - 2, high) is None:
        return Graph(sites - 1, quorum, quorum)
    while low < high:
        middle = (low + high) // 2
        if _threshold(sites, minimum - 2, middle) is None:
            low = middle + 1
        else:
            high = middle
    return Graph(high, _threshold(sites, minimum - 2, high), quorum)


def _threshold(sites, colluders, picks):
    """In exact numbers, but for logarithms of ratios of whole numbers."""
    whole = math.comb(sites - 1, picks)

    def tails(marked):
        """j -> how many of all draws have at least j marked ones."""
        exact = [
            math.comb(marked, j) * math.comb(sites - 1 - marked, picks - j)
            for j in range(picks + 1)
        ]
        return [sum(exact[j:]) for j in range(picks + 1)] + [0]

    caught = tails(colluders)
    bad = next(b for b in range(picks + 1) if caught[b + 1] << 64 <= whole)
    sets = {q: tails(q - 1) for q in range(1, sites // 2 + 1)}
    inside = None
    for j in range(picks + 1):
        logs = [
            math.log2(math.comb(sites, q)) + q * (math.log2(tail[j]) - math.log2(whole))
            for q, tail in sets.items()
            if tail[j]
        ]
        top = max(logs, default=-math.inf)
        if not logs or top + math.log2(sum(2 ** (x - top) for x in logs)) <= -64:
            inside = j
            break
    if inside is None:
        return None
    threshold = 1 + bad + inside
    if threshold > picks:
        return None
    lost = tails(-(-sites // 5))[picks - threshold + 1]
    return threshold if sites * lost << 20 <= whole else None


# 8 Shares


def split(secret, points, threshold, draw):
    shares = [b""] * len(points)
    for start in range(0, len(secret), 32):
        block = int.from_bytes(secret[start : start + 32], "little")
        drawn = [_below(draw) for _ in range(threshold - 1)]
        for place, point in enumerate(points):
            value = 0
            for coefficient in [*drawn, block]:
                value = (value * point + coefficient) % Q
            shares[place] += value.to_bytes(33, "little")
    return shares


def _below(draw):
    """A number below Q, by throwing larger ones away."""
    while True:
        found = int.from_bytes(draw("coefficients", 33), "little") % 2**257
        if found < Q:
            return found


def combine(points, shares):
    values = [int.from_bytes(share, "little") for share in shares]
    total = 0
    for i, x in enumerate(points):
        weight = 1
        for j, y in enumerate(points):
            if i != j:
                weight = weight * y * pow(y - x, -1, Q) % Q
        total += weight * values[i]
    total %= Q
    if max(values) >= Q or total >= 2**256:
        raise Refused("shares do not belong together")
    return total.to_bytes(32, "little")
