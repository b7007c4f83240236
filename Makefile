# The commands of developers and CI. `make test` runs every check.

CARGO ?= cargo
export RUSTFLAGS ?= -D warnings
# Set explicitly. Otherwise Cargo chooses a value for each selection of tests and builds half of the dependencies twice.
export CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG ?= 0

# Tests that need a Redis start one with redis-server. To use another: `REDIS_URL=… make test`, or
# `PHALANX_TEST_REDIS=container make test`.
ifndef REDIS_URL
export PHALANX_TEST_REDIS ?= spawn
endif

.PHONY: test setup format lint check-lua tests container-tests redis-image model mutants docs bench bench-fleet bench-scale bench-scale-docs fleet
.PHONY: simulate simulate-some fuzz fuzz-corpus fuzz-replay engines engines-some

test: setup format lint check-lua tests model docs simulate-some

# Installs what a fresh Debian machine with a Rust toolchain lacks: rustfmt, clippy, a linker, redis-server and luacheck.
setup:
	@scripts/setup

format:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --locked --workspace --exclude phalanx-bench --all-targets --all-features

check-lua:
	@if command -v luacheck >/dev/null; then cd lua && luacheck -q scripts; \
	else echo "check-lua: skipped, luacheck is not installed"; fi

# Unit, property, conformance and behaviour tests, runs of the examples, and the code in the documentation. Runs with all
# features and with none, because features must be additive, and tests metrics once more over OpenTelemetry's stable API,
# which all features together do not use.
tests:
	$(CARGO) test --locked --all-features --no-fail-fast
	$(CARGO) test --locked -p phalanx-core -p phalanx-store-memory --lib
	$(CARGO) test --locked -p phalanx --no-default-features --features prometheus --test metrics

# Test binaries that need only a Redis server, run against one in a container. Same features as in `tests`, so that
# nothing is built twice.
CONTAINER_TESTS ?= servers conformance_redis server_clock observer_events

container-tests: redis-image
	PHALANX_TEST_REDIS=container PHALANX_TEST_REDIS_IMAGE=phalanx-test-redis:local \
		$(CARGO) test --locked --all-features $(CONTAINER_TESTS:%=--test %)

# Builds an image from the installed redis-server, so that Docker needs no registry.
redis-image:
	@scripts/redis-image

# Conformance, ACL and faults on other engines, whose programs come in PyPI packages: Redis 6.2, Redis 8, Valkey.
# `engines-some` runs conformance and ACL on Redis 8 and Valkey.
engines:
	@scripts/engines

engines-some:
	@scripts/engines some

# Explores the interleavings of the lock-free code with loom, up to two preemptions (without the limit it takes minutes).
# Uses a separate target directory.
model:
	RUSTFLAGS="--cfg phalanx_model -D warnings" CARGO_TARGET_DIR=target/model LOOM_MAX_PREEMPTIONS=2 \
		$(CARGO) test --locked -p phalanx-core -p phalanx-store-memory --lib models

# Simulated fleets in virtual time: every oracle over SEEDS seeds, and every planted fault is found by its oracle.
SEEDS ?= 10000
SIMULATE = $(CARGO) run --locked --profile simulation -p phalanx-testkit --features simulator --bin simulate --

simulate:
	$(SIMULATE) --plants
	$(SIMULATE) --seeds $(SEEDS) --threads 2

simulate-some:
	$(MAKE) simulate SEEDS=300

# Changes one place of the code at a time and expects a test to fail: every mutant of the Lua scripts, in this process, and a
# sample of the mutants of core and the stores. Fails at a survivor that mutants/*.toml does not list. Takes about an hour.
# To run a part: MUTANTS="lua --only include/bucket.lua" or MUTANTS="rust --count 10 --seed 2".
MUTANTS_BIN = $${CARGO_TARGET_DIR:-target}/debug/mutants

mutants:
	$(CARGO) test --locked --all-features --no-run --test lua_scripts --test conformance_lua --test differential
ifdef MUTANTS
	$(MUTANTS_BIN) $(MUTANTS)
else
	$(MUTANTS_BIN) lua
	@$(CARGO) mutants --version >/dev/null 2>&1 || \
		{ echo "cargo-mutants is missing: cargo install --locked cargo-mutants" >&2; exit 1; }
	$(MUTANTS_BIN) rust --count 60 --seed 1
endif

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --all-features

# Compares with other libraries in one run; the ratios matter. Builds a dozen crates that nothing else needs.
bench:
	RUSTFLAGS= $(CARGO) run --locked --release -p phalanx-bench -- local

# The same for a fleet, with its own redis-server.
bench-fleet:
	RUSTFLAGS= $(CARGO) run --locked --release -p phalanx-bench -- fleet

# What a fleet of up to 100 replicas costs its Redis: CPU time, scripts, bytes. Takes less than four minutes.
bench-scale:
	RUSTFLAGS= $(CARGO) run --locked --release -p phalanx-bench -- scale $(SCALE)

# The same, and renews the sizing table in docs/redis.md.
bench-scale-docs:
	$(MAKE) bench-scale SCALE="--document docs/redis.md --date $$(date +%F)"

fleet:
	$(CARGO) run --locked --example fleet

# Fuzzes each target for FUZZ_SECONDS and stops at the first crash, whose input is written to fuzz/artifacts. New inputs go
# to target/fuzz-corpus; what is worth keeping is copied to fuzz/corpus by hand, where `make tests` replays it. Installs
# cargo-fuzz and a C++ compiler. No sanitizer by default: the crates contain no unsafe code.
FUZZ_TARGETS ?= keys replies sketch config headers operations scripts resp
FUZZ_SECONDS ?= 120
FUZZ_SANITIZER ?= none

fuzz:
	@scripts/setup fuzz
	@$(CARGO) fuzz --version >/dev/null 2>&1 || RUSTFLAGS= $(CARGO) install --locked cargo-fuzz
	@for target in $(FUZZ_TARGETS); do \
		mkdir -p target/fuzz-corpus/$$target; \
		RUSTC_BOOTSTRAP=1 RUSTFLAGS= CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
			$(CARGO) fuzz run --target-dir target/fuzz --sanitizer $(FUZZ_SANITIZER) $$target \
			target/fuzz-corpus/$$target fuzz/corpus/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 || exit 1; \
	done

# Replays the corpus in an optimised build, where an input may take 20 ms of CPU time, and prints the slowest inputs. Uses the
# profile of the simulations: without link-time optimisation inputs take longer, so what passes here passes in a release build.
fuzz-replay:
	$(CARGO) test --locked --profile simulation -p phalanx-fuzz --lib replay -- --show-output

# Writes the seeds of all targets to fuzz/corpus.
fuzz-corpus:
	PHALANX_RENEW_CORPUS=1 $(CARGO) test --locked --all-features -p phalanx-fuzz --lib
