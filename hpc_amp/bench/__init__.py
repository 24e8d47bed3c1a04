"""Benchmarks: how fast the same job is with other settings, above all in each precision."""
