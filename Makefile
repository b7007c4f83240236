# Everything a developer or a CI machine runs. `make test` is the whole of it.

CARGO ?= cargo
export RUSTFLAGS ?= -D warnings

.PHONY: test setup format lint tests model docs bench fleet

test: setup format lint tests model docs

# What a fresh Debian machine with a Rust toolchain lacks: rustfmt and clippy, if the toolchain came without them.
setup:
	@scripts/setup

format:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --locked --workspace --exclude phalanx-bench --all-targets --all-features

# Unit, property, conformance and behaviour tests, the examples' own run, and the code in the documentation; once with
# all features and once with none, because features are additive and must stay so.
tests:
	$(CARGO) test --locked --all-features
	$(CARGO) test --locked -p phalanx-core -p phalanx-store-memory --lib

# The orders in which threads can meet on the lock-free parts, explored by loom with up to two preemptions (all of them,
# without the bound, take minutes); a build of its own.
model:
	RUSTFLAGS="--cfg phalanx_model -D warnings" CARGO_TARGET_DIR=target/model LOOM_MAX_PREEMPTIONS=2 \
		$(CARGO) test --locked -p phalanx-store-memory --lib models

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --all-features

# Beside the peers, in one run; ratios are what counts. Builds a dozen crates that nothing else needs.
bench:
	RUSTFLAGS= $(CARGO) run --locked --release -p phalanx-bench -- local

fleet:
	$(CARGO) run --locked --example fleet
