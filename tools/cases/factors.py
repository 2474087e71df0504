# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Who multiplies by what: scaling factors, shared and identity experts, weights on the input, biases, overflow."""

import math

from cases.case import Case
from cases.oracle import PRESETS


def factors_and_shared():
    note = "The routed scaling factor is applied exactly once."
    for method in PRESETS:
        k = 1 if method == "llama4" else 2
        c = Case(32, f"factor_{method}", note, 6, k, 5, 4, 3, routing={"method": method, "routed_scaling_factor": 2.5})
        yield c.logits(bias=c.rng.normal(size=6) * 0.2 if PRESETS[method].get("has_bias") else None)
    for factor in (1.0, 2.5):
        c = Case(
            28,
            f"factor_{factor}".replace(".", "_"),
            note,
            4,
            2,
            6,
            5,
            2,
            routing={"method": "renormalize", "routed_scaling_factor": factor},
        )
        yield c.logits([[math.log(0.6), math.log(0.4), -9, -9]] * 2)
    for factor in (1.0, 2.5):
        c = Case(
            28,
            f"factor_on_output_{factor}".replace(".", "_"),
            "The factor multiplies the routed sum, not the weights and not the shared expert.",
            4,
            2,
            6,
            5,
            2,
            routing={"method": "renormalize", "routed_scaling_factor": factor},
            routed_scale_on_output=True,
        )
        yield c.shared(3).logits([[math.log(0.6), math.log(0.4), -9, -9]] * 2)
    for dtype in ("f32", "bf16", "f16"):
        yield Case(
            31,
            f"top1_factor_{dtype}",
            "One pick with a factor: every row is written.",
            3,
            1,
            6,
            5,
            4,
            dtype,
            routing={"method": "sigmoid", "routed_scaling_factor": 1.5},
        ).logits()

    note = "A fused shared expert has weight 1 whatever the factor of the routed experts."
    rule = {"method": "renormalize", "routed_scaling_factor": 2.5, "num_fused_shared_experts": 1}
    yield Case(33, "fused_shared", note, 4, 2, 6, 5, 3, routing=rule).logits()
    c = Case(
        33, "fused_shared_alone", "Routed experts of zeros leave exactly the shared one.", 4, 2, 6, 5, 3, routing=rule
    )
    for name in ("w13", "w2"):
        c.t[name].values[:4] = 0
    yield c.logits()
    yield Case(
        33,
        "two_fused_shared",
        note,
        5,
        2,
        7,
        4,
        6,
        "bf16",
        bias=True,
        routing={**rule, "num_fused_shared_experts": 2, "fused_shared_weight": 0.4},
    ).logits()
    note = "A shared expert of another width is added once, unscaled."
    yield Case(
        33, "shared", note, 4, 2, 6, 5, 3, routing={"method": "renormalize", "routed_scaling_factor": 2.5}
    ).shared(9).logits()
    yield Case(33, "shared_gate", note, 4, 2, 7, 5, 6, "bf16").shared(3, gate=True).logits()
    yield Case(33, "shared_relu2", note, 4, 2, 7, 5, 6, activation="relu2_no_mul").shared(8).logits()
    note = "Shared expert and router work on the hidden width, routed experts on the latent one."
    yield Case(83, "latent", note, 4, 2, 32, 5, 3, latent=8).shared(7).logits()
    yield Case(83, "latent_wider", note, 5, 2, 9, 7, 4, "bf16", latent=13, bias=True).distinct_picks()
    note = "Identity experts add weight * input and have no weights of their own."
    yield Case(0, "zero_experts", note, 6, 3, 7, 5, 8, zero_experts=2, routing={"method": "default"}).logits()
    c = Case(
        0,
        "zero_experts_bias",
        note,
        9,
        4,
        5,
        3,
        8,
        "bf16",
        zero_experts=4,
        routing={"method": "minimax2", "routed_scaling_factor": 2.5},
    )
    yield c.logits(bias=c.rng.normal(size=9) * 0.2)

    note = "The router weight goes on the input, and then not on the output."
    for dtype in ("f32", "bf16", "f16"):
        yield Case(36, f"weight_on_input_{dtype}", note, 3, 1, 8, 8, 4, dtype, on_input=True).picks(
            [0, 1, 2, 0], [0.5, 0.25, 1.5, 0.75]
        )
    yield Case(
        36, "weight_on_input_llama4", note, 5, 1, 9, 7, 6, bias=True, on_input=True, routing={"method": "llama4"}
    ).logits()
    c = Case(
        37, "equal_rows", "Equal rows with equal weights give equal results.", 3, 1, 8, 6, 5, "bf16", on_input=True
    )
    c.t["hidden_states"].values[:] = c.t["hidden_states"].values[0]
    yield c.picks([1] * 5, [0.3] * 5)
    yield Case(
        36,
        "weight_on_input_two_picks",
        "Defined for one pick only.",
        4,
        2,
        8,
        8,
        2,
        on_input=True,
        expect_error="apply_router_weight_on_input",
    ).picks([[0, 1], [2, 3]])

    c = Case(82, "in_place", "The output may be the input's memory.", 4, 2, 8, 5, 6, in_place=True)
    yield c.distinct_picks()

    note = "Biases are inside the router weight, and only once."
    c = Case(39, "w2_bias_only", note, 2, 2, 3, 4, 2, bias=True)
    for name in ("w13", "w2", "w13_bias"):
        c.t[name].values[:] = 0
    c.t["w2_bias"].values[:] = [[1] * 3, [2] * 3]
    yield c.picks([[0, 1], [1, 0]], [[0.25, 0.75], [0.25, 0.75]])
    c = Case(39, "w13_bias_only", note, 4, 3, 5, 7, 6, "bf16", bias=True)
    c.t["w13"].values[:] = 0
    yield c.distinct_picks()
    for dtype in ("f32", "f16"):
        yield Case(39, f"both_biases_{dtype}", note, 7, 3, 9, 11, 13, dtype, bias=True).distinct_picks()
    c = Case(39, "w2_bias_without_w13_bias", note, 5, 2, 6, 7, 8, bias=True)
    del c.t["w13_bias"]
    yield c.distinct_picks()

    for dtype in ("f32", "bf16", "f16"):
        yield Case(
            45, f"weights_as_{dtype}", "Router weights are read as their type says.", 4, 2, 6, 5, 2, weights_dtype=dtype
        ).picks([[0, 1], [3, 2]], [[0.7, 0.3], [0.6, 0.4]])
    yield Case(
        45,
        "weights_as_i32",
        "No other type is a weight.",
        4,
        2,
        6,
        5,
        2,
        weights_dtype="i32",
        expect_error="topk_weights",
    ).picks([[0, 1], [3, 2]], [[1, 2], [3, 4]])


def overflow():
    note = "An expert's output beyond f16 is weighted in f32 before it is narrowed."
    for M, k, weights in ((1, 2, [0.1, 0.0]), (16, 2, [0.1, 0.05]), (5, 1, [0.1])):
        c = Case(42 if M == 1 else 43, f"f16_overflow_M{M}_k{k}", note, 2, k, 3, 4, M, "f16", activation="relu2_no_mul")
        c.t["hidden_states"].values[:] = 1
        c.t["w13"].values[:] = 1 / 4
        c.t["w2"].values[:] = 31104.0  # 4 * 0.75^2 * 31104 = 69984
        c.t["w2"].values[1] = 2
        yield c.picks([[0, 1][:k]] * M, [weights] * M)
