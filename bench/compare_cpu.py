#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""In: the folder of built programs, shapes, dtypes, token counts. Out: a Markdown table on stdout of `conclave bench`
beside bench/peers, both run in turn on the same machine, round after round.

A machine that others use drifts: each round times every program once, the table takes each program's best round for
"min" and the median of its rounds' medians, and ratios compare numbers of the same run only.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

# E, k, H, I as the models' config.json publish them.
SHAPES = {
    "mixtral": (8, 2, 4096, 14336),
    "qwen3-30b": (128, 8, 2048, 768),
    "olmoe": (64, 8, 2048, 1024),
}


def conclave(args, shape, dtype):
    e, k, h, i = SHAPES[shape]
    command = [str(args.bin / "conclave"), "bench", "--shape", f"{e},{k},{h},{i}", "--dtype", dtype, "--tokens",
               args.tokens, "--min-time", str(args.min_time), "--threads", str(args.threads), "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    points = {p["num_tokens"]: p for p in report["points"]}
    return report["device"], points


def lines_of(command, environment=None):
    """The JSON lines that a peer prints, by token count; none where it is not built or the CPU lacks what it needs."""
    if not Path(command[0]).exists():
        return {}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode != 0:
        print(run.stderr.strip(), file=sys.stderr)
        return {}
    return {line["tokens"]: line for line in map(json.loads, run.stdout.splitlines())}


def peer_command(args, name, shape, dtype):
    return [str(args.bin / name), "--shape", ",".join(map(str, SHAPES[shape])), "--dtype", dtype, "--tokens",
            args.tokens, "--min-time", str(args.min_time), "--threads", str(args.threads)]


def onednn(args, shape, dtype):
    # libgomp's threads would otherwise spin beside nothing else; bound them as ours are bound.
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), OMP_PROC_BIND="true")
    return lines_of(peer_command(args, "peer_onednn", shape, dtype), environment)


def ik_llama(args, shape, dtype):
    extra = ["--repack"] if args.repack and dtype == "bf16" else []
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), OMP_PROC_BIND="true")
    return lines_of(peer_command(args, "peer_ik_llama", shape, dtype) + extra, environment)


PEERS = {"oneDNN": onednn, "ik_llama.cpp": ik_llama}


def rows_of(args, shape, dtype):
    ours = []
    peers = {name: [] for name in PEERS}
    device = None
    for _ in range(args.rounds):
        # The ceilings of this minute: on a shared machine those of another would compare two loads, not two programs.
        subprocess.run([str(args.bin / "conclave"), "info", "--remeasure", "--json"], check=True, capture_output=True)
        device, points = conclave(args, shape, dtype)
        ours.append(points)
        for name, run in PEERS.items():
            peers[name].append(run(args, shape, dtype))
    for tokens in map(int, args.tokens.split(",")):
        point = min((p[tokens] for p in ours), key=lambda p: p["time"]["min_us"])
        median = statistics.median(p[tokens]["time"]["median_us"] for p in ours)
        bound = "memory" if point["memory_bound"] else "compute"
        fraction = max(p[tokens]["floor_us"] / p[tokens]["time"]["median_us"] for p in ours)
        best = max(p[tokens]["floor_us"] / p[tokens]["time"]["min_us"] for p in ours)
        cells = [shape, dtype, str(tokens), point["experts"], f"{median:.0f}", f"{point['time']['min_us']:.0f}", bound,
                 f"{fraction:.0%}", f"{best:.0%}"]
        medians, minima = [], []
        for name in PEERS:
            found = [p[tokens] for p in peers[name] if tokens in p]
            if not found:
                cells += ["-", "-"]
                continue
            medians.append(statistics.median(p["median_us"] for p in found))
            minima.append(min(p["min_us"] for p in found))
            cells += [f"{medians[-1]:.0f}", f"{minima[-1]:.0f}"]
        cells += [f"{min(medians) / median:.2f}", f"{min(minima) / point['time']['min_us']:.2f}"] if medians else ["-"] * 2
        yield device, cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=Path("build/release/bin"))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--tokens", default="1,8,64,512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--min-time", type=float, default=1.0)
    parser.add_argument("--repack", action="store_true", help="let ik_llama.cpp repack bf16 weights (AVX512_BF16)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    header = ["shape", "dtype", "tokens", "kernel", "median us", "min us", "bound", "of the limit, median",
              "best"]
    for name in PEERS:
        header += [f"{name} median us", f"{name} min us"]
    header += ["fastest peer / ours, median", "min"]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    device = None
    for shape in args.shapes.split(","):
        for dtype in args.dtypes.split(","):
            for device, cells in rows_of(args, shape, dtype):
                print("| " + " | ".join(cells) + " |", flush=True)
    print(f"\n{device['name']}, {args.threads} threads; limits measured by `conclave info`: "
          f"{device['bytes_per_second'] / 1e9:.1f} GB/s, {device['f32_flops'] / 1e9:.0f} GFLOP/s f32, "
          f"{device['bf16_flops'] / 1e9:.0f} GFLOP/s bf16.")


if __name__ == "__main__":
    main()
