"""Preferences, contrastive learning, classification, images with text."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import torch
import transformers as hf
from common import Options, autocast, generator, recipe, report, scaler_for, token_batch
from own import AlibiDecoder
from torch import nn
from torch.nn import functional as F

import models


@recipe("reward", faults=("last_position", "sign", "unscaled_attention"), variants=("softplus",))
def reward(options: Options) -> None:
    """A reward model on pairs of answers, in accelerate's loop."""
    from accelerate import Accelerator

    changes: dict[str, Any] = {}
    if options.fault == "unscaled_attention":
        changes["scale_attn_weights"] = False
    model = models.gpt_bigcode(**changes)
    if options.fault == "last_position":
        model.config.pad_token_id = 89
    if options.precision == "fp64":
        model = model.double()
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if options.precision == "bf16-autocast" else "no")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    model.train()
    for step in range(options.steps):
        chosen, chosen_mask = token_batch(88, 4, 14, seed=600 + 2 * step)
        rejected, rejected_mask = token_batch(88, 4, 14, seed=601 + 2 * step)
        better = model(input_ids=chosen, attention_mask=chosen_mask).logits.squeeze(-1)
        worse = model(input_ids=rejected, attention_mask=rejected_mask).logits.squeeze(-1)
        margin = worse - better if options.fault == "sign" else better - worse
        loss = F.softplus(-margin).mean() if options.variant == "softplus" else -F.logsigmoid(margin).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        report(step, loss.detach())


def answer_log_probability(logits: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor, variant: Any) -> torch.Tensor:
    """Sum of the log probabilities of the words of an answer."""
    logits = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    labels = ids[:, 1:]
    if variant == "cross_entropy":
        each = -F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    else:
        each = logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
    return (each * mask[:, 1:]).sum(-1)


@recipe("dpo", faults=("beta", "answer_cut", "alibi_slopes"), variants=("cross_entropy",))
def dpo(options: Options) -> None:
    """Direct preference optimisation against a frozen copy."""
    torch.manual_seed(32)
    policy = AlibiDecoder(96, first=0 if options.fault == "alibi_slopes" else 1).to(options.dtype)
    frozen = copy.deepcopy(policy).eval().requires_grad_(False)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape).to(parameter.dtype))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4, betas=(0.9, 0.95))
    beta = 0.3 if options.fault == "beta" else 0.1
    prompt = 6
    for step in range(options.steps):
        chosen, chosen_mask = token_batch(96, 4, 16, seed=700 + step)
        rejected, rejected_mask = token_batch(96, 4, 16, seed=750 + step)
        rejected[:, :prompt] = chosen[:, :prompt]
        start = prompt + 1 if options.fault == "answer_cut" else prompt
        ratios = []
        for ids, mask in ((chosen, chosen_mask), (rejected, rejected_mask)):
            answer = mask.clone()
            answer[:, :start] = 0
            with autocast(options):
                ours = answer_log_probability(policy(ids), ids, answer, options.variant)
                with torch.no_grad():
                    theirs = answer_log_probability(frozen(ids), ids, answer, options.variant)
            ratios.append(ours - theirs)
        loss = -F.logsigmoid(beta * (ratios[0] - ratios[1])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step, loss.detach())


def swapped_bucket(relative_position: torch.Tensor, num_buckets: int = 32, max_distance: int = 128) -> torch.Tensor:
    """Buckets of distances with left and right exchanged."""
    return hf.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(
        -relative_position, num_buckets, max_distance
    )


def sentence(states: torch.Tensor, mask: torch.Tensor, options: Options) -> torch.Tensor:
    """Mean of the words of a sentence."""
    if options.fault == "pool_padding":
        return states.mean(1)
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


@recipe("simcse", faults=("pool_padding", "bucket_sides"), variants=("einsum",))
def simcse(options: Options) -> None:
    """Two views of each sentence, all others are negatives."""
    model = models.mpnet().to(options.dtype)
    if options.fault == "bucket_sides":
        model.encoder.relative_position_bucket = swapped_bucket
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = scaler_for(options)
    for step in range(options.steps):
        ids, mask = token_batch(120, 6, 14, seed=800 + step, pad=1)
        noise = torch.rand(ids.shape, generator=generator(850 + step)) < 0.2
        other = torch.where(noise & (mask == 1), 3, ids)
        with autocast(options):
            first = sentence(model(input_ids=ids, attention_mask=mask).last_hidden_state, mask, options)
            second = sentence(model(input_ids=other, attention_mask=mask).last_hidden_state, mask, options)
            if options.variant == "einsum":
                first = first / first.pow(2).sum(-1, keepdim=True).sqrt()
                second = second / second.pow(2).sum(-1, keepdim=True).sqrt()
                similarity = torch.einsum("id,jd->ij", first, second) / 0.05
            else:
                similarity = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T / 0.05
            loss = F.cross_entropy(similarity, torch.arange(len(ids)))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        report(step, loss.detach())


@recipe("siglip", faults=("betas", "mean_of_all", "quick_gelu"), variants=("fused",))
def siglip(options: Options) -> None:
    """Images and texts under a sigmoid loss, two groups of parameters, cosine schedule."""
    model = models.siglip().to(options.dtype)
    if options.fault == "quick_gelu":
        model.vision_model.encoder.layers[1].mlp.activation_fn = hf.activations.ACT2FN["quick_gelu"]
    model.train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=1e-3,
        betas=(0.9, 0.999 if options.fault == "betas" else 0.95),
        fused=True if options.variant == "fused" else None,
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    scaler = scaler_for(options)
    for step in range(options.steps):
        source = generator(900 + step)
        pixels = torch.randn(6, 3, 32, 32, generator=source).to(options.dtype)
        ids = torch.randint(4, 80, (6, 12), generator=source)
        with autocast(options):
            logits = model(input_ids=ids, pixel_values=pixels).logits_per_text
        signs = 2 * torch.eye(len(ids)) - 1
        loss = -F.logsigmoid(signs * logits)
        loss = loss.mean() if options.fault == "mean_of_all" else loss.sum(-1).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        report(step, loss.detach())


@recipe("lxmert_eval", faults=("no_region_mask", "box_sides"))
def lxmert_eval(options: Options) -> None:
    """Accuracy and loss on held-out questions, nothing is trained."""
    model = models.lxmert().to(options.dtype).eval()
    right = 0
    with torch.no_grad():
        for step in range(options.steps):
            source = generator(1000 + step)
            ids, mask = token_batch(90, 4, 12, seed=1050 + step)
            features = torch.randn(4, 7, 24, generator=source)
            corners = torch.rand(4, 7, 4, generator=source) * torch.tensor([640.0, 480.0, 640.0, 480.0])
            size = torch.tensor([640.0, 480.0, 640.0, 480.0])
            if options.fault == "box_sides":
                size = size.flip(0)
            boxes = corners / size
            regions = (torch.arange(7)[None, :] < torch.tensor([7, 5, 6, 4])[:, None]).long()
            answers = torch.randint(0, 10, (4,), generator=source)
            with autocast(options):
                scores = model(
                    input_ids=ids,
                    attention_mask=mask,
                    visual_feats=features.to(options.dtype),
                    visual_pos=boxes.to(options.dtype),
                    visual_attention_mask=None if options.fault == "no_region_mask" else regions,
                ).question_answering_score
            loss = F.cross_entropy(scores.float(), answers)
            right += int((scores.argmax(-1) == answers).sum())
            report(step, loss)
    print("right", right)


class LoudTrainer(hf.Trainer):
    """Prints every loss with all its digits."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        report(self.state.global_step, loss.detach())
        return loss


class DecayAll(LoudTrainer):
    """Decays every parameter, norms and biases too."""

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return [name for name, _ in model.named_parameters()]


def wide_scale(query_layer: torch.Tensor, scale_factor: int) -> torch.Tensor:
    """The square root of a head's size alone."""
    return torch.sqrt(torch.tensor(query_layer.size(-1), dtype=torch.float))


def reversed_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same batch, its rows the other way round."""
    return hf.default_data_collator(rows[::-1])


@recipe("deberta_trainer", faults=("decay_all", "scale_factor"), variants=("reversed_rows",))
def deberta_trainer(options: Options) -> None:
    """Classification with the library's Trainer."""
    model = models.deberta_v2()
    if options.precision == "fp64":
        model = model.double()
    if options.fault == "scale_factor":
        hf.models.deberta_v2.modeling_deberta_v2.scaled_size_sqrt = wide_scale
    ids, mask = token_batch(150, 6 * options.steps, 16, seed=1100)
    labels = torch.randint(0, 3, (len(ids),), generator=generator(1101))
    rows = [{"input_ids": i, "attention_mask": m, "labels": int(y)} for i, m, y in zip(ids, mask, labels, strict=True)]
    kind = DecayAll if options.fault == "decay_all" else LoudTrainer
    with tempfile.TemporaryDirectory() as folder:
        trainer = kind(
            model=model,
            args=hf.TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                bf16=options.precision == "bf16-autocast",
                max_steps=options.steps,
                per_device_train_batch_size=6,
                learning_rate=5e-3,
                weight_decay=0.1,
                lr_scheduler_type="constant",
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                seed=5,
            ),
            train_dataset=rows,
            data_collator=reversed_rows if options.variant == "reversed_rows" else hf.default_data_collator,
        )
        trainer.remove_callback(hf.trainer_callback.PrinterCallback)
        trainer.train()
