"""Why a recorded call cannot be executed again."""


class CannotReplayError(Exception):
    """Its text is the reason, as a few words that many calls may share."""
