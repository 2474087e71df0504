# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
#
# Short names for what CMakePresets.json, ctest and tools/ do. `make run` and `make test` start from a bare machine.

JOBS ?= $(shell nproc)
MODEL ?= data/tiny-moe
CONCLAVE := build/release/bin/conclave
SOURCES = $(shell git ls-files '*.cpp' '*.hpp' '*.cu' '*.cuh')

.PHONY: build run test asan ubsan tsan format tidy docs clean setup

build: setup
	cmake --preset release
	cmake --build --preset release -j $(JOBS)

run: build
	$(CONCLAVE) check $(MODEL) --expected $(MODEL)/io.safetensors
	$(CONCLAVE) plan $(MODEL)
	$(CONCLAVE) bench $(MODEL) --tokens 1,8,64

test: build
	ctest --preset release -j $(JOBS)

asan ubsan tsan: setup
	cmake --preset $@
	cmake --build --preset $@ -j $(JOBS)
	ctest --preset $@ -j $(JOBS)

format:
	clang-format -i $(SOURCES)

tidy: build
	tools/tidy.sh build/release $(SOURCES)

docs:
	tools/setup.sh doxygen
	doxygen docs/Doxyfile

clean:
	rm -rf build

setup:
	@tools/setup.sh
