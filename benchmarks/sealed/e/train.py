"""Trains, evaluates, or samples from one of the small models.

python train.py MODEL [--precision P] [--fault NAME] [--variant A,B] [--steps N]
"""

import argparse
import logging
import os
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("ACCELERATE_USE_CPU", "1")

import torch
from common import DTYPES, TASKS, autocast

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)


def report(step, loss):
    print(f"step {step} loss {float(loss):.9g}", flush=True)


def groups(s, model):
    decayed, others = [], []
    for name, p in model.named_parameters():
        if p.requires_grad:
            (decayed if s.decayed(name, p) else others).append(p)
    return [
        g
        for g in ({"params": decayed, "weight_decay": s.decay}, {"params": others, "weight_decay": 0.0})
        if g["params"]
    ]


def optimizer_of(s, model):
    if s.optimizer == "sgd":
        return torch.optim.SGD(groups(s, model), lr=s.lr, momentum=s.momentum, **s.how)
    return torch.optim.AdamW(groups(s, model), lr=s.lr, betas=s.betas, eps=s.eps, **s.how)


def clip(s, model):
    parameters = [p for p in model.parameters() if p.grad is not None]
    if s.clipping == "norm":
        torch.nn.utils.clip_grad_norm_(parameters, s.clip)
    elif s.clipping == "value":
        torch.nn.utils.clip_grad_value_(parameters, s.clip)
    elif callable(s.clipping):
        s.clipping(parameters, s.clip)


@torch.no_grad()
def logged(s, model, loss):
    """What one likes to see while training, and what changes nothing."""
    grads = [p.grad.float() for p in model.parameters() if p.grad is not None]
    norm = torch.stack([g.pow(2).sum() for g in grads]).sum().sqrt()
    weights = torch.stack([p.float().abs().mean() for p in model.parameters()])
    largest = max(float(g.abs().max()) for g in grads)
    print(
        f"# |g| {norm:.4g} max {largest:.3g} |w| {weights.mean():.4g} perplexity {loss.float().exp():.4g}", flush=True
    )


@torch.no_grad()
def side_evaluation(s, task, model):
    model.eval()
    with autocast(s):
        loss = task.loss(s, model, task.batch_of(s, 900))
    print(f"# held out {float(loss):.4g}", flush=True)
    model.train()


def warmup(s):
    return lambda step: min(1.0, (step + 1) / 4) if s.schedule else 1.0


def scaler_of(s):
    return torch.amp.GradScaler("cpu", init_scale=512.0, enabled=s.precision == "fp16-autocast")


def batches(s, task):
    if s.workers:

        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return s.steps

            def __getitem__(self, i):
                return task.batch_of(s, i)

        return torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=s.workers)
    return (task.batch_of(s, i) for i in range(s.steps))


def plain(s, task, model):
    model.train()
    optimizer, scaler = optimizer_of(s, model), scaler_of(s)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup(s))
    for step, batch in enumerate(batches(s, task)):
        optimizer.zero_grad()
        with autocast(s):
            loss = task.loss(s, model, batch)
        scaler.scale(loss).backward()
        if s.unscale:
            scaler.unscale_(optimizer)
        clip(s, model)
        if s.log:
            logged(s, model, loss.detach())
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if s.evaluates:
            side_evaluation(s, task, model)
        report(step, loss.detach())


def accumulate(s, task, model):
    model.train()
    optimizer, scaler = optimizer_of(s, model), scaler_of(s)
    for step in range(s.steps):
        optimizer.zero_grad()
        total = 0.0
        for micro in range(s.micro):
            with autocast(s):
                loss = task.loss(s, model, task.batch_of(s, step, micro))
            total += float(loss.detach()) / s.micro
            if s.averaged == "loss":
                loss = loss / s.micro
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if s.averaged == "gradient":
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.div_(s.micro)
        clip(s, model)
        scaler.step(optimizer)
        scaler.update()
        report(step, total)


def accelerate(s, task, model):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if s.precision == "bf16-autocast" else "no")
    model.train()
    optimizer = optimizer_of(s, model)
    loader = torch.utils.data.DataLoader([task.batch_of(s, i) for i in range(s.steps)], batch_size=None)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup(s))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for step, batch in enumerate(loader):
        with accelerator.autocast():
            loss = task.loss(s, model, batch)
        accelerator.backward(loss)
        if s.clipping == "value":
            accelerator.clip_grad_value_(model.parameters(), s.clip)
        else:
            accelerator.clip_grad_norm_(model.parameters(), s.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        report(step, loss.detach())


def trainer(s, task, model):
    import tempfile

    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 4 * s.steps

        def __getitem__(self, i):
            return {k: v[i % 4] for k, v in task.batch_of(s, i // 4).items()}

    class Ours(Trainer):
        def get_decay_parameter_names(self, model):
            return [n for n, p in model.named_parameters() if s.decayed(n, p)]

        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    class Printer(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "loss" in logs:
                report(state.global_step - 1, logs["loss"])

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            max_steps=s.steps,
            learning_rate=s.lr,
            use_cpu=True,
            bf16=s.precision == "bf16-autocast",
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            weight_decay=s.decay,
            adam_beta1=s.betas[0],
            adam_beta2=s.betas[1],
            adam_epsilon=s.eps,
            max_grad_norm=s.clip,
            lr_scheduler_type="cosine",
            dataloader_pin_memory=False,
            dataloader_num_workers=s.workers,
            optim="adamw_torch_fused" if s.how.get("fused") else "adamw_torch",
            label_smoothing_factor=s.smoothing,
            seed=11,
        )
        ours = Ours(model=model, args=arguments, train_dataset=Rows(), callbacks=[Printer()])
        ours.remove_callback(PrinterCallback)
        ours.train()


@torch.no_grad()
def evaluate(s, task, model):
    task.to_eval(model, s) if hasattr(task, "to_eval") else model.eval()
    for step in range(s.steps):
        with autocast(s):
            loss = task.loss(s, model, task.batch_of(s, step))
        report(step, loss)


@torch.no_grad()
def generate(s, task, model):
    model.eval()
    for step in range(s.steps):
        batch = task.prompt(step)
        options = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1, **s.generate}
        with autocast(s):
            out = model.generate(**batch, **options, return_dict_in_generate=True, output_scores=True)
        print("tokens", out.sequences.tolist(), flush=True)
        report(step, torch.stack([x.float().softmax(-1).max(-1).values.mean() for x in out.scores]).mean())


def sample(s, task, model):
    """The denoising loop of a diffusion model."""
    model.eval()
    for step in range(s.steps):
        with torch.no_grad():
            report(step, task.sampled(s, model, step))


def main(argv=None, ready=None):
    import importlib

    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16-autocast", "fp16-autocast", *DTYPES])
    parser.add_argument("--fault")
    parser.add_argument("--variant", default="")
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args(argv)
    name, _, style = args.model.partition("-")
    importlib.import_module(FILES[name])
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    s = task.settings(name, args.precision, args.steps)
    changes = [f"variant_{v}" for v in args.variant.split(",") if v] + ([f"fault_{args.fault}"] if args.fault else [])
    early = [c.replace("variant_", "setup_").replace("fault_", "setup_") for c in changes]
    for change, first in zip(changes, early, strict=True):
        if not hasattr(task, change) and not hasattr(task, first):
            raise SystemExit(
                f"{name} has no {change}: {[x for x in dir(task) if x.startswith(('fault_', 'variant_', 'setup_'))]}"
            )
        if hasattr(task, first):
            getattr(task, first)(s)
    torch.manual_seed(0)
    model = task.build(s)
    if args.precision in DTYPES:
        model.to(DTYPES[args.precision])
    for change in changes:
        if hasattr(task, change):
            getattr(task, change)(model, s)
    if ready:
        ready(model)
    torch.manual_seed(77)
    globals()[style or task.style](s, task, model)


FILES = {
    **dict.fromkeys(["s2t", "mamba2", "qwen2_moe", "cohere2", "qwen3_next", "rgemma", "granite", "hyena"], "language"),
    **dict.fromkeys(["qwen2_vl", "timeseries", "lilt", "tapas"], "modalities"),
    **dict.fromkeys(["t5_ia3", "gpt2_prefix", "opt_dora"], "tuned"),
    **dict.fromkeys(["unet1d", "sana", "oobleck", "controlnet"], "diffusion"),
    **dict.fromkeys(["nfnet", "coatnet", "gmlp", "eva02"], "vision"),
}


if __name__ == "__main__":
    main()
