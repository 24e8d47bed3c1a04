"""What several test modules share. On the search path by `pythonpath` in pyproject.toml."""
