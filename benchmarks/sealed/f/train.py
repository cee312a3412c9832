"""Trains one of the small models: python train.py MODEL [--precision P] [--fault NAME] [--variant A,B] [--steps N]"""
import argparse
import importlib
import logging
import sys
import warnings

import torch

from common import cfg

SCRIPTS = dict(
    rl=("dqn", "td3"), graphs=("sage", "egnn"), generative=("maf", "r1gan", "ddpm", "rvq"),
    vision=("distill", "yolo", "useg", "moco", "slot", "qat"), sequences=("rnnt", "crf", "cpc", "convlstm", "mdn", "local"),
    science=("siren", "hnn", "mri", "metasgd", "hyper"), tables=("dlrm", "moe"))


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "fp64", "bf16-autocast", "fp16-autocast", "bf16"])
    parser.add_argument("--fault")
    parser.add_argument("--variant", default="")
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)
    cfg.precision, cfg.chosen_fault, cfg.steps = args.precision, args.fault, args.steps
    cfg.chosen_variants = tuple(v for v in args.variant.split(",") if v)
    script = next(file for file, names in SCRIPTS.items() if args.model in names)
    getattr(importlib.import_module(script), args.model)()
    unknown = {*cfg.chosen_variants, *([args.fault] if args.fault else [])} - cfg.asked
    if unknown:
        sys.exit(f"{args.model} has no {', '.join(sorted(unknown))}")


if __name__ == "__main__":
    main()
