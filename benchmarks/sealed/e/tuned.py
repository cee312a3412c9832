"""Models that peft tunes."""

import math
from typing import ClassVar

import torch
import transformers
from common import Task, randint, rng, spread, task, token_loss
from peft import IA3Config, LoraConfig, PrefixTuningConfig, TaskType, get_peft_model

transformers.logging.set_verbosity_error()


@torch.no_grad()
def stir(model, word, mean, std):
    """Adapters as after some training."""
    g = rng(0, 0, 31)
    for name, p in model.named_parameters():
        if word in name:
            p.copy_(mean + std * torch.randn(p.shape, generator=g))


@task("t5_ia3")
class T5IA3(Task):
    options: ClassVar = {"lr": 5e-3}

    def build(self, s):
        config = transformers.T5Config(
            vocab_size=50,
            d_model=32,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=4,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=16,
            dropout_rate=0.0,
            feed_forward_proj="relu",
            decoder_start_token_id=0,
        )
        model = spread(transformers.T5ForConditionalGeneration(config), gain=0.8)
        tuned = get_peft_model(
            model,
            IA3Config(task_type=TaskType.SEQ_2_SEQ_LM, target_modules=["k", "v", "wo"], feedforward_modules=["wo"]),
        )
        stir(tuned, "ia3_l", 1.0, 0.3)
        return tuned

    def batch(self, step, micro):
        ids = randint(3, 50, (4, 14), step, micro, 32)
        mask = torch.ones_like(ids)
        mask[3, 10:] = 0
        return {"input_ids": ids, "attention_mask": mask, "labels": randint(3, 50, (4, 9), step, micro, 33)}

    def loss(self, s, model, batch):
        return model(**batch, use_cache=False).loss

    def fault_both_sides(self, model, s):
        """Distances in the decoder fall into the buckets of the encoder, which sees both sides."""
        model.base_model.model.decoder.block[0].layer[0].SelfAttention.is_decoder = False

    def fault_scaled_output(self, model, s):
        """The vector of a feed-forward layer multiplies what comes out instead of what goes in."""
        model.base_model.model.decoder.block[1].layer[2].DenseReluDense.wo.is_feedforward = False


@task("gpt2_prefix")
class GPT2Prefix(Task):
    options: ClassVar = {"lr": 3e-3}

    def build(self, s):
        config = transformers.GPT2Config(
            vocab_size=50,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=40,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=1,
            eos_token_id=2,
            attn_implementation=s.attn,
        )
        model = spread(transformers.GPT2LMHeadModel(config))
        tuned = get_peft_model(
            model,
            PrefixTuningConfig(
                task_type=TaskType.CAUSAL_LM, num_virtual_tokens=5, prefix_projection=True, encoder_hidden_size=24
            ),
        )
        spread(tuned.prompt_encoder, seed=34)
        return tuned

    def batch(self, step, micro):
        ids = randint(3, 50, (4, 12), step, micro, 35)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def loss(self, s, model, batch):
        logits = model(**batch).logits
        return token_loss(logits[:, :-1], batch["input_ids"][:, 1:])

    def fault_frozen(self, model, s):
        """The first layer of the projection of the prefix is not trained."""
        model.prompt_encoder["default"].transform[0].requires_grad_(False)


@task("opt_dora")
class OPTDora(Task):
    options: ClassVar = {"lr": 3e-3}

    def build(self, s):
        config = transformers.OPTConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            ffn_dim=64,
            num_attention_heads=4,
            max_position_embeddings=32,
            word_embed_proj_dim=32,
            dropout=0.0,
            attention_dropout=0.0,
            layerdrop=0.0,
            attn_implementation=s.attn,
        )
        model = spread(transformers.OPTForCausalLM(config))
        tuned = get_peft_model(
            model,
            LoraConfig(
                task_type=TaskType.CAUSAL_LM,
                r=4,
                lora_alpha=8,
                use_dora=True,
                target_modules=["q_proj", "v_proj"],
                lora_dropout=0.2,
            ),
        )
        stir(tuned, "lora_B", 0.0, 0.3)
        for module in tuned.modules():
            if type(module).__name__ == "Dropout":
                module.p = 0.0 if not getattr(self, "dropout", False) else module.p
        return tuned

    def batch(self, step, micro):
        ids = randint(3, 50, (4, 12), step, micro, 36)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def loss(self, s, model, batch):
        logits = model(**batch, use_cache=False).logits
        return token_loss(logits[:, :-1], batch["input_ids"][:, 1:])

    def setup_drops(self, s):
        self.dropout = True

    def fault_left_on(self, model, s):
        """One adapted layer, and so its dropout, stays in training mode."""
        layer = model.base_model.model.model.decoder.layers[1].self_attn.v_proj
        layer.train = lambda mode=True: layer

    def fault_norm_axis(self, model, s):
        """Norms of the weights of one adapted layer are taken over the wrong axis."""
        dora = model.base_model.model.model.decoder.layers[1].self_attn.q_proj.lora_magnitude_vector["default"]

        def get_weight_norm(weight, lora_weight, scaling):
            weight = weight + scaling * lora_weight
            return torch.linalg.norm(weight, dim=0).to(weight.dtype)

        dora.get_weight_norm = get_weight_norm

    def fault_rank_root(self, model, s):
        """One adapter is scaled by alpha / sqrt(r) instead of alpha / r."""
        layer = model.base_model.model.model.decoder.layers[0].self_attn.v_proj
        layer.scaling["default"] = 8 / math.sqrt(4)
