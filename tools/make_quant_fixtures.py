#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Writes tests/data/quant/*.txt: every code of the element and scale types, and numbers with the code they round to.

Everything follows from the definitions of the formats (OCP 8-bit floating point: E4M3; OCP microscaling: E2M1, E8M0) in
exact rational arithmetic; no library that knows the formats is used. Values are written as C hexadecimal floats, which
f32 represents exactly. Same script, same bytes.

    python3 tools/make_quant_fixtures.py tests/data/quant
"""

import fractions
import pathlib
import random
import struct
import sys

F = fractions.Fraction


def power(exponent):
    return F(2) ** exponent


def e4m3(code):
    """None stands for NaN; there is no infinity."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return None
    magnitude = power(-6) * F(mantissa, 8) if exponent == 0 else power(exponent - 7) * (1 + F(mantissa, 8))
    return -magnitude if code & 0x80 else magnitude


def e2m1(code):
    exponent, mantissa = code >> 1 & 3, code & 1
    magnitude = F(mantissa, 2) if exponent == 0 else power(exponent - 1) * (1 + F(mantissa, 2))
    return -magnitude if code & 8 else magnitude


def e8m0(code):
    return None if code == 255 else power(code - 127)


def hexadecimal(value, negative_zero=False):
    """Exact: the values here have few bits, but some are subnormal in f32."""
    if value is None:
        return "nan"
    if value == 0:
        return "-0x0p+0" if negative_zero else "0x0p+0"
    return float(value).hex()


def codes(of, count, sign_bit):
    lines = []
    for code in range(count):
        negative_zero = bool(sign_bit and code & sign_bit)
        lines.append(f"{code} {hexadecimal(of(code), negative_zero)}")
    return lines


def nearest(of, count, sign_bit, value):
    """The code of the nearest value; of two, the even one; beyond the largest, the largest."""
    best = None
    for code in range(count):
        if code & sign_bit or of(code) is None:
            continue
        distance = abs(of(code) - abs(value))
        if best is None or distance < best[0] or (distance == best[0] and code % 2 == 0):
            best = (distance, code)
    return best[1] | (sign_bit if value < 0 else 0)


def as_f32(value):
    return F(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def neighbours(value):
    """The f32 below and above a positive f32."""
    bits = struct.unpack("<I", struct.pack("<f", float(value)))[0]
    return [F(struct.unpack("<f", struct.pack("<I", bits + step))[0]) for step in (-1, 1) if bits + step > 0]


def roundings(of, count, sign_bit, draw):
    positive = [of(code) for code in range(sign_bit) if of(code) is not None]
    numbers = []
    for low, high in zip(positive, positive[1:]):
        tie = (low + high) / 2
        numbers += [tie, *neighbours(tie)]
    top, step = positive[-1], positive[-1] - positive[-2]
    numbers += [top + step / 4, top + step / 2, *neighbours(top + step / 2), top * 2, top * 1000]
    numbers += [as_f32(draw()) for _ in range(200)]
    return [f"{nearest(of, count, sign_bit, value)} {hexadecimal(value)}"
            for number in numbers for value in (number, -number)]


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/data/quant")
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(20)
    files = {
        "e4m3_codes": codes(e4m3, 256, 0x80),
        "e2m1_codes": codes(e2m1, 16, 8),
        "e8m0_codes": codes(e8m0, 256, 0),
        "e4m3_roundings": roundings(e4m3, 256, 0x80, lambda: 2 ** draw.uniform(-12, 9)),
        "e2m1_roundings": roundings(e2m1, 16, 8, lambda: 2 ** draw.uniform(-4, 3)),
    }
    for name, lines in files.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
