"""Dumps, as far as they are files; what they hold is run again in test_loop."""

from rlvr_jax.train import debug
from rlvr_jax.train.checkpoint import Checkpointer
from tests.train.test_checkpoint import _same, _state


def test_a_dump_takes_the_place_of_an_older_one(tmp_path):
  for seed in (1, 2):
    debug.dump_before(tmp_path, _state(step=4, seed=seed))
  with Checkpointer(debug.folder(tmp_path, 4), keep=1) as checkpoints:
    _same(checkpoints.restore(_state(step=0)), _state(step=4, seed=2))
