# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Objects that were compiled for one instruction set must not leak it into code that runs on every CPU:
* a weak (inline) function in them can be the copy that the linker keeps for the whole program;
* a maker of an Entry, or a static initialiser, runs before anyone asked what the CPU has.
Prints one line for each fault; exit status 1 if there is one.   Use: check_isa.py BUILD_FOLDER"""
import os
import re
import subprocess
import sys

ISA_OBJECT = re.compile(r"_(avx2|avx512|amx)(_[a-z0-9]+)?\.cpp\.o$")


def isa_objects(build):
    for folder, _, names in os.walk(os.path.join(build, "src")):
        yield from (os.path.join(folder, n) for n in names if ISA_OBJECT.search(n))


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def faults(path):
    name = os.path.basename(path)
    for line in run("nm", "--demangle", "--defined-only", path):
        _, kind, symbol = line.split(maxsplit=2)
        if kind == "W":
            yield f"{name}: weak function {symbol}: move it to an anonymous namespace, or have it inlined"
        elif kind == "T" and symbol.startswith("conclave::parts::"):
            yield f"{name}: {symbol} runs on every CPU: define it in a file without an instruction set in its name"
    if any(".init_array" in line for line in run("objdump", "--section-headers", path)):
        yield f"{name}: has a static initialiser, which runs on every CPU"


if __name__ == "__main__":
    objects = sorted(isa_objects(sys.argv[1]))
    found = [f for path in objects for f in faults(path)]
    print("\n".join(found) or f"{len(objects)} objects leak nothing")
    sys.exit(1 if found or not objects else 0)
