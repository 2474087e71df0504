# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Activations with their constants and clamps, and the order of the rows of w13."""

import numpy as np

from cases.case import Case
from cases.oracle import GATED, rounded

PAIRS = [
    (12, 15),
    (12, -15),
    (-12, 15),
    (10, 10),
    (10, -10),
    (-10, 2),
    (1, 1),
    (0, 5),
    (-1, 3),
    (3, -1),
    (0.5, -0.25),
    (7, 7),
    (7.5, 0.125),
    (-0.75, -8),
    (2, 6.5),
    (-3, -3),
    (0, 0),
    (20, 1),
    (-20, 1),
    (0.01, 40),
]


def activations():
    """Exact values: one inner unit, x = (gate, up), output = (activation, 0)."""
    table = [
        (47, "silu", {}),
        (47, "silu", {"limit": 10.0}),
        (47, "silu", {"limit": 1.0}),
        (54, "gelu", {}),
        (54, "gelu_tanh", {}),
        (53, "relu2", {}),
        (48, "swigluoai", {}),
        (48, "swigluoai", {"alpha": 1.3, "beta": 0.5, "limit": 4.0}),
        (48, "swigluoai_uninterleave", {"limit": 7.0}),
        (48, "swigluoai_uninterleave", {"alpha": 1.702, "beta": 1.0, "limit": 7.0}),
        (51, "swiglustep", {}),
        (51, "swiglustep", {"limit": 2.0}),
        (54, "situ", {"beta": 4.0}),
        (54, "situ", {"beta": 4.0, "linear_beta": 25.0}),
        (53, "silu_no_mul", {}),
        (53, "gelu_no_mul", {}),
        (53, "gelu_tanh_no_mul", {}),
        (53, "relu2_no_mul", {}),
    ]
    for number, name, params in table:
        gated = name in GATED
        label = "_".join([name] + [f"{k}{v:g}".replace(".", "_") for k, v in params.items()])
        c = Case(
            number,
            f"values_{label}",
            "The formula, its constants and the side of every clamp.",
            1,
            1,
            2,
            1,
            len(PAIRS),
            activation=name,
            params=params,
            layout="interleaved" if name == "swigluoai" else "gate_up",
            tolerance=(2e-7 if "gelu" in name else 1e-9, 1e-5),  # 1 + erf cancels in f32
        )
        c.t["hidden_states"].values = rounded(np.array(PAIRS), "f32")
        c.t["w13"].values = np.eye(2)[None] if gated else np.array([[[1.0, 0.0]]])
        c.t["w2"].values = np.array([[[1.0], [0.0]]])
        yield c.picks([0] * len(PAIRS), [1.0] * len(PAIRS))
    note = "Every activation with every order of w13's rows."
    for name in sorted(GATED):
        params = {
            "swigluoai_uninterleave": {"limit": 0.9},
            "situ": {"beta": 1.2, "linear_beta": 0.8},
            "silu": {"limit": 1.1},
        }.get(name, {})
        for layout in ("gate_up", "up_gate", "interleaved"):
            yield Case(
                54, f"{name}_{layout}", note, 3, 2, 7, 5, 4, activation=name, params=params, layout=layout, bias=True
            ).distinct_picks()
    for layout in ("gate_up", "up_gate", "interleaved"):
        c = Case(
            55,
            f"halves_{layout}",
            "The same four numbers mean something else under each tag.",
            1,
            1,
            1,
            2,
            1,
            layout=layout,
        )
        c.set("hidden_states", [[1.0]]).set("w13", [[[1], [2], [3], [4]]]).set("w2", np.ones((1, 1, 2)))
        yield c.picks([0], [1.0])
    for dtype in ("bf16", "f16"):
        for layout in ("gate_up", "up_gate", "interleaved"):
            yield Case(
                56,
                f"layout_{layout}_{dtype}",
                "Rows of w13 and its bias follow the tag together.",
                4,
                2,
                24,
                17,
                9,
                dtype,
                layout=layout,
                bias=True,
            ).distinct_picks()
    yield Case(
        53,
        "w13_rows_of_a_gated_layer",
        "Rows of w13 that do not fit the activation are refused by name.",
        2,
        1,
        4,
        3,
        1,
        activation="relu2_no_mul",
        expect_error="w13",
    ).set("w13", np.ones((2, 6, 4))).picks([0])
    yield Case(53, "w13_rows_without_gate", "The same the other way round.", 2, 1, 4, 3, 1, expect_error="w13").set(
        "w13", np.ones((2, 3, 4))
    ).picks([0])
    yield Case(
        47,
        "limit_missing",
        "A constant that the formula needs must be given.",
        2,
        1,
        4,
        3,
        1,
        activation="swigluoai_uninterleave",
        expect_error="limit",
    ).picks([0])
    yield Case(
        48,
        "alpha_of_silu",
        "A constant that the formula does not have is refused, not ignored.",
        2,
        1,
        4,
        3,
        1,
        params={"alpha": 1.7},
        expect_error="alpha",
    ).picks([0])
