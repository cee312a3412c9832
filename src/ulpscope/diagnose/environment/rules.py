"""What is known of an environment's parts: how likely another entry changes numbers, and why.

The first rule that fits an entry counts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ulpscope.records.environments import Likelihood

LIKELY, POSSIBLE, UNLIKELY = Likelihood


@dataclass(frozen=True, slots=True)
class Rule:
    part: str
    names: re.Pattern[str]
    """Matches the whole name."""
    likelihood: Likelihood
    reason: str


def _rules() -> Iterator[Rule]:
    for part, names, likelihood, reason in _TABLE:
        yield Rule(part, re.compile(names, re.IGNORECASE), likelihood, reason)


_KERNELS = (
    r"torch|torch-npu|tensorflow\S*|keras|tf-keras|jax\S*|numpy|triton\S*|python|ml-dtypes|nvidia-\S+|mkl|\S*onednn\S*"
)
_MODELS = (
    r"transformers|diffusers|timm|torchvision|torchaudio|torch-geometric|accelerate|deepspeed|megatron\S*|apex|peft|trl|"
    r"lightning|pytorch-lightning|flash-attn\S*|xformers|transformer-engine\S*|bitsandbytes|torchao|liger-kernel|"
    r"sentence-transformers|safetensors|tokenizers|datasets|sentencepiece|tiktoken|pillow|librosa|scipy|scikit-learn|"
    r"vllm|sglang|mindspeed\S*|optimum\S*"
)
_FEWER_BITS = (
    r"default_dtype|keras_.*|.*precision.*|.*tf32|tensor_float_32|.*accumulation|flushes_subnormals|NVIDIA_TF32_OVERRIDE|"
    r"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|ONEDNN_DEFAULT_FPMATH_MODE|DNNL_DEFAULT_FPMATH_MODE|NVTE_.*|XLA_FLAGS|"
    r"TF_ENABLE_AUTO_MIXED_PRECISION|.*FP8.*"
)
_TABLE = (
    ("parameters", ".*", LIKELY, "weights"),
    ("inputs", ".*", LIKELY, "data"),
    ("seeds", "torch_.*", LIKELY, "seed"),
    ("configs", ".*", LIKELY, "setting"),
    ("command", "-.*", LIKELY, "setting"),
    ("framework", "name", LIKELY, "framework"),
    ("switches", _FEWER_BITS, LIKELY, "fewer_bits"),
    ("variables", _FEWER_BITS, LIKELY, "fewer_bits"),
    ("random_calls", ".*", LIKELY, "random_calls"),
    ("devices", ".*", POSSIBLE, "device"),
    ("framework", ".*", POSSIBLE, "kernels"),
    ("packages", _KERNELS, POSSIBLE, "kernels"),
    ("packages", _MODELS, POSSIBLE, "model_code"),
    ("command", ".*", POSSIBLE, "argument"),
    ("seeds", ".*", POSSIBLE, "shuffling"),
    ("variables", "PYTHONHASHSEED", POSSIBLE, "shuffling"),
    ("switches", ".*", POSSIBLE, "order"),
    ("machine", "cpu|cpu_features", POSSIBLE, "processor"),
    ("build", ".*", POSSIBLE, "kernels"),
    ("libraries", ".*", POSSIBLE, "kernels"),
    ("variables", r"(RANK|LOCAL_RANK|MASTER_.*|.*_(DIR|PATH|FILE|LOG_LEVEL|LOGGING|VERBOSE|DEBUG))", UNLIKELY, "place"),
    ("variables", ".*", POSSIBLE, "order"),
    ("drivers", ".*", UNLIKELY, "driver"),
    ("compilers", ".*", UNLIKELY, "compiler"),
    ("machine", "cpus.*", UNLIKELY, "threads"),
    ("machine", "libc", UNLIKELY, "libc"),
    ("machine", ".*", UNLIKELY, "place"),
    ("packages", ".*", UNLIKELY, "package"),
)
RULES = tuple(_rules())


def rule_of(part: str, name: str) -> int:
    """The place of the rule for an entry; every part ends in one that fits all of it."""
    return next(place for place, rule in enumerate(RULES) if rule.part == part and rule.names.fullmatch(name))
