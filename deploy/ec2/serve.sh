#!/usr/bin/env bash
# Sets up one of the two nodes and starts all that it runs, on this node:
#   sudo deploy/ec2/serve.sh prefill|decode MODEL PREFILL_IP DECODE_IP
# The units and files are those of deploy/systemd and deploy/config. Refuses, and starts no engine,
# where KV would not go over EFA. With STOCK=1 the engine alone, with vLLM's own connector.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf '[serve] %s\n' "$*"; }
die() { printf '[serve] %s\n' "$*" >&2; exit 1; }
recipe() { /opt/contraflow/bin/python -m deploy.ec2 "$@"; }

[ "$#" = 4 ] || die "usage: sudo $0 prefill|decode qwen3-32b|glm-5-fp8 PREFILL_IP DECODE_IP"
role=$1 model=$2 prefill=$3 decode=$4
case "$role" in
prefill) engine=vllm-prefill@8100 ;;
decode) engine=vllm-decode@8200 ;;
*) die "the role is '$role': it must be prefill or decode" ;;
esac
[ "$(id -u)" = 0 ] || die "run it as root: sudo $0 $*"
for program in /opt/contraflow/bin/contraflow /opt/vllm/bin/vllm; do
  [ -x "$program" ] || die "there is no $program: install it (deploy/ec2/README.md, step 3)"
done
[ "$role" = decode ] || [ -x /usr/bin/etcd ] || die "there is no /usr/bin/etcd: install etcd 3.5.6 or newer"

install -m 644 deploy/systemd/sysusers.d/contraflow.conf /etc/sysusers.d/
systemd-sysusers
install -m 644 deploy/systemd/*.service /etc/systemd/system/
install -d -m 755 /etc/contraflow
recipe configure "$role" --model "$model" --prefill "$prefill" --decode "$decode"
chmod 600 /etc/contraflow/*.env
chown root:contraflow-node /etc/contraflow/agent.toml && chmod 640 /etc/contraflow/agent.toml

services=(contraflow-agent)
drop_in=/etc/systemd/system/$engine.service.d/stock.conf
if [ "${STOCK:-}" = 1 ]; then
  services=()
  install -d "${drop_in%/*}"
  recipe stock "$role" >"$drop_in"
else
  rm -f "$drop_in"
fi
if [ "$role" = prefill ]; then
  # A second router beside the first, which never pulls: the leg to compare with.
  sed 's/router\.toml/router-one-way.toml/' deploy/systemd/contraflow-router.service \
    >/etc/systemd/system/contraflow-router-one-way.service
  [ -s /etc/contraflow/cluster-secret ] || (umask 077; openssl rand -hex 32 >/etc/contraflow/cluster-secret)
  for file in cluster-secret directory.toml router.toml router-one-way.toml; do
    chown root:contraflow "/etc/contraflow/$file"
    chmod 640 "/etc/contraflow/$file"
  done
  [ "${STOCK:-}" = 1 ] ||
    services=(contraflow-etcd contraflow-directory contraflow-agent contraflow-router contraflow-router-one-way)
fi
systemctl daemon-reload

weights=$(sed -n 's/^MODEL=//p' "/etc/contraflow/$role.env")
runuser -u contraflow-node -- test -r "$weights/config.json" ||
  die "contraflow-node can not read $weights/config.json: download the model there (README, step 4), or make the folders readable"

recipe check || die "no engine was started: do what the lines above say, and run this again"

if ((${#services[@]})); then
  say "services: ${services[*]}"
  systemctl restart "${services[@]}"
fi
say "$engine: loading and compiling takes minutes (journalctl -fu $engine)"
systemctl restart "$engine" || die "$engine does not start: journalctl -u $engine -n 100 says why"

this_start=$(systemctl show --value -p InvocationID "$engine")
if ! journalctl -o cat "_SYSTEMD_INVOCATION_ID=$this_start" | recipe log; then
  systemctl stop "$engine"
  die "$engine was stopped again: what it moves would not go over EFA"
fi
say "$role serves $model"
