"""python train.py SCRIPT [--precision P] [--fault F] [--variant V,W] [--steps N]"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from common import PRECISIONS, SCRIPTS, Options, Script

PLACES = {
    "text": "apertus jetmoe minimax openai convbert mobilebert prophetnet blenderbot",
    "pictures": "timesformer cvt yolos tnt gcvit resnest",
    "sounds": "sew fastspeech instrument speaker",
    "making": "audio_dit deep_codec unmask regularised_gan",
    "networks": "papers infomax cloud fingerprint",
    "adapters": "ranks hadamard lines tasks",
    "control": "player team",
    "nature": "potential spins linearised shadows surface",
    "commerce": "interest tastes shelf curves survival",
    "methods": "teacher reversible design curved arcs dropped lasting packed",
}


def make(arguments: Sequence[str]) -> Script:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", choices=[name for names in PLACES.values() for name in names.split()])
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--fault", default="")
    parser.add_argument("--variant", default="")
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args(arguments)
    place = next(place for place, names in PLACES.items() if args.script in names.split())
    importlib.import_module(place)
    kind = SCRIPTS[args.script]
    variants = tuple(v for v in args.variant.split(",") if v)
    wrong = [f for f in [args.fault] if f and f not in kind.faults]
    wrong += [v for v in variants if v not in (*kind.variants, "threads", "matmul")]
    if wrong:
        parser.error(f"{args.script} has no {', '.join(wrong)}; faults: {kind.faults}, variants: {kind.variants}")
    return kind(Options(args.precision, args.fault, variants, args.steps))


if __name__ == "__main__":
    make(sys.argv[1:]).run()
