"""SPEC-RL: responses of the last epoch are drafts, of which the policy keeps the longest prefix it accepts.

A prompt that comes back brings its last responses along. The policy reads them at once, keeps each up to
the first token it rejects, and draws the rest afresh; most of a draft survives when the policy moved little.
All log-probs and versions are those of the policy of now, so that ratios start at 1, as in the paper. With
lenience the accepted tokens are not quite a sample of that policy, nor are they with log_lenience=0, since a
rejected token is drawn from the policy and not from the residual of the two laws. And since log-probs are
renewed at each visit, lenience does not add up: a token whose probability falls by less than the lenience
from one visit to the next is kept at every visit, however far it has fallen in all. That is the method. With
small steps a run goes on with its first responses: the policy learns from them, but `reward/mean` is of what
it would no longer say, so that held-out evaluation alone shows progress, and a group that is all wrong stays
so and teaches nothing. With log_lenience=0 or `coupled` responses follow the policy.

`coupled=True` is ours and loses nothing: rows keep their random numbers too, and a token is kept if the
policy, with the number of its place, would draw it again. A row is then what the policy would have sampled
with these numbers, exactly. What it costs: a prompt gets the same numbers in every epoch. The parameters
were trained on responses drawn with them, so that over epochs the responses are not the fresh, independent
sample that they are of parameters that never saw them; they explore less than new numbers would.
Differs from the paper: log-probs are those of the sampler, and no pass of the trainer comes between; the key
of acceptance is another one each step, where the released code has a fixed seed; the truncated law, where
there is one, is what both sides of the test speak of.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.replay.drafts import drafts
from rlvr_jax.rollout.speculative import speculative

PAPER = (
  "SPEC-RL: Accelerating On-Policy Reinforcement Learning with Speculative Rollouts",
  "arXiv 2509.23232",
)
STAGES = ("generate", "replay")
CHANGES = ("rollout", "replay")
EVIDENCE = "code"


def spec_rl(
  *,
  log_lenience: float = 0.5,
  coupled: bool = False,
  ways: int = 8,
  most: int = 4096,
  slots: int = 0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  **options,
) -> Recipe:
  """Rollouts that begin with what is left of the last ones.

  Args:
    log_lenience: drafts are kept with probability min(1, e^log_lenience p_new / p_old), token by token.
    coupled: exact instead; see above.
    ways, most: of replay.drafts; the paper keeps every response, so ways is the rows of a group, and most
      that times the number of prompts.
    slots, top_k, top_p, min_p: of rollout.speculative.
    **options: of `grpo`.
  """
  law = {"slots": slots, "top_k": top_k, "top_p": top_p, "min_p": min_p}
  return grpo(**options)._replace(
    rollout=speculative(log_lenience=log_lenience, coupled=coupled, **law),
    replay=drafts(ways=ways, most=most, same_noise=coupled),
  )
