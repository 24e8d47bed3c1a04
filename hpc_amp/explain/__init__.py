"""Why a job failed: known failures, told from the lines of its log."""
