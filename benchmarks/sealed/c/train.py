"""Trains (or evaluates) one small model: python train.py MODEL [--precision P] [--fault F] [--variant V]."""

from __future__ import annotations

import argparse
import importlib
import os
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from common import PRECISIONS, RECIPES, Options

FILES = {
    "language": ["gpt_neox", "modernbert", "gpt_oss", "lfm2_generate", "codegen_lora", "codegen_lora_eval"],
    "pairs": ["reward", "dpo", "simcse", "siglip", "lxmert_eval", "deberta_trainer"],
    "sequences": ["conformer", "norm_lstm", "bahdanau", "textcnn", "nbeats", "patchtst"],
    "lit": ["deepar"],
}
FILE_OF = {model: file for file, members in FILES.items() for model in members}


def parse() -> Options:
    """Reads the command line, and refuses what the model does not know."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(FILE_OF))
    parser.add_argument("--precision", default="fp32", choices=PRECISIONS)
    parser.add_argument("--fault")
    parser.add_argument("--variant")
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    importlib.import_module(FILE_OF[args.model])
    known = RECIPES[args.model]
    if args.fault and args.fault not in known.faults:
        parser.error(f"{args.model} has these faults: {', '.join(known.faults)}")
    if args.variant and args.variant not in known.variants:
        parser.error(f"{args.model} has these variants: {', '.join(known.variants)}")
    return Options(args.model, args.precision, args.fault, args.variant, args.steps)


def main() -> None:
    """One run."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    options = parse()
    torch.manual_seed(0)
    RECIPES[options.model].run(options)


if __name__ == "__main__":
    main()
