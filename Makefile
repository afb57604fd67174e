# What the developers of gpuckpt type; `make` alone lists it.
#
# On a bare Debian 12 or 13, as root, every target brings what it needs by itself. Not as root,
# CRIU is not brought and the tests that need it are skipped.

VENV ?= .venv
PYTHON ?= $(VENV)/bin/python
ARGS ?=
comma := ,
ROOT := $(filter 0,$(shell id -u))
REQUIRE := $(if $(ROOT),GPUCKPT_REQUIRE=root$(comma)criu)
PYTEST = PATH="$(abspath $(VENV))/redis/bin:$(abspath $(VENV))/sshd/bin:$$PATH" $(REQUIRE) $(VENV)/bin/python -m pytest
SCRIPTS := .ci/run $(shell grep -rIl '^\#!.*sh$$' bin)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup criu redis sshd packers demo test lint lint-only test-gpu test-gpu2 bench bundle completions schema clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/.ready criu ## a .venv with gpuckpt and its tools, and CRIU

demo: setup ## dump a small job, show that it is gone, bring it back
	$(VENV)/bin/gpuckpt demo $(ARGS)

# Tests with real CRIU come last, and those of one file one after the other: some of them look at
# the whole host's ports and names, and most of their time goes by in waiting.
test: setup redis sshd ## all tests but those for GPUs; as root none may be skipped
	$(PYTEST) -n 2 -m "not gpu and not gpu2 and not root" $(ARGS)
	$(PYTEST) -n 3 --dist loadfile -m root $(ARGS)

lint: $(VENV)/.ready lint-only ## format, style, types, import rules, shell scripts

lint-only:
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/shellcheck $(SCRIPTS)

test-gpu: $(if $(filter $(VENV)/bin/python,$(PYTHON)),setup) ## the GPU tests, on a GPU host; PYTHON=... runs them there
	GPUCKPT_REQUIRE=root,criu,gpu $(PYTHON) -m pytest tests/gpu $(ARGS)

test-gpu2: $(if $(filter $(VENV)/bin/python,$(PYTHON)),setup) ## those that need two GPUs; measures too
	GPUCKPT_REQUIRE=root,criu,gpu,gpu2 $(PYTHON) -m pytest tests/gpu2 -v --durations=0 $(ARGS)

bench: $(if $(filter $(VENV)/bin/python,$(PYTHON)),setup packers) ## compare with bare criu and what scripts do; ARGS=--help
	PATH="$(abspath $(VENV))/zstd/bin:$(abspath $(VENV))/lz4/bin:$$PATH" $(PYTHON) -m tests.bench $(ARGS)

bundle: setup ## an offline kit for GPU hosts without network, in .bundle
	$(VENV)/bin/python bin/dev/bundle.py $(ARGS)

completions: $(VENV)/.ready ## completions/ for bash, zsh and fish, from the program itself
	mkdir -p completions/bash completions/zsh completions/fish
	_GPUCKPT_COMPLETE=source_bash $(VENV)/bin/gpuckpt >completions/bash/gpuckpt
	_GPUCKPT_COMPLETE=source_zsh $(VENV)/bin/gpuckpt >completions/zsh/_gpuckpt
	_GPUCKPT_COMPLETE=source_fish $(VENV)/bin/gpuckpt >completions/fish/gpuckpt.fish

schema: $(VENV)/.ready ## gpuckpt/evidence.schema.json, from the types of the evidence
	$(VENV)/bin/python -c 'import sys; from gpuckpt.flow.evidence.document import schema; \
		sys.stdout.buffer.write(schema())' >gpuckpt/evidence.schema.json

clean: ## remove all that make made here
	rm -rf $(VENV) .bundle dist .*_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml bin/dev/venv
	bin/dev/venv $(VENV)
	touch $@

criu:
	@$(if $(ROOT),[ -n "$$GPUCKPT_CRIU" ] || bin/install-criu,echo "not root: no CRIU is brought")

redis:
	@$(if $(ROOT),[ -x $(VENV)/redis/bin/redis-server ] || command -v redis-server >/dev/null || \
		bin/dev/programs $(VENV)/redis redis-server redis-server redis-cli)

sshd:
	@$(if $(ROOT),[ -x $(VENV)/sshd/bin/sshd ] || command -v sshd >/dev/null || \
		bin/dev/programs $(VENV)/sshd openssh-server sshd)

packers:
	@for name in zstd lz4; do [ -x $(VENV)/$$name/bin/$$name ] || command -v $$name >/dev/null || \
		bin/dev/programs $(VENV)/$$name $$name $$name; done
