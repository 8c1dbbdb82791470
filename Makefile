# make demo · make test · make lint · make docs · make pages · make results · make bench · make stress · make lock
PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin

.PHONY: demo test lint format docs pages results bench stress lock

# Everything CI ran with; without a GPU on Linux, PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
# takes PyTorch's CPU build, which is some gigabytes smaller.
.venv/installed: pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(PIP_ARGS) --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: .venv/installed
	$(BIN)/capsella train demo
	@echo 'next: $(BIN)/capsella explore   turn the dials of what was trained, in the browser'

# Folder after folder: xdist's own order leaves files of few and long tests for the end, where one process waits.
test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict: a link that leads nowhere or a public name without a page is an error. Open site/index.html.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The four shared pages of the site, which are committed: their networks are trained first, on CAPSELLA_DATA.
pages: .venv/installed
	$(BIN)/python -m tools.pages

results: .venv/installed
	$(BIN)/python -m tools.results results > docs/reference/results.md
	$(BIN)/python -m tools.speed results/speed > docs/reference/speed.md

# BENCH="em- --compile --json em.json": which, and how; --help tells.
bench: .venv/installed
	$(BIN)/python -m benchmarks $(BENCH)

# A campaign to break it: docs/reference/reliability.md. STRESS_MINUTES=60 STRESS="kills disks --seed 7"; --help tells.
stress: .venv/installed
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive nice -n 10 $(BIN)/python -m tests.stress $(STRESS)

# constraints.txt with the hashes of all files, for pip install --require-hashes.
lock: .venv/installed
	$(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet uv
	build/lock/bin/uv pip compile --quiet --python $(BIN)/python --no-deps --generate-hashes --no-annotate \
	    --custom-compile-command "make lock" constraints.txt --output-file constraints-hashes.txt
