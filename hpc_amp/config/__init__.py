"""The configuration: its schema (shared by both halves) and its loading (submit side)."""
