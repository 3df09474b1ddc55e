"""Trains the small tokenizers that the tests compare with.

usage: python make_tokenizers.py      in an environment with tokenizers==0.23.3; writes tokenizers/*.json.

bytes         byte-level BPE as in Llama 3, no normalizer
bytes_nfkc    byte-level BPE after NFKC, a space before every piece, one token that is found in normalized text
pieces        SentencePiece-like with byte fallback, spaces prepended by the normalizer (the older Llama way)
pieces_first  the same with Metaspace, a space before the first piece only, tokens that strip white space (as Phi has)
pieces_always the same with a space before every piece that has none
"""
import json
import pathlib

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent / "tokenizers"
TEXT = [
    "The quick brown fox jumps over the lazy dog. You are a helpful assistant. "
    "Request %d asks about caching, routing and prefixes in language model serving; naïve façades cost 5 € or 漢字.\n" % n
    for n in range(300)
]
CHAT = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def save(name, tokenizer):
    (HERE / f"{name}.json").write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n")


def template(token, id):
    return processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, id)])


def byte_level(name, normalizer, prefix, specials, added):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=560, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.post_processor = template(specials[0], 0)
    tree = json.loads(tokenizer.to_str())
    add(tree, added)
    save(name, tree)


def add(tree, added):
    ids = [id for id in tree["model"]["vocab"].values()] + [token["id"] for token in tree["added_tokens"]]
    for n, flags in enumerate(added):
        token = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        tree["added_tokens"].append({"id": max(ids) + 1 + n, **token, **flags})


def pieces(name, normalizer, pre_tokenizer, added):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=560, special_tokens=specials, show_progress=False))
    tree = json.loads(tokenizer.to_str())
    tree["added_tokens"] = tree["added_tokens"][:3]
    tree["model"] |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    tree["normalizer"], tree["pre_tokenizer"] = normalizer, pre_tokenizer
    tree["post_processor"] = json.loads(template("<s>", 1).__getstate__())
    add(tree, added)
    save(name, tree)


def metaspace(scheme):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


LEGACY = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
PHI = [
    {"content": "<|user|>", "rstrip": True},
    {"content": "<|assistant|>", "rstrip": True},
    {"content": "<|end|>", "lstrip": True, "rstrip": True},
    {"content": "day", "single_word": True, "special": False},
]
HERE.mkdir(exist_ok=True)
byte_level("bytes", None, False, CHAT, [])
late = [{"content": "[DAY]", "normalized": True, "special": False, "lstrip": True}]
byte_level("bytes_nfkc", normalizers.NFKC(), True, ["<EOT>", "<META>"], late)
pieces("pieces", LEGACY, None, [])
pieces("pieces_first", None, metaspace("first"), PHI)
pieces("pieces_always", None, metaspace("always"), [])
