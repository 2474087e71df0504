# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""One case under construction: the problem, its tensors (drawn from the case's name), its answer, and the file."""

import json
import math
import struct
import zlib

import numpy as np
import safetensors

from cases.oracle import GATED, STORED, Tensor, layer, route


def random(name):
    return np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))


class Case:
    def __init__(
        self,
        number,
        name,
        note,
        E,
        k,
        H,
        I,
        M,
        dtype="f32",
        activation="silu",
        layout="gate_up",
        params=None,
        routing=None,
        on_input=False,
        zero_experts=0,
        bias=False,
        logits_dtype="f32",
        weights_dtype="f32",
        expect_error="",
        tolerance=None,
        latent=0,
        **more,
    ):
        self.file = (f"case_{number:03d}_" if number else "case_") + name
        self.rng = random(self.file)
        self.dtype, self.logits_dtype, self.weights_dtype = dtype, logits_dtype, weights_dtype
        self.M = M
        self.problem = dict(
            num_experts=E,
            top_k=k,
            hidden_size=H,
            intermediate_size=I,
            dtype=dtype,
            activation=activation,
            activation_params=params or {},
            w13_layout=layout,
            routing=routing or {"method": "renormalize"},
            apply_router_weight_on_input=on_input,
            zero_experts=zero_experts,
            quant={"weights": "none", "activations": "none"},
            note=note,
        )
        self.problem.update(more)
        if latent:
            self.problem["latent_size"] = latent
        if self.file.endswith("_checked"):
            self.problem["checked"] = True
        if tolerance:
            self.problem["tolerance"] = dict(atol=tolerance[0], rtol=tolerance[1])
        if expect_error:
            self.problem["expect_error"] = expect_error
        local = E - zero_experts + self.problem["routing"].get("num_fused_shared_experts", 0)
        rows = 2 * I if activation in GATED else I
        self.t = {}
        self.set("hidden_states", self.rng.normal(size=(M, H)))
        if latent:
            self.set("latent_in", self.rng.normal(size=(latent, H)) / math.sqrt(H))
            self.set("latent_out", self.rng.normal(size=(H, latent)) / math.sqrt(latent))
            H = latent
        self.set("w13", self.rng.normal(size=(local, rows, H)) * 1.6 / math.sqrt(H))
        self.set("w2", self.rng.normal(size=(local, H, I)) / math.sqrt(I))
        if bias:
            self.set("w13_bias", self.rng.normal(size=(local, rows)) * 0.7)
            self.set("w2_bias", self.rng.normal(size=(local, H)) * 0.7)

    def set(self, name, values, dtype=None):
        self.t[name] = Tensor(values, dtype or self.dtype)
        return self

    def picks(self, ids, weights=None):
        """Ids (and weights, drawn if not given) come with the problem."""
        ids = np.asarray(ids, np.int64)
        ids = ids.reshape(self.M, ids.size // self.M if self.M else self.problem["top_k"])
        if weights is None:
            weights = self.rng.uniform(0.2, 1.4, ids.shape)
        self.set("topk_ids", ids, "i32")
        return self.set("topk_weights", np.asarray(weights, float).reshape(ids.shape), self.weights_dtype)

    def distinct_picks(self):
        E, k = self.problem["num_experts"], self.problem["top_k"]
        return self.picks([self.rng.permutation(E)[:k] for _ in range(self.M)])

    def logits(self, values=None, bias=None):
        """Logits come with the problem; the expected ids and weights go into the file."""
        if values is None:
            values = self.rng.normal(size=(self.M, self.problem["num_experts"])) * 1.5
        self.set("router_logits", values, self.logits_dtype)
        if bias is not None:
            self.set("e_score_correction_bias", bias, "f32")
        return self

    def local(self, expert_map):
        """Only some experts are on this rank; weights of the others are dropped."""
        self.set("expert_map", np.asarray(expert_map), "i32")
        count = int(np.max(expert_map)) + 1
        for name in ("w13", "w2", "w13_bias", "w2_bias"):
            if name in self.t:
                self.t[name].values = self.t[name].values[:count]
        return self

    def shared(self, size, gate=False):
        H = self.problem["hidden_size"]
        rows = 2 * size if self.problem["activation"] in GATED else size
        self.set("shared_w13", self.rng.normal(size=(rows, H)) * 1.6 / math.sqrt(H))
        self.set("shared_w2", self.rng.normal(size=(H, size)) / math.sqrt(size))
        return self.set("shared_gate", self.rng.normal(size=H) / math.sqrt(H)) if gate else self

    def solve(self):
        t = {name: tensor.values for name, tensor in self.t.items()}
        if "router_logits" in t:
            ids, weights = route(self.problem, t["router_logits"], t.get("e_score_correction_bias"))
            self.set("expected_topk_ids", ids, "i32").set("expected_topk_weights", weights, "f32")
        else:
            ids, weights = t["topk_ids"], t["topk_weights"]
        expected, counts = layer(self.problem, t, ids, weights)
        assert self.dtype != "f16" or np.all(np.isnan(expected) | (np.abs(expected) < 65504)), self.file
        self.set("expected", expected, "f32").set("expected_counts", counts, "i32")
        return expected

    def write(self, folder):
        if "expect_error" not in self.problem:
            self.solve()
        metadata = {"format": "conclave-case", "version": "1", "problem": json.dumps(self.problem, sort_keys=True)}
        data = serialized(self.t, metadata)
        safetensors.deserialize(data)  # What the reference implementation says of it.
        (folder / f"{self.file}.safetensors").write_bytes(data)
        return len(data)


def serialized(tensors, metadata):
    """The safetensors format, wide types first so that everything is aligned. The package's own writer puts metadata in
    no fixed order, and the same script must give the same bytes."""
    header, data = {"__metadata__": metadata}, b""
    for name, t in sorted(tensors.items(), key=lambda item: (-np.dtype(STORED[item[1].dtype][1]).itemsize, item[0])):
        begin, data = len(data), data + t.bytes()
        header[name] = {"dtype": STORED[t.dtype][0], "shape": list(getattr(t, "shape", t.values.shape)), "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data
