# proxyd for a DaemonSet, and in the place of kube-proxy's image (docs/install.md). tools/image.sh builds it.
# BASE has to be Debian with a nftables of at least 1.0.6.
ARG BASE=docker.io/library/debian:trixie-slim

# What is needed to build stays in this stage.
FROM ${BASE} AS build
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3-venv \
 && python3 -m venv /opt/build \
 && python3 -m venv --system-site-packages --without-pip /opt/proxyd
COPY requirements /src/requirements
# Bytecode is compiled below, so that it does not name the time of its source: the same input, the same files. Of the
# kubernetes package, a second client for asyncio (half of it) goes, and models are not compiled: nothing imports either.
RUN /opt/build/bin/pip install --no-cache-dir --no-compile --require-hashes -r /src/requirements/build.txt \
 && /opt/build/bin/pip --python /opt/proxyd/bin/python3 install --no-cache-dir --no-compile --only-binary :all: \
      --require-hashes -r /src/requirements/run.txt
COPY pyproject.toml README.md LICENSE /src/
COPY proxyd /src/proxyd
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /tmp /src \
 && /opt/build/bin/pip --python /opt/proxyd/bin/python3 install --no-cache-dir --no-compile --no-deps --no-index \
      /tmp/proxyd-*.whl \
 && cd /opt/proxyd/lib/python3*/site-packages \
 && rm -r kubernetes/aio \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -x '/kubernetes/client/(api|models)/' .

FROM ${BASE}
# iptables has the tools of both backends. conntrack is for people: proxyd asks the kernel itself. Modules are loaded by the
# kernel (on the host), so kmod is not needed.
RUN export DEBIAN_FRONTEND=noninteractive \
 && apt-get update \
 && apt-get install --yes --no-install-recommends conntrack iptables nftables python3 python3-nftables \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/* /var/log/*.log /var/log/apt \
      /var/lib/dpkg/*-old \
 && ln -s /opt/proxyd/bin/proxyd /usr/local/bin/proxyd \
 && ln -s /opt/proxyd/bin/proxyd /usr/local/bin/kube-proxy
COPY --from=build /opt/proxyd /opt/proxyd
# The root file system is read-only where deploy/daemonset.yaml runs it.
ENV PYTHONDONTWRITEBYTECODE=1
# Health is asked over HTTP by the kubelet; there is no HEALTHCHECK, which would start a Python every time.
ENTRYPOINT ["/usr/local/bin/proxyd"]

ARG BASE
ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="proxyd" \
      org.opencontainers.image.description="A node proxy for Kubernetes, in the place of kube-proxy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
