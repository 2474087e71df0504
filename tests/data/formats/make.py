#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Writes the small quantised checkpoints of this folder, each with the output that its own numbers give.

In: nothing but seeds. Out: <format>/config.json, model.safetensors (or model.gguf) and io.safetensors, for every format
or for those named on the command line. What a public package writes is written by it (compressed-tensors, gguf); the
other formats are packed here from their published descriptions. Expected outputs are computed in double precision from
the decoded weights, which come from the public package where there is one. Nothing of Conclave is used.

    pip install numpy torch safetensors compressed-tensors gguf
"""
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
TOKENS = 5
E4M3 = torch.float8_e4m3fn


def bf16(array):
    return torch.tensor(array, dtype=torch.float32).to(torch.bfloat16)


class Model:
    """Float weights of one block, and what the block computes from decoded ones."""

    def __init__(self, experts, hidden, inner, seed, shared=0, family="qwen3_moe"):
        self.e, self.h, self.i, self.shared, self.family = experts, hidden, inner, shared, family
        rng = np.random.default_rng(seed)
        self.router = bf16(rng.normal(size=(experts, hidden)) / 2)
        make = lambda rows, cols: bf16(rng.normal(size=(rows, cols)) * cols**-0.5).float()
        self.weights = {}
        for e in range(experts):
            for name, rows, cols in self.projections():
                self.weights[f"experts.{e}.{name}"] = make(rows, cols)
        if shared:
            for name, rows, cols in (("gate_proj", shared, hidden), ("up_proj", shared, hidden),
                                     ("down_proj", hidden, shared)):
                self.weights[f"shared_expert.{name}"] = make(rows, cols)
            self.shared_gate = bf16(rng.normal(size=(1, hidden)))
        self.x = bf16(rng.normal(size=(TOKENS, hidden)))
        self.normalised = True
        self.rng = rng

    def projections(self):
        return (("gate_proj", self.i, self.h), ("up_proj", self.i, self.h), ("down_proj", self.h, self.i))

    def config(self, quantization):
        config = {"model_type": self.family, "hidden_size": self.h, "moe_intermediate_size": self.i,
                  "num_experts": self.e, "num_experts_per_tok": 2, "norm_topk_prob": True, "num_hidden_layers": 1,
                  "hidden_act": "silu", "torch_dtype": "bfloat16"}
        if self.shared:
            config["shared_expert_intermediate_size"] = self.shared
        if quantization:
            config["quantization_config"] = quantization
        return config

    def output(self, decoded):
        x = self.x.double().numpy()
        logits = x @ self.router.double().numpy().T
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        ids = np.argsort(-logits, axis=1, kind="stable")[:, :2]
        y = np.zeros_like(x)
        w = {name: value.double().numpy() for name, value in decoded.items()}
        silu = lambda v: v / (1 + np.exp(-v))
        expert = lambda prefix, row: w[prefix + "down_proj"] @ (
            silu(w[prefix + "gate_proj"] @ row) * (w[prefix + "up_proj"] @ row))
        for m in range(TOKENS):
            chosen = scores[m, ids[m]] / (scores[m, ids[m]] if self.normalised else scores[m]).sum()
            for k in range(2):
                y[m] += chosen[k] * expert(f"experts.{ids[m, k]}.", x[m])
            if self.shared:
                gate = 1 / (1 + np.exp(-(self.shared_gate.double().numpy()[0] @ x[m])))
                y[m] += gate * expert("shared_expert.", x[m])
        return y, ids

    def write(self, folder, quantization, tensors, decoded, files=None):
        folder = HERE / folder
        folder.mkdir(exist_ok=True)
        prefix = "model.layers.0.mlp."
        stored = {prefix + name: value.contiguous() for name, value in tensors.items()}
        stored[prefix + "gate.weight"] = self.router
        if self.shared:
            stored[prefix + "shared_expert_gate.weight"] = self.shared_gate
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.config(quantization), indent=1) + "\n")
        for name, text in (files or {}).items():
            (folder / name).write_text(json.dumps(text, indent=1) + "\n")
        self.write_io(folder, prefix[:-1], *self.output(decoded))

    def write_io(self, folder, block, y, ids):
        save_file({f"{block}.input": self.x.float(), f"{block}.output": torch.tensor(y, dtype=torch.float32),
                   f"{block}.topk_ids": torch.tensor(ids.astype(np.int32))}, folder / "io.safetensors")


# DeepSeek: e4m3 codes and one decoding factor for each block of 128 x 128; the last block of a row or column is short.


def fp8_blocks(w):
    rows, cols = w.shape
    scale = torch.zeros(-(-rows // 128), -(-cols // 128))
    codes = torch.zeros(rows, cols, dtype=E4M3)
    decoded = torch.zeros(rows, cols, dtype=torch.float64)
    for r in range(scale.shape[0]):
        for c in range(scale.shape[1]):
            at = (slice(r * 128, (r + 1) * 128), slice(c * 128, (c + 1) * 128))
            scale[r, c] = w[at].abs().max() / 448
            codes[at] = (w[at] / scale[r, c]).to(E4M3)
            decoded[at] = codes[at].double() * scale[r, c].double()
    return codes, scale, decoded


def deepseek_fp8(folder="deepseek_fp8", inner=128, shared=0):
    m = Model(2, 136, inner, seed=1, shared=shared, family="qwen2_moe" if shared else "qwen3_moe")
    tensors, decoded = {}, {}
    for name, w in m.weights.items():
        codes, scale, decoded[name] = fp8_blocks(w)
        tensors[name + ".weight"], tensors[name + ".weight_scale_inv"] = codes, scale
    m.write(folder, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                     "weight_block_size": [128, 128]}, tensors, decoded)


def deepseek_fp8_short():
    """Gate and up of 40 rows do not share a grid of blocks, and a quantised shared expert."""
    deepseek_fp8("deepseek_fp8_short", inner=40, shared=24)


def fp8_tensor():
    m = Model(3, 40, 24, seed=2)
    tensors, decoded = {}, {}
    for name, w in m.weights.items():
        scale = w.abs().max() / 448
        tensors[name + ".weight"] = (w / scale).to(E4M3)
        tensors[name + ".weight_scale"] = scale.reshape(())
        tensors[name + ".input_scale"] = torch.tensor(0.01)
        decoded[name] = tensors[name + ".weight"].double() * scale.double()
    m.write("fp8_tensor", {"quant_method": "fp8", "activation_scheme": "static"}, tensors, decoded)


# Four-bit floats: sign, two bits of exponent, one of mantissa.
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def to_e2m1(x):
    return (x.unsqueeze(-1) - E2M1).abs().argmin(-1).to(torch.uint8)


def halves(codes):
    return codes[..., 0::2] | codes[..., 1::2] << 4


def gpt_oss_mxfp4():
    """Blocks and scales of all experts in one tensor, rows of gate and up in turn, biases."""
    e, h, i = 3, 64, 32
    m = Model(e, h, i, seed=3)
    prefix, tensors, decoded = "model.layers.0.mlp.", {}, {}
    biases = {}
    for name, rows, cols in (("gate_up_proj", 2 * i, h), ("down_proj", h, i)):
        w = bf16(m.rng.normal(size=(e, rows, cols)) * cols**-0.5).float().reshape(e, rows, cols // 32, 32)
        exponent = torch.floor(torch.log2(w.abs().amax(-1))) - 2
        codes = to_e2m1(w / 2 ** exponent.unsqueeze(-1))
        tensors[f"experts.{name}_blocks"] = halves(codes)
        tensors[f"experts.{name}_scales"] = (exponent + 127).to(torch.uint8)
        decoded[name] = (E2M1[codes.int()] * 2 ** exponent.unsqueeze(-1)).reshape(e, rows, cols).double().numpy()
        tensors[f"experts.{name}_bias"] = bf16(m.rng.normal(size=(e, rows)) / 2)
        biases[name] = tensors[f"experts.{name}_bias"].double().numpy()
    m.router = bf16(m.rng.normal(size=(e, h)) / 2)
    router_bias = bf16(m.rng.normal(size=e) / 2)
    x = m.x.double().numpy()
    logits = x @ m.router.double().numpy().T + router_bias.double().numpy()
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :2]
    y = np.zeros_like(x)
    for t in range(TOKENS):
        chosen = np.exp(logits[t, ids[t]] - logits[t, ids[t]].max())
        chosen /= chosen.sum()
        for k in range(2):
            expert = ids[t, k]
            both = decoded["gate_up_proj"][expert] @ x[t] + biases["gate_up_proj"][expert]
            gate, up = np.minimum(both[0::2], 7), np.clip(both[1::2], -7, 7)
            inner = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
            y[t] += chosen[k] * (decoded["down_proj"][expert] @ inner + biases["down_proj"][expert])
    folder = HERE / "gpt_oss_mxfp4"
    folder.mkdir(exist_ok=True)
    stored = {prefix + name: value.contiguous() for name, value in tensors.items()}
    stored |= {prefix + "router.weight": m.router, prefix + "router.bias": router_bias}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "gpt_oss", "hidden_size": h, "intermediate_size": i, "num_local_experts": e,
              "num_experts_per_tok": 2, "num_hidden_layers": 1, "hidden_act": "silu", "swiglu_limit": 7.0,
              "torch_dtype": "bfloat16",
              "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.mlp.router"]}}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    m.write_io(folder, prefix[:-1], y, ids)


def compressed(folder, model, weights, format, scale_dtype=torch.float32):
    """The package quantises, packs and unpacks."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(format)
    tensors, decoded = {}, {}
    for name, w in model.weights.items():
        rows, cols = w.shape
        if args.strategy == "block":
            low, high = (torch.zeros(-(-rows // 128), -(-cols // 128)) for _ in range(2))
            for r in range(low.shape[0]):
                for c in range(low.shape[1]):
                    block = w[r * 128:(r + 1) * 128, c * 128:(c + 1) * 128]
                    low[r, c], high[r, c] = block.min(), block.max()
        elif args.strategy == "tensor":
            low, high = w.min().reshape(1), w.max().reshape(1)
        else:
            grouped = w.reshape(rows, -1, args.group_size or cols)
            low, high = grouped.amin(-1), grouped.amax(-1)
        state = {"weight": w.clone()}
        extra = {}
        if format == "nvfp4-pack-quantized":
            state["weight_global_scale"] = extra["global_scale"] = generate_gparam(w.min(), w.max())
        scale, zero = calculate_qparams(low, high, args, **extra)
        state["weight_scale"] = scale.to(scale_dtype).to(scale.dtype)
        if not args.symmetric:
            state["weight_zero_point"] = zero.to(torch.int8)
        packed = compressor.compress(dict(state), scheme)
        decoded[name] = compressor.decompress(dict(packed), scheme)["weight"].double()
        if format == "nvfp4-pack-quantized":
            # The package multiplies in bf16: its elements and scales, in double precision instead.
            scale = packed["weight_scale"].double() / packed["weight_global_scale"].double()
            elements = unpack_fp4_from_uint8(packed["weight_packed"], rows, cols).double()
            decoded[name] = elements * scale.repeat_interleave(16, dim=1)
        if scale_dtype != torch.float32:
            packed["weight_scale"] = packed["weight_scale"].to(scale_dtype)
        for suffix, value in packed.items():
            tensors[f"{name}.{suffix}"] = value
    model.write(folder, {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
                         "ignore": ["lm_head", "re:.*mlp.gate$"],
                         "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None,
                                                       "weights": json.loads(args.model_dump_json())}}},
                tensors, decoded)


FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
INT4 = {"num_bits": 4, "type": "int"}


def ct_fp8_tensor():
    compressed("ct_fp8_tensor", Model(3, 40, 24, seed=4), FP8 | {"strategy": "tensor"}, "float-quantized")


def ct_fp8_channel():
    compressed("ct_fp8_channel", Model(3, 40, 24, seed=5), FP8 | {"strategy": "channel"}, "float-quantized",
               torch.bfloat16)


def ct_fp8_block():
    compressed("ct_fp8_block", Model(2, 136, 128, seed=6), FP8 | {"strategy": "block", "block_structure": [128, 128]},
               "float-quantized")


def ct_int8_channel():
    compressed("ct_int8_channel", Model(3, 40, 24, seed=7),
               {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}, "int-quantized")


def ct_int8_packed():
    compressed("ct_int8_packed", Model(3, 40, 24, seed=8),
               {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}, "pack-quantized")


def ct_int4(folder, hidden, inner, group, symmetric, seed):
    grouping = {"strategy": "channel"} if group < 0 else {"strategy": "group", "group_size": group}
    compressed(folder, Model(3, hidden, inner, seed=seed), INT4 | {"symmetric": symmetric} | grouping, "pack-quantized",
               torch.bfloat16)


def ct_int4_group32():
    ct_int4("ct_int4_group32", 64, 32, 32, True, 9)


def ct_int4_group64_zp():
    ct_int4("ct_int4_group64_zp", 128, 64, 64, False, 10)


def ct_int4_group128():
    ct_int4("ct_int4_group128", 128, 128, 128, True, 11)


def ct_int4_channel_zp():
    """Neither rows nor columns fill the last words."""
    ct_int4("ct_int4_channel_zp", 44, 20, -1, False, 12)


def ct_nvfp4():
    compressed("ct_nvfp4", Model(3, 48, 32, seed=13),
               {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16},
               "nvfp4-pack-quantized")


def ct_mxfp4():
    compressed("ct_mxfp4", Model(3, 64, 32, seed=14),
               {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32,
                "scale_dtype": "torch.uint8"}, "mxfp4-pack-quantized")


def modelopt_nvfp4():
    """Settings in a file of their own; both factors decode."""
    m = Model(3, 48, 32, seed=15)
    tensors, decoded = {}, {}
    for name, w in m.weights.items():
        rows, cols = w.shape
        second = (w.abs().max() / (6 * 448)).reshape(())
        scale = (w.reshape(rows, -1, 16).abs().amax(-1) / (6 * second)).to(E4M3)
        step = scale.float() * second
        codes = to_e2m1(w.reshape(rows, -1, 16) / step.unsqueeze(-1))
        tensors |= {name + ".weight": halves(codes.reshape(rows, cols)), name + ".weight_scale": scale,
                    name + ".weight_scale_2": second, name + ".input_scale": torch.tensor(0.002)}
        decoded[name] = (E2M1[codes.int()].double() * (scale.double() * second.double()).unsqueeze(-1)).reshape(rows,
                                                                                                            cols)
    m.write("modelopt_nvfp4", None, tensors, decoded,
            {"hf_quant_config.json": {"producer": {"name": "modelopt", "version": "0.33.0"},
                                      "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8",
                                                       "group_size": 16, "exclude_modules": ["lm_head"]}}})


def modelopt_fp8():
    m = Model(3, 40, 24, seed=16)
    tensors, decoded = {}, {}
    for name, w in m.weights.items():
        scale = (w.abs().max() / 448).reshape(())
        tensors |= {name + ".weight": (w / scale).to(E4M3), name + ".weight_scale": scale,
                    name + ".input_scale": torch.tensor(0.01)}
        decoded[name] = tensors[name + ".weight"].double() * scale.double()
    m.write("modelopt_fp8", {"quant_method": "modelopt", "quant_algo": "FP8"}, tensors, decoded)


# GPTQ and AWQ: transposed, eight 4-bit numbers in a word of 32.


def words(codes, order=range(8)):
    """[..., 8n] -> [..., n]: number order[i] of eight in half-byte i."""
    eights = codes.reshape(*codes.shape[:-1], -1, 8).astype(np.uint32)
    packed = np.zeros(eights.shape[:-1], dtype=np.uint32)
    for place, number in enumerate(order):
        packed |= eights[..., number] << np.uint32(4 * place)
    return torch.tensor(packed.view(np.int32))


def int4_groups(w, group_of, symmetric):
    """Codes [rows, cols], zero points and scales [rows, groups]; scales rounded to f16 before the codes are."""
    w = w.double().numpy()
    groups = int(group_of.max()) + 1
    low = np.stack([np.minimum(w[:, group_of == g].min(1), 0) for g in range(groups)], 1)
    high = np.stack([np.maximum(w[:, group_of == g].max(1), 0) for g in range(groups)], 1)
    if symmetric:
        scale = np.maximum(-low / 8, high / 7).astype(np.float16)
        zero = np.full(scale.shape, 8, dtype=np.int64)
    else:
        scale = ((high - low) / 15).astype(np.float16)
        zero = np.clip(np.round(-low / scale.astype(np.float64)), 1, 15).astype(np.int64)
    s = scale.astype(np.float64)[:, group_of]
    codes = np.clip(np.round(w / s) + zero[:, group_of], 0, 15).astype(np.int64)
    return codes, zero, scale, (codes - zero[:, group_of]) * s


def gptq(folder, hidden, inner, group, symmetric, act_order, version, seed):
    m = Model(3, hidden, inner, seed=seed)
    tensors, decoded = {}, {}
    for name, w in m.weights.items():
        cols = w.shape[1]
        group_of = np.arange(cols) // group
        if act_order:
            group_of = m.rng.permutation(group_of)
        codes, zero, scale, value = int4_groups(w, group_of, symmetric)
        stored_zero = zero - 1 if version == "gptq" else zero
        tensors |= {name + ".qweight": words(codes).T, name + ".qzeros": words(stored_zero.T),
                    name + ".scales": torch.tensor(scale.T.copy()),
                    name + ".g_idx": torch.tensor(group_of.astype(np.int32))}
        decoded[name] = torch.tensor(value)
    m.write(folder, {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": symmetric, "desc_act": act_order,
                     "checkpoint_format": version}, tensors, decoded)


def gptq_group32():
    gptq("gptq_group32", 64, 32, 32, True, False, "gptq", 17)


def gptq_v1_zp():
    gptq("gptq_v1_zp", 64, 32, 32, False, False, "gptq", 18)


def gptq_v2_zp():
    gptq("gptq_v2_zp", 64, 32, 32, False, False, "gptq_v2", 19)


def gptq_act_order():
    gptq("gptq_act_order", 64, 32, 32, False, True, "gptq", 20)


def awq():
    m = Model(3, 64, 32, seed=21)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors, decoded = {}, {}
    for name, w in m.weights.items():
        codes, zero, scale, value = int4_groups(w, np.arange(w.shape[1]) // 32, False)
        tensors |= {name + ".qweight": words(codes.T, order), name + ".qzeros": words(zero.T, order),
                    name + ".scales": torch.tensor(scale.T.copy())}
        decoded[name] = torch.tensor(value)
    m.write("awq", {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, tensors,
            decoded)


# GGUF, written and decoded by the package of the programs that run it.


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


FORMATS = (deepseek_fp8, deepseek_fp8_short, fp8_tensor, gpt_oss_mxfp4, ct_fp8_tensor, ct_fp8_channel, ct_fp8_block,
           ct_int8_channel, ct_int8_packed, ct_int4_group32, ct_int4_group64_zp, ct_int4_group128, ct_int4_channel_zp,
           ct_nvfp4, ct_mxfp4, modelopt_nvfp4, modelopt_fp8, gptq_group32, gptq_v1_zp, gptq_v2_zp, gptq_act_order, awq,
           gguf_q4_0, gguf_q8_0, gguf_mxfp4, gguf_mixed, gguf_f16, gguf_q6_k, gguf_gpt_oss, gguf_deepseek_v3,
           gguf_deepseek_v2, gguf_mixtral, gguf_olmoe)

if __name__ == "__main__":
    for make in FORMATS:
        if len(sys.argv) == 1 or make.__name__ in sys.argv[1:]:
            make()
            print(make.__name__)
