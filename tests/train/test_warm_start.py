"""The warm start on a table of logits: its loss by hand, and what it has learnt."""

import jax
import numpy as np

from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.train.warm_start import warm_start
from tests import toy

VOCAB, PLACES = 5, 6
POLICY = toy.table_policy(VOCAB, PLACES)
PARAMS = {"table": jax.random.normal(jax.random.key(0), (PLACES, VOCAB, VOCAB))}
PAIRS = [([1], [2, 3]), ([0, 1], [1, 4, 2, 3]), ([2, 2, 2], [3])]


def _start(pairs, **options):
  defaults = dict(steps=1, rows=4, learning_rate=1e-9, seed=0)
  return warm_start(POLICY, PARAMS, grpo(), pairs, **{**defaults, **options})


def _nats(pair, params=PARAMS):
  """Minus the log-probs of the answer's tokens."""
  prompt, answer = pair
  tokens = np.asarray([prompt + answer])
  return -np.asarray(toy.logprobs(params, tokens, len(prompt)))[0, len(prompt) :]


def test_the_loss_is_nats_a_token():
  for pair in PAIRS:
    _, loss = _start([pair])
    np.testing.assert_allclose(loss, _nats(pair).mean(), rtol=1e-5)


def test_answers_of_different_lengths_count_by_token():
  """A batch of many draws comes close to the mean over all tokens of all pairs."""
  _, loss = _start(PAIRS, rows=512)
  every = np.concatenate([_nats(pair) for pair in PAIRS])
  np.testing.assert_allclose(loss, every.mean(), rtol=0.1)


def test_it_learns_the_answers_and_nothing_else():
  params, loss = _start(PAIRS, steps=200, rows=8, learning_rate=0.1)
  assert loss < 0.05
  for prompt, answer in PAIRS:
    said = list(prompt)
    while len(said) < len(prompt) + len(answer):
      said.append(int(params["table"][len(said) - 1, said[-1]].argmax()))
    assert said == prompt + answer
  # Prompts are not trained: what follows the first token of the second one is as it was.
  np.testing.assert_array_equal(params["table"][0, 0], PARAMS["table"][0, 0])


def test_it_is_reproducible_and_leaves_its_input_alone():
  before = np.array(PARAMS["table"])
  (one, _), (two, _), (other, _) = (
    _start(PAIRS, steps=3, learning_rate=0.1, seed=seed) for seed in (0, 0, 1)
  )
  np.testing.assert_array_equal(one["table"], two["table"])
  assert (np.asarray(one["table"]) != np.asarray(other["table"])).any()
  np.testing.assert_array_equal(PARAMS["table"], before)
