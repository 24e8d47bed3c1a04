"""Benchmarks: the speed of one job with several settings, such as all precisions."""
