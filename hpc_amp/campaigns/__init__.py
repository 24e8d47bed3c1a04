"""Campaigns: many runs of one job, in one folder.

    points -> plan -> folder, snapshot -> submit (parts, record) -> status -> continue or cancel

A `view` is one way to use campaigns: scaling studies (`hpc_amp.study`), sweeps (`hpc_amp.sweep`)
and benchmarks (`hpc_amp.bench`). The views do not import each other.
"""
