# Everything a contributor runs. Needs Python 3.11 or newer, pip, git and make; the rest is installed into .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Lightning lies apart: importing it costs every process of the suite three seconds.
LIGHTNING := $(abspath $(VENV))/lightning
# So does Ray, which is larger than all the rest but torch.
RAY := $(abspath $(VENV))/ray
LIGHTNING_TESTS := tests/datamodules/test_lightning.py tests/examples -k lightning

export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test test-slow fuzz check format clean

demo: $(READY)  ## convert -> plan -> train -> report on the bundled real data
	$(BIN)/mmpack demo

test test-slow: export OMP_NUM_THREADS ?= 1  # two test processes on two cores

test: $(READY)  ## the test suite
	$(BIN)/python -m pytest -n 2 -m "not slow" --doctest-modules mmpack tests
	PYTHONPATH=$(LIGHTNING) $(BIN)/python -m pytest $(LIGHTNING_TESTS)
	PYTHONPATH=$(RAY) $(BIN)/python -m pytest -m "not slow" tests/engine/test_ray.py

test-slow: $(READY)  ## the tests that take minutes
	$(BIN)/python -m pytest -n 2 -m slow
	PYTHONPATH=$(RAY) $(BIN)/python -m pytest -m slow tests/engine/test_ray.py

fuzz: export HYPOTHESIS_PROFILE := long
fuzz: $(READY)  ## property tests of parsers, pictures and archives, a hundred times as many examples: an hour or more
	$(BIN)/python -m pytest -n 2 --timeout=0 tests/sources tests/readers tests/convert tests/images tests/energon -k "fuzz or random or damaged"

check: $(READY)  ## style, types, and which layer may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build

# torch first and pinned: a range would pull whatever build is newest. The second step finds it installed.
$(READY): pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (once; one to three minutes) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt --no-deps --target $(LIGHTNING) \
		lightning pytorch-lightning lightning-utilities torchmetrics
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt --no-deps --target $(RAY) \
		ray msgpack requests charset-normalizer certifi
	@touch $(READY)
