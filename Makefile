# make setup | demo | test | lint | bench : each installs what it needs first (Debian, root).
# make prometheus : fetches the Prometheus of the tests (Debian's package, unpacked, not installed); part of make test.
# make image image-test : with docker, podman or buildah; see tools/image.sh.
# make chromium : fetches the browser of the tests (Debian's package, unpacked, not installed); part of make test.
# make controlplane : builds etcd and the API server of the tests (with Go, once, some minutes); part of make test.
SHELL := /bin/bash
PY := .venv/bin/python
PURE := proxyd/model.py,proxyd/addresses.py,proxyd/desired/*,proxyd/nft/*,proxyd/ipt/*,proxyd/explain/*,proxyd/plan/*,proxyd/kube/decode.py

.PHONY: setup demo chromium controlplane prometheus test coverage lint bench image image-test clean
setup: .venv/.ready

.venv/.ready: pyproject.toml tools/setup.sh
	tools/setup.sh
	@touch $@

demo: setup
	@$(PY) -m tests.demo

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

controlplane:
	@tools/controlplane.sh

prometheus:
	@tools/prometheus.sh

chromium:
	@tools/chromium.sh

# Everything, on the in-memory kernel and on the real one (namespaces of its own); ends with pytest's summary. Tests wait more
# than they work, so the control plane is built beside the first of them; those that need it wait for it.
test: setup chromium prometheus
	.venv/bin/coverage erase
	tools/controlplane.sh 2>.venv/controlplane.log & .venv/bin/coverage run -m pytest $(PYTEST_ARGS)

# Branch coverage of the pure core, from the last `make test`.
coverage:
	.venv/bin/coverage report --include="$(PURE)" --fail-under=95

bench: setup
	$(PY) -m tests.bench $(BENCH_ARGS)

image:
	tools/image.sh build $(IMAGE_ARGS)

# As root: proxyd in the image that is there.
image-test: setup
	tools/image-test.sh

clean:
	rm -rf .venv .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
