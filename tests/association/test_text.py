"""Fast reading and printing are, byte for byte, what the slow forms do."""

import gzip
import io
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cupola.association import agreement, variant_list_codec
from cupola.association.agreement import complements
from cupola.association.files import Variants, _clean_variants, read_variants, slow_variants
from cupola.association.text import Column, slow_lines, write_table
from cupola.association.texts import Texts

pytest.importorskip("numba")
pytest.importorskip("pyarrow")


def _printed(lines, shown=(), separator=" "):
    file = io.BytesIO()
    write_table(file, lines, shown, separator)
    return file.getvalue().split(b"\n", 1)


@examples(max_examples=100, deadline=None, derandomize=True)
@given(
    values=st.lists(st.floats(width=64), min_size=1, max_size=20),
    digits=st.sampled_from([4, 8]),
)
@example([0.0, -0.0, np.nan, np.inf, 5e-324, 9.9995, 99995.0, 1e22, 1e23, 0.0078125], 4)
def test_numbers_have_the_digits_of_c(values, digits):
    column = Column("X", 8, np.array(values), digits)
    assert _printed([[column]])[1] == slow_lines([[column]], slice(0, len(values)), (), " ")


def test_numbers_of_the_kinds_that_tables_hold():
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 5000, (2, 20_000))
    ratios = counts[0] / counts[1]
    spread = rng.normal(size=20_000) * 10.0 ** rng.integers(-12, 12, 20_000)
    near = np.round(spread, 3) + 0.0005  # ties, or next to them
    steps = rng.integers(0, 2**20, 20_000) / 2.0**14  # ties
    for values in (ratios, spread, near, steps):
        texts = _printed([[Column("X", 0, values)]])[1].split(b"\n")[:-1]
        assert texts == [b"%.4g" % v for v in values.tolist()]


def test_halves_are_rounded_to_even_as_c_rounds_them():
    """Exact halves, and their neighbours, at every size that a table holds."""
    whole = np.arange(1000, 1100) + 0.5
    powers = 10.0 ** np.arange(-21, 24)
    ties = np.concatenate(
        [whole * p for p in powers] + [np.arange(1, 4096) / 2.0**k for k in (4, 13)]
    )
    values = np.concatenate([ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), -ties])
    texts = _printed([[Column("X", 0, values)]])[1].split(b"\n")[:-1]
    assert texts == [b"%.4g" % v for v in values.tolist()]


def test_tables_with_all_kinds_of_columns():
    n = 50
    rng = np.random.default_rng(2)
    p, log10 = rng.random(n), np.log10(rng.random(n))
    p[:3], log10[:3] = (0, 1e-305, np.nan), (-400.25, -305, np.nan)
    whole = rng.integers(-5, 10**9, n).astype(float)
    whole[4] = np.nan
    first = [Column("SNP", 6, np.array([f"rs{i**4}" for i in range(n)])), Column("T", 4, "ADD"),
             Column("N", 3, whole, 0), Column("P", 12, p, log10=log10)]  # fmt: skip
    other = [first[0], Column("T", 4, "LONGER"), Column("N", 3, np.arange(n), 0), first[3]]
    shown = [np.arange(n) % 3 > 0]
    for separator in (" ", "\t"):
        head, rows = _printed([first, other], shown, separator)
        assert rows == slow_lines([first, other], slice(0, n), shown, separator)
    assert head.split() == [b"SNP", b"T", b"N", b"P"]
    assert b"5.623e-401" in rows
    odd = [Column("SNP", 6, np.array(["rs1", "naïve"])), Column("A", 2, "x")]
    assert _printed([odd])[1] == "   rs1  x\n naïve  x\n".encode()


def _columns(variants):
    names = ("chromosome", "position", "name", "a1", "a2")
    return [getattr(variants, name).tolist() for name in names]


@pytest.mark.parametrize("separator", ["\t", " "])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("columns", [5, 6])
def test_clean_files_of_variants_are_read_fast(tmp_path, separator, end, columns):
    path = tmp_path / "a.bim"
    rows = [
        ["1", "rs1", "0", "100", "a", "G"],
        ["chrX", "rs" + "9" * 40, "0.5", "007", "ACGt", "-"],
    ]
    rows = [row if columns == 6 else row[:2] + row[3:] for row in rows]
    text = (end or "\n").join(separator.join(row) for row in rows) + end
    for data in (text.encode(), gzip.compress(text.encode())):
        path.write_bytes(data)
        fast = _clean_variants(path)
        assert fast is not None
        assert _columns(fast) == _columns(slow_variants(path))
    assert fast.chromosome.tolist() == [1, 23]
    assert fast.a1.tolist() == ["A", "ACGT"]


@pytest.mark.parametrize(
    "text",
    [
        "1 naïve 0 5 A C\n",
        "1 r 0 1_000 A C\n",
        "1 r 0 0x10 A C\n",
        "1 r 0 -5 A C\n",
        "1 r 0 99999999999999999999 A C\n",
        "1 r\x1fs 0 5 A C\n",
        "1 r 0 5 A C\r1 s 0 6",
        "1\tr\t0\t5\tA\tC \n",
        "1\tr\t\t5\tA\tC\n",
        "\tr\t0\t5\tA\tC\n",
        "1\tr\t0\t5\tA\tC\n\n1\ts\t0\t5\tA\tC\n",
        "1\tr\t0\t5\tA\tC\n1\ts\t5\tA\tC\n",
        "1  r  0  5  A  C\n",
        "",
        "\n",
    ],
)
def test_other_files_are_left_to_the_slow_reader(tmp_path, text):
    path = tmp_path / "a.bim"
    path.write_text(text, newline="")
    assert _clean_variants(path) is None


def test_quotation_marks_are_letters(tmp_path):
    path = tmp_path / "a.bim"
    path.write_text('1\t"r\t0\t5\tA\t""\n')
    assert _columns(_clean_variants(path)) == _columns(slow_variants(path))
    assert _clean_variants(path).name.tolist() == ['"r']


def test_what_the_slow_reader_reads(tmp_path):
    path = tmp_path / "a.bim"
    path.write_text("1 naïve 0 1_000 A C\r\n\n  X\trs3 0\t-5\tc\tT")
    assert _columns(read_variants(path)) == [
        [1, 23], [1000, -5], ["naïve", "rs3"], ["A", "C"], ["C", "T"],
    ]  # fmt: skip


def test_variants_are_read_without_pyarrow(tmp_path, monkeypatch):
    path = tmp_path / "a.bim"
    path.write_text("1\trs1\t0\t100\ta\tG\n")
    fast = read_variants(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert _clean_variants(path) is None
    assert _columns(read_variants(path)) == _columns(fast)


def test_a_long_allele_costs_its_own_letters_only(tmp_path):
    path = tmp_path / "a.bim"
    long = "".join(f"1\trs{i}\t0\t{i}\tA\tC\n" for i in range(50_000))
    path.write_text(long + f"2\trs\t0\t5\t{'ACGT' * 750}\tC\n")  # 600 MB, were all as long
    tracemalloc.start()
    variants = read_variants(path)
    back = variant_list_codec.unpack(variant_list_codec.pack(variants))
    out = io.BytesIO()
    write_table(out, [[Column("SNP", 4, back.name), Column("A1", 4, back.a1)]])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6
    assert back.a1[-1] == "ACGT" * 750
    assert out.getvalue().endswith(b"ACGT\n")


_VARIANTS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(1, 3), st.sampled_from("ab."), st.sampled_from("ACG0"),
        st.sampled_from("CGT"),
    ),
    max_size=12,
)  # fmt: skip


def _by_hand(one, rows):
    """Row and status of one proposed variant, one comparison after another."""
    chromosome, position, name, *alleles = one
    here = [i for i, r in enumerate(rows) if r[:2] == (chromosome, position)]
    if chromosome == 0:
        here = [i for i in here if rows[i][2] == name]
    known = name != "." and any(r[2] == name for r in rows)
    fits = [(i, _relation(alleles, rows[i][3:])) for i in here]
    fits = [(i, s) for i, s in fits if s < agreement.ABSENT]
    fits = [f for f in fits if rows[f[0]][2] == name] or fits
    fits = [f for f in fits if f[1] <= agreement.SWAPPED] or fits
    if len(fits) > 1:
        return -1, agreement.REPEATED
    named = any(rows[i][2] == name for i in ([f[0] for f in fits] or here))
    if known and not named:
        return -1, agreement.MOVED
    if fits:
        return fits[0]
    return -1, agreement.INCOMPATIBLE if here else agreement.ABSENT


def _relation(a, b):
    other = ["?0ACGT"["?0TGCA".index(x)] for x in b]
    for status, pair in enumerate((b, b[::-1], other, other[::-1])):
        half = sum(x == "0" for x in pair) == 1 and "0" not in a
        if all(x == y or (half and y == "0") for x, y in zip(a, pair)):
            return status
    return agreement.INCOMPATIBLE


def _once(found, rows, asked):
    """A row is found once: by its name, or by whoever comes first."""
    seen = set()
    for i in sorted(range(len(found)), key=lambda i: rows[found[i][0]][2] != asked[i][2]):
        if found[i][0] in seen:
            found[i] = (-1, agreement.REPEATED)
        seen |= {found[i][0]} - {-1}
    return found


@examples(max_examples=150, deadline=None, derandomize=True)
@given(rows=_VARIANTS, asked=_VARIANTS)
def test_variants_are_found_by_place_and_alleles(rows, asked):
    if not rows:
        return
    own, proposed = _made(rows), _made(asked)
    found = agreement.compare(proposed, own, agreement.Index(own))
    expected = _once([_by_hand(one, rows) for one in asked], rows, asked)
    assert list(zip(found.row.tolist(), found.status.tolist())) == expected


def _made(rows):
    types = (np.uint8, int, "U1", "U1", "U1")
    return Variants(*(np.array([r[i] for r in rows], t) for i, t in enumerate(types)))


@examples(max_examples=40, deadline=None, derandomize=True)
@given(texts=st.lists(st.text("aC:_é0", min_size=1, max_size=9), min_size=1, max_size=9))
def test_lists_of_texts_survive_their_bytes(texts):
    one = np.ones(len(texts), np.int64)
    listed = Variants(one, one, *[np.array(texts, object)] * 3)
    assert _columns(variant_list_codec.unpack(variant_list_codec.pack(listed))) == _columns(listed)


def test_complements():
    found = complements(Texts.of(["A", "T", "C", "G", "0", "AT", "é", "-"]))
    assert found.tolist() == ["T", "A", "G", "C", "0", "?", "?", "?"]
