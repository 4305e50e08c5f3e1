"""Graders: a response and a label in, a score out."""
