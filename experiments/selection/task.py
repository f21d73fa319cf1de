"""A task a third of whose prompts are nearly solved, a third hopeless and a third learnable."""

from rlvr_jax.core.records import Task
from rlvr_jax.tasks.arithmetic import arithmetic, demonstrations

# source -> (operation, digits, share of wrong answers among the demonstrations of the start)
PARTS = {
  "solved": ("copy", 1, 0.05),
  "learnable": ("copy", 2, 0.6),
  "hopeless": ("multiply", 2, 1.0),  # as good as never right, whatever the policy tries
}


def mixed_difficulty(*, train_size: int = 3072, eval_size: int = 192, seed: int = 0) -> Task:
  """Copying two digits, copying four, and products of two-digit numbers, in equal parts.

  Args:
    train_size, eval_size: over all parts.
    seed: of the draw.
  """
  parts = {name: _part(name, train_size // 3, eval_size // 3, seed) for name in PARTS}
  one = next(iter(parts.values()))
  of = lambda name, examples: [e._replace(source=name) for e in examples]
  return Task(
    train=[e for name, part in parts.items() for e in of(name, part.train)],
    evals={"heldout": [e for n, part in parts.items() for e in of(n, part.evals["heldout"])]},
    verify=one.verify,
    sources=tuple(parts),
    tokenizer=one.tokenizer,
  )


def _part(name: str, train_size: int, eval_size: int, seed: int) -> Task:
  operation, digits, _ = PARTS[name]
  sizes = {"train_size": train_size, "eval_size": eval_size, "seed": seed}
  return arithmetic(operations=[operation], digits=digits, **sizes)


def start_pairs(*, train_size: int = 3072, seed: int = 0):
  """Demonstrations whose imitation gives each part its difficulty."""
  pairs = []
  for name, (_, _, wrong) in PARTS.items():
    part = _part(name, train_size // 3, 0, seed)
    pairs += demonstrations(part, wrong=wrong, repeats=1, seed=seed)
  return pairs
