#!/usr/bin/env bash
# Trains a small real language model with GRPO on a CPU: the first thing to run after a clone.
#
#   launch/quickstart.sh [workdir] [arguments of launch.train ...]
#
# Makes .venv at the repository root when there is none. A workdir that does not begin with / is
# taken from where you are, the default is runs/quickstart in the repository.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
workdir=$root/runs/quickstart
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  workdir=$1
  shift
  case $workdir in /*) ;; *) workdir=$PWD/$workdir ;; esac
fi
cd "$root"
. launch/env.sh
prepare_env
exec python -m launch.train --config=experiments/quickstart/config.py --workdir="$workdir" "$@"
