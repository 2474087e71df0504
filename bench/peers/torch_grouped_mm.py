#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""In: models and token counts. Out: one JSON line for each, with the time of a whole MoE layer in PyTorch on a GPU, from
router logits to the reduced output: softmax and top-k, a sort by expert, a gather, two grouped products with SwiGLU
between them, and the weighted sum in f32. Public PyTorch API only.

Runs are recorded in a CUDA graph and timed with events. Each run of the graph reads another draw of logits and, where
the weights are small, another copy of them, so that nothing is found in L2 that a model would not find there.

Use: torch_grouped_mm.py [--models olmoe,mixtral] [--tokens 1,64] [--impl torch|transformers] [--zipf 1.0]
"""
import argparse
import json
import statistics
import sys

import torch

# E, k, H, I as the models' config.json publish them; of gpt-oss the shape alone (its activation is another).
MODELS = {
    "olmoe": (64, 8, 2048, 1024),
    "qwen3-30b": (128, 8, 2048, 768),
    "mixtral": (8, 2, 4096, 14336),
    "gpt-oss-120b": (128, 4, 2880, 2880),
    "deepseek-v3": (256, 8, 7168, 2048),
}
ROUNDS = 10  # Replays that are timed; the median of them is reported.
RUNS = 12    # Runs of the layer in one graph: what one replay costs beyond them is spread over all.


def grouped_mm():
    """The grouped product under the name that this version has it by."""
    found = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if found is None:
        sys.exit(f"torch {torch.__version__} has no grouped_mm")
    return found


def layer_torch(x, logits, w13, w2, k):
    """w13 [E, H, 2I] and w2 [E, I, H] as the product wants them (column-major views of row-major weights)."""
    product = grouped_mm()
    tokens, experts = logits.shape
    weights, ids = torch.topk(torch.softmax(logits, dim=-1), k)
    order = torch.argsort(ids.flatten(), stable=True)
    ends = torch.cumsum(count(ids, experts), 0).to(torch.int32)
    rows = x[order // k]
    gate, up = product(rows, w13, offs=ends).chunk(2, dim=-1)
    out = product(torch.nn.functional.silu(gate) * up, w2, offs=ends)
    out = out.float() * weights.flatten()[order, None]
    sums = torch.zeros(tokens, x.shape[1], device=x.device, dtype=torch.float32)
    return sums.index_add_(0, order // k, out).to(x.dtype)


def count(ids, experts):
    """How many rows each expert has, without asking the device for a size."""
    counts = torch.zeros(experts, device=ids.device, dtype=torch.int64)
    return counts.scatter_add_(0, ids.flatten(), torch.ones_like(ids.flatten()))


def layer_transformers(x, logits, w13, w2, k):
    """The grouped_mm experts of transformers, which bring their own gather and scatter."""
    from transformers.integrations.moe import grouped_mm_experts_forward

    class Experts(torch.nn.Module):
        has_gate, has_bias, is_transposed = True, False, True
        num_experts = w13.shape[0]
        gate_up_proj, down_proj = w13, w2
        act_fn = torch.nn.SiLU()

        def _apply_gate(self, both):
            gate, up = both.chunk(2, dim=-1)
            return torch.nn.functional.silu(gate) * up

    weights, ids = torch.topk(torch.softmax(logits, dim=-1), k)
    return grouped_mm_experts_forward(Experts(), x, ids, weights.to(x.dtype))


def draw_logits(tokens, experts, zipf):
    """Gumbel noise, so that the top k are k draws without replacement; with `zipf`, low ids are preferred."""
    noise = -torch.log(-torch.log(torch.rand(tokens, experts, device="cuda").clamp(1e-7, 1 - 1e-7)))
    return noise - zipf * torch.log(torch.arange(1, experts + 1, device="cuda", dtype=torch.float32))


def weight_copies(experts, k, hidden, inner, tokens):
    """So many that a copy is out of L2 when its turn comes again, within half of the free memory."""
    one = 3 * experts * hidden * inner * 2
    active = min(experts, tokens * k) / experts * one
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    wanted = 1 + int(4 * l2 // active)
    return max(1, min(wanted, RUNS, int(torch.cuda.mem_get_info()[0] // 2 // one)))


def make_weights(experts, hidden, inner):
    def one(rows, columns):
        w = torch.empty(experts, rows, columns, device="cuda", dtype=torch.bfloat16)
        for e in range(experts):
            w[e].normal_(0, columns ** -0.5)
        return w.transpose(1, 2)

    return one(2 * inner, hidden), one(hidden, inner)


def measure(layer, x, logits, weights, k):
    def run(i):
        return layer(x, logits[i % len(logits)], *weights[i % len(weights)], k)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(3):
            run(i)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(RUNS):
            out = run(i)
    graph.replay()
    torch.cuda.synchronize()
    if not torch.isfinite(out).all():
        sys.exit("the layer left values that are not finite")
    times = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / RUNS)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tokens", default="1,8,64,256,1024,4096,16384")
    parser.add_argument("--impl", default="torch", choices=("torch", "transformers"))
    parser.add_argument("--zipf", type=float, default=0.0)
    args = parser.parse_args()
    layer = {"torch": layer_torch, "transformers": layer_transformers}[args.impl]
    torch.manual_seed(1)
    for model in args.models.split(","):
        experts, k, hidden, inner = MODELS[model]
        weights = [make_weights(experts, hidden, inner)]
        for tokens in sorted(int(t) for t in args.tokens.split(",")):
            copies = weight_copies(experts, k, hidden, inner, tokens)
            weights = weights[:copies] + [make_weights(experts, hidden, inner) for _ in range(copies - len(weights))]
            x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
            logits = [draw_logits(tokens, experts, args.zipf) for _ in range(RUNS)]
            line = {"peer": args.impl, "torch": torch.__version__, "device": torch.cuda.get_device_name(0),
                    "model": model, "num_tokens": tokens, "weight_copies": copies, "zipf": args.zipf}
            try:
                with torch.no_grad():
                    times = measure(layer, x, logits, weights, k)
                line |= {"median_us": statistics.median(times), "min_us": min(times), "max_us": max(times)}
            except (ImportError, RuntimeError, TypeError, AttributeError) as error:
                line["error"] = str(error).splitlines()[0]
            print(json.dumps(line), flush=True)
        del weights
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
