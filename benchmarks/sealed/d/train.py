"""Trains one of the models for a few steps: python train.py MODEL [--precision P] [--fault F] [--variant V]."""

from __future__ import annotations

from collections.abc import Callable

import audio
import diffusion
import flows
import graphs
import physics
import rl
import sets
import tabular
import vision
from common import Options, parse

SCRIPTS: dict[str, Callable[[Options], None]] = {
    "densenet": vision.train_densenet,
    "xcit": vision.train_xcit,
    "fcos": vision.train_fcos,
    "deeplab": vision.train_deeplab,
    "stylegan": vision.train_stylegan,
    "glow": flows.train_glow,
    "ffjord": flows.train_ffjord,
    "schnet": graphs.train_schnet,
    "rgcn": graphs.train_rgcn,
    "gps": graphs.train_gps,
    "ft_transformer": tabular.train_ft_transformer,
    "ppo": rl.train_ppo,
    "sac": rl.train_sac,
    "deeponet": physics.train_deeponet,
    "gp": physics.train_gp,
    "heat": physics.train_heat,
    "set_transformer": sets.train_set_transformer,
    "dgcnn": sets.train_dgcnn,
    "dgcnn-static": sets.train_dgcnn,
    "ensemble": sets.train_ensemble,
    "tasnet": audio.train_tasnet,
    "flux": diffusion.train_flux,
    "flux-sample": diffusion.sample_flux,
}


def main() -> None:
    options = parse(list(SCRIPTS))
    SCRIPTS[options.model](options)


if __name__ == "__main__":
    main()
