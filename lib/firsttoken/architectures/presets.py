"""Released models by name, each with the source of its shape."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from firsttoken.architectures.architecture import Architecture
from firsttoken.architectures.huggingface import from_hf_config

# Sources of the presets below.
_HF = "Hugging Face config.json of "
_MLC = "mlc-ai/mlc-llm model_preset.py @79d603f (verbatim configs)"
_LITGPT = "Lightning-AI/litgpt litgpt/config.py @2685705"
_DEEPSEEK_REPO = "deepseek-ai/DeepSeek-V3 inference/configs @9b4e978"


def _llama3_scaling(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _llama(name: str, *shape: Any, source: str, **fields: Any) -> Architecture:
    return Architecture(name, *shape, **{"rope_theta": 10000.0, "source": source, **fields})


def _deepseek(name: str, *shape: Any, source: str, **fields: Any) -> Architecture:
    latent: dict[str, Any] = {"latent_dim": 512, "rope_head_dim": 64, "v_head_dim": 128}
    context: dict[str, Any] = {"max_context": 163840, "rope_theta": 10000.0}
    return Architecture(name, *shape, **{**latent, **context, **fields, "source": source})


def _gemma(name: str, *shape: Any, window: int, period: int, **fields: Any) -> Architecture:
    """Every `period`-th layer sees everything; the others a window."""
    gemma: dict[str, Any] = {"tied_embeddings": True, "norms_per_layer": 4, "window": window}
    gemma["local_layers"] = tuple(i for i in range(shape[0]) if (i + 1) % period)
    return Architecture(name, *shape, **{**gemma, **fields})


def _read(name: str, model_type: str, source: str, **config: Any) -> Architecture:
    """A model whose layers differ, from the fields of its config.json."""
    return from_hf_config({"model_type": model_type, **config}).replace(name=name, source=source)


# Nemotron-H counts each mixer and each MLP as a layer: M is Mamba-2, * attention, - an MLP.
_NEMOTRON_H = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
_JAMBA = {
    "vocab_size": 65536,
    "num_key_value_heads": 8,
    "num_experts": 16,
    "num_experts_per_tok": 2,
}
_JAMBA |= {"attn_layer_period": 8, "attn_layer_offset": 4, "max_position_embeddings": 262144}
_JAMBA |= {"expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 16}
_JAMBA |= {"mamba_d_conv": 4, "mamba_expand": 2}

_LLAMA_3 = {"rope_theta": 500000.0}
_LLAMA_31 = {"rope_theta": 500000.0, "max_context": 131072, "rope_scaling": _llama3_scaling(8.0)}
_YARN_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
_YARN_GPT_OSS |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
_YARN_V2 = {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
_YARN_V2 |= {"mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1}

# fmt: off
_PRESETS = (
    #      name             L    D      N   K    H    F      V
    _llama("Llama-2-7B",    32,  4096,  32, 32, 128, 11008, 32000, max_context=4096,
           source=f"{_HF}TheBloke/Llama-2-7B-fp16; {_MLC}"),
    _llama("Llama-2-13B",   40,  5120,  40, 40, 128, 13824, 32000, max_context=4096,
           source=f"{_HF}NousResearch/Llama-2-13b-chat-hf; {_MLC}"),
    _llama("Llama-2-70B",   80,  8192,  64,  8, 128, 28672, 32000, max_context=4096,
           source=f"{_HF}TheBloke/Llama-2-70B-fp16; {_MLC}"),
    _llama("Llama-3-8B",    32,  4096,  32,  8, 128, 14336, 128256, max_context=8192, **_LLAMA_3,
           source=f"{_HF}Magpie-Align/Llama-3-8B-Magpie-Air-SFT (a tune of the base); {_LITGPT}"),
    _llama("Llama-3.1-8B",  32,  4096,  32,  8, 128, 14336, 128256, **_LLAMA_31,
           source=_LITGPT),
    _llama("Llama-3.1-70B", 80,  8192,  64,  8, 128, 28672, 128256, **_LLAMA_31,
           source=f"{_MLC}; {_LITGPT}"),
    _llama("Llama-3.1-405B", 126, 16384, 128, 8, 128, 53248, 128256, **_LLAMA_31,
           source=f"{_HF}migtissera/Meta-Llama-3.1-405B (a copy; the first release had 16 "
                  f"KV heads, later ones 8); {_LITGPT}"),
    _llama("Llama-3.2-1B",  16,  2048,  32,  8,  64,  8192, 128256, True, max_context=131072,
           rope_theta=500000.0, rope_scaling=_llama3_scaling(32.0), source=f"{_MLC}; {_LITGPT}"),
    _llama("Mistral-7B",    32,  4096,  32,  8, 128, 14336, 32000, max_context=32768, window=4096,
           source=f"mistralai/Mistral-7B-v0.1: {_MLC}; {_LITGPT}"),
    _llama("Mixtral-8x7B",  32,  4096,  32,  8, 128, 14336, 32000, max_context=32768,
           rope_theta=1e6, n_experts=8, n_active_experts=2, expert_d_ff=14336,
           source=f"mistralai/Mixtral-8x7B-v0.1: {_MLC}; {_LITGPT}"),
    _llama("Mixtral-8x22B", 56,  6144,  48,  8, 128, 16384, 32000, max_context=65536,
           rope_theta=1e6, n_experts=8, n_active_experts=2, expert_d_ff=16384,
           source=f"{_HF}mistral-community/Mixtral-8x22B-v0.1; {_LITGPT}"),
    _llama("Qwen2.5-7B",    28,  3584,  28,  4, 128, 18944, 152064, max_context=131072,
           rope_theta=1e6, qkv_bias=True, source=f"{_HF}copies of Qwen/Qwen2.5-7B; {_LITGPT}"),
    _llama("Qwen3-8B",      36,  4096,  32,  8, 128, 12288, 151936, max_context=40960,
           rope_theta=1e6, qk_norm=True, source=f"{_HF}a copy of Qwen/Qwen3-8B; {_LITGPT}"),
    _llama("Qwen3-30B-A3B", 48,  2048,  32,  4, 128,  6144, 151936, max_context=40960,
           rope_theta=1e6, qk_norm=True, n_experts=128, n_active_experts=8, expert_d_ff=768,
           source=_LITGPT),
    _llama("Phi-3-mini-4k", 32,  3072,  32, 32,  96,  8192, 32064, max_context=4096, window=2047,
           source=f"{_HF}copies of microsoft/Phi-3-mini-4k-instruct; {_LITGPT}"),
    _gemma("Gemma-2-9B",    42,  3584,  16,  8, 256, 14336, 256000, window=4096, period=2,
           max_context=8192, rope_theta=10000.0, source=f"{_MLC}; {_LITGPT}"),
    _gemma("Gemma-3-1B",    26,  1152,   4,  1, 256,  6912, 262144, window=512, period=6,
           max_context=32768, rope_theta=1e6, qk_norm=True, source=_MLC),
    _gemma("Gemma-3-12B",   48,  3840,  16,  8, 256, 15360, 262208, window=1024, period=6,
           max_context=131072, rope_theta=1e6, qk_norm=True,
           rope_scaling={"rope_type": "linear", "factor": 8.0},
           source=f"text decoder; {_HF}cjvt/GaMS3-12B-Instruct (a tune of it); {_LITGPT}"),
    _gemma("Gemma-3-27B",   62,  5376,  32, 16, 128, 21504, 262208, window=1024, period=6,
           max_context=131072, rope_theta=1e6, qk_norm=True,
           rope_scaling={"rope_type": "linear", "factor": 8.0},
           source=f"text decoder; {_LITGPT}; transformers 5.23 defaults"),
    Architecture("GPT-2",   12,   768,  12, 12,  64,  3072, 50257, True, max_context=1024,
                 gated_mlp=False, norm_bias=True, qkv_bias=True, out_bias=True, mlp_bias=True,
                 learned_positions=True, source=_MLC),
    Architecture("GPT-J-6B", 28, 4096,  16, 16, 256, 16384, 50400, max_context=2048,
                 gated_mlp=False, norms_per_layer=1, norm_bias=True, mlp_bias=True,
                 head_bias=True, rope_theta=10000.0,
                 source=f"{_MLC}; {_HF}hivemind/gpt-j-6B-8bit"),
    Architecture("gpt-oss-20b", 24, 2880, 64, 8, 64, 2880, 201088, max_context=131072,
                 qkv_bias=True, out_bias=True, sink_logits=True, expert_bias=True, window=128,
                 local_layers=tuple(range(0, 24, 2)), n_experts=32, n_active_experts=4,
                 expert_d_ff=2880, rope_theta=150000.0, rope_scaling=_YARN_GPT_OSS,
                 source="openai/gpt-oss gpt_oss/torch/model.py @7b58334; transformers 5.23"),
    _deepseek("DeepSeek-V2", 60, 5120, 128, 128, 192, 12288, 102400, q_latent_dim=1536,
              n_experts=160, n_active_experts=6, n_shared_experts=2, expert_d_ff=1536,
              n_dense_layers=1, rope_scaling=_YARN_V2,
              source=f"{_HF}deepseek-ai/DeepSeek-V2-Chat; {_DEEPSEEK_REPO}"),
    _deepseek("DeepSeek-V2-Lite", 27, 2048, 16, 16, 192, 10944, 102400,
              n_experts=64, n_active_experts=6, n_shared_experts=2, expert_d_ff=1408,
              n_dense_layers=1, rope_scaling=_YARN_V2,
              source=f"{_HF}deepseek-ai/DeepSeek-Coder-V2-Lite-Base; {_DEEPSEEK_REPO}"),
    _deepseek("DeepSeek-V3", 61, 7168, 128, 128, 192, 18432, 129280, q_latent_dim=1536,
              n_experts=256, n_active_experts=8, n_shared_experts=1, expert_d_ff=2048,
              n_dense_layers=3, rope_scaling=_YARN_V2 | {"mscale": 1.0, "mscale_all_dim": 1.0},
              source=f"{_HF}a copy of deepseek-ai/DeepSeek-V3; {_DEEPSEEK_REPO}"),
    # With recurrent layers.
    _read("MiniMax-Text-01", "minimax",
          f"{_HF}MiniMaxAI/MiniMax-Text-01 (MiniMax-M1 has the same); arXiv:2501.08313",
          vocab_size=200064, hidden_size=6144, intermediate_size=9216, num_hidden_layers=80,
          num_attention_heads=64, num_key_value_heads=8, head_dim=128, num_local_experts=32,
          num_experts_per_tok=2, max_position_embeddings=10240000, rope_theta=1e7,
          layer_types=(["linear_attention"] * 7 + ["full_attention"]) * 10),
    _read("Jamba-1.5-Mini", "jamba", f"{_HF}ai21labs/AI21-Jamba-1.5-Mini; arXiv:2408.12570",
          hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
          num_attention_heads=32, mamba_dt_rank=256, **_JAMBA),
    _read("Jamba-1.5-Large", "jamba", f"{_HF}ai21labs/AI21-Jamba-1.5-Large; arXiv:2408.12570",
          hidden_size=8192, intermediate_size=24576, num_hidden_layers=72,
          num_attention_heads=64, mamba_dt_rank=512, **_JAMBA),
    _read("Qwen3-Next-80B-A3B", "qwen3_next",
          f"{_HF}Qwen/Qwen3-Next-80B-A3B-Instruct; transformers 5.23 defaults",
          max_position_embeddings=262144, rope_theta=1e7),
    # Its attention is latent: 512 numbers, and 64 for the position, which are cached unrotated.
    _read("Kimi-Linear-48B-A3B", "kimi_linear",
          f"{_HF}a copy of moonshotai/Kimi-Linear-48B-A3B-Instruct; arXiv:2510.26692",
          layer_types=[
              "full_attention" if i in (3, 7, 11, 15, 19, 23, 26) else "linear_attention"
              for i in range(27)
          ]),
    _read("Falcon-H1-34B", "falcon_h1",
          f"{_HF}tiiuae/Falcon-H1-34B-Instruct; transformers 5.3, falcon_h1.md (table)",
          vocab_size=261120, hidden_size=5120, intermediate_size=21504, num_hidden_layers=72,
          num_attention_heads=20, num_key_value_heads=4, head_dim=128, mamba_n_heads=32,
          mamba_d_head=128, mamba_d_state=256, mamba_n_groups=2, mamba_d_conv=4,
          mamba_d_ssm=4096, max_position_embeddings=262144, rope_theta=1e11),
    _read("Nemotron-H-8B", "nemotron_h",
          f"{_HF}nvidia/Nemotron-H-8B-Base-8K; arXiv:2504.03624",
          hybrid_override_pattern=_NEMOTRON_H, vocab_size=131072, hidden_size=4096,
          intermediate_size=21504, num_hidden_layers=52, num_attention_heads=32,
          num_key_value_heads=8, head_dim=128, mamba_num_heads=128, mamba_head_dim=64,
          ssm_state_size=128, n_groups=8, conv_kernel=4, max_position_embeddings=8192),
    _read("Mamba-Codestral-7B", "mamba2",
          f"{_HF}mistralai/Mamba-Codestral-7B-v0.1; transformers 5.23 defaults",
          vocab_size=32768, hidden_size=4096, num_hidden_layers=64, num_heads=128, head_dim=64,
          state_size=128, n_groups=8, conv_kernel=4, expand=2),
)
# fmt: on

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({a.name: a for a in _PRESETS})
"""Released models by name, each with the source of its shape."""
