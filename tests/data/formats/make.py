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
import sys

import numpy as np
import torch
from safetensors.torch import save_file

import make_gguf
from block_model import HERE, TOKENS, Model, bf16

E4M3 = torch.float8_e4m3fn


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


FORMATS = (deepseek_fp8, deepseek_fp8_short, fp8_tensor, gpt_oss_mxfp4, ct_fp8_tensor, ct_fp8_channel, ct_fp8_block,
           ct_int8_channel, ct_int8_packed, ct_int4_group32, ct_int4_group64_zp, ct_int4_group128, ct_int4_channel_zp,
           ct_nvfp4, ct_mxfp4, modelopt_nvfp4, modelopt_fp8, gptq_group32, gptq_v1_zp, gptq_v2_zp, gptq_act_order,
           awq) + make_gguf.FORMATS

if __name__ == "__main__":
    for make in FORMATS:
        if len(sys.argv) == 1 or make.__name__ in sys.argv[1:]:
            make()
            print(make.__name__)
