#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""In: the table below. Out: tests/data/families/<name>/{config.json,model.safetensors,io.safetensors}.

One small random model of each architecture, computed by the architecture's own public implementation. Needs
`pip install torch transformers==5.17.0`; run it from the root of the repository, with the names to make as arguments
(none: all). The expected values depend on those two versions in their last bits only.

Weights are bf16 under the names that save_pretrained writes; everything is computed in f32 from exactly those weights.
`<block>.input` is bf16-representable, so that f32 and bf16 kernels see the same numbers. The names of blocks are
module paths, which is why they may differ from the names on disk.
"""

import json
import pathlib
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

NUM_TOKENS = 37
COMMON = dict(vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=128)
DEEPSEEK_LIKE = dict(n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=40,
                     intermediate_size=80, first_k_dense_replace=1, num_hidden_layers=3, routed_scaling_factor=1.75,
                     head_dim=16)

# folder -> (model_type, the config's arguments). Dense layers, groups and scales differ on purpose.
MODELS = {
    "phimoe": ("phimoe", dict(intermediate_size=56, num_local_experts=8, num_experts_per_tok=2,
                              router_jitter_noise=0.1)),
    "qwen3_next": ("qwen3_next", dict(
        num_experts=12, num_experts_per_tok=4, moe_intermediate_size=40, shared_expert_intermediate_size=56,
        head_dim=16, norm_topk_prob=True, decoder_sparse_step=2, num_hidden_layers=4, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, intermediate_size=80)),
    "flex_olmo": ("flex_olmo", dict(num_experts=7, num_experts_per_tok=3, intermediate_size=56, pad_token_id=None,
                                    norm_topk_prob=True)),
    "dots1": ("dots1", dict(DEEPSEEK_LIKE, n_group=3, topk_group=2, norm_topk_prob=True)),
    "ernie4_5_moe": ("ernie4_5_moe", dict(
        moe_num_experts=10, moe_k=3, moe_num_shared_experts=2, moe_intermediate_size=40, moe_layer_start_index=1,
        num_hidden_layers=3, intermediate_size=80)),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", dict(num_experts=9, moe_topk=[4, 2], intermediate_size=56, head_dim=16)),
    "minimax": ("minimax", dict(num_local_experts=8, num_experts_per_tok=3, intermediate_size=56, head_dim=16,
                                block_size=16)),
    "dbrx": ("dbrx", dict(
        d_model=48, n_heads=4, n_layers=2, max_seq_len=128, attn_config=dict(kv_n_heads=2, rope_theta=10000.0),
        ffn_config=dict(ffn_hidden_size=40, moe_num_experts=6, moe_top_k=3, moe_normalize_expert_weights=1.0,
                        ffn_act_fn=dict(name="gelu")))),
    "lfm2_moe": ("lfm2_moe", dict(
        num_experts=10, num_experts_per_tok=4, moe_intermediate_size=40, intermediate_size=80, num_dense_layers=1,
        num_hidden_layers=3, routed_scaling_factor=1.3, layer_types=["conv", "full_attention", "conv"])),
    "exaone_moe": ("exaone_moe", dict(
        num_experts=12, num_shared_experts=1, num_experts_per_tok=3, moe_intermediate_size=40, intermediate_size=80,
        first_k_dense_replace=1, num_hidden_layers=3, head_dim=16, n_group=2, topk_group=1)),
    "solar_open": ("solar_open", dict(
        n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=40,
        intermediate_size=80, head_dim=16, routed_scaling_factor=2.0, norm_topk_prob=False)),
    "afmoe": ("afmoe", dict(
        num_experts=10, num_shared_experts=1, num_experts_per_tok=3, moe_intermediate_size=40, intermediate_size=80,
        num_dense_layers=1, num_hidden_layers=3, head_dim=16, route_scale=2.5)),
    "nemotron_h_latent": ("nemotron_h", dict(
        layers_block_type=["moe", "full_attention", "moe"], n_routed_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=40, moe_shared_expert_intermediate_size=56, moe_latent_size=24, n_group=2, topk_group=1,
        routed_scaling_factor=2.5, head_dim=16, intermediate_size=80)),
    "deepseek_v2_greedy": ("deepseek_v2", dict(
        n_routed_experts=9, n_shared_experts=1, num_experts_per_tok=4, moe_intermediate_size=40, intermediate_size=80,
        first_k_dense_replace=1, topk_method="greedy", routed_scaling_factor=1.0, kv_lora_rank=16, q_lora_rank=24,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16)),
}


def randomise(model):
    """Wide enough that routing is decided, biases large enough that dropping one shows."""
    generator = torch.Generator().manual_seed(20260731)
    for _, tensor in list(model.named_parameters()) + list(model.named_buffers()):
        if tensor.is_floating_point():
            tensor.data.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
            tensor.data.copy_(tensor.data.bfloat16().float())


def moe_blocks(model):
    """Module path -> block; the MoE block is the parent of the experts."""
    paths = [name.rsplit(".", 1)[0] for name, _ in model.named_modules() if name.split(".")[-1] == "experts"]
    return {path: model.get_submodule(path) for path in paths}


def run_block(path, block, hidden, tensors):
    x = torch.randn(1, NUM_TOKENS, hidden, generator=torch.Generator().manual_seed(len(tensors) + 7)).bfloat16().float()
    router = getattr(block, "gate", None) or block.router
    seen = []
    handle = router.register_forward_hook(lambda _, __, out: seen.append(out))
    with torch.no_grad():
        out = block(x)
    handle.remove()
    tensors[path + ".input"] = x
    tensors[path + ".output"] = (out[0] if isinstance(out, tuple) else out).contiguous()
    results = seen[0] if isinstance(seen[0], tuple) else (seen[0],)
    for i, result in enumerate(results):
        tensors[f"{path}.router_out{i}"] = result.detach().contiguous()


def make(name, folder):
    model_type, arguments = MODELS[name]
    common = {} if model_type == "dbrx" else COMMON
    config = transformers.AutoConfig.for_model(model_type, **{**common, **arguments})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    randomise(model)

    hidden = getattr(config, "hidden_size", None) or config.d_model
    tensors = {}
    blocks = moe_blocks(model)
    for path, block in blocks.items():
        run_block(path, block, hidden, tensors)

    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "io.safetensors")
    with tempfile.TemporaryDirectory() as scratch:
        model.bfloat16().save_pretrained(scratch)
        (folder / "config.json").write_text(pathlib.Path(scratch, "config.json").read_text())
        layers = {tuple(part for part in path.split(".") if part.isdigit()) for path in blocks}
        kept = {}
        with safe_open(pathlib.Path(scratch, "model.safetensors"), "pt") as file:
            for key in file.keys():
                layer = tuple(part for part in key.split(".") if part.isdigit())[:1]
                tail = key.split(".")
                if layer in layers and any(s in tail for s in ("mlp", "block_sparse_moe", "feed_forward", "ffn", "mixer")):
                    kept[key] = file.get_tensor(key)
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {len(blocks)} blocks, {len(kept)} tensors, {size} bytes")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or MODELS:
        make(wanted, pathlib.Path("tests/data/families") / wanted)
