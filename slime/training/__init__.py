"""Megatron: build, forward, train step, export. No Ray in it, so that it also runs under torchrun."""
