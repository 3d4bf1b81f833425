# Everything a fresh machine needs: `make serve` and `make test` create .venv and fill it when it is
# missing or when what they need has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PLAYERS := gstreamer1.0-tools gstreamer1.0-plugins-base gstreamer1.0-plugins-good \
	gstreamer1.0-plugins-bad gstreamer1.0-nice gstreamer1.0-libav python3-gi \
	gir1.2-gst-plugins-bad-1.0 webkit2gtk-driver xvfb iproute2

.PHONY: serve test style types imports unit engine browser others soak parity evaluate gpu-check interop clean

serve: $(VENV)/.core
	$(BIN)/streamgen serve $(ARGS)

# With `make -j2` the engine's tests run beside the browser's and then the others'.
test: style types imports engine browser others

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

# Whatever ARGS names: make unit ARGS="tests/kvcache -x"
unit: $(VENV)/.dev
	$(BIN)/pytest -m "not browser" $(ARGS)

engine: $(VENV)/.dev
	$(BIN)/pytest -m "not browser" $(ARGS) tests/streamgen

browser: $(VENV)/.dev $(VENV)/.chromium
	$(BIN)/pytest -m browser $(ARGS)

others: $(VENV)/.dev
	$(BIN)/pytest -m "not browser" $(ARGS) --ignore tests/streamgen

soak: $(VENV)/.dev
	SOAK_SECONDS=1200 $(BIN)/pytest -s tests/soak $(ARGS)

parity: $(VENV)/.core
	$(BIN)/streamgen parity tests/golden/*

evaluate: $(VENV)/.core
	$(BIN)/python -m streamgen.pocket.evaluate $(ARGS)

# Tests that need a card, then frames a second; where there is none it says so and ends with 3.
gpu-check: $(VENV)/.dev
	$(BIN)/python -m streamgen.gpu_check $(ARGS)

# GStreamer and WebKit watch; where they are not, or there is no root, it says so and ends with 3.
interop: $(VENV)/.dev
	@dpkg -s $(PLAYERS) >/dev/null 2>&1 \
	|| { apt-get update -qq && apt-get install -y -qq --no-install-recommends $(PLAYERS) >/dev/null; } \
	|| echo "what is missing of these could not be installed: $(PLAYERS)"
	$(BIN)/python -m tests.interop $(ARGS)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "streamgen needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.core

# The browser tests drive Debian's Chromium; without it, and where it cannot be installed, pytest
# says which tests it leaves out.
$(VENV)/.chromium: | $(BIN)/python
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; \
	else echo "no Chromium here, and it cannot be installed: the browser tests are left out"; fi
	@touch $@

clean:
	rm -rf $(VENV) build dist
