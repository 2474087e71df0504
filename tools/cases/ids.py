# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Empty slots, stale ids, duplicates, remote experts, zero weights."""

import numpy as np

from cases.case import Case, random


def ids_and_maps():
    """Empty slots, stale ids, duplicates, remote experts."""
    note = "Padding id -1 is empty even where the last expert of the map is local; remote rows are exact zeros."
    yield Case(1, "padding_id_small", note, 4, 2, 8, 16, 3, "bf16").local([-1, -1, 0, 1]).picks(
        [[2, 3], [-1, -1], [0, -1]], [[0.5, 0.5]] * 3
    )
    c = Case(1, "padding_id_wide", note, 9, 3, 17, 11, 13, bias=True).local([-1, 2, -1, 0, -1, -1, 3, -1, 1])
    yield c.picks(np.where(c.rng.random((13, 3)) < 0.4, -1, c.rng.integers(0, 9, (13, 3))))

    note = "Profiling batches are all padding: every id -1, every second token, one slot of one token."
    for M in (16, 130):
        ids = np.stack([random(f"ids{M}").permutation(4)[:2] for _ in range(M)])
        if M == 16:
            yield Case(2, "all_padding", note, 4, 2, 9, 7, M).picks(np.full((M, 2), -1))
        half = ids.copy()
        half[1::2] = -1
        yield Case(2, f"every_second_token_M{M}", note, 4, 2, 9, 7, M, "f32" if M == 16 else "bf16", bias=True).picks(
            half
        )
        one = ids.copy()
        one[M // 2, 1] = -1
        yield Case(2, f"one_slot_M{M}", note, 4, 2, 9, 7, M, "f16" if M == 16 else "f32").picks(one)

    yield Case(
        3, "negative_id_with_map", "An id of -1 is legal in every stage, also beside an expert map.", 4, 2, 12, 5, 2
    ).local([0, 1, -1, -1]).picks([[0, -1], [3, 2]])

    note = "Ids outside [0, E) are empty slots outside of checked mode: never an out-of-bounds read."
    yield Case(5, "stale_id", note, 4, 2, 8, 6, 2, bias=True).picks([[0, 1], [1000000, 2]])
    yield Case(5, "id_equals_num_experts", note, 4, 2, 8, 6, 2, "bf16").picks([[0, 4], [1, 2]])
    yield Case(5, "stale_ids_with_map", note, 6, 3, 9, 5, 4).local([-1, 0, -1, 1, 2, -1]).picks(
        [[2**31 - 1, 1, 3], [-(2**31), 4, 4], [6, -2, 0], [5, 3, 7]]
    )
    note = "The same in checked mode: an error that names row, slot, value and range. Needs checked mode."
    yield Case(5, "stale_id_checked", note, 4, 2, 8, 6, 2, expect_error="1000000").picks([[0, 1], [1000000, 2]])
    yield Case(5, "id_equals_num_experts_checked", note, 4, 2, 8, 6, 2, "bf16", expect_error="given 4").picks(
        [[0, 4], [1, 2]]
    )
    yield Case(5, "id_below_empty_checked", note, 4, 2, 8, 6, 2, expect_error="-2").picks([[0, -2], [1, 2]])
    yield Case(5, "legal_ids_checked", "Checked mode takes what is legal.", 4, 2, 8, 6, 3).picks(
        [[0, -1], [1, 1], [3, 2]]
    )

    note = "A token that names one expert twice gets both terms, and the expert counts both."
    yield Case(7, "duplicate_ids_small", note, 4, 2, 6, 5, 1).picks([[1, 1]], [[0.3, 0.2]])
    for dtype in ("f32", "bf16"):
        c = Case(7, f"duplicate_ids_{dtype}", note, 144, 6, 7, 5, 9, dtype)
        ids = np.stack([c.rng.permutation(144)[:6] for _ in range(9)])
        ids[4] = [121, 62, 117, 62, 32, 13]
        ids[7] = 140
        weights = c.rng.uniform(0.1, 0.4, (9, 6))
        weights[4] = [0.3, 0.2, 0.2, 0.1, 0.1, 0.1]
        yield c.picks(ids, weights)

    yield Case(9, "one_expert_many_tokens", "Every row of an expert is kept, not only the first.", 1, 1, 5, 3, 4).picks(
        np.zeros((4, 1))
    )
    yield Case(
        12, "experts_not_a_block", "Five experts with a block of four: none is handled twice.", 5, 1, 6, 3, 6
    ).picks([0, 1, 2, 3, 4, 0])
    yield Case(
        80,
        "remote_rows_are_zero",
        "A token whose experts are all on another rank is an exact zero row.",
        6,
        2,
        7,
        9,
        5,
        "bf16",
        bias=True,
    ).local([0, -1, -1, 1, -1, -1]).picks([[1, 2], [0, 3], [4, 5], [3, 1], [2, 4]])
    yield Case(80, "no_local_expert_picked", "Every expert that anyone picks is remote.", 4, 1, 7, 3, 3).local(
        [-1, -1, -1, 0]
    ).picks([0, 1, 2])
    ids = np.repeat([0, -1, 1], 128)
    yield Case(110, "blocks_of_empty_rows", "A whole tile of empty rows between two experts.", 2, 1, 3, 2, 384).picks(
        ids
    )
    yield Case(128, "mostly_padding", "Five valid tokens among 64.", 8, 2, 11, 6, 64, "bf16").picks(
        [[m % 8, (m + 3) % 8] if m % 13 == 0 else [-1, -1] for m in range(64)]
    )


def zero_weights():
    note = "A zero weight skips its term: 0 * NaN must not leak from an expert whose weights are NaN."
    for dtype, k in (("f32", 2), ("bf16", 3)):
        c = Case(78, f"zero_weight_nan_expert_{dtype}", note, 5, k, 7, 9, 8, dtype, bias=True)
        for name in ("w13", "w2"):
            c.t[name].values[3] = np.nan
        ids = np.stack([c.rng.permutation([0, 1, 2, 4])[:k] for _ in range(8)])
        weights = c.rng.uniform(0.2, 1, (8, k))
        ids[::2, -1], weights[::2, -1] = 3, 0
        weights[3] = 0
        yield c.picks(ids, weights)
    c = Case(78, "empty_groups", "Experts without a token, and gaps between those that have some.", 5, 1, 6, 4, 8)
    yield c.picks([1, 3, 1, 1, 3, 1, 3, 1])
