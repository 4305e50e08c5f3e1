"""Making samples: generation, rewards beside it, evaluation."""
