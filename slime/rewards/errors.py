class RewardError(ValueError):
    """A reward that cannot be used, or that could not be had; the message names the sample."""


class RewardFailure(RewardError):
    """A reward that was not had this time: its function raised or hung, its service failed. --rm-failure-policy says
    what then; every other RewardError is a mistake and ends the run."""
