"""The model run over rows that hold text already, some rows and some hundred tokens at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

READ = 512  # tokens computed at a time, over some rows
LANES = 8  # rows that are read side by side


def walk(hidden: Callable, init_cache: Callable, params, rows, wanted, visit: Callable, out):
  """Reads the rows that are wanted, each from its first token on. Memory does not grow with the rows.

  Args:
    hidden, init_cache: of a Policy.
    wanted: bool [N].
    visit: (out, index [S], position [S,W], hidden [S,W,E]) -> out, called with every piece of text; a
      position may lie beyond its row, and a row be met twice, with the same results.
    out: what visit begins with.
  """
  n, t = rows.tokens.shape
  lanes = min(LANES, n)
  width = min(READ // lanes, t)
  order = jnp.argsort(~wanted, stable=True).astype(jnp.int32)

  def some(carry):
    begin, out = carry
    # A last block that is not full begins earlier, and does some rows again.
    index = jax.lax.dynamic_slice_in_dim(order, begin, lanes)
    end = jnp.where(wanted[index], rows.length[index], 0)
    texts = rows.tokens[index]

    def piece(carry):
      first, cache, out = carry
      position = first + jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32)[None], (lanes, width))
      token = jnp.take_along_axis(texts, jnp.minimum(position, t - 1), 1)
      states, cache = hidden(params, token, position, position < end[:, None], cache)
      return first + width, cache, visit(out, index, position, states)

    start = jnp.zeros((), jnp.int32), init_cache(lanes, t), out
    _, _, out = jax.lax.while_loop(lambda c: c[0] < end.max(), piece, start)
    return begin + lanes, out

  start = jnp.zeros((), jnp.int32), out
  return jax.lax.while_loop(lambda c: c[0] < wanted.sum(), some, start)[1]


def last_hidden(hidden: Callable, init_cache: Callable, params, rows, wanted):
  """float32 [N,E]: the hidden state of the last token of rows where wanted [N]; 0 elsewhere."""
  one = jnp.zeros((1, 1), jnp.int32)
  shape = jax.eval_shape(lambda p: hidden(p, one, one, one == 0, init_cache(1, 1))[0], params).shape

  def visit(out, index, position, states):
    here = (position == rows.length[index][:, None] - 1) & wanted[index][:, None]
    state = jnp.where(here[:, :, None], states.astype(jnp.float32), 0.0).sum(1)
    row = jnp.where(here.any(1), index, len(out))
    return out.at[row].set(state, mode="drop")

  out = jnp.zeros((len(rows.length), shape[-1]), jnp.float32)
  return walk(hidden, init_cache, params, rows, wanted, visit, out)
