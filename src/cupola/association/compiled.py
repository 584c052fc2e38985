"""The kernels, compiled by numba: calls stay two bits wide as long as possible.

Counting is population counts on bit planes. Sums over people are taken a byte, that is four people,
at a time: a table gives what each of the 256 bytes adds. People without a call are few, and are
walked one by one. `reference` says what each function computes.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_LOW = np.uint64(0x5555555555555555)
_ONE = np.uint64(1)


@intrinsic
def _ones(typingctx, word):  # noqa: ARG001
    """How many bits of a uint64 are set."""

    def build(context, builder, signature, args):  # noqa: ARG001
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), build


@njit(cache=True, nogil=True)
def genotype_counts(words, masks, found):
    """words: (variants, words) uint64. masks: (groups, words), a person's lower bit. found:
    (variants, groups, 3), to be filled."""
    k, width = words.shape
    groups = masks.shape[0]
    for group in range(groups):
        mask = masks[group]
        people = np.uint64(0)
        for i in range(width):
            people += _ones(mask[i])
        for s in range(k):
            low = np.uint64(0)
            high = np.uint64(0)
            both = np.uint64(0)
            for i in range(width):
                lower = words[s, i] & mask[i]
                upper = (words[s, i] >> _ONE) & mask[i]
                low += _ones(lower)
                high += _ones(upper)
                both += _ones(lower & upper)
            found[s, group, 0] = np.int64(people - low - high + both)
            found[s, group, 1] = np.int64(high - both)
            found[s, group, 2] = np.int64(both)


@intrinsic
def _word(typingctx, data, at):  # noqa: ARG001
    """Eight bytes of a flat uint8 array, wherever they begin, as a little-endian uint64."""

    def build(context, builder, signature, args):
        flat = context.make_array(signature.args[0])(context, builder, args[0])
        place = builder.gep(flat.data, [args[1]])
        return builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(data, types.int64), build


@njit(cache=True, nogil=True)
def allele_counts(data, width, rows, masks, found):
    """data: the calls of a whole file, `width` bytes a variant, not copied. rows: (k,) variants.
    masks: (groups, words). found: (k, groups, 2) int32, to be filled: copies of a1 and of both."""
    groups = masks.shape[0]
    whole = width // 8
    rest = width - 8 * whole
    people = np.zeros(groups, np.uint64)
    for group in range(groups):
        for i in range(masks.shape[1]):
            people[group] += _ones(masks[group, i])
    for s in range(rows.shape[0]):
        at = rows[s] * width
        last = np.uint64(0)
        for j in range(rest):
            last |= np.uint64(data[at + 8 * whole + j]) << np.uint64(8 * j)
        for group in range(groups):  # a row stays in the cache
            mask = masks[group]
            low = np.uint64(0)
            half = np.uint64(0)
            none = np.uint64(0)
            for i in range(whole):
                word = _word(data, at + 8 * i)
                lower = word & mask[i]
                upper = (word >> _ONE) & mask[i]
                low += _ones(lower)
                half += _ones(upper & ~lower)
                none += _ones(lower & upper)
            if rest:
                lower = last & mask[whole]
                upper = (last >> _ONE) & mask[whole]
                low += _ones(lower)
                half += _ones(upper & ~lower)
                none += _ones(lower & upper)
            found[s, group, 0] = np.int32(2 * (people[group] - low) - half)
            found[s, group, 1] = np.int32(2 * (people[group] - low + none))


@njit(cache=True, nogil=True)
def call_sums(columns, two, one):
    """columns: (bytes, variants), a byte of four people a row. two, one: (4 * bytes, a)."""
    width, k = columns.shape
    a = two.shape[1]
    sums = np.zeros((k, a))
    table = np.zeros((256, a))
    for byte in range(width):
        for j in range(a):
            table[0, j] = 0.0
            for person in range(4):
                table[0, j] += two[4 * byte + person, j]
        filled = 1  # entries below `filled` are complete for the persons seen so far
        for person in range(4):
            at = 4 * byte + person
            for call in range(1, 4):
                for v in range(filled):
                    for j in range(a):
                        change = -two[at, j]
                        if call == 2:
                            change += one[at, j]
                        table[call * filled + v, j] = table[v, j] + change
            filled *= 4
        for s in range(k):
            v = columns[byte, s]
            for j in range(a):
                sums[s, j] += table[v, j]
    return sums


@njit(cache=True, nogil=True)
def missing_sums(words, values):
    """words: (variants, words) uint64. values: (32 * words, b)."""
    k, width = words.shape
    b = values.shape[1]
    sums = np.zeros((k, b))
    for s in range(k):
        for i in range(width):
            missing = words[s, i] & ~(words[s, i] >> _ONE) & _LOW
            while missing:
                lowest = missing & (~missing + _ONE)
                at = 32 * i + np.int64(_ones((lowest - _ONE) & _LOW))
                for j in range(b):
                    sums[s, j] += values[at, j]
                missing ^= lowest
    return sums


@njit(cache=True, nogil=True)
def missing_by_person(words, count):
    """Adds 1 to count[person] for every variant without its call."""
    for s in range(words.shape[0]):
        for i in range(words.shape[1]):
            missing = words[s, i] & ~(words[s, i] >> _ONE) & _LOW
            while missing:
                lowest = missing & (~missing + _ONE)
                count[32 * i + np.int64(_ones((lowest - _ONE) & _LOW))] += 1
                missing ^= lowest


@njit(cache=True, nogil=True)
def centred(rows, mean, people):
    """rows: (variants, bytes) uint8. mean: copies, by variant. Gives (variants, people) copies less
    the mean, 0 without a call."""
    k = rows.shape[0]
    found = np.empty((k, people))
    value = np.zeros(4)
    whole = people // 4
    for s in range(k):
        value[0] = 2.0 - mean[s]
        value[2] = 1.0 - mean[s]
        value[3] = -mean[s]
        for byte in range(whole):
            v = rows[s, byte]
            at = 4 * byte
            found[s, at] = value[v & 3]
            found[s, at + 1] = value[(v >> 2) & 3]
            found[s, at + 2] = value[(v >> 4) & 3]
            found[s, at + 3] = value[(v >> 6) & 3]
        for person in range(4 * whole, people):
            found[s, person] = value[(rows[s, person // 4] >> (2 * (person % 4))) & 3]
    return found


@intrinsic
def _as_float(typingctx, bits):  # noqa: ARG001
    """The float64 with these 64 bits."""

    def build(context, builder, signature, args):  # noqa: ARG001
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), build


@intrinsic
def _as_bits(typingctx, number):  # noqa: ARG001
    """The 64 bits of a float64."""

    def build(context, builder, signature, args):  # noqa: ARG001
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), build


_ROUND = 1.5 * 2.0**52  # adding it rounds to an integer, which stands in the lowest bits
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10


@njit(inline="always")
def _exp(x):
    """exp without branches or calls, so that loops over it are vectorised; |x| < 700."""
    shifted = x * _LOG2E + _ROUND
    power = shifted - _ROUND
    r = (x - power * _LN2_HIGH) - power * _LN2_LOW
    value = 2.505210838544172e-08
    value = value * r + 2.755731922398589e-07
    value = value * r + 2.755731922398589e-06
    value = value * r + 2.48015873015873e-05
    value = value * r + 1.984126984126984e-04
    value = value * r + 1.388888888888889e-03
    value = value * r + 8.333333333333333e-03
    value = value * r + 4.1666666666666664e-02
    value = value * r + 1.6666666666666666e-01
    value = value * r + 0.5
    value = value * r + 1.0
    value = value * r + 1.0
    return value * _as_float((_as_bits(shifted) + 1023) << 52)


# What a byte says of its four people: copies of a1, and whether there is a call.
_CALLS = (np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3
_COPIES = np.array([2.0, 0.0, 1.0, 0.0])[_CALLS]
_TOLD = (_CALLS != 1).astype(np.float64)


@njit(inline="always")
def _decode(row, scale, included, genotype, told):
    for byte in range(row.shape[0]):
        v = row[byte]
        for j in range(4):
            at = 4 * byte + j
            genotype[at] = _COPIES[v, j] * scale[at]
            told[at] = _TOLD[v, j] * included[at]


# Contractions and reordered sums only: numbers that are not finite must stay what they are.
_REORDER = {"reassoc", "contract", "nsz"}
