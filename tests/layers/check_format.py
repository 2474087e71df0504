# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""clang-format over every source; exit status 1 if one would change.   Use: check_format.py CLANG_FORMAT ROOT"""
import subprocess
import sys

import source_tree

sys.exit(subprocess.run([sys.argv[1], "--dry-run", "-Werror", *source_tree.files(sys.argv[2], source_tree.CODE)],
                        cwd=sys.argv[2], check=False).returncode and 1)
