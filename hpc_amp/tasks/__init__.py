"""Tasks: what is trained. A task has networks, data, phases, losses and metrics."""
