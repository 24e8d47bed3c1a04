"""Ranks: which one this process is, and how they communicate. Part of the job side. Of the modules
that a rank imports before its program, none imports torch, nor `typing` and `pathlib`, which take a
quarter of the time of such a start."""
