#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# Installs the Debian packages that building and testing needs, and only those that are missing: with everything in
# place it neither asks for a password nor touches the network.   Use: tools/setup.sh [more packages...]
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config python3
  libfmt-dev nlohmann-json3-dev libcli11-dev libopenmpi-dev openmpi-bin libboost-context-dev
  libgtest-dev libgmock-dev
  "$@"
)

if ! command -v dpkg-query >/dev/null; then
  echo "setup: no dpkg here; install the equivalents of: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || { echo "setup: as root, run: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
