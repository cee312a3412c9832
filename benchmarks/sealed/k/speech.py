"""Sounds: spoken, recognised, classified and taken apart."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from common import Script, modules_of, script
from torch import Tensor, nn

FEATURES = {
    "conv_dim": (24, 24, 24),
    "conv_stride": (4, 2, 2),
    "conv_kernel": (8, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
}
STILL = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


class Sounds(Script):
    """Sums of tones that come and go, and noise; of unequal lengths."""

    batch, samples = 4, 512

    def tones(self, batch: int, samples: int) -> Tensor:
        time = torch.arange(samples, dtype=torch.get_default_dtype())
        pitch = 0.05 + 0.5 * self.uniform(batch, 3, 1).to(time.dtype)
        loud = (0.02 * time * (1 + self.uniform(batch, 3, 1).to(time.dtype))).sin()
        return ((pitch * time).sin() * loud).sum(1).to(self.dtype) + 0.1 * self.normal(batch, samples)

    def sounds(self) -> tuple[Tensor, Tensor]:
        lengths = self.integers(self.samples // 2, self.samples + 1, self.batch)
        lengths[0] = self.samples
        mask = torch.arange(self.samples) < lengths[:, None]
        return self.tones(self.batch, self.samples) * mask, mask.long()


@script("speecht5")
class SpeechT5(Script):
    """Says words: frames of a spectrogram, two at a time."""

    faults = ("silence_spoken", "padding_read")

    def build(self) -> None:
        config = transformers.SpeechT5Config(
            vocab_size=40,
            hidden_size=48,
            encoder_layers=2,
            encoder_attention_heads=4,
            encoder_ffn_dim=96,
            encoder_layerdrop=0.0,
            decoder_layers=2,
            decoder_attention_heads=4,
            decoder_ffn_dim=96,
            decoder_layerdrop=0.0,
            positional_dropout=0.0,
            **STILL,
            initializer_range=0.1,
            num_mel_bins=16,
            speech_decoder_prenet_units=32,
            speech_decoder_prenet_dropout=0.0,
            speaker_embedding_dim=16,
            speech_decoder_postnet_layers=3,
            speech_decoder_postnet_units=32,
            speech_decoder_postnet_dropout=0.0,
            max_speech_positions=64,
            max_text_positions=64,
            encoder_max_relative_position=12,
        )
        self.net = self.add(transformers.SpeechT5ForTextToSpeech(config)).train()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=2e-3)

    def loss(self, number: int) -> Tensor:
        ids = self.integers(3, 40, 4, 14)
        lengths = torch.tensor([14, 11, 9, 13])
        mask = (torch.arange(14) < lengths[:, None]).long()
        frames = self.normal(40, 16)[ids].repeat_interleave(2, 1) + 0.2 * self.normal(4, 28, 16)
        spoken = torch.arange(28) < 2 * lengths[:, None]
        silence = 0.0 if self.has("silence_spoken") else -100.0
        labels = frames.masked_fill(~spoken[..., None], silence)
        if self.has("padding_read"):
            mask = torch.ones_like(mask)
        speakers = F.normalize(self.normal(4, 16), dim=-1)
        ids = ids.masked_fill(torch.arange(14) >= lengths[:, None], 1)
        return self.net(input_ids=ids, attention_mask=mask, speaker_embeddings=speakers, labels=labels).loss


@script("wavlm")
class WavLM(Sounds):
    """Which of six sounds it is, by all layers together."""

    faults = ("near_only", "layers_unweighted")

    def build(self) -> None:
        config = transformers.WavLMConfig(
            vocab_size=20,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            **STILL,
            **FEATURES,
            final_dropout=0.0,
            layerdrop=0.0,
            initializer_range=0.15,
            num_buckets=16,
            max_bucket_distance=16 if self.has("near_only") else 64,
            use_weighted_layer_sum=not self.has("layers_unweighted"),
            classifier_proj_size=24,
            num_labels=6,
        )
        self.net = self.add(transformers.WavLMForSequenceClassification(config)).train()
        nn.init.normal_(self.net.wavlm.encoder.layers[0].attention.rel_attn_embed.weight, generator=self.random)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=2e-3)

    def loss(self, number: int) -> Tensor:
        sounds, mask = self.sounds()
        return self.net(sounds, attention_mask=mask, labels=self.integers(0, 6, self.batch)).loss


@script("conformer")
class Conformer(Sounds):
    """Letters of what is said."""

    faults = ("full_lengths", "blank_last")

    def build(self) -> None:
        config = transformers.Wav2Vec2ConformerConfig(
            vocab_size=20,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            **STILL,
            **FEATURES,
            final_dropout=0.0,
            layerdrop=0.0,
            conformer_conv_dropout=0.0,
            conv_depthwise_kernel_size=7,
            max_source_positions=64,
            initializer_range=0.1,
            ctc_loss_reduction="mean",
            pad_token_id=0,
        )
        self.net = self.add(transformers.Wav2Vec2ConformerForCTC(config)).train()
        for _, attention in modules_of(self.net, Attention):
            nn.init.normal_(attention.pos_bias_u, std=0.3, generator=self.random)
            nn.init.normal_(attention.pos_bias_v, std=0.3, generator=self.random)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=2e-3)

    def loss(self, number: int) -> Tensor:
        sounds, mask = self.sounds()
        letters = self.integers(1, 19, self.batch, 5)
        logits = self.net(sounds, attention_mask=mask).logits
        lengths = self.net._get_feat_extract_output_lengths(mask.sum(-1))
        if self.has("full_lengths"):
            lengths = torch.full_like(lengths, logits.shape[1])
        chances = self.wide(logits).log_softmax(-1).transpose(0, 1)
        blank = 19 if self.has("blank_last") else 0
        return F.ctc_loss(chances, letters, lengths, torch.full((self.batch,), 5), blank=blank)


Attention = transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer.Wav2Vec2ConformerSelfAttention


@script("ast")
class SpectrogramTransformer(Sounds):
    """Spectrograms, by a transformer of pictures."""

    faults = ("once_spread", "hann_symmetric")
    variants = ("sdpa",)
    samples = 1024

    def build(self) -> None:
        config = transformers.ASTConfig(
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            initializer_range=0.1,
            patch_size=8,
            frequency_stride=6,
            time_stride=6,
            max_length=32,
            num_mel_bins=32,
            num_labels=6,
        )
        way = "sdpa" if self.way("sdpa") else "eager"
        self.net = transformers.ASTForAudioClassification._from_config(config, attn_implementation=way)
        self.net = self.add(self.net).train()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def spectrograms(self) -> Tensor:
        window = torch.hann_window(62, periodic=not self.has("hann_symmetric"))
        sounds = self.tones(self.batch, self.samples).to(window.dtype)
        spectra = torch.stft(sounds, 62, 33, window=window, return_complex=True).abs()
        logs = (spectra + 1e-3).log().transpose(1, 2)[:, :32]
        spread = logs.std() * (1 if self.has("once_spread") else 2)
        return ((logs - logs.mean()) / spread).to(self.dtype)

    def loss(self, number: int) -> Tensor:
        spectra = self.spectrograms()
        return self.net(spectra, labels=self.integers(0, 6, self.batch)).loss


class DualPath(nn.Module):
    """Speakers taken apart: within chunks, then between them."""

    def __init__(self, width: int = 24, chunk: int = 8, speakers: int = 3) -> None:
        super().__init__()
        self.chunk, self.speakers = chunk, speakers
        self.encoder = nn.Conv1d(1, width, 8, stride=4)
        self.norm = nn.GroupNorm(1, width)
        self.within = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.between = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.masks = nn.Conv1d(width, speakers * width, 1)
        self.decoder = nn.ConvTranspose1d(width, 1, 8, stride=4)

    def forward(self, sounds: Tensor) -> Tensor:
        codes = self.encoder(sounds[:, None]).relu()
        batch, width, frames = codes.shape
        chunks = self.norm(codes).transpose(1, 2).reshape(batch, -1, self.chunk, width)
        near, _ = self.within(chunks.flatten(0, 1))
        chunks = chunks + near.view_as(chunks)
        far, _ = self.between(chunks.transpose(1, 2).flatten(0, 1))
        chunks = chunks + far.view(batch, self.chunk, -1, width).transpose(1, 2)
        masks = self.masks(chunks.reshape(batch, frames, width).transpose(1, 2)).sigmoid()
        parts = masks.view(batch, self.speakers, width, frames) * codes[:, None]
        return self.decoder(parts.flatten(0, 1)).view(batch, self.speakers, -1)


@script("separate")
class Separate(Sounds):
    """Who is who does not matter: the best assignment counts."""

    faults = ("one_assignment", "mean_kept")
    variants = ("all_pairs",)

    def build(self) -> None:
        self.net = self.add(DualPath())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=3e-3)

    def quality(self, found: Tensor, truth: Tensor) -> Tensor:
        """Of each signal, in decibels, whatever its scale."""
        if not self.has("mean_kept"):
            found, truth = found - found.mean(-1, keepdim=True), truth - truth.mean(-1, keepdim=True)
        like = (found * truth).sum(-1, keepdim=True) / (truth.square().sum(-1, keepdim=True) + 1e-8) * truth
        return 10 * (like.square().sum(-1) / ((found - like).square().sum(-1) + 1e-8) + 1e-8).log10()

    def loss(self, number: int) -> Tensor:
        parts = torch.stack([self.tones(self.batch, 516) for _ in range(3)], dim=1) + 0.5
        found, truth = self.wide(self.net(parts.sum(1))), self.wide(parts)
        orders: list[Any] = list(permutations(range(3)))
        if self.way("all_pairs"):
            pairs = self.quality(found[:, :, None].expand(-1, -1, 3, -1), truth[:, None].expand(-1, 3, -1, -1))
            each = torch.stack([pairs[:, range(3), order].mean(-1) for order in orders])
        else:
            each = torch.stack([self.quality(found, truth[:, list(order)]).mean(-1) for order in orders])
        if self.has("one_assignment"):
            return -each.mean(1).max()
        return -each.max(0).values.mean()
