#!/usr/bin/env bash
# Trains on GPUs under SLURM: submits a job that runs one process a GPU, or one a node, and that queues
# itself again when its time is up or it is pre-empted, until the run is done.
#
#   launch/slurm.sh --nodes=2 --gpus=8 --time=04:00:00 -- \
#     --config=experiments/quickstart/config.py --mesh=1x16x1 --workdir=/shared/runs/grpo
#
#   --nodes=N            1 if not given
#   --gpus=N             of a node, 1 if not given
#   --processes=gpu      one process for each gpu (the default), or for each node
#   --name=NAME          of the job
#   --time=HH:MM:SS      of one job; 04:00:00 if not given
#   --sbatch="OPTIONS"   more options of sbatch: partition, account, memory
#   --dry_run            prints the command and the job, and submits nothing
#   -- FLAGS             of launch.train; the workdir is a folder that all nodes see
#
# Needs .venv with the extra cuda, see launch/env.sh, in this folder, which all nodes see too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  echo "error: $*" >&2
  exit 1
}

nodes=1 gpus=1 processes=gpu name=rlvr_jax time=04:00:00 sbatch='' dry_run=''
while [ $# -gt 0 ]; do
  case $1 in
    --nodes=* | --gpus=* | --processes=* | --name=* | --time=* | --sbatch=*)
      option=${1%%=*}
      printf -v "${option#--}" %s "${1#*=}"
      ;;
    --dry_run) dry_run=yes ;;
    --)
      shift
      break
      ;;
    *) die "unknown option $1; options are --name=value, and flags of launch.train come after --" ;;
  esac
  shift
done
case " $*" in *" --workdir="*) ;; *) die "--workdir=FOLDER is needed after --: a restart goes on from there" ;; esac
case $processes in
  gpu) tasks=$gpus devices='' ;;
  # JAX gives a process of a SLURM job one device, unless told which.
  node) tasks=1 devices="export JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((gpus - 1)))" ;;
  *) die "--processes=$processes: want gpu or node" ;;
esac

# TERM two minutes before the end, as at a pre-emption: the run then saves, and ends with status 130.
submit=(sbatch "--job-name=$name" "--nodes=$nodes" "--ntasks-per-node=$tasks" "--gpus-per-node=$gpus"
  "--time=$time" --signal=TERM@120 --requeue --open-mode=append "--output=$name.%j.txt")
# shellcheck disable=SC2206
submit+=($sbatch)
job=$(
  cat <<JOB
#!/usr/bin/env bash
cd $(printf %q "$PWD")
. .venv/bin/activate
$devices
srun python -u -m launch.train --distributed$(printf ' %q' "$@")
status=\$?
[ \$status != 130 ] || scontrol requeue "\$SLURM_JOB_ID"
exit \$status
JOB
)
if [ -n "$dry_run" ]; then
  printf '%s ' "${submit[@]}"
  printf '<<JOB\n%s\nJOB\n' "$job"
else
  "${submit[@]}" <<<"$job"
fi
