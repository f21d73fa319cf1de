import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.keep import weigh
from tests import toy


def test_all_tokens():
  rows = toy.rows(masks=[[True, True], [True, False], [True, True]], valid=[True, True, False])
  out = weigh.all_tokens()(jax.random.key(0), rows, jnp.full((3, 3), jnp.nan), {})
  np.testing.assert_array_equal(out, [[0, 1, 1], [0, 1, 0], [0, 0, 0]])
  assert out.dtype == jnp.float32
