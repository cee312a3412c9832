"""Operators' names as files have them."""

_TO_UNDERSCORE = str.maketrans(dict.fromkeys("./\\ ", "_"))


def sanitised(name: str) -> str:
    """An operator's name as names of dump files have it: fc1_Relu for fc1/Relu."""
    return name.translate(_TO_UNDERSCORE)
