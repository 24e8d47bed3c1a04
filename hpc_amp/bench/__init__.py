"""The same job in each precision, measured: `hpc-amp bench`.

folder -> points (ordinary runs, one after the other) -> results -> comparison -> report
"""
