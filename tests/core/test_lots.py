"""Numbers for every prompt: their laws, and that places and keys know nothing of each other."""

import jax
import numpy as np
from scipy import stats

from rlvr_jax.core import lots

NUM = 200_000


def test_laws():
  for draw, law in ((lots.uniform, "uniform"), (lots.normal, "norm"), (lots.gumbel, "gumbel_r")):
    x = np.asarray(draw(jax.random.key(1), NUM)).astype(float)
    assert stats.kstest(x, law).pvalue > 1e-3 and np.isfinite(x).all()
  u = np.asarray(lots.uniform(jax.random.key(2), NUM))
  assert u.min() >= 0 and u.max() < 1


def test_words_are_not_taken_twice_and_their_bits_are_fair():
  w = np.asarray(lots.words(jax.random.key(0), NUM))
  assert len(np.unique(w)) == NUM
  ones = ((w[:, None] >> np.arange(32, dtype=np.uint32)) & 1).mean(0)
  assert abs(ones - 0.5).max() * 2 * NUM**0.5 < 4.5  # standard deviations, the largest of 32


def test_places_do_not_know_of_each_other():
  u = np.asarray(lots.uniform(jax.random.key(3), NUM)).astype(float)
  for lag in (1, 2, 16, 1024):
    pairs = np.histogram2d(u[:-lag:2], u[lag::2], bins=16, range=[[0, 1]] * 2)[0]
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-3


def test_keys_do_not_know_of_each_other():
  many = jax.jit(jax.vmap(lambda key: lots.uniform(key, 500)))
  u = np.asarray(many(jax.random.split(jax.random.key(0), 500)))
  for x in (u, u.T):  # keys, then places
    other = np.corrcoef(x)[~np.eye(500, dtype=bool)]
    assert abs(other).max() * 500**0.5 < 6
    assert other.std() * 500**0.5 < 1.02


def test_a_place_has_its_number_whatever_the_number_of_places():
  key = jax.random.key(5)
  np.testing.assert_array_equal(lots.words(key, 10), lots.words(key, 100)[:10])
