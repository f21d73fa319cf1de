"""The whole way: generators -> TFDS -> ArrayRecord files -> tfds and grain -> table -> iterator."""

import itertools
import pathlib
import sys

import numpy as np
import pytest

from rlvr_jax.core.table import build
from rlvr_jax.tasks import TASKS
from rlvr_jax.tasks.reasoning_gym import reasoning_gym
from rlvr_jax.tasks.table import batches, stream, tokenise
from rlvr_jax.tasks.tfds_reasoning_gym import prepare

MIXTURE = [{"name": "chain_sum", "weight": 2, "difficulty": 3}, {"name": "gcd"}]
SIZES = {"train_size": 30, "eval_size": 6}


class Bytes:
  """A byte is an id."""

  vocab_size = 257
  eos_ids = (256,)
  pad_id = 0
  fingerprint = "bytes"

  def encode(self, text):
    return list(text.encode())

  def decode(self, ids):
    return bytes(ids).decode()

  def chat(self, messages):
    return self.encode("".join(m["content"] for m in messages))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  data_dir = tmp_path_factory.mktemp("tfds")
  return data_dir, prepare(data_dir, mixture=MIXTURE, **SIZES)


def bare(examples):
  return [e._replace(metadata={}) for e in examples]


def test_what_is_read_is_what_was_generated(prepared):
  data_dir, folder = prepared
  task = build("task", "reasoning_gym_tfds", TASKS, {"data_dir": str(data_dir), "system": "Sums."})
  same = reasoning_gym(mixture=MIXTURE, **SIZES, system="Sums.")
  assert bare(task.train) == bare(same.train)
  assert bare(task.evals["heldout"]) == bare(same.evals["heldout"])
  assert {e.source: e.difficulty for e in task.train} == {"chain_sum": 3, "gcd": 0}
  assert all(task.verify(e, rf"\boxed{{{e.answer}}}").correct == 1.0 for e in task.train)
  assert list(pathlib.Path(folder).glob("*.array_record-*"))
  assert "tensorflow" not in sys.modules


def test_equal_arguments_lead_to_one_folder_and_others_to_others(prepared, tmp_path):
  data_dir, folder = prepared
  before = {file: file.stat().st_mtime_ns for file in pathlib.Path(folder).iterdir()}
  assert prepare(data_dir, mixture=MIXTURE, **SIZES) == folder
  assert before == {file: file.stat().st_mtime_ns for file in pathlib.Path(folder).iterdir()}
  one = prepare(tmp_path, mixture=MIXTURE, **SIZES)
  two = prepare(tmp_path, mixture=MIXTURE, **SIZES, seed=1)
  assert len({one, two}) == 2
  with pytest.raises(ValueError, match="several of 'reasoning_gym'"):
    build("task", "reasoning_gym_tfds", TASKS, {"data_dir": str(tmp_path)})
  task = build("task", "reasoning_gym_tfds", TASKS, {"data_dir": two})
  assert bare(task.train) == bare(reasoning_gym(mixture=MIXTURE, **SIZES, seed=1).train)


def test_any_task_of_files_reads_it_too(prepared):
  data_dir, _ = prepared
  args = {
    "data_dir": str(data_dir),
    "dataset": "reasoning_gym",
    "train": "train",
    "evals": "heldout",
  }
  args |= {"source_column": "source", "difficulty_column": "difficulty"}
  task = build("task", "tfds", TASKS, args)
  same = build("task", "reasoning_gym_tfds", TASKS, {"data_dir": str(data_dir)})
  assert bare(task.train) == bare(same.train) and set(task.evals) == {"heldout"}


def test_native_scores_survive_the_files(tmp_path):
  mixture = [{"name": "countdown"}, {"name": "graph_color"}]
  folder = prepare(tmp_path, mixture=mixture, train_size=4, eval_size=2, native=True)
  args = {"data_dir": folder, "score": "native"}
  task = build("task", "reasoning_gym_tfds", TASKS, args)
  same = reasoning_gym(mixture=mixture, train_size=4, eval_size=2, score="native")
  for example, original in zip(task.train, same.train, strict=True):
    assert example.metadata["entry"] == original.metadata["entry"]
    if example.source == "countdown":
      assert task.verify(example, example.answer).correct == 1.0
  with pytest.raises(ValueError, match="no one right answer"):
    build("task", "reasoning_gym_tfds", TASKS, args | {"score": "extract"})


def test_extracted_answers_do_not_score_natively(prepared):
  with pytest.raises(ValueError, match="prepared without native=True"):
    build("task", "reasoning_gym_tfds", TASKS, {"data_dir": prepared[1], "score": "native"})


def test_table_and_stream_from_it_resume(prepared, tmp_path):
  task = build("task", "reasoning_gym_tfds", TASKS, {"data_dir": prepared[1]})
  args = {"max_length": 512, "sources": task.sources, "cache": tmp_path}
  table, kept, _ = tokenise(Bytes(), task.train, **args)
  assert kept == list(range(30))
  np.testing.assert_array_equal(
    table.difficulty, [3 * (e.source == "chain_sum") for e in task.train]
  )
  weights = {task.sources.index("gcd"): 1, task.sources.index("chain_sum"): 1}
  whole = batches(stream(table, seed=0, weights=weights), 6)
  ids = np.stack(list(itertools.islice(whole, 8)))
  assert ((table.source[ids] == task.sources.index("gcd")).sum(1) == 3).all()
  text = Bytes().decode(table.tokens[ids[0, 0]][: table.length[ids[0, 0]]].tolist())
  assert text == task.train[ids[0, 0]].prompt[0]["content"]
  first = batches(stream(table, seed=0, weights=weights), 6)
  head = [next(first) for _ in range(3)]
  reopened, _, _ = tokenise(Bytes(), task.train, **args)
  rest = batches(stream(reopened, seed=0, weights=weights), 6)
  rest.set_state(first.get_state())
  np.testing.assert_array_equal(np.stack(head + list(itertools.islice(rest, 5))), ids)
