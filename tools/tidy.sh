#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# clang-tidy over the host sources that a build folder compiles. CUDA files are left out: clang 14 does not know CUDA 13.
# Use: tools/tidy.sh BUILD_FOLDER FILE...
set -euo pipefail
build=$1
shift
command -v clang-tidy >/dev/null || "$(dirname "$0")/setup.sh" clang-tidy
for file in "$@"; do
  [[ $file == *.cpp ]] && grep -qF "/$file\"" "$build/compile_commands.json" && printf '%s\0' "$file"
done | xargs -0 -r -n 1 -P "$(nproc)" clang-tidy --quiet -p "$build"
