"""`hpc-amp explain`: finds known failures in the log of a job."""
