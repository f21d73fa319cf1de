"""Passing over by chance: the law of it, and what has had its turn."""

import jax
import numpy as np
import pytest

from rlvr_jax.select.skip import skip
from tests.select.test_top_k import candidates, draws


def test_prompts_are_kept_with_their_score():
  score = [1, 0.5, 0.01, 0, np.nan]
  got = draws(skip(), candidates(score), 5, 4000)
  share = [(got == i).any(1).mean() for i in range(5)]
  assert share[0] == 1 and share[3] == share[4] == 0
  assert share[1] == pytest.approx(0.5, abs=0.03) and share[2] == pytest.approx(0.01, abs=0.006)


def test_only_what_came_before_the_last_place_has_had_its_turn():
  select = jax.jit(skip(), static_argnums=2)
  these = candidates([0] * 40 + [1] * 40, visited=[0, 79])
  passed = []
  for seed in range(40):
    out = select(jax.random.key(seed), these, 8, {})
    chosen = np.asarray(out.index)
    assert out.valid.all() and (chosen >= 40).all() and len(set(chosen.tolist())) == 8
    consumed = set(np.flatnonzero(out.consumed).tolist())
    assert {i for i in consumed if i >= 40} == set(chosen.tolist()) and 0 not in consumed
    passed.append(len(consumed) - 8)
  # Of 39 and 39 in random order, those before the eighth of one kind.
  assert np.mean(passed) == pytest.approx(8 * 39 / 40, abs=1.5)
  out = select(jax.random.key(0), candidates([0] * 20), 8, {})
  assert not out.valid.any() and out.consumed.all()
