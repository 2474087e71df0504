# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Routing rules: NaN, ties, groups, precision, widths."""

import math

import numpy as np

from cases.case import Case, random
from cases.oracle import PRESETS


def routers():
    tiny = dict(H=3, I=2)
    note = "NaN logits are never chosen while anything else can be; a row of NaN gets the first ids with weight 0."
    nan = np.nan
    for method in ("default", "renormalize", "sigmoid", "sigmoid_renorm"):
        rows = np.array(
            [
                [nan] * 8,
                [0.5, nan, 2, -1, 0.25, 1, -2, 3],
                [nan, nan, nan, 1, 2, nan, 0, -1],
                [3, 2, 1, 0, -1, -2, -3, -4],
            ]
        )
        yield Case(6, f"nan_logits_{method}", note, 8, 4, M=4, routing={"method": method}, **tiny).logits(rows)
    yield Case(8, "half_nan_row", note, 6, 2, M=1, **tiny).logits([[nan, 0, 1, 2, 3, nan]])
    yield Case(8, "half_nan_row_bf16", note, 6, 2, M=3, logits_dtype="bf16", dtype="bf16", **tiny).logits(
        [[nan, 0, 1, 2, 3, nan], [4, nan, nan, nan, nan, 1], [nan] * 6]
    )

    for E in (512, 300):
        winners = (
            [338, 300, 511, 256, 257, 260, 499, 400, 333, 290] if E == 512 else [299, 256, 3, 257, 298, 255, 64, 290]
        )
        row = np.zeros(E)
        row[winners] = 5 - 0.25 * np.arange(len(winners))
        yield Case(
            11,
            f"experts_beyond_256_E{E}",
            "Experts of every index can win, in descending order.",
            E,
            len(winners),
            2,
            1,
            1,
        ).logits([row])

    note = "Ids from score + bias, weights from the unbiased score, at the widths that have kernels of their own."
    for method in ("default", "renormalize_naive", "sigmoid", "sigmoid_renorm", "minimax2", "deepseek_v4"):
        c = Case(15, f"width_128_{method}", note, 128, 8, 2, 1, 5, routing={"method": method})
        biased = PRESETS[method].get("has_bias")
        yield c.logits(bias=c.rng.normal(size=128) * 0.3 if biased else None)

    note = "Groups that are out must lose even where every score is negative."
    rule = {"method": "deepseek_v3", "num_expert_group": 2, "topk_group": 1}
    low = math.log(0.4 / 0.6)
    yield Case(16, "negative_scores", note, 4, 2, M=1, routing=rule, **tiny).logits(
        [[0, 0, low, low]], bias=np.array([-1, -1.2, -1.1, -1.1])
    )
    c = Case(
        16,
        "negative_scores_16",
        note,
        16,
        3,
        M=9,
        routing={**rule, "num_expert_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
        **tiny,
    )
    yield c.logits(bias=c.rng.uniform(-1.6, -1.2, 16))

    note = "Every chosen weight underflows to 0: weights and output are 0, not NaN."
    for method in ("minimax2", "deepseek_v3", "sigmoid_renorm"):
        biased = PRESETS[method].get("has_bias")
        yield Case(18, f"underflow_{method}", note, 8, 2, M=2, routing={"method": method}, **tiny).logits(
            np.full((2, 8), -200.0), bias=np.arange(8) * 0.01 if biased else None
        )
    yield Case(
        18,
        "one_huge_logit",
        "Softmax with one huge logit is [1, 0, ...].",
        8,
        2,
        M=1,
        routing={"method": "default"},
        **tiny,
    ).logits([[0, 0, 500, 0, 0, 0, 0, 0]])

    note = "Ties go to the lower index, everywhere in the list."
    for method in ("default", "renormalize", "top_k", "sigmoid_renorm"):
        rows = np.zeros((3, 384))
        rows[1, [383, 200, 201, 7]] = [3, 1, 1, 2]
        rows[2, 100:200] = -1.0
        yield Case(
            20, f"ties_{method}", note, 384, 6, 2, 1, 3, routing={"method": method}, tolerance=(1e-6, 1e-5)
        ).logits(rows)
    yield Case(20, "ties_bf16", note, 33, 5, 2, 1, 2, "bf16", logits_dtype="bf16").logits(
        np.where(np.arange(66).reshape(2, 33) % 3 == 0, 1.0, 1 + 2.0**-9)
    )

    note = "Logits that differ by less than bf16 can tell must be compared as f32."
    row = [[1.0, 1 + 2.0**-9, 0.5, 0.25]]
    yield Case(21, "close_logits_f32", note, 4, 1, 64, 3, 1, "bf16").logits(row)
    yield Case(
        21,
        "close_logits_bf16",
        "Rounded to bf16 they tie, and the lower index wins.",
        4,
        1,
        64,
        3,
        1,
        "bf16",
        logits_dtype="bf16",
    ).logits(row)

    note = "No cap on top_k or the number of experts."
    for E, k in ((512, 10), (512, 22), (896, 16), (2048, 32), (16, 16), (8, 8), (1, 1)):
        yield Case(24, f"top_k_E{E}_k{k}", note, E, k, 2, 1, 2, routing={"method": "renormalize_naive"}).logits()

    note = "softmax -> top-k -> renormalise and top-k -> softmax agree, also with logits far from 0."
    for method in ("renormalize", "renormalize_naive"):
        c = Case(25, f"large_offsets_{method}", note, 160, 8, 2, 1, 4, logits_dtype="bf16", routing={"method": method})
        offsets = np.array([80, -80, 0, 60])[:, None]
        yield c.logits(random("offsets").normal(size=(4, 160)) * 2 + offsets)
    yield Case(108, "logits_only_T1", "One token.", 7, 3, 5, 4, 1, routing={"method": "sigmoid_renorm"}).logits()
    for E in (1024, 4096):
        yield Case(
            116,
            f"many_experts_E{E}",
            "Counting and sorting work for any number of experts.",
            E,
            3,
            2,
            1,
            5,
            "bf16",
            routing={"method": "default"},
        ).logits()
