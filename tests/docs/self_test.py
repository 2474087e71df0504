# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""snippets.py on pages of which the answer is known."""
import contextlib
import io
import os
import shutil
import tempfile
import unittest

import snippets

PAGE = """# Title
```cpp
int main() { return [](int) { return 0; }(1); }  // [not a](link.md)
```
text [good](page.md), [web](https://example.org), [bad](gone.md#part)
```sh
echo one | grep -q one
```
```sh
false | true
```
```sh no-run
make run
make everything
```
```cpp
struct S {};
```
"""


class Snippets(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        self.write("page.md", PAGE)
        self.write("Makefile", ".PHONY: run\nrun: build\n\techo\n")

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as file:
            file.write(text)

    def quietly(self, function, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            return function(*arguments), printed.getvalue()

    def test_cpp_blocks_are_written_with_their_place(self):
        out = os.path.join(self.root, "out")
        _, printed = self.quietly(snippets.extract, out, self.root, ["page.md"])
        names = [os.path.basename(p) for p in printed.split()]
        self.assertEqual(names, ["page_3_program.cpp", "page_17.cpp"])
        with open(os.path.join(out, names[0]), encoding="utf-8") as file:
            self.assertIn(f'#line 3 "{self.root}/page.md"\nint main()', file.read())

    def test_failing_commands_and_missing_targets_are_found(self):
        faults, printed = self.quietly(snippets.run, "/bin/true", self.root, ["page.md"])
        self.assertEqual([f.split(":")[1] for f in faults], ["10", "13"])
        self.assertIn("no target everything", faults[1])
        self.assertIn("2 blocks ran", printed)

    def test_dead_links_are_found(self):
        self.assertEqual(snippets.links(self.root, ["page.md"]), ["page.md:5: no file gone.md"])

    def test_a_page_without_commands_or_an_end_is_an_error(self):
        self.write("page.md", "nothing")
        self.assertEqual(self.quietly(snippets.run, "/bin/true", self.root, ["page.md"])[0], ["no block ran"])
        self.write("page.md", "```cpp\n")
        with self.assertRaisesRegex(SystemExit, "page.md:1: the block is never closed"):
            list(snippets.blocks(self.root, "page.md"))


if __name__ == "__main__":
    unittest.main()
