"""Ways to write the same computation."""
import torch
import torch.nn.functional as F
from torch import nn

VARIANTS = {}


def variant(f):
    VARIANTS[f.__name__] = f
    return f


@variant
def foreach(model, s):
    s.optimizer_options["foreach"] = True


@variant
def single(model, s):
    s.optimizer_options["foreach"] = False


@variant
def fused(model, s):
    s.optimizer_options["fused"] = True


@variant
def nll(model, s):
    s.loss = "nll"


@variant
def gather(model, s):
    s.loss = "gather"


@variant
def checkpoint(model, s):
    if s.style == "trainer":
        s.optimizer_options["checkpoint"] = True
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


@variant
def channels_last(model, s):
    model.to(memory_format=torch.channels_last)
    s.prepare.append(lambda b: {k: (v.to(memory_format=torch.channels_last) if k == "pixel_values" else v) for k, v in b.items()})


@variant
def einsum(model, s):
    def forward(self, x):
        y = torch.einsum("...i,oi->...o", x, self.weight)
        return y if self.bias is None else y + self.bias
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = forward.__get__(module)


@variant
def matmul_mlp(model, s):
    """Only the layers of the MLPs, as x @ w.t()."""
    for name, module in model.named_modules():
        if type(module) is nn.Linear and (".mlp." in name or ".fc" in name):
            module.forward = (lambda self, x: x.matmul(self.weight.t()) + (0 if self.bias is None else self.bias)).__get__(module)


@variant
def reverse(model, s):
    s.order = lambda n: torch.arange(n - 1, -1, -1)


@variant
def rotate(model, s):
    s.order = lambda n: torch.arange(n).roll(1)


@variant
def double_loss(model, s):
    s.dtype_loss = torch.float64


@variant
def side_eval(model, s):
    s.side_eval = True


@variant
def threads(model, s):
    torch.set_num_threads(2)


@variant
def manual_norm(model, s):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = (x - mean).pow(2).mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias
    for module in model.modules():
        if type(module) is nn.LayerNorm:
            module.forward = forward.__get__(module)


@variant
def fused_rms(model, s):
    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.variance_epsilon)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = forward.__get__(module)


@variant
def no_cache(model, s):
    s.generate["use_cache"] = False


@variant
def logging_hooks(model, s):
    """Norms of activations, for a log nobody reads."""
    seen = []

    def hook(module, args, out):
        if torch.is_tensor(out):
            seen.append(float(out.detach().float().norm()))
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.LayerNorm)):
            module.register_forward_hook(hook)


@variant
def chunked_mlp(model, s):
    """The feed-forward of half of the positions at a time."""
    for name, module in model.named_modules():
        if name.endswith(".mlp") and name.count(".") >= 2:
            plain = module.forward
            module.forward = (lambda plain: lambda x: torch.cat([plain(c) for c in x.chunk(2, dim=1)], dim=1))(plain)
