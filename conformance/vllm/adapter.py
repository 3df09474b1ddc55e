"""Writes a LoRA adapter with random weights for the model of model.py. usage: adapter.py FOLDER SEED"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

RANK, HIDDEN, LAYERS = 8, 256, 2
PARTS = {"q_proj": 256, "v_proj": 128}


def main(folder, seed):
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for part, outputs in PARTS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN)
            weights[f"{name}.lora_B.weight"] = torch.randn(outputs, RANK)
    save_file(weights, str(folder / "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 16, "target_modules": list(PARTS),
              "bias": "none", "lora_dropout": 0.0, "base_model_name_or_path": "tiny"}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))


main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
