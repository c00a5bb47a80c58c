# Two commands do everything: `make run` serves the page, `make test` runs every test.

PYTHON ?= python3
CC     ?= cc
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: help run test lint bench clean

help:
	@echo "make run    set up what is missing, then serve the page on http://127.0.0.1:7860"
	@echo "make test   set up what is missing, then run every test"
	@echo "make bench  measure the engine beside torch (prints tables, never fails by time)"
	@echo "make lint   ruff"
	@echo "make clean  remove the environment and what was built"

# A stamp names the requirements it was made from, so that nothing is done twice.
$(VENV)/ready: requirements.txt
	@echo "Installing the packages of requirements.txt into $(VENV) (once; several minutes) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/ready-tests: tests/requirements.txt $(VENV)/ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@

run: $(VENV)/ready
	@$(BIN)/python app.py

test: $(VENV)/ready-tests
	@$(BIN)/ruff check --quiet .
	@$(BIN)/python -m pytest

lint: $(VENV)/ready-tests
	@$(BIN)/ruff check .

bench: $(VENV)/ready-tests
	@$(BIN)/python -m tests.bench

clean:
	@rm -rf $(VENV) build
