# Everything that a newcomer or a developer runs. `make demo` and `make test` set themselves up.

PYTHON ?= python3
BIN := .venv/bin
# One thread per process: the tests run side by side, and small operations do not gain from more.
export OMP_NUM_THREADS = 1

.PHONY: venv demo test test-slow test-browser lint docs bench clean

venv: .venv/done

.venv/done: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: venv
	$(BIN)/coterie demo

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint
	$(BIN)/pytest -n auto -m "not slow" --ignore=tests/browser

test-slow: lint
	$(BIN)/pytest -n auto --ignore=tests/browser

# Pages in a real browser: Chromium from the system's packages, driven by Playwright.
test-browser: venv
	command -v chromium || command -v chromium-browser || command -v google-chrome || \
		(apt-get update --quiet && apt-get install --quiet --yes chromium)
	$(BIN)/pip install --quiet --requirement requirements-browser.lock
	$(BIN)/pytest tests/browser

docs: venv
	$(BIN)/coterie methods --write docs/methods

# The benchmarks on a CPU; DATA=DIR says where the files of Fashion-MNIST are. Takes a quarter of an hour.
ifdef DATA
bench: export COTERIE_DATA = $(DATA)
endif
bench: venv
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/plain_loop.py --method fedavg
	$(BIN)/python benchmarks/plain_loop.py --method ifca

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
