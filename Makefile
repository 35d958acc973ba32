# On a fresh Debian or Ubuntu with Rust: `make demo` and `make demo-https` demonstrate truepeer, `make test` tests
# it, and `make bench` measures it. All first install or unpack what is missing, and print that.
.PHONY: demo demo-https test test-all vpp bench proof-timing coverage fuzz mutants miri sanitize soak situations kernels old-kernel package package-check release repository small conformance book setup servers engines browser mdbook kube frp h2spec pebble fmt lint doc clean
.DEFAULT_GOAL := demo

export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
toolchain := $(shell scripts/toolchain.sh)
ifneq ($(toolchain),)
export RUSTUP_TOOLCHAIN := $(toolchain)
$(info toolchain: the pinned one is not available, using $(toolchain))
endif
# VPP, installed once for each machine under this directory, unless TRUEPEER_VPP names another.
vpp := $(wildcard $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/truepeer/vpp/bin/vpp)
ifneq ($(vpp),)
export TRUEPEER_VPP ?= $(vpp)
endif
built := $(abspath $(or $(CARGO_TARGET_DIR),target))/debug
for_demo := $(abspath $(or $(CARGO_TARGET_DIR),target))/demo
released := $(abspath $(or $(CARGO_TARGET_DIR),target))/release

# Downloads while it builds: its own few servers, unless those of all tests are there.
demo: setup
	@[ -e $(for_demo)/truepeer ] || echo "demo: the first run builds for 2 minutes (two cores)"
	@if [ ! -e target/servers/stamp ]; then \
	  export TRUEPEER_SERVERS="$${TRUEPEER_SERVERS:-$$PWD/target/demo-servers}"; \
	  scripts/servers.sh scripts/demo.txt "$$TRUEPEER_SERVERS" & \
	fi; \
	cargo build --profile demo --no-default-features --features truepeer/https -p truepeer -p truepeer-testbed --bins || exit; \
	wait && $(for_demo)/demo $(for_demo)/truepeer

# truepeer https between a client and NGINX, each in its own namespace, with a measurement of ten seconds. On
# VPP's stack as well if VPP is installed or TRUEPEER_VPP names one. Options: DEMO='--stack kernel -R 2000'.
demo-https: setup servers
	cargo build --release -p truepeer -p truepeer-bench --bins
	$(released)/demo-https $(released)/truepeer $(DEMO)

test: setup
	scripts/test.sh

# Runs the long tests and the whole matrix as well.
test-all: setup engines kube frp h2spec pebble browser mdbook
	TRUEPEER_TEST_ALL=1 scripts/test.sh

# Compares truepeer with its peers in a few minutes; rewrites the measured parts of docs/benchmarks*.md, and their
# charts.
bench: setup servers
	cargo build --release -p truepeer -p truepeer-bench
	$(released)/bench --write docs $(BENCH)

# Whether the time of refusing a header tells how much of its secret (--require-tlv) is right: a million tries of
# each way. The second run has the kernel programs.
proof-timing:
	cargo run --quiet --release -p truepeer-bench --bin proof-timing $(TRIES)
	cargo run --quiet -p truepeer-bench --bin proof-timing $(TRIES)

# Builds the pages of docs/ as a site under target/book.
book:
	@scripts/book.sh

# Packages that the build needs, by apt.
setup:
	@scripts/setup.sh

# Real servers for tests and demo, unpacked under target/servers, not installed.
servers:
	@scripts/servers.sh
	@scripts/newer.sh

# Docker, Podman and containerd for the tests with containers, in the same way, once for each machine: under
# ~/.cache/truepeer (XDG_CACHE_HOME), or where TRUEPEER_ENGINES says. 600 MiB.
engines:
	@scripts/servers.sh scripts/engines.txt "$${TRUEPEER_ENGINES:-$${XDG_CACHE_HOME:-$$HOME/.cache}/truepeer/engines}"

# The browser that opens the status page in a test, likewise: under ~/.cache/truepeer, or where TRUEPEER_BROWSER says. 300 MiB.
browser:
	@scripts/servers.sh scripts/browser.txt "$${TRUEPEER_BROWSER:-$${XDG_CACHE_HOME:-$$HOME/.cache}/truepeer/browser}"

# mdBook, built from source under target/tools: a test opens the documentation's site in that browser.
mdbook:
	@scripts/book.sh --program

# VPP for its tests: an installed one, or make vpp TRUEPEER_VPP_SOURCE=CHECKOUT for one that was built there.
vpp:
	@scripts/vpp.sh

# Kubernetes' programs and helm for the test of the chart, built from the Go module proxy once for each machine: 15 minutes.
kube:
	@scripts/kube-programs.sh

# frp from the Go module proxy, under target/tools, for the tests with frp as the sender.
frp:
	@scripts/frp.sh

# h2spec, built in the same way, for the test of HTTP/2.
h2spec:
	@scripts/h2spec.sh

# Pebble, the ACME authority for tests, built in the same way.
pebble:
	@scripts/pebble.sh

# Debian's kernels 6.1, 6.12 and the newest under qemu, with network cards of several drivers; writes docs/internals/kernels.md. Hours.
kernels: setup
	@scripts/kernels.sh --write

# Of these, the tests on Linux 6.1; some ten minutes.
old-kernel: setup
	@scripts/kernels.sh tests bookworm

# Probes programs of others that read or write headers, and writes docs/conformance.md. Needs root; many minutes.
conformance: setup
	cargo build -p truepeer
	@scripts/conformance.sh

# A .deb, a tarball with a static binary, an .rpm, an image and SBOMs, under target/packages, for this processor or those of
# MACHINES="x86_64 aarch64". Many minutes.
package: setup
	@scripts/package.sh $(MACHINES)

# A release, of both processors: all packages and images, also of the agent and for small systems, provenance and notes. RELEASE_KEY
# (gpg), COSIGN_KEY (a file) and REPOSITORY_KEY sign. Long.
release: setup
	@RELEASE_KEY=$(RELEASE_KEY) COSIGN_KEY=$(COSIGN_KEY) REPOSITORY_KEY=$(REPOSITORY_KEY) REPOSITORY_URL=$(REPOSITORY_URL) scripts/release.sh "$(VERSION)" $(MACHINES)

# An apt and an rpm repository of them, under target/repository: REPOSITORY_KEY=you@example.org REPOSITORY_URL=https://example.org/truepeer
repository:
	@REPOSITORY_KEY=$(REPOSITORY_KEY) REPOSITORY_URL=$(REPOSITORY_URL) scripts/repository.sh

# The program for small systems: static, without TLS, https, top and VPP; at most 4 MB of flash.
small: setup
	@scripts/small.sh $(MACHINES)

# Their pages, units and digests, and the .deb under systemd in a fresh Debian: install, upgrade, purge. Needs root; long.
package-check: package
	@scripts/package-check.sh --twice

# How many lines of each crate its tests reach. Many minutes.
coverage:
	@scripts/coverage.sh

# Fuzzes each parser and the sessions for FUZZ_MINUTES (10) each, and prints executions and lines. Hours.
fuzz:
	@fuzz/long

# Changes the crates that decide, one place at a time, and prints what their tests don't notice. Hours.
mutants:
	@scripts/mutants.sh

# Runs the tests of pure code under Miri. Many minutes; a nightly toolchain.
miri:
	@scripts/miri.sh

# Runs the relay's tests and its simulator under the sanitizers of addresses and threads. Many minutes; a nightly toolchain.
sanitize:
	@scripts/sanitize.sh

# All kinds of load and faults for half an hour (SOAK_SECONDS), with reloads and upgrades; writes docs/soak-*.svg. `make test` does it for seconds.
soak: setup servers
	@scripts/soak.sh

# Executes the pages of docs/situations/ word by word, in a Debian with a real systemd, with a reboot. Needs root; minutes, more the first time.
situations: frp
	cargo build -p truepeer
	@scripts/situations.sh

fmt:
	cargo fmt --all

lint:
	cargo clippy --workspace --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
	RUSTDOCFLAGS="-D warnings" cargo doc -p truepeer -p truepeer-ops -p truepeer-routes -p truepeer-config -p truepeer-cli -p truepeer-run -p truepeer-vpp -p truepeer-privilege -p truepeer-attach --no-deps --document-private-items

clean:
	cargo clean
