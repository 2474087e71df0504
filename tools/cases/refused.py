# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Problems that must be refused, with a part of the message."""

import numpy as np

from cases.case import Case


def refused():
    note = "A malformed problem is refused with the value in the message."
    yield Case(24, "top_k_beyond_experts", note, 4, 5, 3, 2, 1, expect_error="top_k").picks([[0, 1, 2, 3, 0]])
    yield Case(24, "top_k_zero", note, 4, 0, 3, 2, 1, expect_error="top_k").picks(np.zeros((1, 0)))
    yield Case(73, "expert_map_of_local_length", note, 4, 2, 3, 2, 1, expect_error="expert_map").set(
        "expert_map", np.array([0, 1]), "i32"
    ).picks([[0, 1]])
    yield Case(73, "expert_map_slot_out_of_range", note, 4, 2, 3, 2, 1, expect_error="expert_map").set(
        "expert_map", np.array([0, 1, 2, 9]), "i32"
    ).picks([[0, 1]])
    yield Case(53, "w2_transposed", note, 4, 2, 3, 5, 1, expect_error="w2").set("w2", np.ones((4, 5, 3))).picks(
        [[0, 1]]
    )
    yield Case(83, "hidden_width_of_another_layer", note, 4, 2, 8, 5, 2, expect_error="hidden_states").set(
        "hidden_states", np.ones((2, 9))
    ).picks([[0, 1]] * 2)
    yield Case(45, "hidden_dtype_of_another_layer", note, 4, 2, 8, 5, 2, expect_error="hidden_states").set(
        "hidden_states", np.ones((2, 8)), "f16"
    ).picks([[0, 1]] * 2)
    yield Case(108, "ids_with_too_few_columns", note, 4, 2, 8, 5, 2, expect_error="topk_ids").picks([[0], [1]])
    yield Case(24, "logits_of_another_width", note, 4, 2, 8, 5, 2, expect_error="router_logits").logits(
        np.zeros((2, 5))
    )
    yield Case(
        16,
        "groups_do_not_divide",
        note,
        6,
        2,
        3,
        2,
        1,
        expect_error="num_expert_group",
        routing={"method": "default", "num_expert_group": 4, "topk_group": 2},
    ).logits()
    yield Case(
        16,
        "top_k_beyond_groups",
        note,
        8,
        3,
        3,
        2,
        1,
        expect_error="top_k",
        routing={"method": "default", "num_expert_group": 4, "topk_group": 1},
    ).logits()
    yield Case(
        15,
        "bias_without_a_rule_for_it",
        note,
        4,
        2,
        3,
        2,
        1,
        expect_error="e_score_correction_bias",
        routing={"method": "default", "has_bias": False},
    ).logits(bias=np.zeros(4))
    yield Case(
        54,
        "layout_of_an_ungated_layer",
        note,
        4,
        2,
        3,
        2,
        1,
        activation="relu2_no_mul",
        layout="interleaved",
        expect_error="w13_layout",
    ).picks([[0, 1]])
    c = Case(60, "unknown_quantisation", note, 4, 2, 32, 32, 1, expect_error="fp9_block128").picks([[0, 1]])
    c.problem["quant"]["weights"] = "fp9_block128"
    yield c
    yield Case(
        82,
        "in_place_with_shared",
        "The shared expert would read an input that is overwritten already.",
        4,
        2,
        8,
        5,
        2,
        in_place=True,
        expect_error="in_place",
    ).shared(3).picks([[0, 1]] * 2)
