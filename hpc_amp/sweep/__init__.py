"""Sweeps: one job file, many points, each an ordinary run. Submit side."""
