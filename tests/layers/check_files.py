# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""SPDX headers and length of files. Prints one line for each fault; exit status 1
if there is one.   Use: check_files.py ROOT"""
import re
import sys

import source_tree

MAX_LINES = 600
SPDX = ("SPDX-License-Identifier: Apache-2.0", "SPDX-FileCopyrightText: Copyright the Conclave authors")
HAS_HEADER = source_tree.CODE + (".py", ".sh", ".cmake", "CMakeLists.txt")


def header_fault(path, text):
    first = 1 if text and text[0].startswith("#!") else 0
    for offset, wanted in enumerate(SPDX):
        line = text[first + offset] if first + offset < len(text) else ""
        if not re.fullmatch(rf"(//|#|/\*) {re.escape(wanted)}( \*/)?", line):
            return f"{path}:{first + offset + 1}: expected the comment line \"{wanted}\""
    return None


def check(root):
    faults = []
    for path in source_tree.files(root, HAS_HEADER):
        text = source_tree.lines(root, path)
        faults.append(header_fault(path, text))
        if len(text) > MAX_LINES:
            faults.append(f"{path}:{MAX_LINES + 1}: {len(text)} lines, at most {MAX_LINES}: split it along a seam")
    return [f for f in faults if f]


if __name__ == "__main__":
    found = check(sys.argv[1])
    print("\n".join(found) or "every file is in order")
    sys.exit(1 if found else 0)
