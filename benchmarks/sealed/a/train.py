"""Trains (or evaluates, or generates with) one of the small models.

python train.py MODEL [--precision P] [--fault NAME] [--variant A,B] [--steps N]
"""
import argparse
import logging
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import torch.nn.functional as F
import transformers

import faults
import models
import variants

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
transformers.logging.set_verbosity_error()

STYLE = dict(bart="plain", clip="contrastive", mistral="plain", mamba="plain", phi="plain", segformer="plain", deepseek_v2="plain",
             rwkv="plain", lora="plain", whisper="accumulate", qwen3="accumulate", deepseek_v3="accumulate", distilbert="trainer",
             bloom="trainer", gemma3="accelerate", falcon="accelerate", swin="lightning", wav2vec2="two_optimizers",
             detr="two_optimizers")
OWN_LOSS = {"phi", "mamba", "falcon", "whisper"}


def settings(args, name, style):
    s = SimpleNamespace(name=name, style=style, steps=args.steps, precision=args.precision, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
                        momentum=0.9, nesterov=False, clip=1.0, optimizer_options={}, optimizer="adamw", accumulate=2, divide=True,
                        zero_grad=True, schedule_first=False, schedule_power=1.0, label_smoothing=0.0, shift=1, ignore_index=-100,
                        loss="cross_entropy", reduction="mean", unscale=True, decay_all=False, side_eval=False, order=None,
                        prepare=[], fraction=1.0, drop_mask=False, both_directions=True, normalize_dim=-1, class_weight=None,
                        generate={}, attn=None, dtype_loss=torch.float32, bias_correction=True, head_lr=1.0, backward_every=1)
    if name in ("segformer", "wav2vec2"):
        s.optimizer, s.lr = "sgd", 0.02
    if name == "rwkv":
        s.optimizer, s.lr, s.clip = "sgd", 0.05, None
    if name == "whisper":
        s.optimizer, s.lr = "sgd", 0.05
    if name == "deepseek_v3":
        s.optimizer, s.lr, s.clip = "sgd", 0.05, None
    if name == "bloom":
        s.weight_decay = 0.1
    if name == "detr":
        s.clip = 0.1
    return s


def report(step, loss):
    print(f"step {step} loss {float(loss):.8f}", flush=True)


def autocast(s):
    if s.precision == "bf16-autocast":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    if s.precision == "fp16-autocast":
        return torch.autocast("cpu", dtype=torch.float16)
    return nullcontext()


def cast(s, value):
    if isinstance(value, list):
        return [cast(s, v) for v in value]
    if isinstance(value, dict):
        return {k: (v if k == "boxes" else cast(s, v)) for k, v in value.items()}
    if value.is_floating_point():
        return value.to({"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}.get(s.precision, torch.float32))
    return value


def batch_of(s, step, micro=0):
    batch = models.BATCH[s.name](step, micro)
    for prepare in s.prepare:
        batch = prepare(batch)
    if s.order is not None:
        batch = {k: (v[s.order(len(v))] if torch.is_tensor(v) else v) for k, v in batch.items()}
    return cast(s, batch)


def groups(s, model, skip=()):
    decay, plain = [], []
    for name, p in model.named_parameters():
        if p.requires_grad and not name.startswith(tuple(skip) or ("\0",)):
            (plain if p.ndim < 2 and not s.decay_all else decay).append(p)
    return [dict(params=decay, weight_decay=s.weight_decay), dict(params=plain, weight_decay=0.0)]


def optimizer_of(s, parameters, kind=None, lr=None):
    if (kind or s.optimizer) == "sgd":
        return torch.optim.SGD(parameters, lr=lr or s.lr, momentum=s.momentum, nesterov=s.nesterov, **s.optimizer_options)
    return torch.optim.AdamW(parameters, lr=lr or s.lr, betas=s.betas, eps=s.eps, weight_decay=s.weight_decay, **s.optimizer_options)


def lm_loss(s, logits, labels):
    if s.shift:
        logits, labels = logits[:, :-s.shift], labels[:, s.shift:]
    logits = logits.reshape(-1, logits.shape[-1]).to(s.dtype_loss)
    labels = labels.reshape(-1)
    if s.loss == "nll":
        loss = F.nll_loss(F.log_softmax(logits, dim=-1), labels, ignore_index=s.ignore_index, reduction=s.reduction)
    elif s.loss == "gather":
        keep = labels != s.ignore_index
        picked = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        loss = ((torch.logsumexp(logits, -1) - picked) * keep).sum() / keep.sum()
    else:
        loss = F.cross_entropy(logits, labels, ignore_index=s.ignore_index, reduction=s.reduction, label_smoothing=s.label_smoothing)
    return loss


def loss_of(s, model, batch):
    if s.name in OWN_LOSS:
        shift_is_done = s.name == "whisper"
        labels = batch["labels"]
        inputs = {k: v for k, v in batch.items() if k != "labels"}
        if shift_is_done:
            start = labels.new_full((labels.shape[0], 1), 3)
            inputs["decoder_input_ids"] = torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == -100, 1)], 1)
            logits = model(**inputs, use_cache=False).logits
            return lm_loss(SimpleNamespace(**{**vars(s), "shift": s.shift - 1}), logits, labels)
        return lm_loss(s, model(**inputs, use_cache=False).logits if s.name != "mamba" else model(**inputs).logits, labels)
    return model(**batch).loss


@torch.no_grad()
def side_evaluation(s, model):
    model.eval()
    with autocast(s):
        model(**batch_of(s, 90))
    model.train()


def warmup(s, steps):
    return lambda step: min(1.0, (step + 1) / 4) ** s.schedule_power


def plain(s, model):
    """Forward, backward, clip, step, schedule."""
    model.train()
    optimizer = optimizer_of(s, groups(s, model))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup(s, s.steps))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=s.precision == "fp16-autocast")
    for step in range(s.steps):
        batch = batch_of(s, step)
        if s.zero_grad:
            optimizer.zero_grad()
        with autocast(s):
            loss = loss_of(s, model, batch)
        scaler.scale(loss).backward()
        if s.unscale:
            scaler.unscale_(optimizer)
        if s.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        if s.schedule_first:
            schedule.step()
        scaler.step(optimizer)
        scaler.update()
        if not s.schedule_first:
            schedule.step()
        if s.side_eval:
            side_evaluation(s, model)
        report(step, loss.detach())


def contrastive(s, model):
    """CLIP with a loss of our own."""
    model.train()
    optimizer = optimizer_of(s, groups(s, model))
    for step in range(s.steps):
        batch = batch_of(s, step)
        optimizer.zero_grad(set_to_none=True)
        with autocast(s):
            text = model.get_text_features(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
            image = model.get_image_features(pixel_values=batch["pixel_values"])
            text = F.normalize(text, dim=s.normalize_dim)
            image = F.normalize(image, dim=-1)
            logits = model.logit_scale.exp().clamp(max=100) * text @ image.t()
            target = torch.arange(len(logits))
            loss = F.cross_entropy(logits, target)
            if s.both_directions:
                loss = (loss + F.cross_entropy(logits.t(), target)) / 2
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        optimizer.step()
        report(step, loss.detach())


def accumulate(s, model):
    """Gradients of several small batches for one step."""
    model.train()
    optimizer = optimizer_of(s, groups(s, model))
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, enabled=s.precision == "fp16-autocast")
    for step in range(s.steps):
        total = 0.0
        for micro in range(s.accumulate):
            batch = batch_of(s, step, micro)
            with autocast(s):
                loss = loss_of(s, model, batch)
            if s.divide:
                loss = loss / s.accumulate
            scaler.scale(loss).backward()
            total += float(loss.detach())
        if s.unscale:
            scaler.unscale_(optimizer)
        if s.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        scaler.step(optimizer)
        scaler.update()
        if s.zero_grad:
            optimizer.zero_grad()
        if s.side_eval:
            side_evaluation(s, model)
        report(step, total)


def trainer(s, model):
    """transformers.Trainer."""
    import tempfile

    from transformers import Trainer, TrainerCallback, TrainingArguments
    size = 4

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return s.steps * size

        def __getitem__(self, i):
            batch = batch_of(s, i // size)
            return {k: v[i % size] for k, v in batch.items()}

    class OurTrainer(Trainer):
        def get_decay_parameter_names(self, model):
            return [n for n, p in model.named_parameters() if p.ndim >= 2 or s.decay_all]

        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    class Printer(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "loss" in logs:
                report(state.global_step - 1, logs["loss"])

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=size, max_steps=s.steps, learning_rate=s.lr, use_cpu=True,
        bf16=s.precision == "bf16-autocast", report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, weight_decay=s.weight_decay,
        adam_beta1=s.betas[0], adam_beta2=s.betas[1], adam_epsilon=s.eps, max_grad_norm=s.clip, warmup_steps=0, lr_scheduler_type="linear",
        label_smoothing_factor=s.label_smoothing, dataloader_pin_memory=False, seed=7,
        optim="adamw_torch_fused" if s.optimizer_options.get("fused") else "adamw_torch",
        gradient_checkpointing=s.optimizer_options.get("checkpoint", False), logging_nan_inf_filter=False)
    OurTrainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[Printer()]).train()


def accelerate(s, model):
    """Accelerator with a DataLoader."""
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if s.precision == "bf16-autocast" else "no")
    model.train()
    optimizer = optimizer_of(s, groups(s, model))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup(s, s.steps))
    loader = torch.utils.data.DataLoader([batch_of(s, i) for i in range(s.steps)], batch_size=None)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for step, batch in enumerate(loader):
        with accelerator.autocast():
            loss = loss_of(s, model, batch)
        accelerator.backward(loss)
        if s.clip:
            accelerator.clip_grad_norm_(model.parameters(), s.clip)
        optimizer.step()
        schedule.step()
        if s.zero_grad:
            optimizer.zero_grad()
        if s.side_eval:
            side_evaluation(s, model)
        report(step, loss.detach())


def lightning(s, model):
    """Lightning's Trainer."""
    import lightning as L

    class Task(L.LightningModule):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def training_step(self, batch, index):
            with autocast(s):
                logits = self.net(pixel_values=batch["pixel_values"]).logits
            loss = F.cross_entropy(logits.float(), batch["labels"], label_smoothing=s.label_smoothing)
            report(index, loss.detach())
            return loss

        def configure_optimizers(self):
            return optimizer_of(s, groups(s, self.net))

    model.train()
    loader = torch.utils.data.DataLoader([batch_of(s, i) for i in range(s.steps)], batch_size=None)
    L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
              enable_model_summary=False, gradient_clip_val=s.clip).fit(Task(model), loader)


def two_optimizers(s, model):
    """The encoder of the input has an optimizer of its own."""
    model.train()
    front = "wav2vec2.feature_extractor" if s.name == "wav2vec2" else "model.backbone"
    first = [p for n, p in model.named_parameters() if n.startswith(front) and p.requires_grad]
    one = optimizer_of(s, first, lr=s.lr / 2)
    two = optimizer_of(s, groups(s, model, (front,)), kind="adamw", lr=1e-3 * s.head_lr)
    for step in range(s.steps):
        batch = batch_of(s, step)
        one.zero_grad()
        two.zero_grad()
        with autocast(s):
            out = model(**batch)
        out.loss.backward()
        if s.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        two.step()
        one.step()
        report(step, out.loss.detach())


@torch.no_grad()
def evaluate(s, model):
    """Forward only."""
    model.eval()
    for step in range(s.steps):
        batch = batch_of(s, step)
        with autocast(s):
            out = model(**batch, **({"return_loss": True} if s.name == "clip" else {}))
        report(step, out.loss)


@torch.no_grad()
def generate(s, model):
    """generate() on a prompt for each step."""
    model.eval()
    for step in range(s.steps):
        batch = batch_of(s, step)
        batch.pop("labels")
        if s.name in ("qwen3", "mamba"):                        # a prompt is padded on the left
            batch = {k: v.flip(1) for k, v in batch.items()}
        options = {**dict(max_new_tokens=6, do_sample=False, num_beams=1), **s.generate}
        with autocast(s):
            out = model.generate(**batch, **options, return_dict_in_generate=True, output_scores=True)
        print("tokens", out.sequences[0].tolist(), flush=True)
        report(step, torch.stack([x.float().logsumexp(-1).mean() for x in out.scores]).mean())


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "fp64", "bf16-autocast", "fp16-autocast", "bf16", "fp16"])
    parser.add_argument("--fault")
    parser.add_argument("--variant")
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args(argv)
    name, _, style = args.model.partition("-")
    style = {"eval": "evaluate", "": STYLE[name]}.get(style, style)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)
    s = settings(args, name, style)
    chosen = [v for v in (args.variant or "").split(",") if v]
    for v in chosen:
        if v in ("eager", "sdpa"):
            s.attn = v
    model = models.build(name, s.attn)
    if args.fault and faults.WHEN.get(args.fault) == "built":
        faults.FAULTS[args.fault](model, s)
    if args.precision in ("bf16", "fp16", "fp64"):
        model.to({"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}[args.precision])
    for v in chosen:
        if v not in ("eager", "sdpa"):
            variants.VARIANTS[v](model, s)
    if args.fault and faults.WHEN.get(args.fault) != "built":
        faults.FAULTS[args.fault](model, s)
    torch.manual_seed(99)
    globals()[style](s, model)


if __name__ == "__main__":
    main()
