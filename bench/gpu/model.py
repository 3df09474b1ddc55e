#!/usr/bin/env python3
"""model.py FOLDER SIZE [TEXT...]: a model folder with the shape of a Llama model (1b, 3b or 8b) and a byte-level tokenizer.

The tokenizer is trained on the text files, so that real text has as many tokens as with a real model. There are no weights: vLLM makes
them up with --load-format dummy. words.json has words that are one token each.
"""
import json
import os
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
# Hidden size, feed-forward size, layers, heads, KV heads, size of a head.
SHAPES = {"8b": (4096, 14336, 32, 32, 8, 128), "3b": (3072, 8192, 28, 24, 8, 128), "1b": (2048, 8192, 16, 32, 8, 64)}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}")

folder, size, texts = sys.argv[1], sys.argv[2], sys.argv[3:]
os.makedirs(folder, exist_ok=True)


def write(name, content):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(content, file)


words = ["".join(chr(97 + (i * 7 + j * 5 + i // 26 * 3) % 26) for j in range(5)) for i in range(700)]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=32_000 if texts else 4_096, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def corpus():
    yield from [" " + " ".join(words)] * 300
    for path in texts:
        with open(path) as file:
            yield from file


tokenizer.train_from_iterator(corpus(), trainer)
assert all(len(tokenizer.encode(f" {word}").ids) == 1 for word in words)
tokenizer.save(os.path.join(folder, "tokenizer.json"))

hidden, feed_forward, layers, heads, kv_heads, head = SHAPES[size]
write("words.json", words)
write("tokenizer_config.json", {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "model_max_length": 131072,
    "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False})
write("generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
write("config.json", {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": feed_forward,
    "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head,
    # As many as the tokenizer has, so that every generated token is text.
    "vocab_size": -(-tokenizer.get_vocab_size() // 64) * 64,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16"})
