# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Sizes, numbers of tokens, and how tokens spread over experts."""

import numpy as np

from cases.case import Case, random
from cases.oracle import Tensor


def shapes():
    c = Case(
        59, "identical_experts", "Identical experts give identical results at every index.", 3, 1, 144, 20, 3, "bf16"
    )
    for name in ("w13", "w2"):
        c.t[name].values[:] = c.t[name].values[0]
    c.t["hidden_states"].values[:] = c.t["hidden_states"].values[0]
    yield c.picks([0, 1, 2], [1.0] * 3)
    note = "Any intermediate size works without padding by the caller."
    for I in (1, 7, 40, 41, 80, 160, 176, 192, 320, 576):
        number = {40: 122, 320: 122, 80: 145, 160: 145, 192: 124, 576: 145}.get(I, 61 if I != 176 else 81)
        yield Case(
            number, f"intermediate_{I}", note, 2, 2, 5, I, 4, "f32" if I < 100 else "bf16", bias=I % 2 == 0
        ).distinct_picks()
    note = "Any hidden size works without padding by the caller."
    for H in (1, 7, 40, 64, 100, 511, 1025, 2880, 7168):
        number = {40: 84, 1025: 117}.get(H, 108)
        yield Case(
            number, f"hidden_{H}", note, 2, 1, H, 1 if H > 4000 else 3, 3, "bf16" if H > 500 else "f32"
        ).distinct_picks()
    for M in (0, 1, 2, 5, 8, 16):
        for dtype in ("f32", "bf16"):
            number = 98 if M == 0 else 94
            yield Case(
                number, f"tokens_{M}_{dtype}", "Few tokens take another path than many.", 4, 2, 16, 9, M, dtype
            ).distinct_picks()
    yield Case(98, "tokens_0_logits", "No tokens, with logits.", 4, 2, 6, 5, 0, routing={"method": "default"}).logits(
        np.zeros((0, 4))
    )
    yield Case(98, "tokens_0_shared", "No tokens, with a shared expert.", 4, 2, 6, 5, 0).shared(7).logits(
        np.zeros((0, 4))
    )

    groups = np.repeat([0, 1, 2], [128, 130, 65])
    yield Case(
        111,
        "groups_across_tiles",
        "Rows of two experts inside one tile: each gets its own expert.",
        3,
        1,
        4,
        3,
        len(groups),
    ).picks(groups)
    c = Case(111, "one_hot_experts", "Constant experts show which one ran.", 7, 2, 3, 2, 33, bias=True)
    c.t["w2"].values[:] = 0
    c.t["w2_bias"].values[:] = (10.0 ** np.arange(7) / 1000)[:, None]
    c.t["w2_bias"] = Tensor(c.t["w2_bias"].values, "f32")
    yield c.distinct_picks()
    c = Case(130, "hot_expert", "Nine of ten tokens pick one expert.", 8, 1, 9, 5, 64)
    yield c.picks(np.where(c.rng.random(64) < 0.9, 3, c.rng.integers(0, 8, 64)))
    yield Case(131, "all_to_one", "Every token picks the same two experts.", 16, 2, 9, 5, 65, "bf16").picks(
        [[15, 2]] * 65
    )
    c = Case(92, "repeated_rows", "A row's result does not depend on its neighbours.", 6, 2, 12, 7, 64)
    c.t["hidden_states"].values[1::2] = c.t["hidden_states"].values[0]
    ids = np.stack([c.rng.permutation(6)[:2] for _ in range(64)])
    ids[1::2] = ids[0]
    yield c.picks(ids, np.full((64, 2), 0.5))
    c = Case(26, "nan_row", "NaN in one token stays in that token.", 4, 2, 8, 6, 5)
    c.t["hidden_states"].values[2, 3] = np.nan
    yield c.distinct_picks()
    c = Case(26, "nan_row_bf16", "NaN in one token stays in that token.", 4, 2, 8, 6, 17, "bf16")
    c.t["hidden_states"].values[11, 0] = np.nan
    yield c.picks([[0, 1]] * 17)
    c = Case(66, "zero_row", "A token of zeros gives what the biases give.", 4, 2, 8, 6, 3, bias=True)
    c.t["hidden_states"].values[1] = 0
    yield c.distinct_picks()
