#!/usr/bin/env bash
# The reference's benchmark, both legs in alternation, and the proof that KV went over EFA:
#   deploy/ec2/bench.sh MODEL DECODE_SSH PREFILL_IP DECODE_IP FOLDER
# On prefill's node. DECODE_SSH is how ssh reaches decode's node, where the checkout has the same
# path. FOLDER gets everything, and FOLDER.tar.gz. LENGTHS="2k 24k" measures these alone.
set -euo pipefail

say() { printf '[bench] %s\n' "$*"; }
die() { printf '[bench] %s\n' "$*" >&2; exit 1; }

[ "$#" = 5 ] || die "usage: $0 qwen3-32b|glm-5-fp8 DECODE_SSH PREFILL_IP DECODE_IP FOLDER"
model=$1 peer=$2 prefill=http://$3:8100 decode=http://$4:8200
folder=$(realpath -m -- "$5") # before the change of folder
cd "$(dirname "$0")/../.."
case "$model" in
qwen3-32b) lengths=${LENGTHS:-2k 4k 8k 12k 16k 20k 24k} ;;
glm-5-fp8) lengths=${LENGTHS:-2k 4k 8k 12k 16k 20k} ;;
*) die "the model is '$model': it must be qwen3-32b or glm-5-fp8" ;;
esac
[ ! -e "$folder" ] || die "there is a $folder already: name another, so that no results are mixed"
mkdir -p "$folder"

python=${PYTHON:-/opt/contraflow/bin/python}
here() { "$python" -m deploy.ec2 "$@"; }
there() {
  # shellcheck disable=SC2029 # our own folder and arguments are meant
  ssh "$peer" "cd $(printf %q "$PWD") && $python -m deploy.ec2 $*"
}
snapshots() { # WHEN
  here snapshot --engine "$prefill" >"$1-prefill.json"
  there snapshot --engine "$decode" >"$1-decode.json" || die "no snapshot of decode's node: see that 'ssh $peer' works without a question, and that the checkout is at $PWD there"
}
collect() { # what the figures depend on; no secrets
  journalctl -o short-iso -b -u 'contraflow-*' -u 'vllm-*' >"$folder/journal-prefill.txt" 2>&1 || true
  ssh "$peer" "journalctl -o short-iso -b -u 'contraflow-*' -u 'vllm-*'" >"$folder/journal-decode.txt" 2>&1 || true
  {
    date -u
    uname -r
    cat /opt/amazon/efa_installed_packages
    /opt/amazon/efa/bin/fi_info --version
    nvidia-smi
    /opt/vllm/bin/python -m pip list
    git rev-parse HEAD
  } >"$folder/versions.txt" 2>&1 || true
  tar -czf "$folder.tar.gz" -C "$(dirname "$folder")" "$(basename "$folder")"
  say "all of it: $folder.tar.gz; fetch it before clean.sh"
}
trap collect EXIT

for length in $lengths; do
  one="$folder/$length"
  snapshots "$one-before"
  say "prefix $length: 10 conversations of 5 turns on each leg"
  # The reference's ten turns are messages: five questions, five answers.
  # Token ids: lengths are exact, and no template rewrites what was generated, for a history that
  # was rewritten is pulled only up to there.
  "$python" -m contraflow.cli.main bench --prefix "$length" --turns 5 --api tokens \
    --leg one-way=http://127.0.0.1:8001 --leg bidirectional=http://127.0.0.1:8000 \
    --metrics "prefill=$prefill" --metrics "decode=$decode" --json "$one.json" ||
    die "turns failed at $length: see the lines above and $folder/journal-*.txt"
  snapshots "$one-after"
  for side in prefill decode; do
    here moved "$one-before-$side.json" "$one-after-$side.json" || {
      mv "$one.json" "$one.refused.json"
      die "the figures of $length are not of EFA ($side): kept as $one.refused.json, to look at only"
    }
  done
done

results=()
for length in $lengths; do results+=("$folder/$length.json"); done
here compare --model "$model" "${results[@]}" | tee "$folder/compared.txt"
