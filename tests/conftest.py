"""Settings of every test: CPU, strict shapes, reproducible randomness."""

import os
import random

# Before JAX starts. Tests compile for seconds what then runs for milliseconds: it need not be optimised.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"--xla_backend_optimization_level=0 {os.environ.get('XLA_FLAGS', '')}"

import hypothesis
import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests import toy

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


@pytest.fixture(scope="module", autouse=True)
def _few_maps():
  yield
  toy.spare_maps()


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory):
  """For modules whose runs build their functions anew: XLA compiles equal ones once in all of them."""
  names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
  old = [getattr(jax.config, name) for name in names]
  folder = tmp_path_factory.getbasetemp() / "compiled"
  for name, value in zip(names, (str(folder), 0.0)):
    jax.config.update(name, value)
  compilation_cache.reset_cache()
  yield
  for name, value in zip(names, old):
    jax.config.update(name, value)
  compilation_cache.reset_cache()
