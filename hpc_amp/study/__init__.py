"""Scaling studies: plan them, analyse the measurements of their runs, and write reports.

    plan -> campaign -> runs -> points -> curve (speedup, efficiency), fit -> caveats -> report

Only the HTML page needs Jinja2, and the pictures need matplotlib, which is optional.
"""
