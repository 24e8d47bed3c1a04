"""Trackers: where the curves of a training go, besides `metrics.jsonl`."""
