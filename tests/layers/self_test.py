# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""The checks of this folder on small trees of which the answer is known: a check that cannot fail is none."""
import os
import shutil
import subprocess
import tempfile
import unittest

import check_files
import check_includes
import check_isa

SPDX = "".join(f"// {line}\n" for line in check_files.SPDX)
TREE = {
    "include/conclave/dtype.hpp": "#include <cstdint>",
    "include/conclave/tensor.hpp": '#include <array>\n#include "conclave/dtype.hpp"',
    "src/base/error.hpp": "#include <fmt/format.h>",
    "src/cpu/dense.hpp": '#include <immintrin.h>\n#include "base/error.hpp"',
    "src/router/cpu/topk.cpp": '#include "cpu/dense.hpp"\n#include "router/rule.hpp"\n#include "conclave/tensor.hpp"',
    "src/router/rule.hpp": "",
    "src/kernel/plan.cpp": '#include "router/rule.hpp"',
    "tests/support/random.hpp": "",
    "tests/router/topk_test.cpp": '#include <gtest/gtest.h>\n#include "router/rule.hpp"\n#include "support/random.hpp"',
    "cli/main.cpp": '#include <CLI/CLI.hpp>\n#include "cli/table.hpp"\n#include "conclave/tensor.hpp"',
    "cli/table.hpp": "",
    "tests/cli/table_test.cpp": '#include "cli/table.hpp"',
}
# One forbidden line each: path, text, and a part of the answer.
FORBIDDEN = [
    ("src/base/error.hpp", '#include "cpu/dense.hpp"', "src/base may not include src/cpu"),
    ("src/cpu/dense.hpp", '#include "router/rule.hpp"', "src/cpu may not include src/router"),
    ("src/router/rule.hpp", '#include "kernel/plan.hpp"', "no file of the project has this path"),
    ("src/io/reader.cpp", '#include "router/rule.hpp"', "src/io may not include src/router"),
    ("src/planner/a.cpp", '#include "base/error.hpp"', "no row in the table"),
    ("src/base/error.hpp", "#include <nlohmann/json.hpp>", "nlohmann/ belongs in"),
    ("src/router/rule.hpp", "  #  include <cuda_runtime.h>", "cuda belongs in"),
    ("src/cpu/dense.hpp", '#include "../base/error.hpp"', "no file of the project has this path"),
    ("include/conclave/dtype.hpp", "#include <fmt/format.h>", "fmt/ belongs in"),
    ("include/conclave/dtype.hpp", "#include <immintrin.h>", "the C++ standard library only"),
    ("include/conclave/dtype.hpp", '#include "base/error.hpp"', "the C++ standard library only"),
    ("include/conclave/dtype.hpp", '#include "conclave/gone.hpp"', "no such public header"),
    ("cli/main.cpp", '#include "base/error.hpp"', "cli/main.cpp may not include src/base"),
    ("tests/router/topk_test.cpp", '#include "kernel/plan.hpp"', "no file of the project has this path"),
    ("tests/cpu/dense_test.cpp", '#include "cli/table.hpp"', "no file of the project has this path"),
    ("tests/cpu/dense_test.cpp", '#include "router/rule.hpp"', "tests/cpu may not include src/router"),
    ("tests/cpu/dense_test.cpp", '#include "router/helper.hpp"', "tests/cpu may not include tests/router"),
]


class Tree(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        for path, text in TREE.items():
            self.write(path, SPDX + text)

    def write(self, path, text, mode="w"):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, mode, encoding="utf-8") as file:
            file.write(text + "\n")

    def read(self, path):
        full = os.path.join(self.root, path)
        if not os.path.exists(full):
            return ""
        with open(full, encoding="utf-8") as file:
            return file.read()

    def test_a_tree_in_order_has_no_fault(self):
        self.assertEqual(check_includes.check(self.root), [])
        self.assertEqual(check_files.check(self.root), [])

    def test_every_forbidden_include_is_found_with_file_and_line(self):
        self.write("tests/router/helper.hpp", SPDX)
        for path, text, answer in FORBIDDEN:
            before = self.read(path)
            self.write(path, text, mode="a")
            line = len(self.read(path).splitlines())
            found = check_includes.check(self.root)
            self.assertEqual(len(found), 1, (path, text, found))
            self.assertTrue(found[0].startswith(f"{path}:{line}: "), found)
            self.assertIn(answer, found[0])
            self.write(path, before.rstrip("\n"))
        self.assertEqual(check_includes.check(self.root), [])

    def test_missing_headers_and_long_files_are_found(self):
        self.write("src/base/a.cpp", "// no header")
        self.write("src/base/b.cpp", SPDX + "\n" * check_files.MAX_LINES)
        self.write("tools/c.sh", "#!/bin/sh\n# " + check_files.SPDX[0])
        found = check_files.check(self.root)
        self.assertEqual([f.split(": ")[0] for f in found], ["src/base/a.cpp:1", "src/base/b.cpp:601", "tools/c.sh:3"])


class Isa(unittest.TestCase):
    def faults_of(self, source):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "src", "gemm_avx2.cpp")
        os.makedirs(os.path.dirname(path))
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
        subprocess.run(["c++", "-std=c++20", "-O1", "-c", path, "-o", path + ".o"], check=True)
        (compiled,) = check_isa.isa_objects(folder)
        return list(check_isa.faults(compiled))

    def test_a_kernel_alone_leaks_nothing(self):
        source = "namespace { int f(int x) { return x + 1; } } int kernel(int x) { return f(x); }"
        self.assertEqual(self.faults_of(source), [])

    def test_inline_functions_makers_and_initialisers_are_found(self):
        self.assertIn("weak function g()", self.faults_of("inline void g() {} auto* use = &g;")[0])
        self.assertIn("runs on every CPU", self.faults_of("namespace conclave::parts { void make() {} }")[0])
        self.assertIn("static initialiser", self.faults_of("int f(); int x = f();")[0])


if __name__ == "__main__":
    unittest.main()
