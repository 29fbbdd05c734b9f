#!/usr/bin/env bash
# Resolves services.lock and proto.lock anew, for every platform, with hashes.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x .venv-lock/bin/uv ] || { .venv/bin/python -m venv .venv-lock && .venv-lock/bin/pip install -q uv; }
compile() {
  .venv-lock/bin/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --custom-compile-command "make lock" "$@"
}
compile pyproject.toml --extra services --extra dev -o requirements/services.lock
compile requirements/proto.in -o requirements/proto.lock
