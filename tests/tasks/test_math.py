import json

import pytest
import tensorflow_datasets as tfds

from rlvr_jax.core.table import build
from rlvr_jax.tasks import TASKS
from rlvr_jax.tasks.verify import VerifierPool

pytest.importorskip("math_verify", reason="needs the math extra: pip install -e .[math]")

MATH = [
  {
    "problem": "What is half of $x^2$?",
    "level": "Level 3",
    "type": "Intermediate Algebra",
    "solution": r"First \boxed{x}? No: it is $\boxed{\frac{x^2}{2}}$.",
  },
  {"problem": "Solve $x=1$.", "level": "Level ?", "type": "Algebra", "solution": r"$\boxed 1$"},
]
MATH500 = [
  {
    "problem": "List them.",
    "solution": r"They are \boxed{\{1,2,2\}}.",  # the answer column goes first
    "answer": r"\{1,2\}",
    "subject": "Counting & Probability",
    "level": 5,
    "unique_id": "test/counting/1.json",
  }
]


def jsonl(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def check(task):
  first, second = sorted(task.train, key=lambda e: e.prompt[0]["content"], reverse=True)
  assert (first.answer, first.source, first.difficulty) == (
    r"\frac{x^2}{2}",
    "intermediate_algebra",
    3,
  )
  assert (second.answer, second.source, second.difficulty) == ("1", "algebra", 0)
  return first


def test_both_layouts(tmp_path):
  args = {"train": jsonl(tmp_path / "math.jsonl", MATH)}
  args |= {"evals": jsonl(tmp_path / "math500.jsonl", MATH500)}
  task = build("task", "math", TASKS, args)
  first = check(task)
  (held,) = task.evals["math500"]
  assert (held.answer, held.source, held.difficulty) == (r"\{1,2\}", "counting_probability", 5)
  assert task.sources == ("algebra", "counting_probability", "intermediate_algebra")
  with VerifierPool(task.verify, workers=1, time_limit_seconds=30.0) as pool:
    texts = [r"So \boxed{0.5x^2}.", r"So \boxed{\{2, 1\}}.", r"So \boxed{x^2}."]
    assert [v.correct for v in pool([first, held, first], texts)] == [1.0, 1.0, 0.0]


def test_an_answer_that_cannot_be_read_is_refused_with_its_row(tmp_path):
  for solution, match in [
    (r"\boxed{", "no answer"),
    (r"\boxed{\frac{1}{2}{}", "no answer"),
    (r"\boxed{\frac{1}}", "cannot be read"),
  ]:
    path = jsonl(tmp_path / "a.jsonl", [*MATH, MATH[0] | {"solution": solution}])
    with pytest.raises(ValueError, match=rf"a.jsonl:3: .*{match}"):
      build("task", "math", TASKS, {"train": path})


def test_tfds_gives_what_the_files_give(tmp_path):
  with tfds.core.registered.skip_registration():

    class Math(tfds.core.GeneratorBasedBuilder):
      VERSION = tfds.core.Version("1.0.0")
      code_path = None

      def _info(self):
        columns = dict.fromkeys(MATH[0], tfds.features.Text())
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(columns))

      def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

      def _generate_examples(self):
        yield from enumerate(MATH)

  Math(data_dir=str(tmp_path), file_format="array_record").download_and_prepare()
  check(build("task", "math", TASKS, {"data_dir": str(tmp_path), "train": "train"}))
