"""Package metadata. Tool settings are in pyproject.toml, tested versions in constraints.txt."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

PARITY = [
  "torch",
  "accelerate",  # transformers reads GGUF files through it
  "transformers",
]
MATH = [
  "math-verify",  # LaTeX answers
]
NOTEBOOKS = [
  "ipykernel",
  "nbclient",
  "nbformat",
]
TEST = [
  *MATH,
  *NOTEBOOKS,
  "hypothesis",
  "import-linter",
  "pyright",
  "pytest",
  "pytest-xdist",  # test.sh runs test files on two cores
  "ruff",
]

setup(
  name="rlvr_jax",
  version="0.1.0",
  description="Rollout-efficient reinforcement learning with verifiable rewards, in JAX",
  long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  packages=find_packages(
    include=["rlvr_jax", "rlvr_jax.*", "launch", "launch.*", "experiments", "experiments.*"]
  ),
  package_data={"launch": ["*.sh", "*.js", "*.css"]},
  python_requires=">=3.11",
  install_requires=[
    "absl-py",
    "einops",
    "flax",
    "fsspec",  # workdirs in object stores
    "gguf",
    "grain",
    "huggingface_hub",
    "jax>=0.10",  # the CPU build; accelerators are the extras below
    "jinja2",
    "matplotlib",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "pyarrow",
    "reasoning-gym",
    "rich",
    "safetensors",
    "scipy",
    "tensorboardX",  # writes TensorBoard event files without TensorFlow
    "tensorflow-datasets",
    "tokenizers",
  ],
  extras_require={
    "test": TEST,
    "math": MATH,  # answers in LaTeX: MATH, and verifier="math"
    "parity": PARITY,  # tests against the reference implementations of the models
    "notebooks": NOTEBOOKS,
    "gcs": ["gcsfs"],  # --workdir=gs://...
    "wandb": ["wandb"],
    "tpu": ["jax[tpu]"],
    "cuda": ["jax[cuda13]"],
    "cuda12": ["jax[cuda12]"],
  },
)
