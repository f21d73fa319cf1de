"""Settings of every test: CPU, strict shapes, reproducible randomness."""

import os
import random

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before JAX starts

import hypothesis
import jax
import numpy as np
import pytest

# [N] + [N,T] is a bug here, never a broadcast.
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile(
  "rlvr_jax",
  deadline=None,  # an example that compiles takes seconds
  max_examples=25,
  derandomize=os.environ.get("CI") == "true",
  print_blob=True,
)
hypothesis.settings.load_profile("rlvr_jax")


@pytest.fixture(autouse=True)
def _seeds():
  random.seed(0)
  np.random.seed(0)


@pytest.fixture(autouse=True)
def _rank_promotion(request):
  """Lets `@pytest.mark.allow_rank_promotion` tests call library code that promotes ranks."""
  if request.node.get_closest_marker("allow_rank_promotion") is None:
    yield
  else:
    with jax.numpy_rank_promotion("allow"):
      yield
