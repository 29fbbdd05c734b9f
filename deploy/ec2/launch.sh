#!/usr/bin/env bash
# Launches the two p5en.48xlarge of the recipe: launch.sh --yes
# Again with the same NAME: what is there already is used, and no third instance is launched.
set -euo pipefail

say() { printf '[launch] %s\n' "$*" >&2; }
die() { printf '[launch] %s\n' "$*" >&2; exit 1; }

NAME=${NAME:-contraflow-reference}
HOURS=${HOURS:-8}
PLACEMENT=${PLACEMENT:-cluster}
CARDS=16 # of a p5en.48xlarge, each with an EFA device; index 0 has the node's address as well
AMI_PARAMETER=/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id

usage() {
  cat >&2 <<TEXT
usage: REGION=… SUBNET_ID=… KEY_NAME=… SSH_CIDR=… $0 --yes

  REGION, SUBNET_ID   where p5en are to be had; the subnet needs a way out, for packages and models
  KEY_NAME            of an EC2 key pair
  SSH_CIDR            who may log in: a VPN or bastion, 10.0.0.0/8 for instance. Instances with
                      several network cards get no public address by themselves
  CAPACITY_BLOCK      id of a reservation (cr-…), if you have one: on demand, two are seldom there
  NAME                of all that is made, and its tag Project; $NAME now
  PLACEMENT           cluster, or none, as the reference had it; $PLACEMENT now
  HOURS               after which the instances end themselves, whatever happens; $HOURS now
  AMI                 if not the newest Deep Learning Base AMI with Ubuntu 24.04

COSTS: two p5en.48xlarge are about 127 USD an HOUR on demand (63.30 each, us-east, August 2026).
They are paid from launch to end, also while idle. clean.sh ends them.
TEXT
  exit 2
}

if [ "${1:-}" != --yes ] || [ "$#" != 1 ]; then usage; fi
for needed in REGION SUBNET_ID KEY_NAME SSH_CIDR; do
  if [ -z "${!needed:-}" ]; then
    say "$needed is not set"
    usage
  fi
done
[[ $HOURS =~ ^[1-9][0-9]*$ ]] || die "HOURS is '$HOURS': give whole hours"
[[ $PLACEMENT =~ ^(cluster|none)$ ]] || die "PLACEMENT is '$PLACEMENT': it must be cluster or none"
case "$SSH_CIDR" in
0.0.0.0/0 | ::/0) die "SSH_CIDR is $SSH_CIDR: the engines ask nobody for a password; name your own network" ;;
esac
command -v aws >/dev/null || die "there is no aws: install the AWS CLI, version 2, and log in"

ec2() { aws ec2 "$@" --region "$REGION" --output text; }
tags() { printf 'ResourceType=%s,Tags=[{Key=Project,Value=%s},{Key=Name,Value=%s}]' "$1" "$NAME" "$NAME"; }

running() {
  ec2 describe-instances --filters "Name=tag:Project,Values=$NAME" \
    "Name=instance-state-name,Values=pending,running" "$@"
}

vpc=$(ec2 describe-subnets --subnet-ids "$SUBNET_ID" --query 'Subnets[0].VpcId')

group=$(ec2 describe-security-groups --filters "Name=group-name,Values=$NAME" "Name=vpc-id,Values=$vpc" \
  --query 'SecurityGroups[0].GroupId')
if [ "$group" = None ]; then
  say "security group $NAME"
  group=$(ec2 create-security-group --group-name "$NAME" --description "Contraflow reference benchmark" \
    --vpc-id "$vpc" --tag-specifications "$(tags security-group)" --query GroupId)
fi
# EFA is no IP: only rules that name a security group let it through, in both directions.
for direction in ingress egress; do
  said=$(ec2 "authorize-security-group-$direction" --group-id "$group" --protocol=-1 --source-group "$group" 2>&1) ||
    [[ $said == *InvalidPermission.Duplicate* ]] || die "the $direction rule of $group was refused: $said"
done
said=$(ec2 authorize-security-group-ingress --group-id "$group" --protocol tcp --port 22 --cidr "$SSH_CIDR" 2>&1) ||
  [[ $said == *InvalidPermission.Duplicate* ]] || die "the ssh rule of $group was refused: $said"

placement=()
if [ "$PLACEMENT" = cluster ]; then
  said=$(ec2 create-placement-group --group-name "$NAME" --strategy cluster \
    --tag-specifications "$(tags placement-group)" 2>&1) ||
    [[ $said == *InvalidPlacementGroup.Duplicate* ]] || die "no placement group: $said"
  placement=(--placement "GroupName=$NAME")
fi

there=$(running --query 'length(Reservations[].Instances[])')
missing=$((2 - there))
if ((missing > 0)); then
  ami=${AMI:-$(aws ssm get-parameter --region "$REGION" --output text --name "$AMI_PARAMETER" \
    --query Parameter.Value)}
  common="SubnetId=$SUBNET_ID,Groups=$group,DeleteOnTermination=true"
  interfaces=("NetworkCardIndex=0,DeviceIndex=0,InterfaceType=interface,$common"
    "NetworkCardIndex=0,DeviceIndex=1,InterfaceType=efa-only,$common")
  for ((card = 1; card < CARDS; card++)); do
    interfaces+=("NetworkCardIndex=$card,DeviceIndex=0,InterfaceType=efa-only,$common")
  done
  market=()
  if [ -n "${CAPACITY_BLOCK:-}" ]; then
    market=(--instance-market-options MarketType=capacity-block
      --capacity-reservation-specification
      "CapacityReservationTarget={CapacityReservationId=$CAPACITY_BLOCK}")
  fi
  say "$missing × p5en.48xlarge from $ami; they end themselves after $HOURS h"
  ec2 run-instances --instance-type p5en.48xlarge --count "$missing" --image-id "$ami" \
    --key-name "$KEY_NAME" --network-interfaces "${interfaces[@]}" \
    --block-device-mappings 'DeviceName=/dev/sda1,Ebs={VolumeSize=200,VolumeType=gp3,DeleteOnTermination=true}' \
    --metadata-options HttpTokens=required \
    --instance-initiated-shutdown-behavior terminate \
    --user-data "$(printf '#!/bin/sh\nshutdown -h +%s\n' $((HOURS * 60)))" \
    --tag-specifications "$(tags instance)" "$(tags volume)" "$(tags network-interface)" \
    ${placement[@]+"${placement[@]}"} ${market[@]+"${market[@]}"} --query 'Instances[].InstanceId' >&2 ||
    die "no instances: with InsufficientInstanceCapacity try another zone, or reserve a capacity block (CAPACITY_BLOCK); then run this again. clean.sh removes what was made so far"
fi

ids=$(running --query 'Reservations[].Instances[].InstanceId')
read -r -a instances <<<"$ids"
ec2 wait instance-running --instance-ids "${instances[@]}" ||
  die "they do not run after ten minutes: look at them in the console, and run clean.sh --yes"
say "id and private address; take the first for prefill, the second for decode:"
running --query 'Reservations[].Instances[].[InstanceId,PrivateIpAddress]'
