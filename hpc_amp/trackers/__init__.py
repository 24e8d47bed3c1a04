"""Where the curves of a training go, besides `metrics.jsonl`."""
