"""Text encoders: replaced-token detection, tagging, span answers, masked words, re-ranking, retrieval."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from common import VOCABULARY, AccelerateTask, Batch, Task, TrainerTask, tokens
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForTokenClassification,
    DPRConfig,
    DPRContextEncoder,
    DPRQuestionEncoder,
    ElectraConfig,
    ElectraForPreTraining,
    FNetConfig,
    FNetForMaskedLM,
    LongformerConfig,
    LongformerForQuestionAnswering,
    MPNetConfig,
    MPNetForSequenceClassification,
    NystromformerConfig,
    NystromformerForSequenceClassification,
    RoFormerConfig,
    RoFormerForMaskedLM,
    XLNetConfig,
    XLNetLMHeadModel,
)
from transformers.models.longformer import modeling_longformer
from transformers.models.mpnet import modeling_mpnet
from transformers.models.nystromformer import modeling_nystromformer
from transformers.models.roformer import modeling_roformer
from transformers.models.xlnet import modeling_xlnet

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
}
MASK = 4


def masked(step: int, count: int, length: int) -> tuple[Tensor, Tensor]:
    """A text of which a sixth is hidden, and what was hidden."""
    text = tokens(step, count, length)
    hide = torch.rand(count, length, generator=torch.Generator().manual_seed(step + 99)) < 0.17
    return torch.where(hide, MASK, text), torch.where(hide, text, -100)


class Electra(AccelerateTask):
    """Which tokens were replaced?"""

    faults = ("eps", "mask")
    variants = ("plain", "foreach", "checkpoint")

    def model(self) -> nn.Module:
        eps = 1e-5 if self.fault == "eps" else 1e-12
        return ElectraForPreTraining(
            ElectraConfig(**{**SMALL, "initializer_range": 0.05}, embedding_size=48, layer_norm_eps=eps)
        )

    def batch(self, step: int) -> Batch:
        text = tokens(step, 4, 32)
        other = tokens(step + 50, 4, 32)
        replaced = torch.rand(4, 32, generator=torch.Generator().manual_seed(step)) < 0.2
        ids = torch.where(replaced, other, text)
        mask = torch.ones_like(ids)
        mask[1, 24:] = mask[3, 18:] = 0
        if self.fault == "mask":
            mask = 1 - mask
        return {"input_ids": ids, "attention_mask": mask, "labels": (ids != text).long()}


class Albert(TrainerTask):
    """Tags of words; only the first piece of a word has one."""

    faults = ("activation", "pieces")
    variants = ("plain", "sdpa", "workers")

    def model(self) -> nn.Module:
        activation = "gelu" if self.fault == "activation" else "gelu_new"
        config = AlbertConfig(
            **SMALL, embedding_size=32, hidden_act=activation, num_labels=7, classifier_dropout_prob=0.0
        )
        config._attn_implementation = "sdpa" if self.has("sdpa") else "eager"
        return AlbertForTokenClassification(config)

    def batch(self, step: int) -> Batch:
        ids = tokens(step, self.size, 28)
        labels = (ids * 3 + ids.roll(1, 1)) % 7
        inside = ids % 3 == 0
        labels = torch.where(inside, 0 if self.fault == "pieces" else -100, labels)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def positions_from_zero(input_ids: Tensor, padding_idx: int) -> Tensor:
    mask = input_ids.ne(padding_idx).int()
    return ((torch.cumsum(mask, dim=1) - 1) * mask).long() + padding_idx


class Longformer(Task):
    """Where in a long text is the answer? The question sees all of the text."""

    faults = ("positions", "window", "question")
    variants = ("foreach", "checkpoint", "nll")

    def model(self) -> nn.Module:
        window = 8 if self.fault == "window" else 16
        if self.fault == "positions":
            modeling_longformer.create_position_ids_from_input_ids = positions_from_zero
        config = LongformerConfig(**SMALL, attention_window=[window, window], max_position_embeddings=140)
        return LongformerForQuestionAnswering(config)

    def batch(self, step: int) -> Batch:
        ids = tokens(step, 2, 96)
        ids[1, 80:] = 1
        seen = torch.zeros_like(ids)
        seen[:, : 1 if self.fault == "question" else 8] = 1
        return {
            "input_ids": ids,
            "attention_mask": ids.ne(1).long(),
            "global_attention_mask": seen,
            "start_positions": torch.tensor([20 + step, 41]),
            "end_positions": torch.tensor([25 + step, 50]),
        }

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if not self.has("nll"):
            return model(**batch).loss
        start, end = batch.pop("start_positions"), batch.pop("end_positions")
        out = model(**batch)
        first = F.nll_loss(F.log_softmax(out.start_logits, dim=-1), start)
        last = F.nll_loss(F.log_softmax(out.end_logits, dim=-1), end)
        return 0.5 * first + 0.5 * last


class FNet(Task):
    """Hidden words; tokens are mixed by Fourier transforms."""

    faults = ("axis", "magnitude")
    variants = ("two-ffts", "nll", "foreach")

    def model(self) -> nn.Module:
        config = {k: v for k, v in SMALL.items() if "attention" not in k}
        model = FNetForMaskedLM(FNetConfig(**config))
        for layer in model.fnet.encoder.layer:
            fourier = layer.fourier.self
            if self.fault == "axis":
                fourier.fourier_transform = partial(torch.fft.fftn, dim=(0, 2))
            elif self.fault == "magnitude":
                fourier.forward = lambda x, f=fourier: (f.fourier_transform(x).abs(),)
            elif self.has("two-ffts"):
                fourier.fourier_transform = lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2)
        return model

    def batch(self, step: int) -> Batch:
        ids, labels = masked(step, 4, 32)
        return {"input_ids": ids, "labels": labels}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if not self.has("nll"):
            return model(**batch).loss
        labels = batch.pop("labels")
        logits = model(**batch).logits
        return F.nll_loss(F.log_softmax(logits, dim=-1).flatten(0, 1), labels.flatten())


def shifted_late(x: Tensor, klen: int = -1) -> Tensor:
    size = x.shape
    x = x.reshape(size[0], size[1], size[3], size[2])
    x = x[:, :, 1:, :]
    x = x.reshape(size[0], size[1], size[2], size[3] - 1)
    return x[:, :, :, 1 : klen + 1]


class XLNet(Task):
    """The last words in a random order."""

    faults = ("shift", "clamp")
    variants = ("foreach",)

    def model(self) -> nn.Module:
        if self.fault == "shift":
            modeling_xlnet.XLNetRelativeAttention.rel_shift_bnij = staticmethod(shifted_late)
        config = XLNetConfig(
            vocab_size=VOCABULARY,
            d_model=64,
            n_layer=2,
            n_head=4,
            d_inner=128,
            dropout=0.0,
            initializer_range=0.15,
            clamp_len=8 if self.fault == "clamp" else -1,
        )
        return XLNetLMHeadModel(config)

    def batch(self, step: int) -> Batch:
        ids = tokens(step, 4, 24)
        order = torch.randperm(24, generator=torch.Generator().manual_seed(step))
        hidden = (order[:, None] <= order[None, :]).float().expand(4, 24, 24)
        targets = torch.zeros(4, 6, 24)
        targets[:, torch.arange(6), torch.arange(18, 24)] = 1.0
        return {"input_ids": ids, "perm_mask": hidden.clone(), "target_mapping": targets, "labels": ids[:, 18:].clone()}


class Nystromformer(Task):
    """Classes of texts; attention through landmarks."""

    faults = ("iterations", "convolution", "landmarks")
    variants = ("foreach",)
    lr = 1e-3

    def model(self) -> nn.Module:
        attention = modeling_nystromformer.NystromformerSelfAttention
        if self.fault == "iterations":
            attention.iterative_inv = partial_method(attention.iterative_inv, n_iter=5)
        config = NystromformerConfig(
            **{**SMALL, "initializer_range": 0.15},
            max_position_embeddings=64,
            segment_means_seq_len=48,
            num_landmarks=4 if self.fault == "landmarks" else 8,
            conv_kernel_size=17,
            num_labels=5,
        )
        model = NystromformerForSequenceClassification(config)
        if self.fault == "convolution":
            for layer in model.nystromformer.encoder.layer:
                layer.attention.self.conv_kernel_size = None
        return model

    def batch(self, step: int) -> Batch:
        ids = tokens(step, 4, 48)
        return {"input_ids": ids, "labels": ids[:, :6].sum(1) % 5}


def partial_method(method: object, **fixed: object) -> object:
    return lambda self, *arguments: method(self, *arguments, **fixed)


def rotary_in_halves(sinusoidal_pos: Tensor, query_layer: Tensor, key_layer: Tensor, value_layer: None = None) -> tuple:
    sin, cos = sinusoidal_pos.chunk(2, dim=-1)
    sin_pos = torch.cat([sin, sin], dim=-1)
    cos_pos = torch.cat([cos, cos], dim=-1)
    turned = torch.stack([-query_layer[..., 1::2], query_layer[..., ::2]], dim=-1).reshape_as(query_layer)
    query_layer = query_layer * cos_pos + turned * sin_pos
    turned = torch.stack([-key_layer[..., 1::2], key_layer[..., ::2]], dim=-1).reshape_as(key_layer)
    return query_layer, key_layer * cos_pos + turned * sin_pos


def rotary_by_complex(
    sinusoidal_pos: Tensor, query_layer: Tensor, key_layer: Tensor, value_layer: None = None
) -> tuple:
    sin, cos = sinusoidal_pos.chunk(2, dim=-1)
    turn = torch.complex(cos.contiguous(), sin.contiguous())

    def rotate(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)

    return rotate(query_layer), rotate(key_layer)


class RoFormer(Task):
    """Hidden words."""

    faults = ("halves", "labels")
    variants = ("complex", "foreach", "checkpoint")

    def model(self) -> nn.Module:
        attention = modeling_roformer.RoFormerSelfAttention
        if self.fault == "halves":
            attention.apply_rotary_position_embeddings = staticmethod(rotary_in_halves)
        elif self.has("complex"):
            attention.apply_rotary_position_embeddings = staticmethod(rotary_by_complex)
        return RoFormerForMaskedLM(RoFormerConfig(**SMALL, embedding_size=64, max_position_embeddings=64))

    def batch(self, step: int) -> Batch:
        ids, labels = masked(step, 4, 32)
        if self.fault == "labels":
            labels = labels.roll(-1, 1)
        return {"input_ids": ids, "labels": labels}


class MPNet(Task):
    """Re-ranking: of two answers to a question the better one shall score higher. Two small batches a step."""

    faults = ("buckets", "accumulation")
    variants = ("whole", "foreach")

    def model(self) -> nn.Module:
        if self.fault == "buckets":
            encoder = modeling_mpnet.MPNetEncoder
            encoder.relative_position_bucket = staticmethod(partial(encoder.relative_position_bucket, max_distance=32))
        model = MPNetForSequenceClassification(MPNetConfig(**SMALL, max_position_embeddings=80, num_labels=1))
        nn.init.normal_(model.mpnet.encoder.relative_attention_bias.weight, std=1.0)
        return model

    def batch(self, step: int) -> Batch:
        return {"better": tokens(step, 4, 56), "worse": tokens(step + 70, 4, 56)}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        better = model(input_ids=batch["better"]).logits
        worse = model(input_ids=batch["worse"]).logits
        return F.softplus(worse - better + 0.5).mean()

    def run(self) -> Iterator[float]:
        model = self.prepare(self.model())
        optimizer, scaler = self.optimizer(model), self.scaler()
        parts = 1 if self.has("whole") else 2
        for step in range(self.steps):
            optimizer.zero_grad()
            total = 0.0
            pieces = {k: v.chunk(parts) for k, v in self.batch(step).items()}
            for i in range(parts):
                with self.autocast():
                    loss = self.loss(model, self.cast({k: v[i] for k, v in pieces.items()}))
                if self.fault != "accumulation":
                    loss = loss / parts
                scaler.scale(loss).backward()
                total += loss.item()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 50.0)
            scaler.step(optimizer)
            scaler.update()
            yield total


class Retriever(nn.Module):
    """Questions and passages in one space; every other passage of a batch is a wrong one."""

    def __init__(self, config: DPRConfig, frozen_passages: bool) -> None:
        super().__init__()
        self.questions = DPRQuestionEncoder(config)
        self.passages = DPRContextEncoder(config)
        self.frozen_passages = frozen_passages

    def forward(self, question: Tensor, passage: Tensor) -> Tensor:
        asked = self.questions(question).pooler_output
        given = self.passages(passage).pooler_output
        if self.frozen_passages:
            given = given.detach()
        scores = asked @ given.T / 8
        return F.cross_entropy(scores, torch.arange(len(scores)))


class DPR(Task):
    faults = ("detached",)
    variants = ("order", "eager", "foreach")

    def model(self) -> nn.Module:
        config = DPRConfig(**SMALL, projection_dim=32, max_position_embeddings=64)
        config._attn_implementation = "eager" if self.has("eager") else "sdpa"
        return Retriever(config, self.fault == "detached")

    def batch(self, step: int) -> Batch:
        question, passage = tokens(step, 6, 12), tokens(step + 40, 6, 40)
        if self.has("order"):
            order = torch.tensor([3, 5, 0, 4, 1, 2])
            question, passage = question[order], passage[order]
        return {"question": question, "passage": passage}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(**batch)


ENCODERS: dict[str, type[Task]] = {
    "electra": Electra,
    "albert": Albert,
    "longformer": Longformer,
    "fnet": FNet,
    "xlnet": XLNet,
    "nystromformer": Nystromformer,
    "roformer": RoFormer,
    "mpnet": MPNet,
    "dpr": DPR,
}
