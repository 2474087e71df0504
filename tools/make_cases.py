#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Writes tests/cases/*.safetensors: one small problem with its right answer for each known trap of MoE layers.

The problems are in the modules of tools/cases, the answers come from oracle.py there. Numbers in file names are those of
the trap; each trap comes in several sizes and types. Same script, same bytes.

    pip install numpy safetensors && python tools/make_cases.py tests/cases
"""

import pathlib
import sys

from cases import activations, factors, ids, quantised, refused, routers, shapes

KINDS = (
    ids.ids_and_maps,
    ids.zero_weights,
    routers.routers,
    factors.factors_and_shared,
    factors.overflow,
    activations.activations,
    shapes.shapes,
    refused.refused,
    quantised.quantised,
)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/cases")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("case_*.safetensors"):
        old.unlink()
    total, names = 0, set()
    for kind in KINDS:
        for case in kind():
            assert case.file not in names, case.file
            names.add(case.file)
            total += case.write(folder)
    print(f"{len(names)} cases, {total / 1e6:.2f} MB in {folder}")


if __name__ == "__main__":
    main()
