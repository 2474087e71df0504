#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""In: the built `conclave`, models, token counts. Out: a Markdown table on stdout: the whole layer on a GPU, router logits
to reduced output, beside PyTorch's grouped_mm measured in the same run (bench/peers/torch_grouped_mm.py) and beside
vLLM's Triton kernel as tuned for each point.

The Triton column was measured once (H200, driver 580.159, torch 2.11.0, triton 3.6.0, best of up to 18 tile
configurations a point, random data, uniform routing); it starts from ids and their sorted index, which ours includes.
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

# E, k, H, I as the models' config.json publish them; of gpt-oss the shape alone.
MODELS = {
    "olmoe": (64, 8, 2048, 1024),
    "qwen3-30b": (128, 8, 2048, 768),
    "mixtral": (8, 2, 4096, 14336),
    "gpt-oss-120b": (128, 4, 2880, 2880),
    "deepseek-v3": (256, 8, 7168, 2048),
}
TRITON = {
    "olmoe": {1: 36.8, 8: 144.6, 64: 202.9, 256: 217.6, 1024: 303.0, 4096: 856.5, 16384: 3206},
    "qwen3-30b": {1: 32.9, 8: 122.3, 64: 284.5, 256: 308.0, 1024: 383.5, 4096: 763.5, 16384: 2616},
    "mixtral": {1: 181.2, 8: 662.0, 64: 673.0, 256: 811.4, 1024: 1386, 4096: 5226, 16384: 19021},
    "gpt-oss-120b": {1: 67.9, 8: 295.5, 64: 1208, 256: 1489, 1024: 1613, 4096: 2180, 16384: 6755},
    "deepseek-v3": {1: 188.6, 8: 1186, 64: 4311, 256: 5115, 1024: 5522, 4096: 7481, 16384: 22661},
}


def ours(args, model, routing):
    shape = ",".join(map(str, MODELS[model]))
    command = [str(args.conclave), "bench", "--shape", shape, "--dtype", "bf16", "--device", "cuda", "--tokens",
               args.tokens, "--min-time", str(args.min_time), "--routing", routing, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peer(args, model):
    script = Path(__file__).parent / "peers" / "torch_grouped_mm.py"
    run = subprocess.run([sys.executable, str(script), "--models", model, "--tokens", args.tokens],
                         capture_output=True, text=True)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {line["num_tokens"]: line["median_us"] for line in lines if "median_us" in line}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--conclave", type=Path, default=Path("build/cuda/bin/conclave"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tokens", default="1,8,64,256,1024,4096,16384")
    parser.add_argument("--min-time", type=float, default=0.1)
    parser.add_argument("--routing", default="uniform")
    parser.add_argument("--no-peer", action="store_true")
    args = parser.parse_args()
    print("| model | tokens | experts hit | floor us | ours us | ours / floor | expected / ours | TFLOP/s |"
          " Triton tuned us | Triton / ours | grouped_mm us | grouped_mm / ours |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for model in args.models.split(","):
        report = ours(args, model, args.routing)
        torch = {} if args.no_peer else peer(args, model)
        for p in report["points"]:
            m, us = p["num_tokens"], p["time"]["median_us"]
            triton, other = TRITON[model].get(m), torch.get(m)
            cells = [model, m, f"{p['active_experts']:.1f}", f"{p['floor_us']:.1f}", f"{us:.1f}",
                     f"{us / p['floor_us']:.2f}", f"{p['forecast_us'] / us:.2f}", f"{p['teraflops']:.0f}",
                     triton or "-", f"{triton / us:.2f}" if triton else "-",
                     f"{other:.1f}" if other else "-", f"{other / us:.2f}" if other else "-"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        device = report["device"]
        print(f"{model}: ceilings {device['bytes_per_second'] * 1e-12:.2f} TB/s, {device['bf16_flops'] * 1e-12:.0f} "
              "TFLOP/s", file=sys.stderr)


if __name__ == "__main__":
    main()
