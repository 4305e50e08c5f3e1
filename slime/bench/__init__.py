"""Commands that measure each part against the bare library."""
