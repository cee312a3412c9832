"""Language models: pre-training, adapters, generation."""

from __future__ import annotations

import types
from typing import Any

import torch
from common import Options, autocast, generator, recipe, report, scaler_for, token_batch
from torch import nn
from torch.nn import functional as F

import models


@recipe("gpt_neox", faults=("rope_base", "early_schedule", "serial_residual"), variants=("eager",))
def gpt_neox(options: Options) -> None:
    """A plain loop with warm-up and clipping."""
    changes: dict[str, Any] = {}
    if options.fault == "rope_base":
        changes["rotary_emb_base"] = 1000
    model = models.gpt_neox("eager" if options.variant == "eager" else "sdpa", **changes).to(options.dtype)
    if options.fault == "serial_residual":
        model.gpt_neox.layers[1].use_parallel_residual = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    ahead = 2 if options.fault == "early_schedule" else 1
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + ahead) / 4, 1.0))
    model.train()
    for step in range(options.steps):
        ids, mask = token_batch(120, 4, 20, seed=100 + step)
        labels = ids.masked_fill(mask == 0, -100)
        with autocast(options):
            loss = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        report(step, loss.detach())


@recipe("modernbert", faults=("undivided", "narrow_window", "norm_eps"), variants=("checkpointing",))
def modernbert(options: Options) -> None:
    """Masked words, gradients of two small batches added up for every update."""
    changes = {"local_attention": 6} if options.fault == "narrow_window" else {}
    model = models.modernbert(**changes).to(options.dtype)
    if options.fault == "norm_eps":
        model.model.layers[2].mlp_norm.eps = 0.02
    if options.variant == "checkpointing":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = scaler_for(options)
    parts = 2
    for step in range(options.steps):
        total = 0.0
        for part in range(parts):
            ids, mask = token_batch(130, 4, 18, seed=200 + step * parts + part, shortest=15)
            hidden = (torch.rand(ids.shape, generator=generator(step * parts + part)) < 0.3) & (mask == 1)
            labels = ids.masked_fill(~hidden, -100)
            with autocast(options):
                loss = model(input_ids=ids.masked_fill(hidden, 3), attention_mask=mask, labels=labels).loss
            if options.fault != "undivided":
                loss = loss / parts
            scaler.scale(loss).backward()
            total += float(loss.detach())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        report(step, total)


def scores_of_all(self: nn.Module, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A router that takes probabilities over all experts and keeps the largest as they are."""
    logits = F.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight, self.bias)
    value, indices = torch.topk(logits.softmax(dim=-1, dtype=logits.dtype), self.top_k, dim=-1)
    return torch.zeros_like(logits).scatter_(1, indices, value), indices


def without_sinks(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any) -> Any:
    """Attention that leaves the sinks out."""
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if mask is not None:
        scores = scores + mask[:, :, :, : key.shape[-2]]
    probs = F.softmax(scores, dim=-1, dtype=scores.dtype)
    return torch.matmul(probs, value).transpose(1, 2).contiguous(), probs


@recipe("gpt_oss", faults=("experts_swapped", "router_softmax", "no_sinks"))
def gpt_oss(options: Options) -> None:
    """Experts, trained by NAdam on sequences without padding."""
    model = models.gpt_oss().to(options.dtype)
    if options.fault == "experts_swapped":
        with torch.no_grad():
            weight = model.model.layers[1].mlp.experts.gate_up_proj
            weight[[0, 2]] = weight[[2, 0]]
    if options.fault == "router_softmax":
        router = model.model.layers[1].mlp.router
        router.forward = types.MethodType(scores_of_all, router)
    if options.fault == "no_sinks":
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register("plain", without_sinks)
        attention = model.model.layers[1].self_attn
        attention.config = type(attention.config)(**attention.config.to_dict())
        attention.config._attn_implementation = "plain"
    model.train()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3, betas=(0.9, 0.99))
    for step in range(options.steps):
        ids, _ = token_batch(110, 2, 16, seed=300 + step)
        ids = torch.where(ids == 0, 5, ids)
        optimizer.zero_grad()
        with autocast(options):
            logits = model(input_ids=ids, use_cache=False).logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        report(step, loss.detach())


@recipe("lfm2_generate", faults=("stale_conv", "late_position"), variants=("eager",))
def lfm2_generate(options: Options) -> None:
    """Greedy generation with caches, evaluation only."""
    model = models.lfm2("eager" if options.variant == "eager" else "sdpa").to(options.dtype).eval()
    if options.fault == "stale_conv":
        block = model.model.layers[2].conv
        whole = block.forward

        def forget(hidden_states: torch.Tensor, past_key_values: Any = None, **kwargs: Any) -> torch.Tensor:
            if past_key_values is None or hidden_states.shape[1] > 1:
                return whole(hidden_states, past_key_values=past_key_values, **kwargs)
            kept = past_key_values.conv_cache[block.layer_idx].clone()
            out = whole(hidden_states, past_key_values=past_key_values, **kwargs)
            past_key_values.conv_cache[block.layer_idx] = kept
            return out

        block.forward = forget
    if options.fault == "late_position":
        prepare = model.prepare_inputs_for_generation

        def shifted(*args: Any, **kwargs: Any) -> dict[str, Any]:
            inputs = prepare(*args, **kwargs)
            if inputs["input_ids"].shape[1] == 1:
                inputs["position_ids"] = inputs["position_ids"] + 1
            return inputs

        model.prepare_inputs_for_generation = shifted
    ids, _ = token_batch(99, 2, 10, seed=400)
    ids = torch.where(ids == 0, 7, ids)
    with torch.no_grad(), autocast(options):
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=4 * options.steps,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    print("tokens", out.sequences[:, ids.shape[1] :].tolist())
    for step, logits in enumerate(out.logits):
        report(step, logits.float().logsumexp(-1).mean())


def adapted(options: Options) -> Any:
    """A frozen decoder with low-rank adapters that have been trained before."""
    from peft import LoraConfig, get_peft_model

    model = models.codegen()
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=["qkv_proj", "fc_in"],
        lora_dropout=0.0,
        use_rslora=options.fault != "plain_scale",
        init_lora_weights=False,
    )
    torch.manual_seed(41)
    model = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(0.5)
                if options.fault == "adapter_lost" and "h.1.mlp.fc_in" in name:
                    parameter.zero_()
    if options.fault == "embedding_trained":
        model.base_model.model.transformer.wte.weight.requires_grad_(True)
    return model.to(options.dtype)


@recipe("codegen_lora", faults=("plain_scale", "embedding_trained", "adapter_lost"))
def codegen_lora(options: Options) -> None:
    """Only adapters are trained, with a gradient scaler where needed."""
    model = adapted(options)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    scaler = scaler_for(options)
    for step in range(options.steps):
        ids, mask = token_batch(100, 4, 16, seed=500 + step)
        with autocast(options):
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            labels = ids.masked_fill(mask == 0, -100)[:, 1:]
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        report(step, loss.detach())


@recipe("codegen_lora_eval", variants=("merged",))
def codegen_lora_eval(options: Options) -> None:
    """Perplexity of the adapted model, its adapters apart or merged into the weights."""
    model = adapted(options).eval()
    if options.variant == "merged":
        model.merge_adapter()
    for step in range(options.steps):
        ids, mask = token_batch(100, 4, 16, seed=520 + step)
        with torch.inference_mode(), autocast(options):
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            labels = ids.masked_fill(mask == 0, -100)[:, 1:]
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels.flatten(), ignore_index=-100)
        report(step, loss)
