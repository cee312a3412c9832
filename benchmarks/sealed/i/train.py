"""python train.py SCRIPT [--precision P] [--fault F] [--variant V,W] [--steps N]"""

from __future__ import annotations

import argparse
import importlib

import common
import torch

MODULES = {
    "recsys": "widedeep twotower sasrec lightgcn",
    "graphs": "gin temporal mesh atoms",
    "physics": "wave surrogate equilibrium",
    "rl": "impala decision dreamer c51 board iql",
    "bayes": "backprop svgd spline kalman",
    "series": "fusion timesnet autoformer nhits",
    "tabular": "tabnet node saint",
    "meta": "elastic reptile proto",
    "contrastive": "vicreg supcon score",
    "memory": "turing pointer memory hopfield",
    "attention": "alibi shaw cached performer talking depths",
    "layers": "match longconv circuit tensortrain complex sorter sharp",
}
HOMES = {script: module for module, scripts in MODULES.items() for script in scripts.split()}


def make(arguments: list[str] | None = None) -> common.Script:
    parser = argparse.ArgumentParser()
    parser.add_argument("script", choices=sorted(HOMES))
    parser.add_argument("--precision", default="fp32", choices=common.PRECISIONS)
    parser.add_argument("--fault", default="")
    parser.add_argument("--variant", default="")
    parser.add_argument("--steps", type=int, default=2)
    given = parser.parse_args(arguments)
    script = importlib.import_module(HOMES[given.script]).SCRIPTS[given.script]
    variants = tuple(v for v in given.variant.split(",") if v)
    if given.fault and given.fault not in script.faults:
        parser.error(f"faults of {given.script}: {', '.join(script.faults)}")
    if set(variants) - set(script.variants) - {"threads"}:
        parser.error(f"variants of {given.script}: {', '.join(script.variants)}")
    options = common.OPTIONS
    options.precision, options.fault, options.variants, options.steps = (
        given.precision,
        given.fault,
        variants,
        given.steps,
    )
    torch.set_num_threads(2 if "threads" in variants else 1)
    return script()


if __name__ == "__main__":
    make().run()
