#!/usr/bin/env python3
"""Makes the tokenizers that tools/check_tokenizers.sh compares: families and word patterns in use.

    make_check_tokenizers.py PROGRAM FOLDER TRAINING_TEXT [--text FILE ...]

FOLDER/llama3/tokenizer.model becomes a tokenizer.json as Hugging Face's conversion writes it; the others are trained
on the texts by `deltatrain tokenizer train` and by sentencepiece.
"""
import base64
import copy
import json
import os
import shutil
import subprocess
import sys

import sentencepiece

SPACE = "\u2581"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
POSSESSIVE = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
              r"\s+(?!\S)|\s")
MARKS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")
SYMBOLS = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
           r"\s*[\r\n]+|\s+(?!\S)|\s+")
ODD = r"\b\w+\b|\d{2}|^\s*#.*$|(?<=a)[^\W\d_]{,3}?|\h+"


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern if isinstance(pattern, dict) else {"Regex": pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(number, content, **flags):
    token = dict(id=number, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
    token.update(flags)
    return token


def save(folder, data):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump(data, file)


def printable_bytes():
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return {byte: chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)}


def bos_template(token, number):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}}}


def llama3(path):
    """As transformers converts it: every way to make a token from two others, in the order of ranks."""
    lines = (line.split() for line in open(path, "rb"))
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    table = printable_bytes()

    def text(token):
        return "".join(table[byte] for byte in token)

    merges = []
    for token in sorted(ranks, key=ranks.get):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [[text(a), text(b)] for a, b in sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))]
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added(len(ranks) + i, name, special=True) for i, name in enumerate(names)],
            "normalizer": None, "pre_tokenizer": sequence(split(LLAMA3), byte_level()),
            "post_processor": bos_template(names[0], len(ranks)), "decoder": byte_level(True, True),
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                      "vocab": {text(token): rank for token, rank in ranks.items()}, "merges": merges}}


def sentencepiece_json(path):
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    size = processor.get_piece_size()
    pieces = [processor.id_to_piece(i) for i in range(size)]
    normal = {pieces[i]: i for i in range(size) if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))}
    merges = []
    for piece, number in normal.items():
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in normal and piece[i:] in normal]
        merges += [(processor.get_score(number), pair) for pair in sorted(pairs, key=lambda pair: (normal[pair[0]], normal[pair[1]]))]
    merges = [list(pair) for _, pair in sorted(merges, key=lambda item: item[0], reverse=True)]
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added(i, pieces[i], special=True) for i in range(3)],
            "normalizer": None, "pre_tokenizer": None, "post_processor": bos_template("<s>", 1),
            "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                                                          {"type": "ByteFallback"}, {"type": "Fuse"},
                                                          {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                      "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges}}


def train_sentencepiece(folder, texts):
    os.makedirs(folder, exist_ok=True)
    common = dict(model_type="bpe", hard_vocab_limit=False, normalization_rule_name="identity", minloglevel=2, input=texts,
                  max_sentence_length=100000, input_sentence_size=40000)
    kinds = {
        "llama": dict(vocab_size=16000, byte_fallback=True, remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True),
        "user_defined": dict(vocab_size=8000, user_defined_symbols=["<sep>", SPACE * 2, "\n"], remove_extra_whitespaces=True),
        "no_prefix": dict(vocab_size=16000, byte_fallback=True, remove_extra_whitespaces=False, add_dummy_prefix=False, split_by_whitespace=False),
    }
    small = sum(os.path.getsize(text) for text in texts) < 100000
    for name, options in kinds.items():
        if small:
            options["vocab_size"] = 620
        sentencepiece.SentencePieceTrainer.train(model_prefix=os.path.join(folder, name), **common, **options)


def main():
    program, work, golden_text = sys.argv[1:4]
    texts = [name for name in sys.argv[5:] if not name.startswith("-")] or [golden_text]
    made = os.path.join(work, "made")
    shutil.rmtree(made, ignore_errors=True)
    save(os.path.join(made, "llama3"), llama3(os.path.join(work, "llama3", "tokenizer.model")))

    train_sentencepiece(os.path.join(work, "sentencepiece"), texts)
    base = sentencepiece_json(os.path.join(work, "sentencepiece", "llama.model"))
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]}
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    for name, normalizer, pre_tokenizer in [
        ("sp_prepend", prepend, None), ("sp_metaspace", None, metaspace),
        ("sp_always", None, dict(metaspace, prepend_scheme="always", split=True)),
        ("sp_split", replace, split({"String": " "}, "MergedWithPrevious")),
    ]:
        save(os.path.join(made, name), dict(base, normalizer=normalizer, pre_tokenizer=pre_tokenizer))

    trained = {}
    for pattern in ("llama3", "gpt2", "qwen2"):
        folder = os.path.join(made, "trained_llama3" if pattern == "llama3" else pattern)
        size = "600" if texts == [golden_text] else "16000"
        subprocess.run([program, "tokenizer", "train", "--input", *texts, "--vocab-size", size, "--pattern", pattern,
                        "--on-invalid", "replace", "--out", folder], check=True, capture_output=True)
        trained[pattern] = json.load(open(os.path.join(folder, "tokenizer.json")))
    size = len(trained["qwen2"]["model"]["vocab"])
    for name, normalizer in (("nfc", "NFC"), ("nfd", "NFD")):
        data = copy.deepcopy(trained["qwen2"])
        data["normalizer"] = {"type": normalizer}
        data["added_tokens"] += [added(size, "<|im_start|>", special=True), added(size + 1, "<think>"),
                                 added(size + 2, " e\u0301xq", lstrip=True, rstrip=True, normalized=True),
                                 added(size + 3, "qword", single_word=True, normalized=True)]
        save(os.path.join(made, name), data)
    for name, pre_tokenizer in [
        ("prefix", byte_level(True, True)),
        ("digits", sequence({"type": "Digits", "individual_digits": True}, byte_level(False, True))),
        ("punctuation", sequence({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(False, True),
                                 {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]"))),
        ("cased", sequence(split(CASED), byte_level())), ("marks", sequence(split(MARKS), byte_level())),
        ("possessive", sequence(split(POSSESSIVE, "Removed", True), byte_level())),
        ("symbols", sequence(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(SYMBOLS), byte_level())),
        ("odd", sequence(split(ODD, "MergedWithPrevious"), split({"String": "a."}, "MergedWithNext"),
                         split(r"(?=[A-Z])|x*", "Contiguous"), byte_level())),
        ("scripts", sequence(split(r"[\p{Hiragana}\p{Katakana}]+", "Contiguous"), split(r"\P{L}+|\S"), byte_level())),
    ]:
        save(os.path.join(made, name), dict(trained["gpt2"], pre_tokenizer=pre_tokenizer))


main()
