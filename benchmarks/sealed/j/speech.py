"""Sound, documents, and series of measurements."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import transformers
from common import Script, script
from torch import Tensor, nn
from transformers.activations import ACT2FN


@script("wav2vec2")
class Wav2Vec2(Script):
    """Sounds of several lengths, labelled by connectionist temporal classification."""

    faults = ("input_lengths", "no_bias", "norm_eps", "activation")
    variants = ("checkpointing", "logging")

    def build(self) -> None:
        config = transformers.Wav2Vec2Config(
            vocab_size=12,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            conv_dim=(24, 24, 24),
            conv_stride=(4, 2, 2),
            conv_kernel=(8, 3, 3),
            conv_bias=True,
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2,
            initializer_range=0.12,
            hidden_dropout=0.0,
            activation_dropout=0.0,
            attention_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
            layerdrop=0.0,
            mask_time_prob=0.0,
            feat_extract_norm="layer",
            pad_token_id=0,
        )
        net = transformers.Wav2Vec2Model(config)
        self.net = self.add(nn.ModuleDict({"encoder": net, "head": nn.Linear(48, 12)})).train()
        if self.has("no_bias"):
            self.net["encoder"].feature_projection.projection.bias.data.zero_()
        if self.has("norm_eps"):
            self.net["encoder"].feature_extractor.conv_layers[1].layer_norm.eps = 3e-2
        if self.has("activation"):
            self.net["encoder"].feature_extractor.conv_layers[1].activation = ACT2FN["quick_gelu"]
        if self.way("checkpointing"):
            self.net["encoder"].gradient_checkpointing_enable({"use_reentrant": False})
        if self.way("logging"):
            self.net["encoder"].feature_projection.register_forward_hook(lambda *args: self.note(args[2][0]))
        self.notes: list[float] = []
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def note(self, hidden: Tensor) -> None:
        self.notes.append(float(hidden.detach().abs().max()))

    def step(self, number: int) -> float:
        lengths = torch.tensor([800, 640, 720])
        time = torch.arange(800)
        pitch = 0.02 + 0.2 * self.uniform(3, 1)
        sound = torch.sin(pitch * time) + 0.3 * self.normal(3, 800)
        mask = (time < lengths[:, None]).long()
        labels = self.integers(1, 12, 3, 6)
        with self.autocast():
            hidden = self.net["encoder"](sound.to(self.dtype) * mask, attention_mask=mask).last_hidden_state
            logits = self.net["head"](hidden)
        frames = self.net["encoder"]._get_feat_extract_output_lengths(lengths)
        if self.has("input_lengths"):
            frames = torch.full_like(frames, logits.shape[1])
        said = logits.log_softmax(-1, dtype=torch.float64 if self.precision == "fp64" else torch.float32)
        loss = F.ctc_loss(said.transpose(0, 1), labels, frames, torch.full((3,), 6), zero_infinity=True)
        return self.optimize(loss, self.optimizer)


@script("layoutlm")
class LayoutLm(Script):
    """Words on forms, with their boxes: which field does each belong to?"""

    faults = ("swapped_boxes", "first_word", "frozen")
    variants = ("foreach",)

    def build(self) -> None:
        torch.manual_seed(3)
        config = transformers.LayoutLMConfig(
            vocab_size=80,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            max_position_embeddings=40,
            max_2d_position_embeddings=64,
            initializer_range=0.12,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=7,
        )
        self.net = self.add(transformers.LayoutLMForTokenClassification(config)).train()
        if self.has("frozen"):
            self.net.layoutlm.encoder.layer[0].requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, foreach=self.way("foreach"))

    def step(self, number: int) -> float:
        words, fields = self.integers(3, 80, 4, 20), self.integers(0, 7, 4, 20)
        first = self.integers(0, 40, 4, 20, 2)
        boxes = torch.cat([first, first + self.integers(1, 20, 4, 20, 2)], -1)
        if self.has("swapped_boxes"):
            boxes = boxes[..., [1, 0, 3, 2]]
        with self.autocast():
            logits = self.net(input_ids=words, bbox=boxes).logits
        if self.has("first_word"):
            logits, fields = logits[:, 1:], fields[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), fields.flatten())
        return self.optimize(loss, self.optimizer)


class Latents(nn.Module):
    """Cross attention of a few latents to many inputs, as in the Perceiver."""

    def __init__(self, width: int, fault: str, way: str) -> None:
        super().__init__()
        self.norm_latents, self.norm_inputs = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.fault, self.way = fault, way
        for linear in (self.query, self.key_value):
            linear.weight.data.mul_(2)

    def forward(self, latents: Tensor, inputs: Tensor, mask: Tensor) -> Tensor:
        normal = self.norm_inputs(inputs)
        q = self.query(self.norm_latents(latents)).unflatten(-1, (4, -1)).transpose(1, 2)
        k, v = (x.unflatten(-1, (4, -1)).transpose(1, 2) for x in self.key_value(normal).chunk(2, -1))
        if self.way == "fused":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        else:
            scores = torch.einsum("bhld,bhnd->bhln", q, k) / q.shape[-1] ** 0.5
            scores = scores.masked_fill(~mask[:, None, None], torch.finfo(scores.dtype).min)
            mixed = torch.einsum("bhln,bhnd->bhld", scores.softmax(2 if self.fault == "softmax_axis" else 3), v)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        latents = mixed if self.fault == "residual" else latents + mixed
        return latents + self.mlp(self.norm_mlp(latents))


@script("perceiver")
class Perceiver(Script):
    faults = ("softmax_axis", "residual", "fourier")
    variants = ("fused",)

    def build(self) -> None:
        way = "fused" if self.way("fused") else ""
        self.net = self.add(
            nn.ModuleDict(
                {
                    "inputs": nn.Linear(3 + 12, 48),
                    "latents": nn.Embedding(6, 48),
                    "first": Latents(48, "", way),
                    "second": Latents(48, self.options.fault, way),
                    "head": nn.Linear(48, 1),
                }
            )
        )
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def step(self, number: int) -> float:
        values, times = self.normal(4, 40, 3), self.uniform(4, 40, 1).float()
        mask = torch.arange(40) < torch.tensor([40, 30, 25, 35])[:, None]
        bands = torch.linspace(1, 8, 6) if not self.has("fourier") else torch.linspace(0.95, 8, 6)
        angles = torch.pi * times * bands
        seen = torch.cat([values, angles.sin().to(self.dtype), angles.cos().to(self.dtype)], -1)
        net = self.net
        with self.autocast():
            inputs = net["inputs"](seen)
            latents = net["latents"].weight.expand(4, -1, -1)
            latents = net["second"](net["first"](latents, inputs, mask), inputs, mask)
            guess = net["head"](latents.mean(1)).squeeze(-1)
        loss = F.huber_loss(guess.to(values.dtype), values[..., 0].cumsum(1)[:, 20], delta=0.5)
        return self.optimize(loss, self.optimizer)


class Waves(Script):
    def waves(self, rows: int, length: int) -> Tensor:
        time = torch.arange(length, dtype=torch.float32)
        period = 6 + 20 * self.uniform(rows, 1).float()
        wave = torch.sin(2 * torch.pi * time / period) * (1 + 2 * self.uniform(rows, 1).float()) + 3
        return (wave + 0.2 * self.normal(rows, length).float()).to(self.dtype)


class Patches(nn.Module):
    """Each channel alone in patches, without its mean and deviation, which come back at the end."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(0.5 * torch.randn(11, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(11 * 32, 12)
        self.fault = fault

    def forward(self, series: Tensor) -> Tensor:
        mean = series.mean(-1, keepdim=True)
        scale = (series.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        patches = ((series - mean) / scale).unfold(-1, 8, 4)
        if self.fault == "patch_order":
            patches = patches.flip(-1)
        hidden = self.encoder(self.embed(patches).flatten(0, 1) + self.place)
        forecast = self.head(hidden.flatten(1)).view(*series.shape[:2], 12)
        if self.fault == "no_scale":
            return forecast + mean
        return forecast * scale + mean


@script("patchtst")
class PatchTst(Waves):
    faults = ("no_scale", "patch_order", "schedule")
    variants = ("renamed",)

    def build(self) -> None:
        net: nn.Module = Patches(self.options.fault)
        if self.way("renamed"):
            net = Forecaster(net)
        self.net = self.add(net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3, betas=(0.9, 0.999))
        peak = 5e-3 if self.has("schedule") else 2e-3
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, peak, total_steps=10, pct_start=0.3)

    def step(self, number: int) -> float:
        series = self.waves(12, 60).view(4, 3, 60)
        with self.autocast():
            loss = F.mse_loss(self.net(series[..., :48]), series[..., 48:])
        value = self.optimize(loss, self.optimizer, clip=2.0)
        self.schedule.step()
        return value


class Forecaster(nn.Module):
    """Patches after a cleaning of the code: other names, other functions, the same formula."""

    def __init__(self, old: Patches) -> None:
        super().__init__()
        self.tokens = old.embed
        self.positions = old.place
        self.blocks = nn.ModuleList(old.encoder.layers)
        self.readout = old.head

    def block(self, layer: Any, x: Tensor) -> Tensor:
        attention = layer.self_attn
        projected = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in projected.chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = layer.norm1(x + attention.out_proj(mixed))
        return layer.norm2(x + layer.linear2(F.gelu(layer.linear1(x))))

    def forward(self, series: Tensor) -> Tensor:
        var, mean = torch.var_mean(series, dim=-1, keepdim=True, correction=0)
        normal = (series - mean) * torch.rsqrt(var + 1e-5)
        x = self.tokens(torch.stack([normal[..., i : i + 8] for i in range(0, 41, 4)], dim=-2))
        x = x.reshape(-1, 11, 32) + self.positions
        for layer in self.blocks:
            x = self.block(layer, x)
        out = self.readout(x.reshape(len(x), -1)).reshape(*series.shape[:2], 12)
        return torch.addcmul(mean, out, torch.sqrt(var + 1e-5))


@script("forecast")
class Forecast(Waves):
    """The time series transformer of transformers; its losses are likelihoods of a distribution of Student."""

    faults = ("lags", "age")

    def build(self) -> None:
        config = transformers.TimeSeriesTransformerConfig(
            prediction_length=6,
            context_length=18,
            lags_sequence=[1, 3, 6] if self.has("lags") else [1, 2, 6],
            num_time_features=1,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            scaling="mean",
            init_std=0.1,
        )
        self.net = self.add(transformers.TimeSeriesTransformerForPrediction(config)).train()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def step(self, number: int) -> float:
        past = 18 + 6
        series = self.waves(4, past + 6)
        first = 11 if self.has("age") else 12
        age = torch.log10(first + torch.arange(past + 6.0)).to(self.dtype)[None, :, None].expand(4, -1, -1)
        with self.autocast():
            loss = self.net(
                past_values=series[:, :past],
                past_time_features=age[:, :past],
                past_observed_mask=torch.ones(4, past, dtype=self.dtype),
                future_values=series[:, past:],
                future_time_features=age[:, past:],
            ).loss
        return self.optimize(loss, self.optimizer)
