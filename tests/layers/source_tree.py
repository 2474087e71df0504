# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""The project's own text files, for the checks beside this file."""
import os

CODE = (".cpp", ".hpp", ".h", ".c", ".cu", ".cuh")
TEXT = CODE + (".py", ".sh", ".cmake", ".in", ".md", ".txt", ".json", ".yml")
NOT_OURS = ("build", ".git", ".venv", "__pycache__", "data")


def files(root, suffixes):
    """Paths relative to root with one of the suffixes, sorted; build trees and data are left out."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [s for s in subfolders if s not in NOT_OURS and not s.startswith("build-")]
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names if n.endswith(suffixes)]
    return sorted(found)


def lines(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read().splitlines()
