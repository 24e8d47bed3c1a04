"""`hpc-amp doctor`: what can be known before a job runs. The rest is the job's own preflight
(`hpc_amp.preflight`)."""
