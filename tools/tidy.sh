#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# clang-tidy over the host sources that a build folder compiles. Version 19: 14 cannot read std::source_location, and
# neither can read CUDA 13, so .cu files are left out.   Use: tools/tidy.sh BUILD_FOLDER FILE...
set -euo pipefail
build=$1
shift
command -v clang-tidy-19 >/dev/null || "$(dirname "$0")/setup.sh" clang-tidy-19
for file in "$@"; do
  [[ $file == *.cpp ]] && grep -qF "/$file\"" "$build/compile_commands.json" && printf '%s\0' "$file"
done | xargs -0 -r -n 1 -P "$(nproc)" clang-tidy-19 --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option
