#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""One MoE block for fixtures: float weights from a seed, and what the block computes from decoded ones, in double
precision. Writes config.json, model.safetensors and io.safetensors."""
import json
import pathlib

import numpy as np
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
TOKENS = 5


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
