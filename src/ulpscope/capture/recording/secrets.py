"""What must stand in no file that others read: tokens, keys, passwords. In doubt a text is masked.

masked_words(["train.py", "--hub-token", "hf_abc"])          ["train.py", "--hub-token", "***"]
masked("https://me:pass@host/data")                          "https://***@host/data"
"""

import re
from collections.abc import Iterable

MASK = "***"

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ANYWHERE = frozenset(
    """secret secrets password passwords passwd passphrase passcode credential credentials bearer cookie cookies auth
    authorization apikey apikeys""".split()
)
_LAST = frozenset("token key keys pass pwd pat sas dsn jwt sig signature otp".split())
_TOGETHER = re.compile(
    r"(api|access|secret|private|account|ssh|signing|encryption|storage|subscription)keys?(id|file|path)?$"
    r"|(api|auth|access|secret|hf|hub)tokens$|token$|secret$|password$"
)

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@'\"]*@")
_SCHEME = re.compile(r"\b(Bearer|Basic|Token)(\s+)[A-Za-z0-9+/=_.~-]{6,}", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?P<name>[A-Za-z_][\w.-]*)(?P<between>[\"']?\s*(?:=|:(?!//))\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"',;&}\])]+)"
)
_SHAPES = re.compile(
    r"\b(hf_|sk-|sk_|rk_|pk_live_|ghp_|gho_|ghs_|ghu_|ghr_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA|AIza|ya29\.|eyJ|dop_v1_"
    r"|npm_|pypi-|AccountKey=)[A-Za-z0-9_./+=-]{8,}"
)
"""How tokens of services begin, wherever they stand."""


def names_secret(name: str) -> bool:
    """Whether what bears this name is nobody else's business: HF_TOKEN, --api-key, db.password."""
    words = [word.lower() for word in _PARTS.findall(name)]
    if not words:
        return False
    return not _ANYWHERE.isdisjoint(words) or words[-1] in _LAST or _TOGETHER.search("".join(words)) is not None


def hints_at_secret(name: str) -> bool:
    """Whether any part of a name does, as in TF_TOKEN_app_example_com: a value that nobody misses is not kept."""
    words = _PARTS.findall(name)
    return any(map(names_secret, ("_".join(words[:length]) for length in range(1, len(words) + 1))))


def masked(text: str) -> str:
    """A text without the secrets that stand in it: in addresses, assignments, headers, or known by their form."""
    for pattern, instead in ((_ADDRESS, rf"\1{MASK}@"), (_SCHEME, rf"\1\2{MASK}"), (_SHAPES, MASK)):
        text = pattern.sub(instead, text)
    return _ASSIGNED.sub(_assigned, text)


def _assigned(found: re.Match[str]) -> str:
    return f"{found['name']}{found['between']}{MASK}" if names_secret(found["name"]) else found[0]


def masked_words(words: Iterable[str]) -> list[str]:
    """A command line; what follows an option with a secret name is that option's value."""
    told: list[str] = []
    hidden = False
    for word in words:
        is_option = word.startswith("--") and len(word) > 2
        told.append(MASK if hidden and not is_option else masked(word))
        hidden = word.startswith("-") and "=" not in word and names_secret(word)
    return told
