# Every verb sets up what it needs: `make demo` and `make test` work on a fresh machine. PYTHON= chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
RESULTS ?= results/demo
SEED ?= 0
# pip leaves compiling to the first import: where Python may not keep what it compiles, every process does it again.
export PYTHONDONTWRITEBYTECODE =
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: setup fairseq demo test test-slow test-nightly test-all test-lowest verify lint docs wheel bench mutations gpu clean

setup:
	@PYTHON="$(PYTHON)" scripts/environment.sh

fairseq: .venv-fairseq/ready

.venv-fairseq/ready: pyproject.toml constraints-fairseq.txt scripts/fairseq_environment.sh
	PYTHON="$(PYTHON)" scripts/fairseq_environment.sh && touch $@

demo: setup
	@$(BIN)/cab demo --out "$(RESULTS)"

# What a change could break quickly; TESTS= selects files.
test: setup
	@scripts/browser.sh
	$(PYTEST) -m "not slow" $(TESTS)

# The rest, with a Slurm and fairseq's environment where they can be had.
test-slow: setup
	@scripts/browser.sh
	-$(MAKE) fairseq
	scripts/with_slurm.sh env $(PYTEST) -m "slow and not nightly"

# Minutes each: every Hugging Face type, the kernels of others under Triton's interpreter at all sizes, and new draws.
test-nightly: setup
	CAB_CONFORMANCE_SEED=$(shell date -I) $(PYTEST) -m "nightly or drawn"

test-all: test test-slow

# The lowest versions that pyproject.toml declares.
test-lowest:
	PYTHON="$(PYTHON)" scripts/lowest.sh

# What `make test` then trusts: every attention and pattern whose row is missing, or of other code, checks or torch.
verify: setup
	$(BIN)/cab list attentions --csv | tail -n +2 | cut -d, -f1 | OMP_NUM_THREADS=1 xargs -n 4 -P $(shell getconf _NPROCESSORS_ONLN) $(BIN)/cab verify --record results/verified.csv

lint: setup
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && \
	$(BIN)/codespell -D - -D scripts/banned_words.txt docs *.md results/*/README.md

# The documentation as a site, to be opened from build/docs/index.html.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The wheel of this commit, in dist; its version is the one that TAG names, such as v0.1.0.
wheel:
	$(PYTHON) -m pip wheel -q --no-deps --wheel-dir dist .
	@ls dist/cab_benchmark-$(or $(TAG:v%=%),*)-*.whl

bench: setup
	$(BIN)/cab efficiency --pattern NS CS NC CC --phase forward forward+backward decode --lengths 256 512 1024 2048 4096 8192 16384 --batch-size 1 --third-party --out results/bench/costs.csv --plot results/bench

# Change attentions at random: which changes do `cab verify --quick`, the tests or neither notice?
mutations: setup
	@mkdir -p build && $(BIN)/python -m tools.verification.mutation_lot --seed $(SEED) | tee build/mutations.csv

# Check, time and train on a machine with a GPU, with the torch of PYTHON; STEPS selects steps. DEVICE=cpu tries them, shortened.
gpu:
	@PYTHON="$(PYTHON)" scripts/gpu.sh $(if $(filter cpu,$(DEVICE)),--cpu) $(OUT)

clean:
	rm -rf .venv .venv-fairseq .venv-lowest build dist wheels results/demo results/bench
