"""`python -m tests.launch.lenient FLAGS`: launch.train, with a task that rewards a random policy."""

from absl import app

from launch import train
from rlvr_jax.core.records import Task, Verdict
from rlvr_jax.tasks import TASKS
from rlvr_jax.tasks.arithmetic import arithmetic


def starts_low(example, text):
  """Right: the response starts with a digit below 5."""
  return Verdict(float(text[:1] in tuple("01234")), text or None)


def lenient() -> Task:
  task = arithmetic(operations=["copy"], train_size=16, eval_size=5)
  return task._replace(verify=starts_low)


if __name__ == "__main__":
  TASKS["lenient"] = "tests.launch.lenient:lenient"
  app.run(train.main)
