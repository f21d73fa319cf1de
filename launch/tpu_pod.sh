#!/usr/bin/env bash
# Trains on a TPU pod slice from this machine: makes the slice, copies this tree, installs, runs on all
# workers, starts again after a pre-emption, and deletes the slice when the run is done. Needs gcloud.
#
#   launch/tpu_pod.sh --name=grpo --zone=us-west4-a --type=v5litepod-16 --version=v2-alpha-tpuv5-lite \
#     --bucket=my-bucket --spot -- --config=experiments/quickstart/config.py --mesh=v5e16
#
#   --name=NAME      of the slice, and of the run's folder
#   --zone=ZONE
#   --type=TYPE      accelerator type; its number of chips is the mesh's
#   --version=NAME   runtime version, tpu-ubuntu2204-base if not given
#   --project=NAME   gcloud's own if not given
#   --spot           cheaper; may be pre-empted at any time
#   --bucket=BUCKET  mounted on every worker with gcsfuse; checkpoints are in BUCKET/NAME
#   --workdir=PATH   instead of a bucket: a folder that every worker sees and that outlives them
#   --setup=COMMAND  runs on every worker before the run: mount a disk, install gcsfuse
#   --tries=N        slices made before giving up, 20 if not given
#   --wait=SECONDS   before another try, 60 if not given
#   --keep           leaves the slice when the run is done
#   --delete         only deletes the slice
#   --dry_run        prints the commands and runs none
#   -- FLAGS         of launch.train
#
# A run that fails by itself ends this script, and leaves the slice to be looked at.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  echo "error: $*" >&2
  exit 1
}

name='' zone='' type='' version=tpu-ubuntu2204-base project='' spot='' bucket='' workdir='' setup=''
tries=20 wait=60 keep='' delete='' dry_run=''
while [ $# -gt 0 ]; do
  case $1 in
    --name=* | --zone=* | --type=* | --version=* | --project=* | --bucket=* | --workdir=* | \
      --setup=* | --tries=* | --wait=*)
      option=${1%%=*}
      printf -v "${option#--}" %s "${1#*=}"
      ;;
    --spot | --keep | --delete | --dry_run) printf -v "${1#--}" yes ;;
    --)
      shift
      break
      ;;
    *) die "unknown option $1; options are --name=value, and flags of launch.train come after --" ;;
  esac
  shift
done
[ -n "$name" ] && [ -n "$zone" ] || die "--name and --zone are needed"

# Prints a command as one that can be pasted; runs it, unless this is a dry run.
run() {
  local word line=+
  for word in "$@"; do
    case $word in
      *[!A-Za-z0-9_.:=,/@%-]*) line+=" ${word@Q}" ;;
      *) line+=" $word" ;;
    esac
  done
  echo "$line" >&2
  [ -n "$dry_run" ] || "$@"
}
where=("--zone=$zone" ${project:+"--project=$project"})
tpu() { run gcloud compute tpus tpu-vm "$@" "${where[@]}"; }
on_all() { tpu ssh "$name" --worker=all --command="$1"; }
state() {
  gcloud compute tpus tpu-vm describe "$name" "${where[@]}" --format='value(state)' 2>/dev/null ||
    echo ABSENT
}

if [ -n "$delete" ]; then
  tpu delete "$name" --quiet
  exit
fi
[ -n "$type" ] || die "--type is needed, such as v5litepod-16"
[ -n "$bucket$workdir" ] || die "--bucket or --workdir is needed: a restart goes on from what lies there"
[ -z "$bucket" ] || [ -z "$workdir" ] || die "--bucket and --workdir: give one of them"

archive=$(mktemp)
trap 'rm -f "$archive"' EXIT
# With gcsfuse's caches a worker would not see the checkpoints that another one wrote.
mount="mkdir -p runs && (mountpoint -q runs || gcsfuse --implicit-dirs --rename-dir-limit=100000 \
--metadata-cache-ttl-secs=0 $bucket runs)"
# The images come with an older Python.
python="command -v python3.11 || (sudo apt-get update -q && sudo apt-get install -qy python3.11 python3.11-venv)"
prepare() {
  run tar --exclude=./.venv --exclude=./.git --exclude=./runs -czf "$archive" . &&
    tpu scp "$archive" "$name:rlvr_jax.tgz" --worker=all &&
    on_all "mkdir -p rlvr_jax && tar -xzf rlvr_jax.tgz -C rlvr_jax" &&
    on_all "$python" &&
    on_all "cd rlvr_jax && . launch/env.sh && prepare_env tpu" &&
    { [ -z "$setup" ] || on_all "$setup"; } &&
    { [ -z "$bucket" ] || on_all "$mount"; }
}

flags=$(printf ' %q' "$@")
command="cd rlvr_jax && . .venv/bin/activate && python -u -m launch.train --distributed"
command+=" --workdir=${workdir:-\$HOME/runs/$name}${flags% \'\'}"
for ((try = 1; try <= tries; try++)); do
  now=$([ -n "$dry_run" ] && echo ABSENT || state)
  case $now in
    READY) ;;
    ABSENT | PREEMPTED | TERMINATED | STOPPED | REPAIRING)
      [ "$now" = ABSENT ] || tpu delete "$name" --quiet
      # No capacity, perhaps: that is for the next try.
      tpu create "$name" "--accelerator-type=$type" "--version=$version" ${spot:+--spot} || true
      ;;
    *) echo "$name is $now" >&2 ;;
  esac
  if [ -n "$dry_run" ] || [ "$(state)" = READY ]; then
    if prepare && on_all "$command"; then
      [ -n "$keep" ] || tpu delete "$name" --quiet
      exit
    fi
    sleep "$wait"
    [ "$(state)" != READY ] ||
      die "the run failed on a slice that is ready; see above. Delete it with $0 --name=$name --zone=$zone --delete"
    echo "$name was pre-empted; again" >&2
  else
    sleep "$wait"
  fi
done
die "no slice after $tries tries"
