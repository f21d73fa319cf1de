"""What ends a row beside its end tokens, and what ends a whole call of `decode`."""

from collections import deque
from collections.abc import Sequence

import flax.struct
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core.types import OPEN, Array


class Stops(flax.struct.PyTreeNode):
  """Stop rules; None: no such rule. All are arguments of the compiled loop: new numbers compile nothing.

  A row ends as STOP with the token that completes a stop string; the token is kept whole, and with it
  whatever text follows the string inside it. When a call leaves off early, the rows it did not finish
  stay OPEN, with what they have: resume them in a later call, or close them as KILLED.
  """

  # int32 [states,V], state after a token; state 0 is the start, the last one is reached when a string is
  # complete, and is never left. See `stop_strings`.
  automaton: Array | None = None
  groups: Array | None = None  # int32 [], leave off once so many groups have no open row
  # int32 [], leave off once so many tokens were drawn: at the first tick that reaches it, so that up to
  # slots - 1 more are drawn.
  tokens: Array | None = None

  def after(self, state: Array, token: Array, reads: Array) -> Array:
    """State [S] after tokens [S] where `reads` [S], else as before."""
    if self.automaton is None:
      return state
    return jnp.where(reads, self.automaton[state, token], state)

  def hit(self, state: Array) -> Array:
    """bool [S]: a stop string is complete."""
    if self.automaton is None:
      return jnp.zeros(state.shape, bool)
    return state == len(self.automaton) - 1

  def enough(self, rows, generated) -> Array:
    """bool []: leave off now."""
    done = jnp.zeros((), bool)
    if self.groups is not None:
      num = len(rows.group)
      count = lambda x: (
        jnp.zeros(num, jnp.int32).at[rows.group].add((rows.valid & x).astype(jnp.int32))
      )
      closed = (count(rows.valid) > 0) & (count(rows.status == OPEN) == 0)
      done |= closed.sum() >= self.groups
    if self.tokens is not None:
      done |= generated.sum() >= self.tokens
    return done


def stops(
  strings: Sequence[str] = (),
  token_bytes: Sequence[bytes] = (),
  *,
  groups: int | None = None,
  tokens: int | None = None,
) -> Stops:
  """Stop rules from plain values.

  Args:
    strings: end a row; each not empty.
    token_bytes: the bytes of each token of the vocabulary, needed with `strings`.
    groups, tokens: see `Stops`; at least 1.

  Raises:
    ValueError: for an empty string, strings without token_bytes, or a number below 1.
  """
  for name, value in (("groups", groups), ("tokens", tokens)):
    if value is not None and value < 1:
      raise ValueError(f"{name} must be at least 1, got {value}")
  number = lambda x: None if x is None else jnp.asarray(x, jnp.int32)
  automaton = jnp.asarray(stop_strings(strings, token_bytes)) if strings else None
  return Stops(automaton=automaton, groups=number(groups), tokens=number(tokens))


def stop_strings(strings: Sequence[str], token_bytes: Sequence[bytes]) -> np.ndarray:
  """int32 [states,V]: the Aho-Corasick automaton of the strings, run over whole tokens.

  It works on bytes, so that a string may begin and end anywhere inside tokens.

  Source: Aho and Corasick 1975, "Efficient string matching".
  """
  patterns = [text.encode() for text in strings]
  if not all(patterns):
    raise ValueError("a stop string is empty: it would end every row at once")
  if not token_bytes:
    raise ValueError("stop strings need the bytes of each token: pass token_bytes")
  step, final = _byte_automaton(patterns)
  done = len(step)  # one state for all complete strings
  table = np.zeros((done + 1, len(token_bytes)), np.int32)
  table[done] = done
  for token, data in enumerate(token_bytes):
    state = np.arange(done)
    over = np.zeros(done, bool)
    for byte in data:
      state = step[state, byte]
      over |= final[state]
    table[:done, token] = np.where(over, done, state)
  return table


def _byte_automaton(patterns: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
  """Next state [states,256] of the automaton over bytes, and whether a state completes a pattern."""
  children: list[dict[int, int]] = [{}]
  final = [False]
  for pattern in patterns:
    state = 0
    for byte in pattern:
      if byte not in children[state]:
        children[state][byte] = len(children)
        children.append({})
        final.append(False)
      state = children[state][byte]
    final[state] = True
  step = np.zeros((len(children), 256), np.int64)
  fail = np.zeros(len(children), np.int64)
  queue = deque()
  for byte, child in children[0].items():
    step[0, byte] = child
    queue.append(child)
  while queue:
    state = queue.popleft()
    final[state] |= final[fail[state]]
    step[state] = step[fail[state]]
    for byte, child in children[state].items():
      fail[child] = step[fail[state], byte]
      step[state, byte] = child
      queue.append(child)
  return step, np.array(final)
