#!/usr/bin/env bash
# Generates Python code and stubs from the protos: generate.sh [--check]
# --check generates elsewhere and fails if the checked-in code differs.
set -euo pipefail
cd "$(dirname "$0")/.."

generate() { # OUT
  local protos services
  mapfile -t protos < <(cd proto && find . -name '*.proto' -printf '%P\n' | sort)
  mapfile -t services < <(cd proto && grep -lE '^service ' "${protos[@]}" || true)
  ((${#protos[@]})) || { echo "no protos" >&2; exit 1; }
  local protoc=(.venv-proto/bin/python -m grpc_tools.protoc -Iproto)
  PATH="$PWD/.venv-proto/bin:$PATH"
  "${protoc[@]}" --python_out="$1" --pyi_out="$1" "${protos[@]}"
  if ((${#services[@]})); then
    "${protoc[@]}" --grpc_python_out="$1" --mypy_grpc_out=quiet:"$1" "${services[@]}"
  fi
}

list() { (cd "$1" && find . -name '*_pb2*.py*' -not -path '*/__pycache__/*' | sort); }

if [ "${1:-}" != --check ]; then
  find services -name '*_pb2*.py*' -delete
  generate services
  exit
fi

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
generate "$fresh"
stale=0
diff <(list "$fresh") <(list services) || stale=1
while read -r file; do
  cmp -s "$fresh/$file" "services/$file" || { echo "differs: services/$file" >&2; stale=1; }
done < <(list "$fresh")
((stale == 0)) || { echo "generated code is not what the protos say: run 'make proto'" >&2; exit 1; }
