"""Pairs of runs that differ in how they compute, and of which neither is wrong."""

from __future__ import annotations

from zoo.expectations import CleanPair

BF16, FP16, EAGER = ("--autocast", "bf16"), ("--autocast", "fp16"), ("--mode", "eager")
DROPOUT = ("--dropout", "yes")
FUNCTIONAL, SEQUENTIAL = ("--spelling", "functional"), ("--spelling", "sequential")

CLEAN_PAIRS = (
    CleanPair("transformer", "identical", ("--seed", "0")),
    CleanPair("transformer", "bf16", BF16),
    CleanPair("transformer", "bf16_eager", (*BF16, *EAGER), EAGER),
    CleanPair("transformer", "fp16_scaler", FP16),
    CleanPair("transformer", "eager", EAGER),
    CleanPair("transformer", "dropout_bf16", (*DROPOUT, *BF16), DROPOUT),
    CleanPair("transformer", "onednn_off", ("--onednn", "off")),
    CleanPair("transformer", "jit", ("--jit", "on")),
    CleanPair("cnn", "bf16", BF16),
    CleanPair("cnn", "bf16_eager", (*BF16, *EAGER), EAGER),
    CleanPair("cnn", "fp16_scaler", FP16),
    CleanPair("cnn", "eager", EAGER),
    CleanPair("cnn", "onednn_off", ("--onednn", "off")),
    CleanPair("cnn", "sequential_bf16", (*SEQUENTIAL, *BF16), FUNCTIONAL),
    CleanPair("tagger", "identical", ("--seed", "0")),
    CleanPair("tagger", "bf16", BF16),
    CleanPair("tagger", "bf16_eager", (*BF16, *EAGER), EAGER),
    CleanPair("tagger", "eager", EAGER),
    CleanPair("tagger", "outer_tape", ("--where", "outside")),
    CleanPair("lenet", "bf16", BF16),
    CleanPair("lenet", "fp16", FP16),
    CleanPair("lenet", "references", ("--variables", "reference")),
)
