"""Writes a tiny Llama without weights: configuration, byte-level BPE tokenizer, chat template.

    model.py FOLDER [full | sliding | vision | talk]

full, unless another kind is given: full attention. sliding: every second layer has a sliding window. vision: a Qwen2-VL, which takes
images. talk: for clients that send long English prompts and expect answers that end, with a larger vocabulary and with every sixteenth
token as an end.
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}<|start_header_id|>tools<|end_header_id|>\n\n{{ tools | tojson }}<|eot_id|>{% endif %}"
    "{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{% if m['reasoning_content'] %}<think>{{ m['reasoning_content'] }}</think>{% endif %}{{ m['content'] }}"
    "{% if m['tool_calls'] %}{{ m['tool_calls'] | tojson }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

SEEN = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"]
VISION_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}" + "".join(SEEN[:3]) + "{% endif %}"
    "{% endfor %}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def corpus(kind):
    if kind == "talk":
        return [file.read_text() for file in sorted(DOCS.glob("*.md"))]
    return [f"A router sends request {i} to the replica whose cache holds the longest prefix of it. " for i in range(500)]


def tokenizer(kind):
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192 if kind == "talk" else 1024, special_tokens=SPECIAL + SEEN * (kind == "vision"), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    bpe.train_from_iterator(corpus(kind), trainer)
    begin = SPECIAL[0]
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, bpe.token_to_id(begin))]
    )
    return bpe


KINDS = {
    "full": {},
    "talk": {},
    "vision": {
        "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
        "rope_scaling": {"rope_type": "default", "type": "mrope", "mrope_section": [8, 12, 12]},
        "vision_config": {
            "depth": 1, "embed_dim": 128, "hidden_size": 256, "num_heads": 4, "patch_size": 14, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "in_channels": 3, "mlp_ratio": 2, "hidden_act": "quick_gelu",
        },
    },
    # As in Gemma 3 and gpt-oss: two groups of blocks.
    "sliding": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128},
}


IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor", "patch_size": 14, "temporal_patch_size": 2,
    "merge_size": 2, "min_pixels": 3136, "max_pixels": 200704, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25],
}


def main(folder, kind="full"):
    folder.mkdir(parents=True, exist_ok=True)
    bpe = tokenizer(kind)
    bpe.save(str(folder / "tokenizer.json"))
    ends = {"bos_token_id": bpe.token_to_id(SPECIAL[0]), "eos_token_id": bpe.token_to_id(SPECIAL[1])}
    names = ["vision_start_token_id", "image_token_id", "vision_end_token_id", "video_token_id"]
    seen = dict(zip(names, map(bpe.token_to_id, SEEN))) if kind == "vision" else {}
    often = range(512, bpe.get_vocab_size(), 16) if kind == "talk" else []
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1],
            "model_max_length": 131072, "chat_template": VISION_TEMPLATE if kind == "vision" else TEMPLATE, "clean_up_tokenization_spaces": False,
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
            "vocab_size": bpe.get_vocab_size(), "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "initializer_range": 0.02, **KINDS[kind], **ends, **seen,
        },
        "generation_config.json": {**ends, "eos_token_id": [ends["eos_token_id"], *often]},
    }
    if kind == "vision":
        files["preprocessor_config.json"] = IMAGES
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))


main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
