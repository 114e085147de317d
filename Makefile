# make run URL=https://… QUERY="…"   answer a question (without URL: about the page in examples/)
# make test                          all but the slow tests        make test-slow   the slow ones
# make check                         lint, format, types, tests    make setup       prepare only

PY := .venv/bin/python
# URL and QUERY reach the recipe through the environment, unexpanded: neither make nor a shell line may run what they say.
override URL := $(value URL)
override QUERY := $(value QUERY)
export URL QUERY

.PHONY: run test test-slow check lint format setup clean

run: .venv/ready
	@$(PY) examples/answer.py

test: .venv/ready
	$(PY) -m pytest -m "not slow"

test-slow: .venv/ready
	$(PY) -m pytest -m slow --timeout 600

lint: .venv/ready
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

check: lint test

format: .venv/ready
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt scripts/setup.sh
	@scripts/setup.sh

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
