# Everything a developer or a CI machine runs. `make test` is the whole of it.

CARGO ?= cargo
export RUSTFLAGS ?= -D warnings
# Said aloud, because left alone Cargo decides it for each selection of tests anew, and builds half the tree twice.
export CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG ?= 0

# Tests that need a Redis start one with redis-server, unless told to use another: `REDIS_URL=… make test`, or
# `PHALANX_TEST_REDIS=container make test`.
ifndef REDIS_URL
export PHALANX_TEST_REDIS ?= spawn
endif

.PHONY: test setup format lint check-lua tests container-tests redis-image model docs bench bench-fleet fleet

test: setup format lint check-lua tests model docs

# What a fresh Debian machine with a Rust toolchain lacks: rustfmt and clippy, if the toolchain came without them, a
# linker, redis-server and luacheck.
setup:
	@scripts/setup

format:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --locked --workspace --exclude phalanx-bench --all-targets --all-features

check-lua:
	@if command -v luacheck >/dev/null; then cd lua && luacheck -q scripts; \
	else echo "check-lua: skipped, luacheck is not installed"; fi

# Unit, property, conformance and behaviour tests, the examples' own run, and the code in the documentation; once with
# all features and once with none, because features are additive and must stay so; and metrics over OpenTelemetry's stable
# API, which most people build, but not with all features.
tests:
	$(CARGO) test --locked --all-features
	$(CARGO) test --locked -p phalanx-core -p phalanx-store-memory --lib
	$(CARGO) test --locked -p phalanx --no-default-features --features prometheus --test metrics

# Test binaries that need no more than a Redis, whoever runs it. They run once more on one in a container; features as in
# `tests`, so that nothing is built twice.
CONTAINER_TESTS ?= servers conformance_redis server_clock observer_events

container-tests: redis-image
	PHALANX_TEST_REDIS=container PHALANX_TEST_REDIS_IMAGE=phalanx-test-redis:local \
		$(CARGO) test --locked --all-features $(CONTAINER_TESTS:%=--test %)

# An image made from the redis-server installed here: Docker need not reach a registry.
redis-image:
	@scripts/redis-image

# The orders in which threads can meet on the lock-free parts, explored by loom with up to two preemptions (all of them,
# without the bound, take minutes); a build of its own.
model:
	RUSTFLAGS="--cfg phalanx_model -D warnings" CARGO_TARGET_DIR=target/model LOOM_MAX_PREEMPTIONS=2 \
		$(CARGO) test --locked -p phalanx-core -p phalanx-store-memory --lib models

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --all-features

# Beside the peers, in one run; ratios are what counts. Builds a dozen crates that nothing else needs.
bench:
	RUSTFLAGS= $(CARGO) run --locked --release -p phalanx-bench -- local

# The same for the fleet, over a redis-server of its own.
bench-fleet:
	RUSTFLAGS= $(CARGO) run --locked --release -p phalanx-bench -- fleet

fleet:
	$(CARGO) run --locked --example fleet
