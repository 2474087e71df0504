#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# Everything that needs a GPU, and a record of it. Exit status 1 if anything is red or nothing ran.
#   tests/gpu.sh [BUILD_FOLDER]     builds preset cuda in build/cuda unless a folder of built programs is named
# 1. the GPU tests of every suite (names with Cuda), 2. every case file, 3. the architectures, 4. compute-sanitizer's
# memcheck and racecheck over the GPU tests, where it is installed and knows the device.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1

if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "tests/gpu.sh: nvidia-smi shows no GPU" >&2
  exit 1
fi
if [ $# -gt 0 ]; then
  build=$1
else
  build=build/cuda
  { cmake --preset cuda && cmake --build --preset cuda; } || exit 1
fi

record=bench/results/gpu-$(date +%Y-%m-%d).md
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
red=0
ran=0

{
  echo "# GPU tests, $(date +%Y-%m-%d)"
  echo
  echo "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1). Written by tests/gpu.sh."
  echo
  echo "| what | verdict | last line |"
  echo "| --- | --- | --- |"
} >"$record"

# check NAME COMMAND...: runs it, and adds a row with its verdict and its last line.
check() {
  local name=$1 verdict=ok
  shift
  ran=$((ran + 1))
  if ! "$@" >"$log/out" 2>&1; then
    verdict=RED
    red=$((red + 1))
    tail -n 40 "$log/out"
  fi
  printf '%-44s %s\n' "$name" "$verdict"
  printf '| %s | %s | %s |\n' "$name" "$verdict" "$(grep -v '^$' "$log/out" | tail -n 1 | tr '|' '/')" >>"$record"
}

note() {
  printf '%-44s %s\n' "$1" "not run: $2"
  printf '| %s | not run | %s |\n' "$1" "$2" >>"$record"
}

# A filter that matches no test would pass: at least one GPU test must have run, and none may have been skipped.
gpu_tests() {
  "$@" | tee "$log/tests"
  [ "${PIPESTATUS[0]}" -eq 0 ] && grep -q '^\[       OK \]' "$log/tests" && ! grep -q '^\[  SKIPPED \]' "$log/tests"
}

suites=()
for program in "$build"/tests/*/test_*; do
  if [ ! -f "$program" ] || [ ! -x "$program" ]; then continue; fi
  if "$program" --gtest_list_tests --gtest_filter='*Cuda*' | grep -q '^  '; then suites+=("$program"); fi
done
[ ${#suites[@]} -gt 0 ] || { echo "tests/gpu.sh: no GPU tests in $build/tests" >&2; exit 1; }

for suite in "${suites[@]}"; do
  check "$(basename "$suite")" gpu_tests "$suite" --gtest_filter='*Cuda*'
done

conclave=$build/bin/conclave
check "info" "$conclave" info --device cuda
check "replay tests/cases" "$conclave" replay tests/cases/*.safetensors --device cuda
check "verify" "$conclave" verify --device cuda
check "check data/tiny-moe" "$conclave" check data/tiny-moe --expected data/tiny-moe/io.safetensors --device cuda \
  --dtype bf16,f16
for model in tests/data/families/*/; do
  [ -f "$model/io.safetensors" ] || continue
  check "check $(basename "$model")" "$conclave" check "$model" --expected "$model/io.safetensors" --device cuda \
    --dtype bf16
done

for tool in memcheck racecheck; do
  if ! command -v compute-sanitizer >/dev/null; then
    note "compute-sanitizer $tool" "it is not installed"
    continue
  fi
  for suite in "${suites[@]}"; do
    # Calls that tests make wrong on purpose are no errors; graphs take minutes under it and add no kernel.
    check "$tool $(basename "$suite")" compute-sanitizer --tool "$tool" --error-exitcode 1 \
      --report-api-errors no "$suite" \
      --gtest_filter='*Cuda*-*Graph*'
  done
done

echo >>"$record"
echo "$ran run, $red red." >>"$record"
echo "$ran run, $red red; record: $record"
[ "$red" -eq 0 ] && [ "$ran" -gt 0 ]
