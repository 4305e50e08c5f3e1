"""Samples, prompts, chat templates and loss masks, batches, the buffer."""
