"""Studies: each folder has a config.py with `get_config()` and a README.md with the result."""
