# Everything you do with this repository. `make help` lists it; each target sets up what it needs on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PURE := .build/pure
PICTURED := .build/pictured
ARGS ?=
# For the pipeline: where `make demo ARGS="--archive .build/archive"` and others keep their history.
ARCHIVE ?= .build/archive
DIST ?= dist
# Three workers, also on two cores: the tests wait as much as they compute. `make test WORKERS=0` runs in one process (for
# a debugger).
WORKERS ?= 3
# For the simulations: how many seeds, in how many processes. SEED is the first seed; without it a random one.
SEEDS ?= 20
JOBS ?= 2
PIP := $(BIN)/python -m pip --disable-pip-version-check
BUILDING := setuptools grpcio-tools mypy librt types-protobuf types-grpcio
# Tests start hundreds of Python processes. Where the environment forbids bytecode files, as in many images, each of them
# would compile the tree again, and each worker of pytest all tests.
unexport PYTHONDONTWRITEBYTECODE

PROTOS := $(wildcard proto/purgatory/v1/*.proto)
ENGINE := $(shell find purgatory/engine -name "*.py")

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help packages test-core abuse stream-histories stream-kills run demo kafka-demo stream-demo postgres-demo read-your-writes test test-compiled test-pure lint format proto docs wheel clean bench mutants crash sim sim-long sim-daemon fleet-demo fleet-crash fleet-sim \
	check report replay screenshots page-figures notebook image-requirements sbom secure-demo

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Serve on the defaults (first use: sets up .venv, about a minute)
	@$(MAKE) --no-print-directory -j 2 $(STAMPS)/engine
	@$(BIN)/purgatory serve $(ARGS)

demo: $(STAMPS)/engine ## Run the replicated log on real processes; on a terminal, with a live page until Ctrl-C (ARGS="--kill-follower --input FILE")
	@$(BIN)/python -m examples.replicated_log $(ARGS)

postgres-demo: $(STAMPS)/connectors $(STAMPS)/engine ## Follow a primary and two replicas by one option: one lags, one goes away (needs PostgreSQL)
	@$(BIN)/python -m examples.postgres_demo

secure-demo: $(STAMPS)/engine ## Serve with TLS, tokens and a policy, and show what each kind of caller sees
	@$(BIN)/python -m examples.secure_demo

kafka-demo: $(STAMPS)/connectors $(STAMPS)/engine ## Follow a Kafka cluster by one option: a slow group, an aborted transaction, a broker that goes away (needs Java)
	@$(BIN)/python -m examples.kafka_demo

stream-demo: $(STAMPS)/pipeline $(STAMPS)/connectors $(STAMPS)/engine ## Wait for a Spark job over Kafka, its time in parts; then the purgatory as a stream, killed in between (ARGS="--input FILE"; needs Java)
	@$(BIN)/python -m examples.stream_demo $(ARGS)

read-your-writes: $(STAMPS)/connectors $(STAMPS)/engine ## Count stale reads without and with the wait: over Kafka, and with a PostgreSQL replica
	@$(BIN)/python -m examples.read_your_writes $(ARGS)

check: $(STAMPS)/pipeline $(STAMPS)/engine ## Account for an archive (ARCHIVE=.build/archive)
	@$(BIN)/purgatory-pipeline check $(ARCHIVE) $(ARGS)

report: $(STAMPS)/pipeline $(STAMPS)/engine ## Report over an archive: tables and one HTML page (first: make demo ARGS="--archive .build/archive")
	@$(BIN)/purgatory-pipeline report $(ARCHIVE) --out .build/report $(ARGS)

replay: $(STAMPS)/pipeline $(STAMPS)/engine ## Replay an archive under another policy (ARGS="--set timeout_ms=200")
	@$(BIN)/purgatory-pipeline replay $(ARCHIVE) --out .build/replay $(ARGS)

screenshots: $(STAMPS)/pipeline $(STAMPS)/engine ## Make the pictures in docs/images again, from a history of two days (needs Chromium)
	@rm -rf $(PICTURED) && mkdir -p $(PICTURED)
	@$(BIN)/python -m bench.pipeline.history.make $(PICTURED)/history 400000 160 48
	@cd $(PICTURED) && PATH="$(CURDIR)/$(BIN):$$PATH" && \
		purgatory-pipeline report history --out report && \
		purgatory-pipeline replay history --sweep timeout_ms=50,100,200,400,800,1600 --out replay
	@$(BIN)/python -m tests.pipeline.page.screenshots $(PICTURED)/report/report.html $(PICTURED)/replay/replay.html docs/images
	@$(BIN)/python -m tests.page.live_screenshots docs/images

page-figures: $(STAMPS)/pipeline $(STAMPS)/engine ## Costs of the live page with a million pending operations and five viewers (7 minutes; needs Chromium)
	@$(BIN)/python -m bench.page_figures

notebook: $(STAMPS)/pipeline $(STAMPS)/engine ## Run the example notebook and keep what its cells show
	@$(BIN)/python -m tests.pipeline.notebooks examples/notebooks/report.ipynb

test: $(STAMPS)/pipeline ## Run the whole suite, and the tests of the engine uncompiled too (both, even if one fails)
	@$(MAKE) --no-print-directory -k test-compiled $(if $(ARGS),,test-pure)

CORE_TESTS := tests/engine tests/timer tests/embedded tests/client/session
test-core: $(STAMPS)/dev $(STAMPS)/engine ## Run the tests of the engine, timer and client session, without sockets, in seconds
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not sockets" $(CORE_TESTS) $(ARGS)

test-compiled: $(STAMPS)/pipeline $(STAMPS)/engine ## Run the suite on the compiled engine (ARGS="tests/test_x.py -k y")
	@echo "== the suite on the compiled engine"
	@PURGATORY_BUILD=$$($(BIN)/python -c 'from purgatory.engine import COMPILED; print("compiled" if COMPILED else "pure")') \
		$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

PURE_TESTS := tests/engine tests/timer tests/embedded tests/histories/test_engine_world.py tests/journal tests/test_build.py
test-pure: $(STAMPS)/pipeline $(STAMPS)/stubs ## Run the tests of the engine uncompiled, on a copy of the tree without the compiled modules
	@echo "== the suite on the uncompiled engine"
	@rm -rf $(PURE) && mkdir -p $(PURE)
	@tar -cf - --exclude=./.venv --exclude=./.build --exclude=./build --exclude=./.git --exclude='*.so' --exclude=node_modules --exclude=./client/java/target \
		--exclude='*.egg-info' --exclude=__pycache__ --exclude='.*_cache' . | tar -xf - -C $(PURE)
	@cd $(PURE) && PURGATORY_BUILD=pure PYTHONPATH="$$PWD:$$PWD/client:$$PWD/pipeline:$$PWD/connectors" \
		"$(CURDIR)/$(BIN)/python" -m pytest -n $(WORKERS) -m "not sockets" $(PURE_TESTS) $(ARGS)

HISTORIES := GRPC_VERBOSITY=NONE $(BIN)/python -m tests.histories --jobs $(JOBS) $(if $(SEED),--seed $(SEED))

sim-daemon: $(STAMPS)/dev $(STAMPS)/engine ## Simulate days of daemon and clients over broken connections (SEEDS=200 SEED=1 JOBS=2)
	@$(HISTORIES) --world day --count $(SEEDS) $(ARGS)

fleet-demo: $(STAMPS)/connectors $(STAMPS)/engine ## Two daemons over one log: one is killed, one stopped, one hands over (needs PostgreSQL; ARGS=--kafka: Java)
	@GRPC_VERBOSITY=NONE $(BIN)/python -m examples.fleet_demo $(ARGS)

fleet-crash: $(STAMPS)/connectors $(STAMPS)/dev $(STAMPS)/engine ## Kill, stop, hand over and cut off the daemons of a pair, over logs in PostgreSQL and Kafka (SEED=0 ARGS="--faults 50")
	@$(HISTORIES) --world pair --jobs 1 --count 3 $(ARGS)

.PHONY: upgrades
upgrades: $(STAMPS)/connectors $(STAMPS)/dev $(STAMPS)/engine ## Upgrade a pair under load from the last release to a later one and go back, 20 times (needs PostgreSQL)
	@PURGATORY_UPGRADES=20 $(BIN)/python -m pytest -q -n 0 -s -o faulthandler_timeout=0 tests/compatibility/test_rolling_upgrade.py

fleet-sim: $(STAMPS)/connectors $(STAMPS)/dev $(STAMPS)/stubs ## Run a million histories of daemons over one log, some 15 minutes (SEED=7 ARGS="--count 10" for 10,000)
	@$(HISTORIES) --world fleet --count 1000 $(ARGS)

mutants: $(STAMPS)/dev $(STAMPS)/stubs ## Break a copy of the engine in 300 small ways; the tests must notice (ARGS="--seed 2 --sample 100")
	@$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: histories
histories: $(STAMPS)/dev $(STAMPS)/engine ## Run random histories of one world (ARGS="--world engine --seconds 60"; --help lists the worlds)
	@$(HISTORIES) $(ARGS)

sim: $(STAMPS)/dev $(STAMPS)/engine ## Run the engine against the oracle (SEED=7 ARGS="--count 1" for one history)
	@$(HISTORIES) --world engine $(ARGS)

sim-long: $(STAMPS)/dev $(STAMPS)/engine ## The same for an hour
	@$(HISTORIES) --world engine --seconds 3600 $(ARGS)

crash: $(STAMPS)/dev $(STAMPS)/engine ## Kill a real daemon under load, 30 times for each seed: nothing acknowledged may be lost (SEED=7 ARGS="--kills 200")
	@$(HISTORIES) --world crash --seconds 600 $(ARGS)

stream-histories: $(STAMPS)/pipeline $(STAMPS)/engine ## Compare shards with the engine on random histories (SEED=7 ARGS="--count 200")
	@$(HISTORIES) --world stream $(ARGS)

stream-kills: $(STAMPS)/pipeline $(STAMPS)/engine ## Kill a Spark stream, kill and stop its executors, kill a query that reads results, 10 times each: no outcome lost or duplicated (SEED=0)
	@$(HISTORIES) --world spark --jobs 1 --count 3 $(ARGS)

abuse: $(STAMPS)/dev $(STAMPS)/engine ## Attacks, floods, fuzzed requests and churn at a real daemon (ARGS="--only flood", or --minutes 120 --requests 1000000 --seed 7)
	@$(BIN)/python -m tests.abuse $(ARGS)

lint: $(STAMPS)/pipeline $(STAMPS)/stubs ## Check style, imports, types, the wire's contract, sizes and texts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --cache-dir .build/import-linter
	$(BIN)/mypy
	$(BIN)/buf lint
	$(BIN)/python -m pytest -q tests/test_tidy.py tests/test_prose.py

format: $(STAMPS)/dev ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(STAMPS)/stubs ## Generate purgatory/v1 from proto/

docs: $(STAMPS)/dev $(STAMPS)/stubs ## Write the generated pages: docs/configuration.md, metrics.md, modules.md
	@$(BIN)/python -m tests.test_configuration_page
	@$(BIN)/python -m tests.test_architecture
	@$(BIN)/python -m tests.metrics.test_metrics_page

.PHONY: docs-site
docs-site: $(STAMPS)/site ## Write the documentation as a site into .build/docs/site; it needs no other host
	@rm -rf .build/docs && $(BIN)/python docs/build_site.py .build/docs
	@echo .build/docs/site/index.html

packages: wheel ## Build what a release publishes into dist/: wheel, sources, npm package, Maven artifact and chart
	@$(BIN)/python setup.py -q sdist -d $(DIST) && rm -rf purgatory_waits.egg-info
	@cd client/typescript && npm ci -s --ignore-scripts && npm pack -s --pack-destination "$(abspath $(DIST))"
	@cd client/java && mvn -q -B deploy -Dmaven.install.skip=true -DaltDeploymentRepository=local::file://$(abspath $(DIST))/maven
	@if command -v helm >/dev/null; then helm package deploy/helm/purgatory -d $(DIST); fi

wheel: $(STAMPS)/serving ## Build the wheel into dist/
	@rm -rf build/lib*
	@$(PIP) wheel -q --no-build-isolation --no-deps -w $(DIST) .
	@rm -rf purgatory_waits.egg-info # otherwise Python, run from here, takes it for the installed package

.PHONY: bench-quick bench-compare bench-pipeline bench-pythons bench-stream bench-timers
bench: $(STAMPS)/pipeline $(STAMPS)/profiled ## Measure Purgatory beside its peers (ARGS="--only 'timer/*'")
	@$(BIN)/python -m bench $(ARGS)

bench-quick: $(STAMPS)/profiled ## The same in under a minute, with nothing written
	@$(BIN)/python -m bench --quick $(ARGS)

PYTHONS ?= python3.12 python3.13
bench-pythons: $(STAMPS)/profiled ## Compile the engine for other Pythons as well, and compare (PYTHONS="python3.13 python3.14")
	@set -e; export PURGATORY_BUILD=compiled; for python in $(PYTHONS); do \
		there=.build/pythons/$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		$$python -m venv $$there; $$there/bin/python -m pip install -q -c constraints.txt $(BUILDING); \
		$$there/bin/python setup.py -q profile; $$there/bin/python setup.py -q build_ext --inplace; done
	@$(BIN)/python -m bench --only engine/python-versions $(ARGS)

bench-timers: $(STAMPS)/engine ## Measure each operation of seven timers (ARGS="--pending 100000")
	@$(BIN)/python -m bench.timer_table $(ARGS)

bench-pipeline: $(STAMPS)/pipeline $(STAMPS)/profiled ## Measure report and replay (ARGS="--operations 1M")
	@$(BIN)/python -m bench.pipeline $(ARGS)

bench-stream: $(STAMPS)/pipeline $(STAMPS)/connectors $(STAMPS)/engine ## Measure the purgatory as a Spark stream (ARGS="--only rates pending")
	@$(BIN)/python -m bench.stream $(ARGS)

bench-compare: $(STAMPS)/engine ## Compare instructions, counters and ratios with the committed baseline (ARGS=--update)
	@$(BIN)/python -m bench.compare $(ARGS)

COMPILE := $(BIN)/uv pip compile -q --python-platform linux --python-version 3.11 --generate-hashes --no-header --no-annotate -c constraints.txt
wanted = $(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print(*p$(1), sep="\n")'
image-requirements: $(STAMPS)/supply ## Write deploy/*requirements.txt: what the image and development install, with hashes of all files
	@$(COMPILE) --extra server -o deploy/requirements.txt pyproject.toml
	@$(call wanted,["project"]["optional-dependencies"]["archive"]) | $(COMPILE) -o deploy/archive-requirements.txt -
	@$(call wanted,["project"]["optional-dependencies"]["kafka"] + p["project"]["optional-dependencies"]["postgres"] + p["project"]["optional-dependencies"]["mysql"] + p["project"]["optional-dependencies"]["redis"] + p["project"]["optional-dependencies"]["poll"]) \
		| $(COMPILE) -o deploy/sources-requirements.txt -
	@$(call wanted,["build-system"]["requires"]) | $(COMPILE) -o deploy/build-requirements.txt -
	@$(COMPILE:3.11=3.11.5) --all-extras --group dev --group supply -o deploy/development-requirements.txt pyproject.toml

sbom: $(STAMPS)/supply ## Write .build/sbom.json: what the daemon's environment consists of, as CycloneDX
	@rm -rf .build/sbom && $(PYTHON) -m venv .build/sbom
	@.build/sbom/bin/python -m pip --disable-pip-version-check install -q --require-hashes -r deploy/requirements.txt -r deploy/archive-requirements.txt
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o .build/sbom.json .build/sbom/bin/python
	@echo .build/sbom.json

clean: ## Remove what the build made; .venv goes too
	rm -rf $(VENV) .build build dist *.egg-info purgatory/v1 .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f ./*.so
	find purgatory/engine -name "*.so" -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up: one stamp for each step, so that nothing is done twice.

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; make PYTHON=python3.12")'
	@test -x $(BIN)/python || { echo "== making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@mkdir -p $(STAMPS) && touch $@

# Type checkers and editors read .pth files, but not the import hook of the editable installation.
$(STAMPS)/paths: $(STAMPS)/venv
	@printf '../../../../%s\n' . client pipeline connectors > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/purgatory-sources.pth"
	@touch $@

$(STAMPS)/building: pyproject.toml setup.py constraints.txt $(STAMPS)/venv
	@echo "== installing what building needs"
	@$(PIP) install -q -c constraints.txt $(BUILDING)
	@touch $@

# With -j while the engine is compiled. Stubs before: the installation would generate them too.
$(STAMPS)/serving: $(STAMPS)/building | $(STAMPS)/stubs $(STAMPS)/paths
	@echo "== installing what serving needs"
	@PURGATORY_BUILD=pure $(PIP) install -q --no-build-isolation -c constraints.txt -e '.[server,archive]'
	@touch $@

# Python 3.11 has a pip that does not know dependency groups.
$(STAMPS)/pip: $(STAMPS)/serving
	@$(PIP) install -q -c constraints.txt pip
	@touch $@

$(STAMPS)/dev: $(STAMPS)/pip
	@echo "== installing what tests and lint need"
	@PURGATORY_BUILD=pure $(PIP) install -q --no-build-isolation -c constraints.txt -e '.[server,archive]' --group dev
	@touch $@

$(STAMPS)/connectors: $(STAMPS)/serving
	@echo "== installing what the connectors need"
	@PURGATORY_BUILD=pure $(PIP) install -q --no-build-isolation -c constraints.txt -e '.[server,archive,kafka,postgres,mysql,redis,poll]'
	@touch $@

$(STAMPS)/pipeline: $(STAMPS)/dev
	@echo "== installing what the pipeline (Spark: about a gigabyte) and the connectors need"
	@PURGATORY_BUILD=pure $(PIP) install -q --no-build-isolation -c constraints.txt -e '.[server,archive,pipeline,kafka,postgres,mysql,redis,poll,otel]' --group dev
	@touch $@

$(STAMPS)/site: $(STAMPS)/pip
	@$(PIP) install -q -c constraints.txt grpcio-tools --group docs
	@touch $@

$(STAMPS)/supply: $(STAMPS)/pip
	@$(PIP) install -q -c constraints.txt --group supply
	@touch $@

$(STAMPS)/stubs: $(PROTOS) setup.py $(STAMPS)/building
	@echo "== generating purgatory/v1"
	@$(BIN)/python setup.py -q stubs
	@touch $@

$(STAMPS)/engine: $(STAMPS)/compiled $(STAMPS)/serving
	@touch $@

$(STAMPS)/compiled: $(ENGINE) engine_references.h $(STAMPS)/stubs
	@echo "== compiling the engine"
	@rm -rf ./*.so build/profile build/temp.* && find purgatory/engine -name "*.so" -delete
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

# Compiled twice: instrumented, to record a profile, then with that profile. The image is built this way.
$(STAMPS)/profiled: $(STAMPS)/engine
	@echo "== compiling the engine by a profile (gcc)"
	@PURGATORY_BUILD=compiled $(BIN)/python setup.py -q profile
	@PURGATORY_BUILD=compiled $(BIN)/python setup.py -q build_ext --inplace
	@touch $@
