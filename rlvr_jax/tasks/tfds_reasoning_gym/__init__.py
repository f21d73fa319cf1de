"""A TFDS data set of any reasoning_gym mixture, in ArrayRecord files, made without TensorFlow.

A builder has a package of its own, since TFDS looks for its metadata beside it.
"""

import ast
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from rlvr_jax.core.records import Example
from rlvr_jax.tasks.reasoning_gym import draw


@dataclasses.dataclass(kw_only=True)
class MixtureConfig(tfds.core.BuilderConfig):
  """The arguments of `prepare`, as JSON; the config's name is their hash."""

  arguments: str = "{}"


class ReasoningGym(tfds.core.GeneratorBasedBuilder):
  """Questions of reasoning_gym generators; `metadata` is what their scorers need, a Python literal."""

  VERSION = tfds.core.Version("1.0.0")
  RELEASE_NOTES: Mapping[str, str] = {"1.0.0": "question, answer, source, difficulty, metadata."}
  # No checksums beside the code, since nothing is downloaded. To look for them TFDS would import
  # importlib_resources, a package that it does not require.
  code_path: Any = None
  builder_config: Any  # a MixtureConfig

  def _info(self) -> tfds.core.DatasetInfo:
    text = tfds.features.Text
    return self.dataset_info_from_configs(
      description=f"A reasoning_gym mixture: {self.builder_config.arguments}",
      features=tfds.features.FeaturesDict(
        {
          "question": text(),
          "answer": text(),
          "source": text(),
          "difficulty": tfds.features.Scalar(dtype=np.int32),
          "metadata": text(),
        }
      ),
      disable_shuffling=True,  # the mixture is shuffled already, and its order is part of it
    )

  def _split_generators(self, dl_manager):
    del dl_manager  # nothing is downloaded
    arguments = json.loads(self.builder_config.arguments)
    train, heldout = draw(**arguments)
    return {
      "train": self._generate_examples(train, arguments["native"]),
      "heldout": self._generate_examples(heldout, arguments["native"]),
    }

  def _generate_examples(self, examples: Sequence[Example], native: bool) -> Iterator:
    for i, example in enumerate(examples):
      yield (
        i,
        {
          "question": example.prompt,
          "answer": example.answer,
          "source": example.source,
          "difficulty": example.difficulty,
          "metadata": _literal(example) if native else "{}",
        },
      )


def prepare(
  data_dir: str | os.PathLike,
  *,
  mixture: Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]],
  train_size: int = 4096,
  eval_size: int = 256,
  seed: int = 0,
  native: bool = False,
) -> str:
  """Writes a mixture below data_dir as the splits "train" and "heldout", unless it is there already.

  The task "reasoning_gym_tfds" reads it. Equal arguments lead to the same folder, others to another.

  Args:
    data_dir: folder of TFDS data.
    mixture, train_size, eval_size, seed: see `tasks.reasoning_gym`; eval_size is 1 or more.
    native: store what the generators' own scorers need, for score="native".

  Returns:
    The folder of this data set, to be given as `data_dir` where there are several.

  Raises:
    ValueError: for arguments that the task refuses, or native entries that are no literals.
  """
  if eval_size < 1:
    raise ValueError(f"eval_size must be at least 1, got {eval_size}")
  arguments = {
    "mixture": mixture,
    "train_size": train_size,
    "eval_size": eval_size,
    "seed": seed,
    "native": native,
  }
  written = json.dumps(arguments, sort_keys=True)
  name = hashlib.sha256(written.encode()).hexdigest()[:16]
  builder = ReasoningGym(
    data_dir=os.fspath(data_dir),
    config=MixtureConfig(name=name, description="A mixture.", arguments=written),
    file_format="array_record",
  )
  builder.download_and_prepare()
  return os.fspath(builder.data_path)


def _literal(example: Example) -> str:
  """The metadata as a Python literal, which keeps tuples and integer keys as JSON would not."""
  written = repr(dict(example.metadata))
  try:
    same = ast.literal_eval(written) == example.metadata
  except (ValueError, SyntaxError):
    same = False
  if not same:
    raise ValueError(f"entries of source {example.source!r} cannot be stored: {written[:200]}")
  return written
