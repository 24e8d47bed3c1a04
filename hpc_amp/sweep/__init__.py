"""Sweeps: runs of one job file with many settings, ranked by a metric."""
