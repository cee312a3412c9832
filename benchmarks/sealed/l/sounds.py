"""Speech and music: of transformers, and by hand."""

from __future__ import annotations

import math

import torch
from common import Script, script
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import FastSpeech2ConformerConfig, FastSpeech2ConformerModel, SEWConfig, SEWForCTC


class Interleaved(nn.Linear):
    """Twice as many frames, of which each has every second channel."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)


@script("sew")
class Sew(Script):
    faults = ("interleaved", "blank_last")
    clip = 0.5

    def build(self) -> None:
        config = SEWConfig(
            vocab_size=12,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            squeeze_factor=2,
            conv_dim=(16, 16, 16),
            conv_stride=(5, 2, 2),
            conv_kernel=(10, 3, 3),
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=4,
            initializer_range=0.15,
            hidden_dropout=0.0,
            activation_dropout=0.0,
            attention_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
            layerdrop=0.0,
            apply_spec_augment=False,
            attn_implementation="eager",
        )
        net = SEWForCTC(config)
        if self.has("interleaved"):
            net.sew.encoder.upsample.projection.__class__ = Interleaved
        self.net = self.add(net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.waves = self.normal(2, 800)
        self.letters = self.integers(1, 11, 2, 6)

    def loss(self, number: int) -> Tensor:
        logits = self.net(input_values=self.waves).logits
        chances = F.log_softmax(self.wide(logits), dim=-1).transpose(0, 1)
        frames = torch.full((2,), chances.shape[0], dtype=torch.long)
        blank = 11 if self.has("blank_last") else 0
        return F.ctc_loss(chances, self.letters, frames, torch.full((2,), 6), blank=blank, zero_infinity=True)


@script("fastspeech")
class FastSpeech(Script):
    faults = ("plain_logarithm",)

    def build(self) -> None:
        config = FastSpeech2ConformerConfig(
            hidden_size=32,
            vocab_size=20,
            num_mel_bins=12,
            encoder_layers=1,
            decoder_layers=1,
            encoder_linear_units=48,
            decoder_linear_units=48,
            encoder_num_attention_heads=2,
            decoder_num_attention_heads=2,
            speech_decoder_postnet_layers=2,
            speech_decoder_postnet_units=16,
            speech_decoder_postnet_kernel=3,
            duration_predictor_layers=1,
            duration_predictor_channels=16,
            energy_predictor_layers=1,
            energy_predictor_channels=16,
            pitch_predictor_layers=1,
            pitch_predictor_channels=16,
            encoder_dropout_rate=0.0,
            encoder_positional_dropout_rate=0.0,
            encoder_attention_dropout_rate=0.0,
            decoder_dropout_rate=0.0,
            decoder_positional_dropout_rate=0.0,
            decoder_attention_dropout_rate=0.0,
            duration_predictor_dropout_rate=0.0,
            energy_predictor_dropout=0.0,
            energy_embed_dropout=0.0,
            pitch_predictor_dropout=0.0,
            pitch_embed_dropout=0.0,
            speech_decoder_postnet_dropout=0.0,
        )
        self.net = self.add(FastSpeech2ConformerModel(config))
        if self.has("plain_logarithm"):
            self.net.criterion.log_domain_offset = 0.0
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.ids = self.integers(1, 20, 2, 5)
        self.lengths = torch.tensor([[2, 1, 3, 2, 2], [1, 3, 2, 2, 2]])
        self.mels = self.normal(2, 10, 12)
        self.pitch, self.energy = self.normal(2, 5, 1), self.normal(2, 5, 1)

    def loss(self, number: int) -> Tensor:
        return self.net(
            input_ids=self.ids,
            attention_mask=torch.ones_like(self.ids),
            spectrogram_labels=self.mels,
            duration_labels=self.lengths,
            pitch_labels=self.pitch,
            energy_labels=self.energy,
        ).loss


class Instrument(nn.Module):
    """A sum of harmonics and filtered noise, played from pitch and loudness."""

    rate, hop, harmonics, bands = 4000, 40, 12, 9

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.pitch_in, self.loud_in = nn.Linear(1, 16), nn.Linear(1, 16)
        self.memory = nn.GRU(32, 24, batch_first=True)
        self.amplitudes = nn.Linear(24, self.harmonics + 1)
        self.filters = nn.Linear(24, self.bands)

    def forward(self, pitch: Tensor, loud: Tensor, noise: Tensor) -> Tensor:
        told = torch.cat([F.leaky_relu(self.pitch_in(pitch.log())), F.leaky_relu(self.loud_in(loud))], dim=-1)
        state, _ = self.memory(told)
        made, bands = self.amplitudes(state), self.filters(state)
        with torch.autocast("cpu", enabled=False):
            wide = self.script.wide
            return self.tones(wide(pitch), wide(made)) + self.breath(wide(bands), wide(noise))

    def tones(self, pitch: Tensor, made: Tensor) -> Tensor:
        strength = 2 * torch.sigmoid(made) ** math.log(10) + 1e-7
        total, parts = strength[..., :1], strength[..., 1:]
        multiples = torch.arange(1, self.harmonics + 1)
        if not self.script.has("aliased"):
            parts = parts * (pitch * multiples < self.rate / 2)
        parts = total * parts / parts.sum(-1, keepdim=True)
        loud = F.interpolate(parts.mT, scale_factor=self.hop, mode="linear").mT
        turns = (pitch / self.rate).repeat_interleave(self.hop, dim=1)
        if self.script.way("triangle"):
            length = turns.shape[1]
            turns = torch.ones(length, length, dtype=turns.dtype).tril() @ turns
        else:
            turns = torch.cumsum(turns, dim=1)
        return (loud * torch.sin(2 * math.pi * turns * multiples)).sum(-1)

    def breath(self, bands: Tensor, noise: Tensor) -> Tensor:
        response = torch.sigmoid(bands - 3)
        impulse = torch.fft.irfft(torch.complex(response, torch.zeros_like(response)))
        impulse = torch.roll(impulse, self.bands - 1, -1) * torch.hann_window(impulse.shape[-1], dtype=impulse.dtype)
        frames = noise.unflatten(1, (-1, self.hop))
        size = self.hop + impulse.shape[-1] - 1
        if self.script.way("convolve"):
            shape = frames.shape
            wave = F.conv1d(
                frames.reshape(1, -1, self.hop),
                impulse.reshape(-1, 1, impulse.shape[-1]).flip(-1),
                padding=impulse.shape[-1] - 1,
                groups=shape[0] * shape[1],
            ).view(*shape[:2], size)
        else:
            wave = torch.fft.irfft(torch.fft.rfft(frames, size) * torch.fft.rfft(impulse, size), size)
        return wave[..., : self.hop].flatten(1)


@script("instrument")
class Ddsp(Script):
    faults = ("aliased",)
    variants = ("triangle", "convolve")

    def build(self) -> None:
        self.net = self.add(Instrument(self))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=5e-3)
        self.pitch = 150 + 100 * self.uniform(2, 16, 1)
        self.loud = self.normal(2, 16, 1)
        self.noise = 2 * self.uniform(2, 640) - 1
        self.wave = self.normal(2, 640)

    def loss(self, number: int) -> Tensor:
        made = self.net(self.pitch, self.loud, self.noise)
        total = made.new_zeros(())
        for size in (64, 128):
            window = torch.hann_window(size, dtype=made.dtype)
            wanted, got = (
                torch.stft(wave, size, size // 4, window=window, return_complex=True).abs()
                for wave in (self.wide(self.wave), made)
            )
            total = total + (wanted - got).abs().mean()
            total = total + (torch.log(wanted + 1e-4) - torch.log(got + 1e-4)).abs().mean()
        return total


class Voice(nn.Module):
    """Frames in context, their mean and deviation, a vector."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.frame1 = nn.Conv1d(20, 32, 5)
        self.frame2 = nn.Conv1d(32, 32, 3, dilation=2)
        self.norm1, self.norm2 = nn.GroupNorm(4, 32), nn.GroupNorm(4, 32)
        self.segment = nn.Linear(64, 24)

    def context(self, layer: nn.Conv1d, x: Tensor) -> Tensor:
        if not self.script.way("unfolded"):
            return layer(x)
        (size,), (gap,) = layer.kernel_size, layer.dilation
        length = x.shape[-1] - (size - 1) * gap
        near = torch.cat([x[..., i * gap : i * gap + length] for i in range(size)], dim=1)
        weight = layer.weight.permute(0, 2, 1).flatten(1)
        return F.linear(near.mT, weight, layer.bias).mT

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(F.relu(self.context(self.frame1, x)))
        x = self.norm2(F.relu(self.context(self.frame2, x)))
        spread = x.std(-1, correction=1 if self.script.has("sample_deviation") else 0)
        return F.normalize(self.segment(torch.cat([x.mean(-1), spread], dim=-1)), dim=-1)


@script("speaker")
class Speaker(Script):
    """Words of one speaker lie near the centre of the others' of that speaker."""

    faults = ("sample_deviation", "own_centre")
    variants = ("unfolded",)
    people, words = 4, 3

    def build(self) -> None:
        self.net = self.add(Voice(self))
        self.slope = self.add(nn.ParameterList([torch.tensor(10.0), torch.tensor(-5.0)]))
        learned = [*self.net.parameters(), *self.slope.parameters()]
        self.optimizer = torch.optim.SGD(learned, lr=0.05)
        self.clip = 3.0
        manner = self.normal(self.people, 1, 20, 1)
        self.frames = (0.3 * manner + self.normal(self.people, self.words, 20, 20)).flatten(0, 1)

    def loss(self, number: int) -> Tensor:
        said = self.wide(self.net(self.frames)).view(self.people, self.words, -1)
        centres = F.normalize(said.mean(1), dim=-1)
        near = torch.einsum("pwd,qd->pwq", said, centres)
        if not self.has("own_centre"):
            others = F.normalize((said.sum(1, keepdim=True) - said) / (self.words - 1), dim=-1)
            own = (said * others).sum(-1, keepdim=True)
            near = torch.where(torch.eye(self.people, dtype=torch.bool)[:, None], own, near)
        near = self.slope[0] * near + self.slope[1]
        people = torch.arange(self.people).repeat_interleave(self.words)
        return F.cross_entropy(near.flatten(0, 1), people)
