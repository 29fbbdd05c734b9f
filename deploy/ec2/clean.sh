#!/usr/bin/env bash
# Ends and removes all that launch.sh has made: clean.sh --yes
# What is on the instances is lost: fetch the results first. Says so and fails if anything is left.
set -euo pipefail

say() { printf '[clean] %s\n' "$*" >&2; }
die() { printf '[clean] %s\n' "$*" >&2; exit 1; }

NAME=${NAME:-contraflow-reference}
if [ "${1:-}" != --yes ] || [ "$#" != 1 ] || [ -z "${REGION:-}" ]; then
  say "usage: REGION=… [NAME=$NAME] $0 --yes    (ends the instances; their disks are lost)"
  exit 2
fi
command -v aws >/dev/null || die "there is no aws: install the AWS CLI, version 2, and log in"

ec2() { aws ec2 "$@" --region "$REGION" --output text; }
ours="Name=tag:Project,Values=$NAME"
alive="Name=instance-state-name,Values=pending,running,stopping,stopped,shutting-down"

ids=$(ec2 describe-instances --filters "$ours" "$alive" --query 'Reservations[].Instances[].InstanceId')
if [ -n "$ids" ]; then
  read -r -a instances <<<"${ids//$'\n'/ }"
  say "ending ${instances[*]}"
  ec2 terminate-instances --instance-ids "${instances[@]}" >/dev/null
  ec2 wait instance-terminated --instance-ids "${instances[@]}" ||
    die "they have not ended yet and COST MONEY until they have: run this again"
fi

left=()
groups=$(ec2 describe-security-groups --filters "$ours" --query 'SecurityGroups[].GroupId')
for group in $groups; do
  ec2 delete-security-group --group-id "$group" >/dev/null || left+=("security group $group")
done
if [ -n "$(ec2 describe-placement-groups --filters "$ours" --query 'PlacementGroups[].GroupName')" ]; then
  ec2 delete-placement-group --group-name "$NAME" >/dev/null || left+=("placement group $NAME")
fi
for id in $(ec2 describe-instances --filters "$ours" "$alive" --query 'Reservations[].Instances[].InstanceId'); do
  left+=("instance $id")
done
for id in $(ec2 describe-volumes --filters "$ours" --query 'Volumes[].VolumeId'); do
  left+=("volume $id")
done
for id in $(ec2 describe-network-interfaces --filters "$ours" --query 'NetworkInterfaces[].NetworkInterfaceId'); do
  left+=("network interface $id")
done

if ((${#left[@]})); then
  printf '[clean] still there: %s\n' "${left[@]}" >&2
  die "run this again in a minute; what stays, remove in the console: it may cost money"
fi
say "nothing with the tag Project=$NAME is left in $REGION. A capacity block, and an Elastic IP that you have added, are yours to give back"
