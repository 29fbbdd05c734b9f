#!/usr/bin/env bash
# Creates the project's environments: setup.sh services|engine|proto|vllm-next
# An environment is rebuilt from nothing when its lock, its Python or its place changes; the project
# itself is reinstalled when its metadata changes; otherwise nothing is done.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '[setup] %s\n' "$*"; }
die() { printf '[setup] %s\n' "$*" >&2; exit 1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
      >/dev/null 2>&1; then
      # Of an environment, perhaps ours, which may be active: the one that it was made with.
      "$candidate" -c 'import sys; print(sys._base_executable)'
      return
    fi
  done
  die "Python 3.11 to 3.13 is needed; found none as ${PYTHON:-python3.11, python3, python3.12 or python3.13} (3.11 is what the locks are tested with).
        Debian 12 or newer, Ubuntu 24.04 or newer: apt-get install python3 python3-venv
        elsewhere: install Python 3.11, or name one: make setup PYTHON=/path/to/python3.11"
}

# digest WORD... FILE...: one digest over the given words and the contents of the given files
digest() {
  local item
  for item in "$@"; do
    if [ -f "$item" ]; then cat "$item"; else printf '%s\n' "$item"; fi
  done | sha256sum | cut -d' ' -f1
}

new_venv() { # DIR
  rm -rf "$1"
  "$python" -m venv "$1" || die "$python cannot make virtual environments; Debian and Ubuntu: apt-get install python3-venv"
}

pip_install() { run_pip "$1" install "${@:2}"; } # DIR ARGS...

# Shows what pip fetches and installs, not what it ponders.
run_pip() { # DIR COMMAND ARGS...
  local dir=$1 command=$2 out
  shift 2
  out=$(mktemp)
  if "$dir/bin/python" -m pip "$command" --disable-pip-version-check --no-input --progress-bar off "$@" 2>&1 |
    tee "$out" | sed -n -u -E \
      -e 's/^ *(Downloading|Using cached) (.*\/)?([^ /]+\.(whl|tar\.gz)) (\([0-9.]+ [MG]B\)).*/[setup]   \3 \5/p' \
      -e 's/^Installing collected packages.*/[setup]   unpacking .../p'; then
    rm -f "$out"
  else
    grep -v -E '^ *(Downloading|Using cached|Collecting|Requirement already)' "$out" >&2 || true
    rm -f "$out"
    die "pip failed (see above); what was made so far is redone by the next run"
  fi
}

current() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

services() {
  local lock=requirements/services.lock env project
  env=$(digest "$PWD" "$python" "$lock")
  if ! current .venv/.env "$env"; then
    say "services environment .venv: about 155 MB to download, 560 MB on disk, a minute"
    new_venv .venv
    pip_install .venv --require-hashes --no-deps -r "$lock"
    printf '%s' "$env" >.venv/.env
  fi
  project=$(digest "$env" pyproject.toml)
  if ! current .venv/.project "$project"; then
    pip_install .venv --no-deps --no-build-isolation -e .
    .venv/bin/python -m pip check --disable-pip-version-check >/dev/null ||
      die "pyproject.toml asks for what $lock lacks: run 'make lock'"
    printf '%s' "$project" >.venv/.project
    say ".venv is ready"
  fi
}

engine() {
  local lock=deploy/demo/engine.lock plugin=deploy/demo/plugin torch=2.13.0 env project
  env=$(digest "$PWD" "$python" "torch==$torch" "$lock")
  if ! current .venv-engine/.env "$env"; then
    say "engine environment .venv-engine (vLLM for CPU, NIXL): about 0.9 GB to download, 2.7 GB on disk, 3 to 5 minutes"
    say "  torch comes as a CPU build where pip is offered one; else as the CUDA build, several GB more"
    new_venv .venv-engine
    pip_install .venv-engine -c <(sed -n -E 's/^([A-Za-z][^ ]*==[^ ]+).*/\1/p' "$lock") "torch==$torch"
    pip_install .venv-engine --require-hashes --no-deps -r "$lock"
    printf '%s' "$env" >.venv-engine/.env
  fi
  project=$(digest "$env" pyproject.toml "$plugin"/*.*)
  if ! current .venv-engine/.project "$project"; then
    pip_install .venv-engine --no-deps --no-build-isolation -e . -e "$plugin"
    printf '%s' "$project" >.venv-engine/.project
    say ".venv-engine is ready"
  fi
}

proto() {
  local lock=requirements/proto.lock env
  env=$(digest "$PWD" "$python" "$lock")
  if ! current .venv-proto/.env "$env"; then
    say "code generator .venv-proto: 12 MB to download"
    new_venv .venv-proto
    pip_install .venv-proto --require-hashes --no-deps -r "$lock"
    printf '%s' "$env" >.venv-proto/.env
  fi
}

# Python sources of the next vLLM release, which .venv-engine's Python runs in place of its own.
vllm-next() {
  local lock=tests/engines/vllm-next.lock dir=.venv-vllm-next env
  env=$(digest "$PWD" "$lock")
  if ! current "$dir/.env" "$env"; then
    say "sources of $(grep -o '^vllm[^ ]*' "$lock") for tests: 340 MB to download, 57 MB on disk, half a minute"
    rm -rf "$dir"
    run_pip .venv-engine download --require-hashes --no-deps --only-binary :all: -r "$lock" -d "$dir"
    "$python" - "$dir"/*.whl "$dir" <<'PY'
import sys, zipfile
wheel, folder = zipfile.ZipFile(sys.argv[1]), sys.argv[2]
wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(".py")])
PY
    rm "$dir"/*.whl
    printf '%s' "$env" >"$dir/.env"
  fi
}

case "${1:-}" in
services | engine | proto | vllm-next) ;;
*) die "usage: setup.sh services|engine|proto|vllm-next" ;;
esac
python=$(find_python)
if command -v flock >/dev/null; then # two makes at once must not build one environment
  exec 9>".venv.lock"
  flock 9
fi
"$1"
