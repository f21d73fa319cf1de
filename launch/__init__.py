"""Entry points: `python -m launch.train`, and the shell scripts beside it."""
