# Everything a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .vllm-0.31

.PHONY: setup demo bench-hook bench-urgent bench-sim bench-learning base-model test test-fast lint format protos protos-check clean

# setup is a no-op until pyproject.toml or the set-up script changes.
setup: $(VENV)/.setup-done $(OLDEST)/.setup-done

$(VENV)/.setup-done: pyproject.toml deploy/setup.sh
	PYTHON=$(PYTHON) VENV=$(VENV) bash deploy/setup.sh
	touch $@

# The oldest vLLM that the plugin supports: tests put this folder before the one in $(VENV).
$(OLDEST)/.setup-done: $(VENV)/.setup-done
	rm -rf $(OLDEST)
	$(BIN)/python -m pip install --quiet --no-deps --target $(OLDEST) --group oldest-vllm
	touch $@

demo: $(VENV)/.setup-done
	$(BIN)/trimtab demo $(DEMO_ARGS)

# What the plugin adds to a step of the engine, against stock vLLM (BENCH_ARGS=--quick: to try).
bench-hook: setup
	$(BIN)/python -m benchmarks.hook --json benchmarks/results/hook.json $(BENCH_ARGS)

# What an urgent request waits for when all slots are taken, beside stock vLLM's priority policy.
bench-urgent: setup
	$(BIN)/python -m benchmarks.urgent --json benchmarks/results/urgent.json $(BENCH_ARGS)

# How fast the simulator is, and how far from a real engine: a quarter of an hour on two idle cores.
bench-sim: setup
	$(BIN)/python -m benchmarks.sim --speed --fidelity --json benchmarks/results/sim.json $(BENCH_ARGS)

# What the learned weights are worth beside other policies: under an hour on two cores; goes on
# where an earlier run was stopped (BENCH_ARGS=--quick: to try; --model NAME=FOLDER, --traces FOLDER).
bench-learning: setup
	$(BIN)/python -m benchmarks.learning --json benchmarks/results/learning.json $(BENCH_ARGS)

# Train the base model and compare it with the rule; goes on where an earlier run was stopped.
base-model: $(VENV)/.setup-done
	$(BIN)/trimtab train base --out models/base $(BASE_ARGS)

# What starts engines and servers has the machine to itself.
test: setup lint test-fast
	$(BIN)/python -m pytest -m system

test-fast: setup
	$(BIN)/python -m pytest -m "not system" -n auto

lint: setup protos-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

protos: setup
	$(BIN)/python -m protos.generate

# The committed stubs are those that the protos give.
protos-check: setup
	$(BIN)/python -m protos.check

clean:
	rm -rf $(VENV) $(OLDEST) .mypy_cache .ruff_cache .pytest_cache .hypothesis
