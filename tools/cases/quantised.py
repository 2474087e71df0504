# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Quantised weights: codes and scales are drawn, and the answer follows from what the definitions of the formats say
that they stand for. Nothing is ever encoded."""

import numpy as np

from cases.case import Case
from cases.oracle import Tensor


def e4m3(codes):
    codes = np.asarray(codes, np.int64)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    return np.where(codes & 0x80, -value, value)


def e2m1(codes):
    value = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[np.asarray(codes) & 7]
    return np.where(np.asarray(codes) & 8, -value, value)


def e8m0(codes):
    return 2.0 ** (np.asarray(codes, np.float64) - 127)


class Coded:
    """Bytes in the file, and the numbers that they stand for."""

    dtype = "u8"

    def __init__(self, codes, values):
        self.codes, self.values = np.asarray(codes, np.uint8), values
        self.shape = self.codes.shape

    def bytes(self):
        return self.codes.tobytes()


def packed(nibbles):
    """Element 2i in the low half of byte i; an odd row ends in an empty half."""
    if nibbles.shape[-1] % 2:
        nibbles = np.concatenate([nibbles, np.zeros_like(nibbles[..., :1])], axis=-1)
    return nibbles[..., 0::2] | nibbles[..., 1::2] << 4


# Rows and columns of a group, None for all of them.
GROUPS = {
    "fp8_tensor": (None, None),
    "fp8_channel": (1, None),
    "fp8_block128": (128, 128),
    "mxfp8": (1, 32),
    "mxfp4": (1, 32),
    "nvfp4": (1, 16),
    "int8_channel": (1, None),
    "int8_group128": (1, 128),
    "int4_group32": (1, 32),
    "int4_channel": (1, None),
    "int4_group64_zp": (1, 64),
    "int4_channel_zp": (1, None),
}


def spread(scales, shape, group):
    """One scale for each element of [E, rows, columns]."""
    rows, cols = (size or extent for size, extent in zip(group, shape[1:]))
    return np.repeat(np.repeat(scales, rows, axis=1), cols, axis=2)[:, : shape[1], : shape[2]]


def gate_rows(problem, rows):
    row = np.arange(rows)
    if problem["w13_layout"] == "interleaved":
        return row % 2 == 0
    return (row < rows // 2) == (problem["w13_layout"] == "gate_up")


class Quantised(Case):
    def __init__(self, number, name, note, key, *sizes, split=False, scale_codes=None, **more):
        super().__init__(number, name, note, *sizes, **more)
        self.problem["quant"] = {"weights": key, "activations": "none"}
        self.key, self.scale_codes = key, scale_codes
        self.code("w13", split)
        self.code("w2", False)

    def code(self, name, split):
        shape = self.t[name].values.shape
        # About the size that products of order 1 want.
        unit = float(np.std(self.t[name].values)) or 1.0
        group = GROUPS[self.key]
        counts = (shape[0], *(1 if size is None else -(-extent // size) for size, extent in zip(group, shape[1:])))
        codes, values = self.elements(shape, counts, group, name)
        if self.key == "fp8_tensor" and split:
            scales = unit / 100 * np.array([[[1.0], [0.25]]]) * self.rng.uniform(0.7, 1.3, (shape[0], 1, 1))
            scales = Tensor(scales, "f32")
            gate = gate_rows(self.problem, shape[1])
            each = np.where(gate[None, :, None], scales.values[:, :1], scales.values[:, 1:])
        else:
            scales, numbers = self.scales(counts, unit)
            each = spread(numbers, shape, group)
        self.t[f"{name}_scale"] = scales
        if self.key == "nvfp4":
            wide = unit / 16 * (np.array([[1.0, 4.0]]) if split else np.ones((1, 1)))
            wide = Tensor(wide * self.rng.uniform(0.7, 1.3, (shape[0], 1)), "f32")
            self.t[f"{name}_global_scale"] = wide
            gate = gate_rows(self.problem, shape[1])
            first = gate[None, :, None] | (not split)
            each = each * np.where(first, wide.values[:, :1, None], wide.values[:, -1:, None])
        self.t[name] = Coded(codes, values * each)

    def elements(self, shape, counts, group, name):
        if self.key.startswith(("fp8", "mxfp8")):
            codes = self.rng.integers(0, 0x78, shape) | self.rng.integers(0, 2, shape) << 7
            return codes, e4m3(codes)
        if self.key.startswith("int8"):
            codes = self.rng.integers(-127, 128, shape)
            return codes & 0xFF, codes.astype(float)
        nibbles = self.rng.integers(0, 16, shape)
        if self.key.startswith("int4"):
            zero = np.full(counts, 8)
            if self.key.endswith("_zp"):
                zero = self.rng.integers(0, 16, counts)
                self.t[f"{name}_zero_point"] = Coded(zero, zero)
            return packed(nibbles), nibbles - spread(zero, shape, group)
        return packed(nibbles), e2m1(nibbles)

    def scales(self, counts, unit):
        """As stored, and as numbers."""
        if self.key.startswith("mx"):
            middle = 127 + int(np.floor(np.log2(unit))) - (6 if self.key == "mxfp8" else 1)
            codes = self.rng.integers(middle - 2, middle + 2, counts) if self.scale_codes is None else None
            codes = codes if self.scale_codes is None else self.rng.choice(self.scale_codes, counts)
            return Coded(codes, e8m0(codes)), e8m0(codes)
        if self.key == "nvfp4":
            codes = self.rng.choice(range(0x30, 0x50) if self.scale_codes is None else self.scale_codes, counts)
            return Coded(codes, e4m3(codes)), e4m3(codes)
        largest = 100 if self.key.startswith("fp8") else 70 if self.key.startswith("int8") else 5
        scales = Tensor(unit / largest * self.rng.uniform(0.5, 1.5, counts), "f32")
        return scales, scales.values


def quantised():
    note = "Gate and up have scales of their own."
    for layout in ("gate_up", "up_gate", "interleaved"):
        sizes = (2, 1, 16, 16, 3)
        for key in ("nvfp4", "fp8_tensor"):
            yield Quantised(58, f"{key}_{layout}", note, key, *sizes, split=True, layout=layout).distinct_picks()
    c = Quantised(59, "nvfp4_identical_experts", "Scales are found for every expert.", "nvfp4", 3, 1, 144, 64, 3)
    for name in list(c.t):
        if name.startswith("w"):
            c.t[name].values[:] = c.t[name].values[0]
            if isinstance(c.t[name], Coded):
                c.t[name].codes[:] = c.t[name].codes[0]
    c.t["hidden_states"].values[:] = c.t["hidden_states"].values[0]
    yield c.picks([0, 1, 2], [1.0] * 3)
    for I in (32, 96, 160, 352, 384):
        note = "Groups of 32 need not fill a tile."
        yield Quantised(60, f"mxfp4_intermediate_{I}", note, "mxfp4", 2, 1, 32, I, 2).distinct_picks()
    note = "Scales below 2^-6 are subnormal."
    small = Quantised(64, "nvfp4_subnormal_scales", note, "nvfp4", 2, 1, 32, 16, 3, scale_codes=range(1, 8))
    yield small.distinct_picks()
    note = "Codes of 103 to 112 are subnormal in f16, not zero."
    more = dict(activation="relu2_no_mul", scale_codes=range(103, 113))
    yield Quantised(63, "mxfp4_small_scales", note, "mxfp4", 2, 1, 64, 32, 3, **more).distinct_picks()
    c = Quantised(66, "fp8_zero_block", "A block of zeros whose scale is zero.", "fp8_block128", 2, 1, 136, 130, 3)
    c.t["w13"].codes[1, :128, :128] = 0
    c.t["w13"].values[1, :128, :128] = 0
    c.t["w13_scale"].values[1, 0, 0] = 0
    yield c.picks([1, 0, 1])
    for I in (80, 160, 192):
        note = "Blocks that a shard cuts end early."
        yield Quantised(145, f"fp8_block_intermediate_{I}", note, "fp8_block128", 2, 1, 136, I, 2).distinct_picks()
    for key in GROUPS:
        H, I = (128, 128) if key in ("int8_group128", "int4_group64_zp") else (64, 32)
        if key in ("int8_channel", "int4_channel", "int4_channel_zp", "fp8_channel", "fp8_tensor"):
            H, I = 33, 19
        for dtype in ("f32", "bf16"):
            c = Quantised(0, f"weights_{key}_{dtype}", f"Every code of {key}.", key, 3, 2, H, I, 4, dtype)
            yield c.distinct_picks()
    note = "A shared expert is not quantised with the routed ones."
    yield Quantised(33, "shared_beside_int8", note, "int8_channel", 4, 2, 20, 9, 5, "bf16").shared(7, gate=True).logits()
    for c in refused_scales():
        yield c.distinct_picks()


def refused_scales():
    def make(number, name, note, key, sizes, error):
        return Quantised(number, name, note, key, 2, 1, *sizes, 2, expect_error=error)

    c = make(63, "e8m0_nan", "Scale 255 is NaN.", "mxfp4", (32, 32), "w13_scale[1, 3, 0]: given nan")
    c.t["w13_scale"].codes[1, 3, 0] = 255
    yield c
    c = make(68, "e4m3_nan_scale", "A scale byte of NaN.", "nvfp4", (32, 32), "w2_scale[0, 1, 1]: given nan")
    c.t["w2_scale"].codes[0, 1, 1] = 0x7F
    yield c
    c = make(68, "negative_scale", "Scales have no sign.", "int8_channel", (8, 6), "w13_scale[1, 2, 0]: given -")
    c.t["w13_scale"].values[1, 2, 0] *= -1
    yield c
    c = make(71, "float_scales_for_mx", "Scales of another type.", "mxfp8", (32, 32), "w13_scale")
    c.t["w13_scale"] = Tensor(c.t["w13_scale"].values, "f32")
    yield c
    note = "Groups of 32 in 48 columns."
    yield make(145, "group_does_not_divide", note, "mxfp4", (64, 48), "intermediate_size 48, mxfp4")
