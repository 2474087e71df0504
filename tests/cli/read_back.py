# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Reads what `conclave quantize` wrote, by the published descriptions of the formats and nothing of Conclave's, and
compares the numbers with the original's.   Use: read_back.py CONCLAVE MODEL
Prints one line a key; exit status 1 where names, types, shapes or numbers are not what the format says."""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MATRICES = [f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj"
            for layer, expert in ((0, 0), (3, 15)) for part in ("gate", "up", "down")]
# Root mean square error of a weight that a key may cost, and must: less would mean that it is something else.
ERRORS = {"fp8_block128": (0.02, 0.035), "int8_channel": (0.003, 0.012), "int4_group32": (0.05, 0.12),
          "int4_group32_zp": (0.04, 0.11), "mxfp4": (0.07, 0.14), "nvfp4": (0.05, 0.11)}


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(1)


def expect(what, given, wanted):
    if given != wanted:
        fail(f"{what}: given {given}, expected {wanted}")


def read_folder(folder):
    """name -> (dtype, shape, bytes), through the index."""
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as file:
        index = json.load(file)["weight_map"]
    tensors = {}
    for shard in sorted(set(index.values())):
        with open(os.path.join(folder, shard), "rb") as file:
            data = file.read()
        size, = struct.unpack_from("<Q", data)
        for name, entry in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                expect(f"shard of {name}", index[name], shard)
                begin, end = (8 + size + offset for offset in entry["data_offsets"])
                tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    expect("names in the index", sorted(tensors), sorted(index))
    return tensors


def e4m3(code):
    sign, exponent, mantissa = -1 if code & 0x80 else 1, code >> 3 & 15, code & 7
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0**(exponent - 7))


E4M3 = [e4m3(code) for code in range(256)]


def e2m1(code):
    return -E2M1[code & 7] if code & 8 else E2M1[code]


def numbers(tensor):
    dtype, shape, data = tensor
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    if dtype == "BF16":
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    if dtype == "F8_E4M3":
        return [E4M3[code] for code in data]
    if dtype == "I32":
        return list(struct.unpack(f"<{len(data) // 4}I", data))
    if dtype == "I64":
        return list(struct.unpack(f"<{len(data) // 8}q", data))
    return fail(f"{dtype} of shape {shape} is not expected")


def typed(tensors, name, dtype, shape):
    expect(f"type of {name}", tensors[name][0], dtype)
    expect(f"shape of {name}", tensors[name][1], shape)
    return numbers(tensors[name]) if dtype != "U8" else list(tensors[name][2])


def packed(tensors, name, rows, cols, bits):
    """compressed-tensors: in words of 32 bits, the first code lowest, counted from the smallest code."""
    per_word = 32 // bits
    width = -(-cols // per_word)
    words = typed(tensors, name + ".weight_packed", "I32", [rows, width])
    expect("shape that was packed", typed(tensors, name + ".weight_shape", "I64", [2]), [rows, cols])
    return [(words[r * width + c // per_word] >> bits * (c % per_word)) % (1 << bits) for r in range(rows)
            for c in range(cols)]


def decode(tensors, name, key, rows, cols):
    if key == "fp8_block128":
        codes = typed(tensors, name + ".weight", "F8_E4M3", [rows, cols])
        across = -(-cols // 128)
        scale = typed(tensors, name + ".weight_scale_inv", "F32", [-(-rows // 128), across])
        return [codes[r * cols + c] * scale[r // 128 * across + c // 128] for r in range(rows) for c in range(cols)]
    if key == "int8_channel":
        codes = packed(tensors, name, rows, cols, 8)
        scale = typed(tensors, name + ".weight_scale", "BF16", [rows, 1])
        return [(codes[r * cols + c] - 128) * scale[r] for r in range(rows) for c in range(cols)]
    if key.startswith("int4"):
        codes, groups = packed(tensors, name, rows, cols, 4), cols // 32
        scale = typed(tensors, name + ".weight_scale", "BF16", [rows, groups])
        zero = [8] * (rows * groups)
        if key.endswith("zp"):
            words = typed(tensors, name + ".weight_zero_point", "I32", [-(-rows // 8), groups])
            zero = [words[r // 8 * groups + g] >> 4 * (r % 8) & 15 for r in range(rows) for g in range(groups)]
        return [(codes[r * cols + c] - zero[r * groups + c // 32]) * scale[r * groups + c // 32] for r in range(rows)
                for c in range(cols)]
    halves = typed(tensors, name + ".weight_packed", "U8", [rows, cols // 2])
    codes = [half >> shift & 15 for half in halves for shift in (0, 4)]
    if key == "mxfp4":
        scale = [2.0**(code - 127) for code in typed(tensors, name + ".weight_scale", "U8", [rows, cols // 32])]
        return [e2m1(code) * scale[i // 32] for i, code in enumerate(codes)]
    scale = typed(tensors, name + ".weight_scale", "F8_E4M3", [rows, cols // 16])
    divisor, = typed(tensors, name + ".weight_global_scale", "F32", [1])
    return [e2m1(code) * scale[i // 16] / divisor for i, code in enumerate(codes)]


def check_nearest(tensors, name, rows, cols, wanted):
    """int8: each code is the nearest to the weight that its stored scale allows."""
    codes = packed(tensors, name, rows, cols, 8)
    scale = numbers(tensors[name + ".weight_scale"])
    for i, code in enumerate(codes):
        steps = wanted[i] / scale[i // cols]
        if abs(max(-127, min(127, steps)) - (code - 128)) > 0.5 + 1e-4:
            fail(f"{name}: element {i}: given {code - 128}, expected the nearest to {steps}")


def check_settings(folder, key, original, tensors):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        settings = json.load(file)["quantization_config"]
    floats = settings["modules_to_not_convert" if key == "fp8_block128" else "ignore"]
    expect("modules left as floats", sorted(floats),
           sorted(name[:-len(".weight")] for name, (_, shape, _) in original.items()
                  if len(shape) == 2 and ".experts." not in name))
    for name in original:
        if ".experts." not in name:
            expect(name, tensors[name], original[name])
    if key == "fp8_block128":
        expect("settings", (settings["quant_method"], settings["weight_block_size"]), ("fp8", [128, 128]))
        return
    weights = settings["config_groups"]["group_0"]["weights"]
    expect("settings", (settings["quant_method"], settings["config_groups"]["group_0"]["targets"]),
           ("compressed-tensors", ["Linear"]))
    wanted = {"int8_channel": ("pack-quantized", 8, "int", True, "channel", None),
              "int4_group32": ("pack-quantized", 4, "int", True, "group", 32),
              "int4_group32_zp": ("pack-quantized", 4, "int", False, "group", 32),
              "mxfp4": ("mxfp4-pack-quantized", 4, "float", True, "group", 32),
              "nvfp4": ("nvfp4-pack-quantized", 4, "float", True, "tensor_group", 16)}[key]
    expect("settings", (settings["format"], *(weights[field] for field in (
        "num_bits", "type", "symmetric", "strategy", "group_size"))), wanted)


def main(conclave, model):
    original = read_folder(model)
    for key, (least, most) in ERRORS.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = os.path.join(scratch, "out")
            subprocess.run([conclave, "quantize", model, "--weights", key, "--output", folder], check=True,
                           stdout=subprocess.DEVNULL)
            expect("what is beside the folder", os.listdir(scratch), ["out"])
            tensors = read_folder(folder)
            check_settings(folder, key, original, tensors)
            worst = best = None
            for name in MATRICES:
                _, (rows, cols), _ = original[name + ".weight"]
                wanted = numbers(original[name + ".weight"])
                given = decode(tensors, name, key, rows, cols)
                if key == "int8_channel":
                    check_nearest(tensors, name, rows, cols, wanted)
                error = math.sqrt(sum((a - b)**2 for a, b in zip(given, wanted)) / sum(b * b for b in wanted))
                worst, best = max(error, worst or error), min(error, best or error)
            if best < least or worst > most:
                fail(f"{key}: errors {best:.4f} to {worst:.4f}, expected {least} to {most}")
            print(f"{key}: errors {best:.4f} to {worst:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
