class RewardError(ValueError):
    """A reward that cannot be used, or that could not be had; the message names the sample."""


class RewardFailure(RewardError):
    """A reward that was not had this time: its function raised or hung, its service failed. --rm-failure-policy says
    what then; every other RewardError is a mistake and ends the run. `cause` is the message without the name."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(name, cause)
        self.name, self.cause = name, cause

    def __str__(self) -> str:
        return f"{self.name}: {self.cause}"
