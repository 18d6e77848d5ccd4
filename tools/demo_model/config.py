"""Geometry of a V4.1 text model and its nested config.json (backbone.md 1.1)."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import engram


@dataclass
class Config:
    """Field names follow config.json; the defaults are the demo model's."""

    vocab_size: int = 3840
    hidden_size: int = 512
    moe_intermediate_size: int = 96
    num_hidden_layers: int = 10
    num_attention_heads: int = 4
    head_dim: int = 512
    qk_rope_head_dim: int = 64
    q_lora_rank: int = 128
    o_lora_rank: int = 128
    o_groups: int = 2
    swiglu_limit: float = 10.0
    rms_norm_eps: float = 1e-20
    n_routed_experts: int = 12
    num_experts_per_tok: int = 4
    routed_scaling_factor: float = 1.5
    sliding_window: int = 128
    compress_ratios: list = field(default_factory=lambda: [0, 0, 2, 2, 2, 2, 1, 1, 1, 1])
    kv_source_layer_ids: list = field(default_factory=lambda: [2, 4, 6])
    index_source_layer_ids: list = field(default_factory=lambda: [2, 4, 6, 8])
    index_n_heads: int = 4
    index_head_dim: int = 128
    index_topk: int = 64
    candidate_source_layer_id: int = 6
    candidate_topk_blocks: int = 128
    candidate_block_size: int = 8
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    engram_layer_ids: list = field(default_factory=lambda: [1, 4])
    engram_max_ngram_size: int = 4
    engram_n_heads: int = 4
    engram_head_dim: int = 32
    engram_vocab_size: int = 1500
    engram_pad_token_id: int = 2
    engram_compressed_vocab_size: int = 0
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    rope_factor: float = 16.0
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    rope_original: int = 65536
    max_position_embeddings: int = 65536
    image_token_id: int = 0

    # Roles of the layers (attention.md 1.1).
    def kv_source(self, layer):
        return max(s for s in self.kv_source_layer_ids if s <= layer)

    def index_source(self, layer):
        return max(s for s in self.index_source_layer_ids if s <= layer)

    def ratio(self, layer):
        return self.compress_ratios[layer]

    def has_gate(self, layer):
        return layer in self.kv_source_layer_ids and self.ratio(layer) > 1

    # Engram constants of the `i`-th Engram layer.
    @property
    def engram_columns(self):
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    def engram_primes(self):
        return engram.primes(len(self.engram_layer_ids), self.engram_max_ngram_size - 1, self.engram_n_heads,
                             self.engram_vocab_size)

    def to_json(self):
        """The nested config.json as a dict."""
        text = {
            "model_type": "deepseek_v41_text",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "moe_intermediate_size": self.moe_intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": 1,
            "head_dim": self.head_dim,
            "qk_rope_head_dim": self.qk_rope_head_dim,
            "q_lora_rank": self.q_lora_rank,
            "o_lora_rank": self.o_lora_rank,
            "o_groups": self.o_groups,
            "hidden_act": "silu",
            "swiglu_limit": self.swiglu_limit,
            "rms_norm_eps": self.rms_norm_eps,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": False,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_theta": self.rope_theta,
            "rope_scaling": {
                "rope_type": "yarn", "factor": self.rope_factor, "beta_fast": self.rope_beta_fast,
                "beta_slow": self.rope_beta_slow, "original_max_position_embeddings": self.rope_original,
            },
            "compress_rope_theta": self.compress_rope_theta,
            "n_routed_experts": self.n_routed_experts,
            "n_shared_experts": 1,
            "num_experts_per_tok": self.num_experts_per_tok,
            "scoring_func": "sqrtsoftplus",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "routed_scaling_factor": self.routed_scaling_factor,
            "sliding_window": self.sliding_window,
            "compress_ratios": self.compress_ratios,
            "kv_source_layer_ids": self.kv_source_layer_ids,
            "index_source_layer_ids": self.index_source_layer_ids,
            "index_n_heads": self.index_n_heads,
            "index_head_dim": self.index_head_dim,
            "index_topk": self.index_topk,
            "candidate_source_layer_id": self.candidate_source_layer_id,
            "candidate_topk_blocks": self.candidate_topk_blocks,
            "candidate_block_size": self.candidate_block_size,
            "hc_mult": self.hc_mult,
            "hc_sinkhorn_iters": self.hc_sinkhorn_iters,
            "hc_eps": self.hc_eps,
            "engram_layer_ids": self.engram_layer_ids,
            "engram_num_embeddings": [sum(p) for p in self.engram_primes()],
            "engram_max_ngram_size": self.engram_max_ngram_size,
            "engram_n_heads": self.engram_n_heads,
            "engram_head_dim": self.engram_head_dim,
            "engram_vocab_size": self.engram_vocab_size,
            "engram_pad_token_id": self.engram_pad_token_id,
            "engram_compressed_vocab_size": self.engram_compressed_vocab_size,
            "num_nextn_predict_layers": 0,
        }
        return {
            "architectures": ["DeepseekV41ForCausalLM"],
            "model_type": "deepseek_v41",
            "dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "image_token_id": self.image_token_id,
            "quantization_config": {
                "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                "scale_fmt": "ue8m0", "expert_dtype": "fp4",
            },
            "text_config": text,
        }

    @classmethod
    def from_json(cls, path):
        top = json.loads(Path(path).read_text(encoding="utf-8"))
        text = dict(top["text_config"])
        scaling = text.pop("rope_scaling")
        text |= {
            "rope_factor": scaling["factor"], "rope_beta_fast": scaling["beta_fast"],
            "rope_beta_slow": scaling["beta_slow"],
            "rope_original": scaling["original_max_position_embeddings"],
            "image_token_id": top["image_token_id"],
        }
        text["compress_ratios"] = text["compress_ratios"][: text["num_hidden_layers"]]
        known = cls.__dataclass_fields__
        return cls(**{k: v for k, v in text.items() if k in known})
