import json

import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.text.gsm8k.gsm8k import Gsm8k

from rlvr_jax.core.table import build
from rlvr_jax.tasks import TASKS

# The original layout, notes for a calculator included.
ROWS = [
  {
    "question": "Ann buys 3 pens at $400 each and a book for $34. What does she pay?",
    "answer": "Pens: 3*400=<<3*400=1200>>1200.\nAll: 1200+34=<<1200+34=1234>>1234.\n#### 1,234",
  },
  {
    "question": "It was 2 degrees and fell by 7. How cold is it?",
    "answer": "2-7=<<2-7=-5>>-5\n#### -5",
  },
  {"question": "Half of a half?", "answer": "1/2/2=.25\nThat is it.\nReally.\n#### 0.25"},
]
TRAIN = [
  {"question": f"What is {i} plus 1?", "answer": f"{i}+1={i + 1}\n#### {i + 1}"} for i in range(5)
]


def jsonl(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def test_original_files(tmp_path):
  train, test = jsonl(tmp_path / "train.jsonl", TRAIN), jsonl(tmp_path / "test.jsonl", ROWS)
  task = build("task", "gsm8k", TASKS, {"train": train, "evals": test})
  assert task.sources == ("gsm8k",) and len(task.train) == 5
  examples = task.evals["test"]
  assert [e.answer for e in examples] == ["1,234", "-5", "0.25"]
  assert [e.difficulty for e in examples] == [2, 1, 3]
  assert examples[0].prompt[0]["content"].startswith(ROWS[0]["question"])
  texts = ["I get\n#### 1234", r"so \boxed{-5}", "The answer is 1/4."]
  assert [task.verify(*item).correct for item in zip(examples, texts, strict=True)] == [1.0] * 3
  assert task.verify(examples[1], "#### 5").correct == 0.0


def test_few_shot_replies_are_solutions_without_notes(tmp_path):
  args = {"train": jsonl(tmp_path / "a.jsonl", ROWS), "few_shot": 2}
  (example,) = build("task", "gsm8k", TASKS, args).train
  replies = [turn["content"] for turn in example.prompt if turn["role"] == "assistant"]
  assert len(replies) == 2 and all("####" in reply and "<<" not in reply for reply in replies)


def test_bad_rows_are_named(tmp_path):
  for answer, match in [("It is 3.", "no '####'"), ("#### three", "'three' .* not a number")]:
    path = jsonl(tmp_path / "a.jsonl", [*TRAIN, {"question": "q", "answer": answer}])
    with pytest.raises(ValueError, match=rf"a.jsonl:6: .*{match}"):
      build("task", "gsm8k", TASKS, {"train": path})


def test_tfds_gives_what_the_files_give(tmp_path):
  files = {
    "train": jsonl(tmp_path / "train.jsonl", TRAIN),
    "test": jsonl(tmp_path / "test.jsonl", ROWS),
  }
  with tfds.core.registered.skip_registration():

    class Local(Gsm8k):  # the builder of TFDS, fed from files instead of the network
      name = "gsm8k"
      code_path = None

      def _split_generators(self, dl_manager):
        return {name: self._generate_examples(path) for name, path in files.items()}

  Local(data_dir=str(tmp_path / "tfds"), file_format="array_record").download_and_prepare()
  task = build("task", "gsm8k", TASKS, {"data_dir": str(tmp_path / "tfds")})
  same = build("task", "gsm8k", TASKS, {"train": files["train"], "evals": files["test"]})
  content = lambda examples: sorted(
    (e.prompt[0]["content"], e.answer, e.difficulty) for e in examples
  )
  assert content(task.train) == content(same.train)
  assert content(task.evals["test"]) == content(same.evals["test"])
  with pytest.raises(ValueError, match=r"no split 'tset'; it has: (train, test|test, train)"):
    build("task", "gsm8k", TASKS, {"data_dir": str(tmp_path / "tfds"), "train": "tset"})
  with pytest.raises(ValueError, match="no prepared TFDS data set 'gsm8k'"):
    build("task", "gsm8k", TASKS, {"data_dir": str(tmp_path)})
