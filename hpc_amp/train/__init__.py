"""The training engine: how a task is trained, whatever it is."""
