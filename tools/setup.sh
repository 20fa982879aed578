#!/usr/bin/env bash
# Installs what proxyd needs on Debian (as root) and makes .venv from Debian's Python, so that python3-nftables is visible in it.
set -euo pipefail
cd "$(dirname "$0")/.."
need=(nftables python3-nftables iptables conntrack iproute2 openssl python3-venv)
missing=()
for package in "${need[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ]; then
  [ "$(id -u)" = 0 ] || { echo "setup: as root, install: ${missing[*]}" >&2; exit 1; }
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
[ -x .venv/bin/python ] || /usr/bin/python3 -m venv --system-site-packages .venv
.venv/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
echo "setup: ready: .venv/bin/proxyd"
