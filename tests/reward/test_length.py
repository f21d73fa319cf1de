"""Length rewards on the worked examples, and what never changes."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.advantage.group import group_mean
from rlvr_jax.core.types import EOS, LENGTH
from rlvr_jax.reward.flawed import flawed_positive
from rlvr_jax.reward.length import compression, overlong
from tests import toy

LENGTHS = [400, 450, 700, 1200]


def rows(correct=(1, 1, 1, 1), lengths=LENGTHS, **fields):
  n = len(correct)
  fields = {"length": np.array(lengths) + 1, "limit": [2001] * n} | fields
  return toy.rows([0] * n, list(correct), **fields)


def test_worked_compression():
  out = compression()(rows(), {})
  np.testing.assert_allclose(out, [1, 1, 0.77083, 0.5], atol=1e-5)
  shaped = rows().replace(reward=out)
  centred = [0.18229, 0.18229, -0.04688, -0.31771]
  np.testing.assert_allclose(group_mean(scale=False)(shaped)[:, 1], centred, atol=1e-5)
  scaled = [0.76669, 0.76669, -0.19715, -1.33622]
  np.testing.assert_allclose(group_mean(ddof=1)(shaped)[:, 1], scaled, atol=1e-5)
  floored = np.array(centred) / max(np.std(np.asarray(out)), 0.1)
  np.testing.assert_allclose(group_mean(floor=0.1)(shaped)[:, 1], floored, atol=1e-4)
  closed = rows((1, 1, 0, 1))
  np.testing.assert_array_equal(compression()(closed, {}), closed.correct)


def test_the_gates_of_compression():
  plain = rows().correct
  cut = rows(status=[EOS, EOS, EOS, LENGTH])  # cut off: counts as wrong, which closes the gate
  np.testing.assert_array_equal(compression()(cut, {}), plain)
  three = compression(mastery=0.75)(rows((1, 1, 0, 1)), {})
  np.testing.assert_allclose(three, [1, 1, 0, 0.5], atol=1e-5)
  known = compression(known=0.9)
  np.testing.assert_array_equal(known(rows(prior=[0.8] * 4), {}), plain)
  np.testing.assert_array_equal(known(rows(prior=[0.9] * 4), {}), compression()(rows(), {}))
  knob = compression(knob="on")
  np.testing.assert_array_equal(knob(rows(), {"on": jnp.zeros(())}), plain)
  np.testing.assert_array_equal(knob(rows(), {"on": jnp.ones(())}), compression()(rows(), {}))


def test_lengths_count_as_ratios_and_short_ones_are_free():
  tenth = compression()(rows(lengths=[40, 45, 70, 120]), {})
  np.testing.assert_allclose(tenth, compression()(rows(), {}), atol=1e-6)
  for same in ([7, 7, 7, 7], [0, 1, 1, 0]):
    np.testing.assert_array_equal(compression()(rows(lengths=same), {}), 1)
  np.testing.assert_array_equal(compression(penalty=0)(rows(), {}), 1)
  np.testing.assert_array_equal(compression(slack=9)(rows(), {}), 1)
  lone = toy.rows([0, 1], [1, 1], length=[11, 1001])
  np.testing.assert_array_equal(compression()(lone, {}), 1)


def test_overlong_equals_the_published_formula():
  """DAPO's numbers: 20480 tokens at most, the last 4096 of them punished."""
  lengths = [0, 16384, 16385, 18432, 20480, 20470]
  batch = rows([1.0, 0.0] * 3, lengths, limit=[20481] * 6)

  def published(length, most=20480, cache=4096):
    if length <= most - cache:
      return 0.0
    return (most - cache - length) / cache if length <= most else -1.0

  expect = [c + published(n) for c, n in zip([1, 0] * 3, lengths)]
  np.testing.assert_allclose(overlong(buffer=4096)(batch, {}), expect, atol=1e-6)
  twice = overlong(buffer=4096, penalty=2.0, base=flawed_positive())(batch, {})
  expect = [2 * c - 1 + 2 * published(n) for c, n in zip([1, 0] * 3, lengths)]
  np.testing.assert_allclose(twice, expect, atol=1e-6)
  # T52: in tokens of the row's own limit; a buffer beyond it is the whole of it.
  short = rows([1.0, 1.0], [5, 10], limit=[11, 11])
  np.testing.assert_allclose(overlong(buffer=99)(short, {}), [0.5, 0.0], atol=1e-6)


def test_T56_verdicts_stay_what_they_are():
  shaped = rows().replace(reward=compression()(rows(), {}))
  np.testing.assert_array_equal(shaped.correct, 1)


@pytest.mark.parametrize(
  ("make", "args"),
  [
    (overlong, {"buffer": 0}),
    (overlong, {"penalty": -1}),
    (compression, {"mastery": 0}),
    (compression, {"slack": -1}),
    (compression, {"penalty": 1}),
    (compression, {"known": 2}),
  ],
)
def test_errors(make, args):
  with pytest.raises(ValueError, match=next(iter(args))):
    make(**args)
