"""A Llama small enough for a CPU, written from nothing: no download.

The tokenizer knows the 256 bytes and no merges, so one ASCII character is one token
and a prompt's length in tokens is chosen by its length in characters.

vLLM fills the weights itself (``--load-format dummy``, a fixed seed), all of them nearly
zero: as much work as any, but what the model says hardly depends on what it has read.
Where that matters, ``write_tiny_weights`` gives it some.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT = "<|endoftext|>"
CONTEXT_TOKENS = 8192
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def write_tiny_llama(folder: Path, *, hidden: int, layers: int, heads: int, kv_heads: int) -> None:
    """Write ``config.json`` and a byte-level tokenizer into ``folder``.

    Args:
        folder: created if it does not exist; earlier files are replaced.
        hidden: width of the residual stream; a multiple of ``heads``.
        layers: number of decoder layers.
        heads: attention heads.
        kv_heads: key-value heads; divides ``heads``.

    Raises:
        ValueError: the head counts do not divide as stated.
    """
    if hidden % heads or heads % kv_heads:
        raise ValueError(f"hidden {hidden}, heads {heads} and kv_heads {kv_heads} do not divide")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _byte_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    end_id = tokenizer.token_to_id(END_OF_TEXT)
    _write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": 4 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": hidden // heads,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": CONTEXT_TOKENS,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "bos_token_id": end_id,
            "eos_token_id": end_id,
            "torch_dtype": "bfloat16",
        },
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "model_max_length": CONTEXT_TOKENS,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def write_tiny_weights(folder: Path, *, seed: int) -> None:
    """Write random weights for the ``config.json`` in ``folder``.

    Each layer keeps the scale of what passes through, so that a token depends on all that
    was read before it, and choices between tokens are not close.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    kv_width = config["head_dim"] * config["num_key_value_heads"]
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
        return random.normal(scale=scale / columns**0.5, size=(rows, columns)).astype(np.float32)

    even = np.ones(hidden, np.float32)
    weights = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden, hidden**0.5),
        "model.norm.weight": even,
        "lm_head.weight": matrix(config["vocab_size"], hidden, scale=4.0),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": even,
            f"{prefix}.post_attention_layernorm.weight": even,
            f"{prefix}.self_attn.q_proj.weight": matrix(hidden, hidden, scale=2.0),
            f"{prefix}.self_attn.k_proj.weight": matrix(kv_width, hidden, scale=2.0),
            f"{prefix}.self_attn.v_proj.weight": matrix(kv_width, hidden),
            f"{prefix}.self_attn.o_proj.weight": matrix(hidden, hidden),
            f"{prefix}.mlp.gate_proj.weight": matrix(wide, hidden),
            f"{prefix}.mlp.up_proj.weight": matrix(wide, hidden),
            f"{prefix}.mlp.down_proj.weight": matrix(hidden, wide),
        }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _byte_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
