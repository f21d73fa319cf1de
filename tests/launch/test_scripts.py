"""launch/tpu_pod.sh and launch/slurm.sh, with stand-ins for gcloud, sbatch, srun and scontrol."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POD = ("--name=grpo", "--zone=z", "--type=v5litepod-16", "--bucket=b", "--wait=0")


def _run(script, *args, tools=None, code=0):
  environment = dict(os.environ)
  if tools is not None:
    environment["PATH"] = f"{tools}:{environment['PATH']}"
  done = subprocess.run(
    [ROOT / "launch" / script, *args], env=environment, text=True, capture_output=True, timeout=60
  )
  assert done.returncode == code, done.stdout + done.stderr
  return done.stdout + done.stderr


def _tool(folder, name, body):
  """A program that notes how it was called, in calls.txt."""
  folder.mkdir(exist_ok=True)
  head = f'#!/usr/bin/env bash\ncd {folder}\nset -u\necho "{name} $*" >>calls.txt\n'
  (folder / name).write_text(head + body)
  (folder / name).chmod(0o755)


def _calls(folder):
  return (folder / "calls.txt").read_text().splitlines()


# A cloud in two files: the slice's state, and how many runs there were.
GCLOUD = """
case $4 in
  describe) cat state 2>/dev/null || exit 1 ;;
  create) echo READY >state ;;
  delete) rm state ;;
  ssh)
    case "$*" in *launch.train*) ;; *) exit 0 ;; esac
    echo run >>runs
    case $(wc -l <runs) in
      1) echo PREEMPTED >state; exit 255 ;;
      *) exit "$(cat status 2>/dev/null || echo 0)" ;;
    esac ;;
esac
"""


def test_a_pod_run_goes_on_after_a_preemption_and_cleans_up(tmp_path):
  _tool(tmp_path / "bin", "gcloud", GCLOUD)
  _run("tpu_pod.sh", *POD, "--", "--mesh=v5e16", "--set=a={'b c':1}", tools=tmp_path / "bin")
  calls = [call.split()[4:] for call in _calls(tmp_path / "bin")]
  did = [call[0] for call in calls if call[0] != "describe"]
  made = ["create", "scp", *["ssh"] * 5]  # unpack, Python, install, mount, run
  assert did == [*made, "delete", *made, "delete"]
  trained = [call for call in _calls(tmp_path / "bin") if "launch.train" in call]
  command = shlex.split(trained[0].split("--command=")[1].rsplit(" --zone", 1)[0])
  assert command[-2:] == ["--mesh=v5e16", "--set=a={'b c':1}"]  # as the shell over there reads it
  assert {"--distributed", "--workdir=$HOME/runs/grpo"} <= set(command)
  assert all("--worker=all" in call for call in calls if call[0] in ("scp", "ssh"))
  assert trained == [trained[0]] * 2


def test_a_pod_run_that_fails_by_itself_is_not_started_again(tmp_path):
  _tool(tmp_path / "bin", "gcloud", GCLOUD)
  (tmp_path / "bin" / "runs").write_text("run\n")
  (tmp_path / "bin" / "status").write_text("1")
  text = _run("tpu_pod.sh", *POD, tools=tmp_path / "bin", code=1)
  assert "the run failed on a slice that is ready" in text and "--delete" in text
  assert not any(" delete " in call for call in _calls(tmp_path / "bin"))


def test_a_pod_that_never_comes(tmp_path):
  _tool(tmp_path / "bin", "gcloud", "exit 1")
  text = _run("tpu_pod.sh", *POD, "--tries=3", tools=tmp_path / "bin", code=1)
  assert "no slice after 3 tries" in text
  assert sum(" create " in call for call in _calls(tmp_path / "bin")) == 3


def test_dry_runs_print_commands_and_run_none(tmp_path):
  for name in ("gcloud", "sbatch"):
    _tool(tmp_path / "bin", name, "")
  text = _run(
    "tpu_pod.sh", *POD, "--spot", "--dry_run", "--", "--mesh=v5e16", tools=tmp_path / "bin"
  )
  lines = text.splitlines()
  assert all(line.startswith("+ ") for line in lines)
  words = [shlex.split(line)[1:] for line in lines]  # they can be pasted
  create = "gcloud compute tpus tpu-vm create grpo --accelerator-type=v5litepod-16"
  assert words[0] == [*create.split(), "--version=tpu-ubuntu2204-base", "--spot", "--zone=z"]
  assert words[-1][4:6] == ["delete", "grpo"]
  text = _run("slurm.sh", "--dry_run", "--", "--workdir=/w", tools=tmp_path / "bin")
  assert text.startswith("sbatch --job-name=rlvr_jax --nodes=1 --ntasks-per-node=1")
  assert not (tmp_path / "bin" / "calls.txt").exists()


@pytest.mark.parametrize(
  ("processes", "tasks", "devices"), [("gpu", 4, "none"), ("node", 1, "0,1,2,3")]
)
@pytest.mark.parametrize(("status", "again"), [(0, False), (1, False), (130, True)])
def test_a_slurm_job(tmp_path, processes, tasks, devices, status, again):
  """Status 130 is that of a run that saved its state and stopped: it queues itself again."""
  tools = tmp_path / "bin"
  _tool(
    tools,
    "sbatch",
    f'export SLURM_JOB_ID=7; cd "{ROOT}"; bash -s; echo "ended $?" >>{tools}/calls.txt',
  )
  _tool(tools, "srun", f'echo "devices ${{JAX_LOCAL_DEVICE_IDS:-none}}" >>calls.txt; exit {status}')
  _tool(tools, "scontrol", "")
  flags = "--workdir=/w", "--set=a={'b c':1}"
  _run(
    "slurm.sh", "--nodes=2", "--gpus=4", f"--processes={processes}", "--sbatch=--partition=p --mem=0",
    "--", *flags, tools=tools,
  )  # fmt: skip
  submitted, ran, saw, *rest = _calls(tools)
  assert f"--nodes=2 --ntasks-per-node={tasks} --gpus-per-node=4" in submitted
  assert submitted.endswith("--partition=p --mem=0")
  assert ran == f"srun python -u -m launch.train --distributed {' '.join(flags)}"
  assert saw == f"devices {devices}"
  assert rest == ["scontrol requeue 7"] * again + [f"ended {status}"]


@pytest.mark.parametrize(
  ("script", "args", "match"),
  [
    ("tpu_pod.sh", ["--zone=z"], "--name and --zone are needed"),
    ("tpu_pod.sh", ["--name=a", "--zone=z", "--bucket=b"], "--type is needed"),
    ("tpu_pod.sh", ["--name=a", "--zone=z", "--type=t"], "--bucket or --workdir is needed"),
    ("tpu_pod.sh", ["--nam=a"], "unknown option --nam=a"),
    ("slurm.sh", ["--", "--steps=3"], "--workdir=FOLDER is needed"),
    ("slurm.sh", ["--processes=core", "--", "--workdir=w"], "want gpu or node"),
    ("slurm.sh", ["--workdir=w"], "unknown option --workdir=w"),
  ],
)
def test_what_is_missing_is_said(script, args, match):
  assert match in _run(script, *args, code=1)
