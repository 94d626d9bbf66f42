"""A LoRA adapter for the tiny Llama, written from nothing."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from benchmarks.stack.engine import EngineSize

RANK = 4


def write_tiny_adapter(folder: Path, size: EngineSize, seed: int) -> None:
    """Write random low-rank changes of all query and value projections, in PEFT's format."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    widths = {"q_proj": size.hidden, "v_proj": size.hidden // size.heads * size.kv_heads}
    tensors = {}
    for layer in range(size.layers):
        for projection, width in widths.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            for part, shape in (("A", (RANK, size.hidden)), ("B", (width, RANK))):
                values = random.normal(size=shape).astype(np.float32)
                tensors[f"{name}.lora_{part}.weight"] = values
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "base_model_name_or_path": "tiny-llama",
                "r": RANK,
                "lora_alpha": RANK,
                "target_modules": list(widths),
                "bias": "none",
            }
        ),
        encoding="utf-8",
    )
