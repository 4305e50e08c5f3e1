"""Runs under faults: real processes killed, and what was lost by it."""
