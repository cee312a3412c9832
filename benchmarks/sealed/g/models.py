"""All models by name."""

from __future__ import annotations

from common import Task
from decoders import DECODERS
from encoders import ENCODERS
from own import OWN
from senses import SENSES
from seq2seq import SEQ2SEQ

MODELS: dict[str, type[Task]] = {**ENCODERS, **SEQ2SEQ, **DECODERS, **SENSES, **OWN}
