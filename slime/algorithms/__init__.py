"""Advantages, KL, losses, corrections: pure functions on tensors, one small file each."""
