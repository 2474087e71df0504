# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Every #include of the project against the table of docs/architecture.md. Prints file:line for each edge that the
table does not have; exit status 1 if there is one.   Use: check_includes.py ROOT"""
import re
import sys

import source_tree

# Folder under src/ -> folders under src/ that it may include, besides itself. The public headers are open to all.
SOURCE = {
    "base": "",
    "cpu": "base",
    "cuda": "base",
    "quant": "base cpu cuda",
    "comm": "base cuda",
    "eplb": "base comm",
    "router": "base cpu cuda quant",
    "dispatch": "base cpu cuda quant comm",
    "experts": "base cpu cuda quant",
    "reduce": "base cpu cuda",
    "tail": "base cpu cuda quant comm",
    "kernel": "base cpu cuda quant comm router dispatch experts reduce tail",
    "io": "base quant",
    "verify": "base kernel",
    "capi": "",
}
# Tests that mirror no folder -> the folders under src/ whose inner parts they exercise.
TESTS = {"fuzz": "base io"}
# What is built on the library sees the public headers and its own folder.
PROGRAMS = ("cli", "bench", "examples", "python")

# Header (prefix) of a library -> where it may be included. What is not listed here is the standard library, the C
# library or the compiler's intrinsics.
LIBRARIES = {
    "fmt/": "src cli bench tests",
    "nlohmann/": "src/io cli bench tests",
    "CLI/": "cli bench",
    "gtest/": "tests",
    "gmock/": "tests",
    "benchmark/": "bench",
    "dnnl": "bench/peers",
    "oneapi/": "bench/peers",
    "boost/context/": "src/kernel",
    "mpi.h": "src/comm",
    "nccl": "src/comm",
    "cuda": "src/cuda src/quant/cuda src/router/cuda src/dispatch/cuda src/experts/cuda src/reduce/cuda src/tail/cuda "
            "src/kernel/cuda",
    "cub/": "src/cuda src/quant/cuda src/router/cuda src/dispatch/cuda src/experts/cuda src/reduce/cuda src/tail/cuda",
    "nvtx3/": "src/cuda",
}

INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')


def inside(path, folder):
    return path.startswith(folder + "/")


def may_include_source(path):
    """The folders under src/ that the file may include, or None where any include of src/ is wrong."""
    top, folder = (path.split("/") + [""])[:2]
    if top == "src":
        return None if folder not in SOURCE else {folder, *SOURCE[folder].split()}
    if top == "tests" and folder in SOURCE:  # A test may prepare what its subject reads.
        return {folder, *SOURCE[folder].split()}
    return set(TESTS.get(folder, "").split()) if top == "tests" else set()


def fault(path, quote, header, known):
    """A sentence about an edge that the table does not have, or None. `known` are the project's own files."""
    if header.startswith("conclave/"):
        return None if f"include/{header}" in known else "there is no such public header"
    for prefix, places in LIBRARIES.items():
        if header.startswith(prefix) and f"src/{header}" not in known:
            return None if any(inside(path, p) for p in places.split()) else f"{prefix} belongs in: {places}"
    if inside(path, "include"):
        is_std = quote == "<" and re.fullmatch(r"[a-z_0-9]+", header)
        return None if is_std else "public headers include conclave/ and the C++ standard library only"
    if quote == "<":
        return None
    if f"src/{header}" in known:
        allowed, folder = may_include_source(path), header.split("/")[0]
        if allowed is None:
            return "this folder has no row in the table (tests/layers/check_includes.py)"
        return None if folder in allowed else f"{'/'.join(path.split('/')[:2])} may not include src/{folder}"
    if path.startswith("tests/") and f"tests/{header}" in known:
        mine, theirs = path.split("/")[1], header.split("/")[0]
        return None if theirs in (mine, "support") else f"tests/{mine} may not include tests/{theirs}"
    top, folder = (path.split("/") + [""])[:2]
    if top == "tests" and folder in PROGRAMS and header in known and inside(header, folder):
        return None
    if top in PROGRAMS and {f"{top}/{header}", beside(path, header)} & known:
        return None
    if top in PROGRAMS and header in known and inside(header, top):
        return None
    return "no file of the project has this path (src/ and the public headers are the roots)"


def beside(path, header):
    return "/".join(path.split("/")[:-1] + [header])


def check(root):
    faults = []
    known = set(source_tree.files(root, source_tree.CODE))
    for path in sorted(known):
        for number, line in enumerate(source_tree.lines(root, path), 1):
            match = INCLUDE.match(line)
            reason = match and fault(path, match[1], match[2], known)
            if reason:
                faults.append(f'{path}:{number}: "{match[2]}": {reason}')
    return faults


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found) or "every include is in the table")
    sys.exit(1 if found else 0)
