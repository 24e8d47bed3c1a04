"""Campaigns: many runs of one job, in one folder.

    points -> plan -> folder, snapshot -> submit (parts, record) -> status -> continue or cancel

`view` is what a way to use them adds: scaling studies (`hpc_amp.study`), sweeps (`hpc_amp.sweep`)
and benchmarks (`hpc_amp.bench`). None of these imports another one.
"""
