"""Job files that are drafted from a program or from a job script."""
