# Everything a person runs. The first target of a fresh machine makes .venv from the lock file by itself.
# A distribution's own Python first: it is built with profile-guided optimisation, which pyenv's default build is not, and appends
# run 1.2 to 1.3 times as fast in it (docs/performance.md).
CAN_MAKE_VENV := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for each in /usr/bin/python3.11 python3.11 python3; do \
  "$$each" -c '$(CAN_MAKE_VENV)' 2>/dev/null && { command -v "$$each"; exit; }; done; echo python3.11)
UV_VERSION := 0.13.8
JAVA ?= $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
BIN := .venv/bin
STAMP := .venv/.from-lock
SOURCES := vlsn feeder replica repl jepsen-like tests docs/examples docs/site

TEST_WORKERS ?= auto
PYTEST = $(BIN)/pytest -n $(TEST_WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
SEEDS ?= 100
FIRST_SEED ?= 1
DIRECTORIES ?= 1000
ROUNDS ?= 20
EXAMPLES ?= 200
NEMESIS ?= kill,pause,partition
NODES ?= 3
TIME ?= 30
SEED ?= 7
WORKLOADS ?= append producer tail
WRITERS ?= 64
BENCH_SECONDS ?= 10
PEER_SECONDS ?= 5
PIPELINE_SECONDS ?= 300
CDC_SECONDS ?= 120
EXPORT_KILLS ?= 30
PEER_ROUNDS ?= 5
SOAK_SECONDS ?= 1800
PREVIOUS ?= $(shell cat .ci/previous)
MEGABYTES ?= 100,1000,6000
DAMAGE_MB ?= 300
GROUPS ?= 20

.DEFAULT_GOAL := help
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: needs-java $(STAMP) ## three nodes, real records, a killed master, a Spark audit
	@$(BIN)/vlsnlog demo

test: needs-java $(STAMP) ## unit and seam tests, and one end-to-end run of each feature: TESTS=tests/vlsn
	@$(PYTEST) -m "not long" $(TESTS)

test-long: needs-java $(STAMP) ## all other tests: more seeds, kills of real processes, Spark, harnesses, benchmarks
	@$(PYTEST) -m long $(TESTS)

check: $(STAMP) ## format, lint, types, import contracts
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## format the sources in place
	$(BIN)/ruff check --fix-only $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: $(STAMP) ## build the site of these pages in site/; a broken link, a missing heading or an orphan fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml
	@echo "the site is in site/index.html"

reference: $(STAMP) ## make the pages of docs/reference and docs/man from the code
	@$(BIN)/python -m tests.pages

fuzz-http: $(STAMP) ## calls from the OpenAPI document, right and wrong ones, on three nodes: EXAMPLES=200 SEED=7
	@$(BIN)/python -m tests.reference.fuzz --examples $(EXAMPLES) --seed $(SEED)

bench: $(STAMP) ## every work of the benchmark on clusters of its own
	@for work in "append --writers 1" "append --writers 64" "append --writers 1024" bulk http catchup recover tail scan; do \
	  $(BIN)/vlsnlog bench $$work --seconds $(BENCH_SECONDS) || exit $$?; \
	done

bench-readers: $(STAMP) ## what waiting readers cost: 10,000 on three nodes, 1,000 and 100 on the master
	@$(BIN)/python -m tests.bench readers --readers 10000 --rate 1 --die
	@$(BIN)/python -m tests.bench readers --node master
	@$(BIN)/python -m tests.bench readers --readers 100 --tails 100 --node master --rate 80

bench-turns: $(STAMP) ## the loop's longest turn, and the longest gap between appends, under 400 sockets that pipeline each call
	@$(BIN)/python -m tests.bench turns

bench-producers: $(STAMP) ## 50,000 exactly-once producers in turns: a node's table of them, then a group
	@$(BIN)/python -m tests.bench producers
	@$(BIN)/python -m tests.bench group-producers

bench-destinations: $(STAMP) ## destinations beside the plain tail, paging, a backlog of 10 GB, Redis Streams and NATS JetStream
	@$(BIN)/python -m tests.bench destinations

bench-peers: $(STAMP) ## beside etcd, PostgreSQL and Redis, as far as they are installed
	@$(BIN)/python -m tests.bench peers --seconds $(PEER_SECONDS) --rounds $(PEER_ROUNDS)

bench-audit: needs-java $(STAMP) ## the audit beside a loop of checksums in C: its rate, memory and growth: MEGABYTES=100,1000,6000
	@$(BIN)/python -m tests.bench audit --megabytes $(MEGABYTES) --since

mutants: $(STAMP) ## each defence taken away makes a named test fail: MUTANTS="NAME …"
	@$(BIN)/python -m tests.mutants $(MUTANTS)

track-record: $(STAMP) ## bugs of other systems that the simulation must find: BUGS="NAME …"
	@$(BIN)/python -m tests.mutants.record $(BUGS)

sim: $(STAMP) ## whole clusters under faults in virtual time: SEEDS=100 FIRST_SEED=1
	@$(BIN)/python -m tests.sim --seeds $(SEEDS) --first-seed $(FIRST_SEED)

watch: needs-promtool $(STAMP) ## the alerts of docs/watch against scrapes of real groups in each situation, by promtool: PROMTOOL=/path/to/it
	@$(PYTEST) tests/watch

trace: $(STAMP) ## the files and rooms that an append, a commit, a message and a CDC event enter: TRACE="--json"
	@$(BIN)/python -m tests.frozen.trace $(TRACE)

freeze: $(STAMP) ## write down what the tree does, to compare with it after a redesign: DIR=/tmp/before SEEDS=100 DIRECTORIES=1000
	@$(BIN)/python -m tests.frozen freeze $(DIR) --seeds $(SEEDS) --directories $(DIRECTORIES)

frozen: $(STAMP) ## does the tree do what was frozen? DIR=/tmp/before
	@$(BIN)/python -m tests.frozen compare $(DIR)

jepsen: $(STAMP) ## real nodes under faults, each workload: NEMESIS=kill,pause,partition NODES=3 TIME=30 SEED=7 WORKLOADS="append tail"
	@for workload in $(WORKLOADS); do \
	  $(BIN)/python jepsen-like run --workload $$workload --nemesis $(NEMESIS) --nodes $(NODES) --time $(TIME) --seed $(SEED) || exit $$?; \
	done

upgrade: $(STAMP) ## a group of the previous version is upgraded under load, one node after the other: PREVIOUS=COMMIT
	@$(BIN)/python jepsen-like upgrade --previous $(PREVIOUS) --seed $(SEED)

hostile: $(STAMP) ## what a stranger can do to a group, and how long each node is silent: KINDS="idle pings"
	@$(BIN)/python jepsen-like hostile $(KINDS:%=--kind %)

soak: $(STAMP) ## clients that leave in every state, and the master's memory meanwhile: SOAK_SECONDS=1800
	@$(BIN)/python jepsen-like hostile --kind leaving --seconds $(SOAK_SECONDS)

failover: $(STAMP) ## how long no append is taken when the master is killed, and when it hands over: ROUNDS=20
	@$(BIN)/python jepsen-like failover --rounds $(ROUNDS)
	@$(BIN)/python jepsen-like failover --rounds $(ROUNDS) --transfer

pipeline: $(STAMP) ## read, transform, append under SIGKILL, within a group and between two: PIPELINE_SECONDS=300
	@$(BIN)/python jepsen-like pipeline --groups 1 --time $(PIPELINE_SECONDS)
	@$(BIN)/python jepsen-like pipeline --groups 2 --time $(PIPELINE_SECONDS)

cdc-postgres: $(STAMP) ## a table of PostgreSQL is the log under SIGKILL of nodes, children and server: CDC_SECONDS=120 SEED=7
	@$(BIN)/python jepsen-like cdc-postgres --time $(CDC_SECONDS) --seed $(SEED)

audit-damages: needs-java $(STAMP) ## twelve kinds of damage to a log of real nodes, each found and mended as the audit says: DAMAGE_MB=300
	@$(BIN)/python -m tests.repl.audit.damages $(DAMAGE_MB)

audit-histories: $(STAMP) ## audit what simulated clusters leave, healthy all of them: SEEDS=1000 FIRST_SEED=1
	@$(BIN)/python -m tests.repl.audit.histories $(SEEDS) $(FIRST_SEED)

audit-live: $(STAMP) ## audit groups of real nodes that write while nodes are killed, healthy all of them: GROUPS=20 FIRST_SEED=1
	@$(BIN)/python -m tests.repl.audit.live $(GROUPS) $(FIRST_SEED)

export-kills: $(STAMP) ## an export under SIGKILL while the group's master is killed: EXPORT_KILLS=30
	@$(BIN)/python jepsen-like export --kills $(EXPORT_KILLS)

spark-pipeline: $(STAMP) ## a stream between two groups on a standalone Spark, under SIGKILL: PIPELINE_SECONDS=300
	@$(BIN)/python jepsen-like spark-pipeline --time $(PIPELINE_SECONDS)

kill-all: $(STAMP) ## SIGKILL all nodes at once under load: TIME=30 WRITERS=64
	@$(BIN)/python jepsen-like run --nemesis kill --kill all --interval 3 --rate 2000 --time $(TIME) --writers $(WRITERS)

syscalls: $(STAMP) ## each append shows its completed sync on a majority, one at a time and under load, by strace
	@$(BIN)/python jepsen-like syscalls
	@$(BIN)/python jepsen-like syscalls --appends 2000 --writers $(WRITERS)

wheels: $(STAMP) ## the server's wheel and the client's, in dist/
	@rm -rf dist && for project in . repl/front; do \
	  $(BIN)/uv build --wheel --no-build-isolation --quiet --out-dir dist $$project || exit $$?; \
	done; ls dist

pythons: $(STAMP) ## the wheel with each version of Python of this machine, 3.11 to 3.14: a node, a client, the commands
	@$(BIN)/python -m tests.pythons

lock: $(STAMP) ## resolve the dependencies anew
	$(BIN)/uv lock

# uv is installed into the environment it then fills, so nothing but Python is asked of the machine.
$(STAMP): uv.lock pyproject.toml | needs-python
	@test -x $(BIN)/uv || { $(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); }
	@$(BIN)/uv sync --frozen --all-extras --inexact --compile-bytecode --quiet
	@touch $@

needs-python:
	@$(PYTHON) -c '$(CAN_MAKE_VENV)' 2>/dev/null || { \
	  echo "make: Python 3.11 or later with venv is needed (Debian, Ubuntu: apt-get install python3.11 python3.11-venv; or PYTHON=/path/to/python3)" >&2; exit 2; }

needs-promtool:
	@test -n "$$PROMTOOL" || command -v promtool > /dev/null || { \
	  echo "make: promtool is needed (Debian, Ubuntu: apt-get install prometheus; or set PROMTOOL=/path/to/it)" >&2; exit 2; }

needs-java:
	@$(JAVA) -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' || { \
	  echo "make: Java 17 or later is needed for the Spark audit (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; or set JAVA_HOME)" >&2; exit 2; }

clean: ## remove the environment and what tools keep
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist site
