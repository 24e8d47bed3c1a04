"""Ranks: which one this process is, and how they communicate. Part of the job side. Of the modules
that a rank imports before its program, none imports torch."""
