"""Images with text, time series, documents with boxes, tables."""

from typing import ClassVar

import torch
import transformers
from common import Task, randint, randn, spread, task, token_loss

transformers.logging.set_verbosity_error()


@task("qwen2_vl")
class Qwen2VL(Task):
    def build(self, s):
        config = transformers.Qwen2VLConfig(
            text_config={
                "vocab_size": 56,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
                "rope_theta": 100.0,
                "bos_token_id": 0,
                "eos_token_id": 1,
            },
            vision_config={
                "depth": 2,
                "embed_dim": 32,
                "hidden_size": 32,
                "num_heads": 4,
                "patch_size": 4,
                "mlp_ratio": 2,
                "spatial_merge_size": 2,
            },
            image_token_id=50,
            vision_start_token_id=51,
            vision_end_token_id=52,
            video_token_id=53,
            attn_implementation=s.attn,
        )
        return spread(transformers.Qwen2VLForConditionalGeneration(config))

    def batch(self, step, micro):
        ids = randint(3, 48, (2, 20), step, micro, 11)
        ids[:, 2] = 51
        ids[:, 3:9] = 50
        ids[:, 9] = 52
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "pixel_values": randn(2 * 24, 3 * 2 * 16, step=step, micro=micro, salt=12),
            "image_grid_thw": torch.tensor([[1, 4, 6], [1, 4, 6]]),
        }

    def loss(self, s, model, batch):
        logits = model(**batch, use_cache=False).logits
        return token_loss(logits[:, 9:-1], batch["input_ids"][:, 10:])

    def fault_sections(self, model, s):
        """Time has one pair of channels and height two, instead of the other way round."""
        for layer in model.model.language_model.layers:
            layer.self_attn.rope_scaling = {"type": "mrope", "mrope_section": [1, 2, 1]}

    def fault_quick_gelu(self, model, s):
        """The first block of the vision tower has gelu for quick_gelu."""
        model.model.visual.blocks[0].mlp.act = torch.nn.GELU()


@task("timeseries")
class TimeSeries(Task):
    def build(self, s):
        config = transformers.TimeSeriesTransformerConfig(
            prediction_length=6,
            context_length=12,
            lags_sequence=[1, 2, 4],
            num_time_features=2,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            attn_implementation="eager",
        )
        return spread(transformers.TimeSeriesTransformerForPrediction(config))

    def batch(self, step, micro):
        t = torch.arange(22)[None] + 5.0 * torch.arange(4)[:, None]
        series = 3 + 2 * torch.sin(t / 3) + 0.3 * randn(4, 22, step=step, micro=micro, salt=13)
        time = torch.stack([t / 22, torch.cos(t / 3.5)], -1)
        observed = torch.ones(4, 16)
        observed[1, 14] = 0
        return {
            "past_values": series[:, :16],
            "past_time_features": time[:, :16],
            "past_observed_mask": observed,
            "future_values": series[:, 16:],
            "future_time_features": time[:, 16:],
        }

    def fault_lag_zero(self, model, s):
        """Lags are one too small, as while sampling: the first is the value that is to be told."""
        lagged = model.model.get_lagged_subsequences
        model.model.get_lagged_subsequences = lambda sequence, subsequences_length: lagged(
            sequence, subsequences_length, 1
        )

    def fault_sees_future(self, model, s):
        """The first layer of the decoder has lost its causal mask."""
        attention = model.model.decoder.layers[0].self_attn
        plain = attention.forward
        attention.forward = lambda *args, **kwargs: plain(*args, **{**kwargs, "attention_mask": None})


@task("lilt")
class Lilt(Task):
    style = "trainer"

    def build(self, s):
        config = transformers.LiltConfig(
            vocab_size=60,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=40,
            max_2d_position_embeddings=128,
            channel_shrink_ratio=4,
            num_labels=5,
            pad_token_id=1,
        )
        return spread(transformers.LiltForTokenClassification(config))

    def batch(self, step, micro):
        ids = randint(3, 60, (4, 16), step, micro, 14)
        corner = randint(0, 60, (4, 16, 2), step, micro, 15)
        size = torch.stack([randint(4, 40, (4, 16), step, micro, 16), randint(1, 9, (4, 16), step, micro, 17)], -1)
        labels = randint(0, 5, (4, 16), step, micro, 18)
        mask = torch.ones_like(ids)
        mask[2, 12:] = 0
        labels[2, 12:] = -100
        return {
            "input_ids": ids,
            "bbox": torch.cat([corner, corner + size], -1),
            "attention_mask": mask,
            "labels": labels,
        }

    def fault_boxes(self, model, s):
        """Boxes come as (y0, x0, y1, x1)."""
        s.prepare.append(lambda batch: dict(batch, bbox=batch["bbox"][..., [1, 0, 3, 2]]))

    def fault_beta2(self, model, s):
        s.betas = (0.9, 0.99)


@task("tapas")
class Tapas(Task):
    options: ClassVar = {"optimizer": "sgd", "lr": 0.1}

    def build(self, s):
        config = transformers.TapasConfig(
            vocab_size=60,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=40,
            type_vocab_sizes=[3, 8, 8, 2, 4, 4, 4],
            num_labels=3,
        )
        return spread(transformers.TapasForSequenceClassification(config))

    def batch(self, step, micro):
        ids = randint(3, 60, (4, 20), step, micro, 19)
        types = torch.zeros(4, 20, 7, dtype=torch.long)
        cells = torch.arange(14) // 2
        types[:, 6:, 0] = 1
        types[:, 6:, 1] = 1 + cells % 2
        types[:, 6:, 2] = 1 + cells // 2
        types[:, 6:, 4:] = randint(0, 4, (4, 14, 3), step, micro, 20)
        mask = torch.ones_like(ids)
        mask[1, 18:] = 0
        return {
            "input_ids": ids,
            "token_type_ids": types,
            "attention_mask": mask,
            "labels": randint(0, 3, (4,), step, micro, 21),
        }

    def fault_positions(self, model, s):
        """Positions go on through the table instead of beginning anew in each cell."""
        model.config.reset_position_index_per_cell = False

    def fault_scaled_clip(self, model, s):
        """Gradients are clipped while they still have the loss scale."""
        s.unscale = False
