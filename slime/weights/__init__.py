"""Moving weights from training to inference: one file a transport."""
