#!/usr/bin/env bash
# Pins what the image installs from PyPI, by version and hash: requirements/run.txt (with proxyd), build.txt (to build it).
# Takes the newest that pyproject.toml allows; needs uv.
set -euo pipefail
cd "$(dirname "$0")/.."
pin=(uv pip compile --quiet --upgrade --generate-hashes --no-header --no-annotate --python-version 3.13 --python-platform linux)
"${pin[@]}" pyproject.toml --output-file requirements/run.txt
sed -n 's/^requires = \["\(.*\)"\]$/\1/p' pyproject.toml | "${pin[@]}" - --output-file requirements/build.txt
