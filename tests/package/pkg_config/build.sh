#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# Builds and runs the consumer with what pkg-config says and nothing else.   Use: build.sh CXX PKGCONFIG_FOLDER PROGRAM
set -eu
export PKG_CONFIG_PATH="$2"
flags=$(pkg-config --cflags --libs conclave)
# shellcheck disable=SC2086 # the flags are words
"$1" -std=c++20 "$(dirname "$0")/../consumer.cpp" -o "$3" $flags
"$3"
