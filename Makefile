# Every verb sets up what it needs: `make demo` and `make test` work on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
RESULTS ?= results/demo

.PHONY: setup fairseq demo test lint bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv && $(BIN)/pip install -q --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt torch==2.13.0 -e '.[dev,cluster,text,audio,vision,tensorboard,wandb]' && touch $@

fairseq: .venv-fairseq/ready

.venv-fairseq/ready: pyproject.toml constraints-fairseq.txt scripts/fairseq_environment.sh
	PYTHON=$(PYTHON) scripts/fairseq_environment.sh && touch $@

demo: setup
	$(BIN)/cab run -m task=lstf dataset=synthetic attention=vanilla,abc,performer,cosformer,none pattern=NC,NS preset=mini results_dir=$(RESULTS)
	$(BIN)/cab leaderboard $(RESULTS) --format markdown

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy

bench: setup
	$(BIN)/cab efficiency --pattern NS CS NC CC --phase forward forward+backward decode --lengths 256 512 1024 2048 4096 8192 16384 --batch-size 1 --peers --out results/bench/costs.csv --plot results/bench

clean:
	rm -rf .venv .venv-fairseq build dist results/demo results/bench
