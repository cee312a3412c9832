"""Pairs of runs that differ in how they compute, and of which neither is wrong."""

from __future__ import annotations

from zoo.expectations import CleanPair

BF16, FP16, SDPA = ("--autocast", "bf16"), ("--autocast", "fp16"), ("--attention", "sdpa")
DROPOUT, SINGLE = ("--dropout", "yes"), ("--update", "single")

CLEAN_PAIRS = (
    CleanPair("gpt", "identical", ("--seed", "0")),
    CleanPair("llama", "bf16", BF16),
    CleanPair("gpt", "bf16", BF16),
    CleanPair("resnet", "bf16", BF16),
    CleanPair("vit", "bf16", BF16),
    CleanPair("moe", "bf16", BF16),
    CleanPair("tagger", "bf16", BF16),
    CleanPair("unet", "bf16", BF16),
    CleanPair("autoencoder", "bf16", BF16),
    CleanPair("recommender", "bf16", BF16),
    CleanPair("parallel", "bf16", BF16),
    CleanPair("llama", "fp16", FP16),
    CleanPair("resnet", "fp16", FP16),
    CleanPair("llama", "fp16_scaler", (*FP16, "--scaler")),
    CleanPair("gpt", "fp16_scaler", (*FP16, "--scaler")),
    CleanPair("gpt", "weights_bf16", ("--dtype", "bf16")),
    CleanPair("gpt", "dropout", (*DROPOUT, "--seed", "0"), DROPOUT),
    CleanPair("gpt", "dropout_bf16", (*DROPOUT, *BF16), DROPOUT),
    CleanPair("llama", "sdpa", SDPA),
    CleanPair("gpt", "sdpa", SDPA),
    CleanPair("vit", "sdpa", SDPA),
    CleanPair("vit", "sdpa_bf16", (*SDPA, *BF16)),
    CleanPair("llama", "foreach", ("--update", "foreach"), SINGLE),
    CleanPair("gpt", "fused", ("--update", "fused"), SINGLE),
    CleanPair("resnet", "foreach", ("--update", "foreach"), SINGLE),
    CleanPair("unet", "fused", ("--update", "fused"), ("--update", "foreach")),
    CleanPair("resnet", "channels_last", ("--memory", "channels_last")),
    CleanPair("unet", "channels_last", ("--memory", "channels_last")),
    CleanPair("gpt", "checkpoint_reentrant", ("--checkpoint", "reentrant")),
    CleanPair("gpt", "checkpoint_saved", ("--checkpoint", "saved")),
    CleanPair("gpt", "checkpoint_dropout", ("--checkpoint", "saved", *DROPOUT), DROPOUT),
    CleanPair("llama", "threads", ("--threads", "2")),
    CleanPair("resnet", "threads", ("--threads", "2")),
    CleanPair("gpt", "ddp", ("--wrap", "ddp")),
    CleanPair("gpt", "outer_module", ("--wrap", "outer")),
    CleanPair("gpt", "metrics", ("--metrics",)),
    CleanPair("gpt", "flipped_batches", ("--flipped",)),
    CleanPair("gpt", "metrics_bf16", ("--metrics", *BF16)),
    CleanPair("resnet", "functions", ("--spelling", "functions")),
    CleanPair("resnet", "compiled", ("--compiled", "yes")),
    CleanPair("tagger", "identical", ("--seed", "0")),
    CleanPair("parallel", "ddp_bf16", ("--mode", "ddp", *BF16), ("--mode", "ddp")),
    CleanPair("parallel", "split_bf16", ("--mode", "split", *BF16), ("--mode", "split")),
    *(
        CleanPair("translator", f"bf16_{seed}", (*BF16, "--seed", str(seed)), ("--seed", str(seed)))
        for seed in range(1, 7)
    ),
    CleanPair("translator", "bf16_scaler", (*BF16, "--scaler")),
    CleanPair("translator", "fp16_scaler", (*FP16, "--scaler")),
)
