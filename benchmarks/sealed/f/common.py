"""What all scripts share: arguments, precision, random data, printing."""
from contextlib import nullcontext

import torch

DTYPES = {"fp64": torch.float64, "bf16": torch.bfloat16}
AUTOCAST = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}


class Config:
    def __init__(self):
        self.precision, self.chosen_fault, self.chosen_variants, self.steps = "fp32", None, (), 2
        self.asked, self.roots, self.listener, self.losses = set(), {}, None, []

    @property
    def dtype(self):
        return DTYPES.get(self.precision, torch.float32)


cfg = Config()


def fault(name):
    if cfg.chosen_fault == name:
        cfg.asked.add(name)
        return True
    return False


def variant(name):
    if name in cfg.chosen_variants:
        cfg.asked.add(name)
        return True
    return False


def autocast():
    if cfg.precision in AUTOCAST:
        return torch.autocast("cpu", dtype=AUTOCAST[cfg.precision])
    return nullcontext()


def grad_scaler(scale=256.0):
    return torch.amp.GradScaler("cpu", init_scale=scale, enabled=cfg.precision == "fp16-autocast")


def build(name, make, seed=0):
    torch.manual_seed(seed)
    model = make().to(cfg.dtype)
    cfg.roots[name] = model
    return model


def generator(seed):
    return torch.Generator().manual_seed(seed)


def randn(seed, *shape):
    return torch.randn(*shape, generator=generator(seed)).to(cfg.dtype)


def rand(seed, *shape):
    return torch.rand(*shape, generator=generator(seed)).to(cfg.dtype)


def randint(seed, high, *shape):
    return torch.randint(0, high, shape, generator=generator(seed))


def probe(name, tensor):
    """For measure.py, which listens; otherwise nothing."""
    if cfg.listener is not None:
        cfg.listener(name, tensor)
    return tensor


def report(step, loss, **more):
    cfg.losses.append(float(loss))
    print(f"step {step} loss {float(loss):.8f}", *(f"{k} {float(v):.6f}" for k, v in more.items()), flush=True)
