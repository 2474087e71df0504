# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""The MoE layer in float64, one token and one expert at a time, and the rounding of its number formats.

Shares nothing with the library: the right answers of tests/cases come from here.
"""

import math

import numpy as np

# ---------------------------------------------------------------------------------------------- tensors and types

# Name in the file, and how numpy stores it.
STORED = {"f32": ("F32", "<f4"), "bf16": ("BF16", "<u2"), "f16": ("F16", "<f2"), "i32": ("I32", "<i4"), "u8": ("U8", "u1")}


class Tensor:
    """Float64 (or integer) values that are exactly representable in `dtype`."""

    def __init__(self, values, dtype):
        self.dtype = dtype
        self.values = rounded(np.asarray(values), dtype)

    def bytes(self):
        if self.dtype == "bf16":
            return bf16_bits(self.values).astype("<u2").tobytes()
        return np.ascontiguousarray(self.values, STORED[self.dtype][1]).tobytes()


def bf16_bits(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    return np.where(np.isnan(values), np.uint32(0x7FC0), (bits + even) >> 16).astype(np.uint16)


def rounded(values, dtype):
    if dtype == "bf16":
        return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype in ("f32", "f16"):
        with np.errstate(over="ignore"):
            return values.astype(STORED[dtype][1]).astype(np.float64)
    return values.astype(STORED[dtype][1])


# ------------------------------------------------------------------------------------------- the layer in float64

GATED = {"silu", "gelu", "gelu_tanh", "relu2", "swigluoai", "swigluoai_uninterleave", "swiglustep", "situ"}
erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def plain(name, x):
    if name == "silu":
        return x * sigmoid(x)
    if name == "gelu":
        return 0.5 * x * (1 + erf(x / math.sqrt(2)))
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    assert name == "relu2"
    return np.maximum(x, 0) ** 2


def activate(name, params, gate, up):
    if name not in GATED:
        return plain(name.removesuffix("_no_mul"), gate)
    default_limit = 7.0 if name in ("swigluoai", "swiglustep") else np.inf
    limit = params.get("limit", default_limit)
    cut_gate, cut_up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    if name == "silu":
        return plain("silu", cut_gate) * cut_up
    if name in ("swigluoai", "swigluoai_uninterleave"):
        oai = name == "swigluoai"
        alpha, beta = params.get("alpha", 1.702 if oai else 1.0), params.get("beta", 1.0 if oai else 0.0)
        return (cut_up + beta) * cut_gate * sigmoid(alpha * cut_gate)
    if name == "swiglustep":
        return np.minimum(plain("silu", gate), limit) * cut_up
    if name == "situ":
        beta, linear = params["beta"], params.get("linear_beta", 0)
        return beta * np.tanh(gate / beta) * sigmoid(gate) * (linear * np.tanh(up / linear) if linear else up)
    return plain(name, gate) * up


def halves(problem, rows):
    """Splits w13's rows (the last axis of `rows`) into gate and up."""
    if problem["activation"] not in GATED:
        return rows, rows
    layout, size = problem["w13_layout"], rows.shape[-1] // 2
    if layout == "interleaved":
        return rows[..., 0::2], rows[..., 1::2]
    first, second = rows[..., :size], rows[..., size:]
    return (first, second) if layout == "gate_up" else (second, first)


def expert(problem, x, w13, b13, w2, b2):
    gate, up = halves(problem, x @ w13.T + (0 if b13 is None else b13))
    inner = activate(problem["activation"], problem["activation_params"], gate, up)
    return inner @ w2.T + (0 if b2 is None else b2)


def score(kind, x):
    if kind == "softmax":
        e = np.exp(x - np.max(x))
        return e / e.sum()
    if kind == "sigmoid":
        return sigmoid(x)
    if kind == "sqrt_softplus":
        return np.sqrt(np.logaddexp(0, x))
    return x.copy()


PRESETS = {
    "default": dict(scoring="softmax"),
    "renormalize": dict(scoring="softmax", score_after_topk=True),
    "deepseek_v3": dict(
        scoring="sigmoid", has_bias=True, group_score="top2_sum", renormalize="sum_plus_epsilon", epsilon=1e-20
    ),
    "llama4": dict(scoring="sigmoid", score_after_topk=True),
    "renormalize_naive": dict(scoring="softmax", renormalize="sum_plus_epsilon"),
    "top_k": dict(scoring="logits"),
    "sigmoid_renorm": dict(scoring="sigmoid", renormalize="sum_plus_epsilon", epsilon=1e-20),
    "minimax2": dict(scoring="sigmoid", has_bias=True, renormalize="sum_plus_epsilon", epsilon=1e-20),
    "sigmoid": dict(scoring="sigmoid"),
    "topk_sigmoid": dict(scoring="sigmoid", score_after_topk=True),
    "deepseek_v4": dict(scoring="sqrt_softplus", has_bias=True, renormalize="max_epsilon", epsilon=1e-20),
}


def best(values, count):
    """Largest first, equal values by lower index."""
    return np.argsort(-values, kind="stable")[:count]


def route_row(rule, logits, bias, top_k):
    nan = np.isnan(logits)
    if nan.all():
        return np.arange(top_k), np.zeros(top_k)
    x = np.where(nan, -np.inf, logits)
    late = rule.get("score_after_topk", False)
    scores = x.copy() if late else score(rule["scoring"], x)
    choice = np.where(nan, -np.inf, scores + (0 if bias is None else bias))
    groups = rule.get("num_expert_group", 1)
    if groups > 1:
        members = choice.reshape(groups, -1)
        ordered = -np.sort(-members, axis=1)
        value = ordered[:, :2].sum(1) if rule.get("group_score", "max") == "top2_sum" else ordered[:, 0]
        kept = np.isin(np.arange(groups), best(value, rule.get("topk_group", 1)))
        choice = np.where(np.repeat(kept, members.shape[1]), choice, -np.inf)
    ids = best(choice, top_k)
    weights = scores[ids]
    if late:
        weights = score(rule["scoring"], weights)
    weights = np.where(nan[ids], 0, weights)
    mode, epsilon = rule.get("renormalize", "none"), rule.get("epsilon", 0.0)
    if mode != "none":
        total = weights.sum()
        divisor = total + epsilon if mode == "sum_plus_epsilon" else max(total, epsilon)
        weights = weights / divisor if divisor else weights * 0
    return ids, weights


def route(problem, logits, bias):
    rule = {**PRESETS[problem["routing"]["method"]], **problem["routing"]}
    if not rule.get("has_bias"):
        assert bias is None
    ids, weights = [], []
    shared = rule.get("num_fused_shared_experts", 0)
    extra_ids = np.arange(problem["num_experts"], problem["num_experts"] + shared)
    extra_weights = np.full(shared, rule.get("fused_shared_weight", 1.0))
    factor = 1.0 if problem.get("routed_scale_on_output") else rule.get("routed_scaling_factor", 1.0)
    for row in logits:
        i, w = route_row(rule, row, bias, problem["top_k"])
        ids.append(np.concatenate([i, extra_ids]))
        weights.append(np.concatenate([w * factor, extra_weights]))
    slots = problem["top_k"] + shared
    return np.array(ids, np.int64).reshape(-1, slots), np.array(weights, np.float64).reshape(-1, slots)


def local_slots(problem, ids, expert_map, num_local):
    real = problem["num_experts"] - problem["zero_experts"] + problem["routing"].get("num_fused_shared_experts", 0)
    slots = np.full(ids.shape, -1)
    for at, e in np.ndenumerate(ids):
        if 0 <= e < real:
            slots[at] = e if expert_map is None else expert_map[e]
    return np.where(slots < num_local, slots, -1)


def layer(problem, t, ids, weights):
    """t: name -> float64 values. Returns output and counts of each local expert."""
    hidden = t["hidden_states"]
    x = hidden @ t["latent_in"].T if "latent_in" in t else hidden
    slots = local_slots(problem, ids, t.get("expert_map"), len(t["w13"]))
    out = np.zeros(x.shape)
    identity = np.zeros(hidden.shape)
    for m, k in np.ndindex(ids.shape):
        e, w = slots[m, k], weights[m, k]
        zero_expert = problem["zero_experts"] and ids[m, k] >= problem["num_experts"] - problem["zero_experts"]
        if zero_expert and ids[m, k] < problem["num_experts"]:
            identity[m] += w * hidden[m]
        on_input = problem["apply_router_weight_on_input"]
        if e < 0 or (w == 0 and not on_input):
            continue
        y = expert(
            problem,
            x[m] * w if on_input else x[m],
            t["w13"][e],
            t["w13_bias"][e] if "w13_bias" in t else None,
            t["w2"][e],
            t["w2_bias"][e] if "w2_bias" in t else None,
        )
        out[m] += y if on_input else w * y
    if problem.get("routed_scale_on_output"):
        out *= problem["routing"].get("routed_scaling_factor", 1.0)
    out = (out @ t["latent_out"].T if "latent_out" in t else out) + identity
    if "shared_w13" in t:
        for m in range(len(x)):
            gate = sigmoid(hidden[m] @ t["shared_gate"]) if "shared_gate" in t else 1.0
            out[m] += gate * expert(problem, hidden[m], t["shared_w13"], None, t["shared_w2"], None)
    return out, np.bincount(slots[slots >= 0], minlength=len(t["w13"]))
