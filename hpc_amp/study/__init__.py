"""Scaling studies: what their runs measured, what follows from it, and how it is shown.

    folder -> timing, runs -> points -> curve (speedup, efficiency) -> fit, caveats -> report

Everything is standard library but the page (Jinja2) and the pictures (matplotlib, if it is there).
"""
