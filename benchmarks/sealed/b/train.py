"""train.py MODEL [--precision P] [--fault NAME] [--variant NAME] [--steps N]"""
import importlib
import sys

import torch

from common import parse, seed_all

FILES = ["research_a", "research_b", "research_c", "vision", "diffusion", "graphs", "lit"]
WHERE = {}  # model -> file, read from the lists below
WHERE.update({m: "research_a" for m in "realnvp nerf pinn neural_ode ssm perceiver siamese vae".split()})
WHERE.update({m: "research_b" for m in "gan actor_critic wavenet capsule senet dpsgd spiking vqvae critic_gp byol".split()})
WHERE.update({m: "research_c" for m in "sam lbfgs maml fno axial pointnet ctc linear_attention".split()})
WHERE.update({m: "vision" for m in "convnext efficientnet mobilenetv3 swin cait mixer regnet".split()})
WHERE.update({m: "diffusion" for m in "unet2d unet_cond autoencoder_kl dit".split()})
WHERE.update({m: "graphs" for m in "gcn gat sage".split()})
WHERE.update({m: "lit" for m in "lit_tcn".split()})


def main(argv=None):
    c = parse(argv)
    torch.set_num_threads(2 if c.variant == "two_threads" else 1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    seed_all(0)
    getattr(importlib.import_module(WHERE[c.model]), c.model)(c)
    return c


if __name__ == "__main__":
    main(sys.argv[1:])
