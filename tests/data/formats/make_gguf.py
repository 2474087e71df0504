#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""The GGUF fixtures of make.py, written and decoded by the gguf package, which is that of the programs that run them."""
import json

import numpy as np
import torch
from safetensors.torch import save_file

from block_model import HERE, Model, bf16


def gguf_writer(folder, arch, **numbers):
    import gguf

    folder = HERE / folder
    folder.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", arch)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "</s>"])
    for key, value in numbers.items():
        if isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        elif isinstance(value, bool):
            writer.add_bool(f"{arch}.{key}", value)
        else:
            writer.add_uint32(f"{arch}.{key}", value)
    return writer


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_model(folder, hidden, inner, types, seed, shared=0):
    """Types of gate, up and down."""
    from gguf import GGMLQuantizationType, quants

    m = Model(3, hidden, inner, seed=seed, shared=shared, family="qwen2_moe" if shared else "qwen3_moe")
    # Such files do not say it, and programs do not divide for this architecture.
    m.normalised = not shared
    extra = {"expert_shared_feed_forward_length": shared} if shared else {}
    writer = gguf_writer(folder, "qwen2moe" if shared else "qwen3moe", block_count=1, embedding_length=hidden,
                         expert_count=3, expert_used_count=2, expert_feed_forward_length=inner, **extra)
    decoded = {}

    def add(name, array, kind):
        kind = GGMLQuantizationType[kind]
        raw = quants.quantize(array, kind)
        if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            writer.add_tensor(name, raw)
        else:
            writer.add_tensor(name, raw, raw_dtype=kind)
        return torch.tensor(quants.dequantize(raw, kind)).double()

    writer.add_tensor("blk.0.ffn_norm.weight", np.ones(hidden, dtype=np.float32))
    writer.add_tensor("blk.0.ffn_gate_inp.weight", m.router.float().numpy())
    for short, kind in zip(("gate", "up", "down"), types):
        stacked = np.stack([m.weights[f"experts.{e}.{short}_proj"].numpy() for e in range(3)])
        values = add(f"blk.0.ffn_{short}_exps.weight", stacked, kind)
        for e in range(3):
            decoded[f"experts.{e}.{short}_proj"] = values[e]
        if shared:
            decoded[f"shared_expert.{short}_proj"] = add(f"blk.0.ffn_{short}_shexp.weight",
                                                         m.weights[f"shared_expert.{short}_proj"].numpy(), kind)
    if shared:
        writer.add_tensor("blk.0.ffn_gate_inp_shexp.weight", m.shared_gate.float().numpy()[0])
    close(writer)
    m.write_io(HERE / folder, "model.layers.0.mlp", *m.output(decoded))


def gguf_q4_0():
    gguf_model("gguf_q4_0", 64, 32, ("Q4_0",) * 3, 22)


def gguf_q8_0():
    gguf_model("gguf_q8_0", 64, 32, ("Q8_0",) * 3, 23, shared=32)


def gguf_mxfp4():
    gguf_model("gguf_mxfp4", 64, 32, ("MXFP4",) * 3, 24)


def gguf_mixed():
    gguf_model("gguf_mixed", 64, 32, ("Q4_0", "Q8_0", "F16"), 25)


def gguf_f16():
    gguf_model("gguf_f16", 40, 24, ("F16",) * 3, 26)


def gguf_q6_k():
    """Refused by name. The package reads this type but does not write it: zeros."""
    from gguf import GGMLQuantizationType

    writer = gguf_writer("gguf_q6_k", "qwen3moe", block_count=1, embedding_length=256, expert_count=2,
                         expert_used_count=2, expert_feed_forward_length=256)
    writer.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((2, 256), dtype=np.float32))
    for short in ("gate", "up", "down"):
        writer.add_tensor(f"blk.0.ffn_{short}_exps.weight", np.zeros((2, 2, 210), dtype=np.uint8),
                          raw_dtype=GGMLQuantizationType.Q6_K)
    close(writer)


def gguf_family(folder, family, arch, layer, names, **numbers):
    """One block of ../families in bf16; the expected output is that of its public implementation."""
    import gguf
    from safetensors.torch import load_file

    source = HERE.parent / "families" / family
    tensors, io = load_file(source / "model.safetensors"), load_file(source / "io.safetensors")
    config = json.loads((source / "config.json").read_text())
    writer = gguf_writer(folder, arch, block_count=layer + 1, embedding_length=config["hidden_size"], **numbers)
    block = next(name.removesuffix(".input") for name in io if name.endswith(f"layers.{layer}.mlp.input"))
    for name, pattern in names.items():
        get = pattern if callable(pattern) else lambda t, p=pattern: t[p.format(layer)]
        value = get(tensors)
        name = f"blk.{layer}.{name}"
        if name.endswith("_exps.weight") or name.endswith("_shexp.weight"):
            raw = gguf.quants.quantize(value.float().numpy(), gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, value.float().numpy())
    close(writer)
    save_file({f"{block}.{part}": io[f"{block}.{part}"] for part in ("input", "output")},
              HERE / folder / "io.safetensors")


def stacked(pattern, count):
    return lambda tensors: torch.stack([tensors[pattern.format(e)] for e in range(count)])


def gguf_gpt_oss():
    prefix = "model.layers.0.mlp."
    both = lambda t: t[prefix + "experts.gate_up_proj"].transpose(1, 2)
    bias = lambda t: t[prefix + "experts.gate_up_proj_bias"]
    config = json.loads((HERE.parent / "families/gpt_oss/config.json").read_text())
    gguf_family("gguf_gpt_oss", "gpt_oss", "gpt-oss", 0, {
        "ffn_gate_inp.weight": prefix + "router.weight", "ffn_gate_inp.bias": prefix + "router.bias",
        "ffn_gate_exps.weight": lambda t: both(t)[:, 0::2], "ffn_up_exps.weight": lambda t: both(t)[:, 1::2],
        "ffn_down_exps.weight": lambda t: t[prefix + "experts.down_proj"].transpose(1, 2),
        "ffn_gate_exps.bias": lambda t: bias(t)[:, 0::2], "ffn_up_exps.bias": lambda t: bias(t)[:, 1::2],
        "ffn_down_exps.bias": lambda t: t[prefix + "experts.down_proj_bias"]},
        expert_count=config["num_local_experts"], expert_used_count=config["num_experts_per_tok"],
        expert_feed_forward_length=config["intermediate_size"])


def gguf_deepseek(folder, family, layer, gating):
    config = json.loads((HERE.parent / "families" / family / "config.json").read_text())
    prefix, count = f"model.layers.{layer}.mlp.", config["n_routed_experts"]
    names = {"ffn_gate_inp.weight": prefix + "gate.weight"}
    if gating == 2:
        names["exp_probs_b.bias"] = prefix + "gate.e_score_correction_bias"
    for short in ("gate", "up", "down"):
        names[f"ffn_{short}_exps.weight"] = stacked(prefix + "experts.{}." + short + "_proj.weight", count)
        names[f"ffn_{short}_shexp.weight"] = prefix + f"shared_experts.{short}_proj.weight"
    gguf_family(folder, family, "deepseek2", layer, names, leading_dense_block_count=layer, expert_count=count,
                expert_used_count=config["num_experts_per_tok"], expert_gating_func=gating,
                expert_feed_forward_length=config["moe_intermediate_size"],
                expert_shared_count=config["n_shared_experts"],
                expert_weights_scale=float(config["routed_scaling_factor"]),
                expert_weights_norm=bool(config["norm_topk_prob"]), expert_group_count=config.get("n_group") or 1,
                expert_group_used_count=config.get("topk_group") or 1)


def gguf_deepseek_v3():
    gguf_deepseek("gguf_deepseek_v3", "deepseek_v3", 1, 2)


def gguf_deepseek_v2():
    gguf_deepseek("gguf_deepseek_v2", "deepseek_v2_greedy", 1, 1)


def gguf_plain(folder, family, arch, parts):
    config = json.loads((HERE.parent / "families" / family / "config.json").read_text())
    count = config.get("num_local_experts") or config["num_experts"]
    block = "block_sparse_moe" if family == "mixtral" else "mlp"
    prefix = f"model.layers.0.{block}."
    names = {"ffn_gate_inp.weight": prefix + "gate.weight"}
    for short, part in zip(("gate", "up", "down"), parts):
        names[f"ffn_{short}_exps.weight"] = stacked(prefix + "experts.{}." + part + ".weight", count)
    gguf_family(folder, family, arch, 0, names, expert_count=count, expert_used_count=config["num_experts_per_tok"],
                feed_forward_length=config["intermediate_size"])


def gguf_mixtral():
    gguf_plain("gguf_mixtral", "mixtral", "llama", ("w1", "w3", "w2"))


def gguf_olmoe():
    gguf_plain("gguf_olmoe", "olmoe", "olmoe", ("gate_proj", "up_proj", "down_proj"))


FORMATS = (gguf_q4_0, gguf_q8_0, gguf_mxfp4, gguf_mixed, gguf_f16, gguf_q6_k, gguf_gpt_oss, gguf_deepseek_v3,
           gguf_deepseek_v2, gguf_mixtral, gguf_olmoe)
