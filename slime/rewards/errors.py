class RewardError(ValueError):
    """A reward that cannot be used, or that could not be had; the message names the sample."""
