# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""Code blocks of Markdown files as tests.
    snippets.py extract OUT ROOT FILE...   writes every ```cpp block to OUT/<file>_<line>.cpp (or _program.cpp if it has
                                           a main) and prints the paths, one a line
    snippets.py run CONCLAVE ROOT FILE...  runs every ```sh block in a scratch folder that has data/ beside it; a block
                                           marked ```sh no-run is only checked for make targets that do not exist
    snippets.py links ROOT FILE...         checks that every relative link leads to a file
Exit status 1 and file:line for what is wrong."""
import os
import re
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^```(\S*)[ \t]*(.*)$")


def blocks(root, path):
    """(language, words after it, number of the first line, text) of each fenced block."""
    opened, text = None, []
    with open(os.path.join(root, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            match = FENCE.match(line.rstrip("\n"))
            if match and opened is None:
                opened, text = (match[1], match[2].split(), number + 1), []
            elif match:
                yield (*opened, "".join(text))
                opened = None
            else:
                text.append(line)
    if opened:
        raise SystemExit(f"{path}:{opened[2] - 1}: the block is never closed")


def extract(out, root, paths):
    os.makedirs(out, exist_ok=True)
    for path in paths:
        for language, _, line, text in blocks(root, path):
            if language != "cpp":
                continue
            kind = "_program" if re.search(r"^int main\(", text, re.M) else ""
            name = re.sub(r"\W", "_", os.path.splitext(path)[0])
            target = os.path.join(out, f"{name}_{line}{kind}.cpp")
            text = f'#line {line} "{os.path.join(root, path)}"\n{text}'
            # An unchanged file keeps its time, so that a changed word elsewhere compiles nothing.
            if not os.path.exists(target) or open(target, encoding="utf-8").read() != text:
                with open(target, "w", encoding="utf-8") as file:
                    file.write(text)
            print(target)
    return []


def run(conclave, root, paths):
    faults, ran = [], 0
    with tempfile.TemporaryDirectory() as scratch, open(os.path.join(root, "Makefile"), encoding="utf-8") as makefile:
        targets = set(" ".join(re.findall(r"^([\w ]+):", makefile.read(), re.M)).split())
        os.symlink(os.path.join(root, "data"), os.path.join(scratch, "data"))
        environment = dict(os.environ, PATH=os.path.dirname(conclave) + os.pathsep + os.environ["PATH"])
        for path in paths:
            for language, words, line, text in blocks(root, path):
                if language != "sh":
                    continue
                for target in re.findall(r"^make ([a-z]+)", text, re.M):
                    if target not in targets:
                        faults.append(f"{path}:{line}: the Makefile has no target {target}")
                if "no-run" in words:
                    continue
                ran += 1
                done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=scratch, env=environment,
                                      capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    faults.append(f"{path}:{line}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    print(f"{ran} blocks ran")
    return faults or ([] if ran else ["no block ran"])


def links(root, paths):
    faults = []
    for path in paths:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            in_block = False
            for number, line in enumerate(file, 1):
                in_block ^= line.startswith("```")
                if in_block:
                    continue
                for target in re.findall(r"\]\(([^)#]+)[^)]*\)", line):
                    if "://" not in target and not os.path.exists(os.path.join(root, os.path.dirname(path), target)):
                        faults.append(f"{path}:{number}: no file {target}")
    return faults


if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "links":
        found = links(arguments[0], arguments[1:])
    else:
        found = {"extract": extract, "run": run}[command](arguments[0], arguments[1], arguments[2:])
    if found:
        print("\n".join(found), file=sys.stderr)
        sys.exit(1)
