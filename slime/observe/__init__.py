"""Metrics, trackers, run directory, what a user sees."""
