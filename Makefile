# Two commands do all the set-up: `make demo` and `make test`. PYTHON chooses the interpreter, VENV the environment.
PYTHON ?= python3
VENV ?= .venv
# TensorFlow's tests have an environment of their own, without torch.
VENV_TF ?= .venv-tf
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Without this limit, oneDNN may choose AMX for bf16 on CPUs whose kernel forbids it, and the process dies of SIGILL.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

# What has to hold whoever records the calls: the Python code, which the tests above run, or the compiled host part.
HOST_TESTS := $(addprefix tests/contract/test_capture_,backward.py harmless.py options.py reuse.py sees.py shortcuts.py steps.py)

# numpy's annotations need Python 3.11: for 3.10 mypy takes what numpy gives for Any.
OLDEST := --no-warn-return-any --no-warn-unused-ignores

.PHONY: demo test test-tensorflow lint unit wheel pictures clean
.DELETE_ON_ERROR:

demo: $(VENV)/.ulpscope-torch
	$(BIN)/ulpscope demo

test: lint wheel
	$(BIN)/python -m pytest tests/unit
	$(BIN)/python -m pytest tests/contract tests/e2e
	ULPSCOPE_HOST=compiled $(BIN)/python -m pytest $(HOST_TESTS)
	$(BIN)/python -m pytest -rs tests/browser
	$(MAKE) test-tensorflow

test-tensorflow: $(VENV_TF)/.ulpscope
	TF_CPP_MIN_LOG_LEVEL=2 $(VENV_TF)/bin/python -m pytest tests/tensorflow

unit: $(VENV)/.ulpscope-dev
	$(BIN)/python -m pytest tests/unit

lint: $(VENV)/.ulpscope-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 --cache-dir .mypy_cache/oldest $(OLDEST)
	$(BIN)/lint-imports

# build/ would bring back files that are gone from src.
wheel: $(VENV)/.ulpscope-dev
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .
	cd dist && sha256sum *.whl > SHA256SUMS
	$(BIN)/python tests/wheel.py dist

pictures: $(VENV)/.ulpscope-dev
	$(BIN)/python docs/pictures/make.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ulpscope-torch: pyproject.toml constraints.txt src/ulpscope/_version.py | $(BIN)/python
	$(INSTALL) -e '.[torch]'
	touch $@

$(VENV)/.ulpscope-dev: pyproject.toml constraints.txt src/ulpscope/_version.py | $(BIN)/python
	$(INSTALL) -e '.[torch,dev]'
	touch $@ $(VENV)/.ulpscope-torch

$(VENV_TF)/.ulpscope: pyproject.toml constraints.txt src/ulpscope/_version.py
	test -x $(VENV_TF)/bin/python || $(PYTHON) -m venv $(VENV_TF)
	$(VENV_TF)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tensorflow]' pytest hypothesis
	touch $@

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
