#!/usr/bin/env python3
"""Writes the golden tokenizers of this folder and the ids that the reference library gives for CASES.

    pip install tokenizers==0.23.3; python tests/golden/text/generate.py

Each NAME.json holds {"tokenizer": a tokenizer.json, "cases": [{"text", "ids", "ids_plain", "decoded",
"decoded_skip"}]}. training.txt is the text that the vocabularies were trained on, line by line; it is
written for this purpose, nothing is taken from elsewhere.
"""
import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = """
The river runs past the old mill, and the miller's daughter counts the boats: 12 on Monday, 345 on Tuesday, 6789 since.
She didn't know that they'd come; we've seen them, I'm sure you'll agree, and he's right. THEY'LL come, WE'VE said.
A state is a matrix, a gate is a number between 0 and 1, and the delta rule writes what the key did not yet know.
Der Fluss fliesst an der alten Muehle vorbei. Die M\u00fcllerin z\u00e4hlt die Boote: \u00e4u\u00dferst gem\u00fctlich, \u00fcber f\u00fcnfzig.
La rivi\u00e8re coule pr\u00e8s du vieux moulin; l'\u00e9t\u00e9 d\u00e9j\u00e0 s'ach\u00e8ve, \u00e7a va, no\u00ebl.
\u0420\u0435\u043a\u0430 \u0442\u0435\u0447\u0451\u0442 \u043c\u0438\u043c\u043e \u0441\u0442\u0430\u0440\u043e\u0439 \u043c\u0435\u043b\u044c\u043d\u0438\u0446\u044b, \u0438 \u043b\u043e\u0434\u043a\u0438 \u043f\u043b\u044b\u0432\u0443\u0442 \u043c\u0438\u043c\u043e.
\u6cb3\u6d41\u7ecf\u8fc7\u65e7\u78e8\u574a\uff0c\u78e8\u574a\u7684\u5973\u513f\u6570\u8239\u3002\u5ddd\u306f\u53e4\u3044\u6c34\u8eca\u5c0f\u5c4b\u306e\u305d\u3070\u3092\u6d41\u308c\u3066\u3044\u307e\u3059\u3002
for (int i = 0; i < n; ++i) {\n\tsum += x[i] * y[i];   // a dot product\n}\n\n\n    return sum;\n
https://example.org/a_b?c=d&e=%20f  --  \u201cquoted\u201d \u2026 caf\u00e9 \U0001F600 \U0001F469\u200D\U0001F680 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947
""".strip()

CASES = [
    "", " ", "  ", "a", "The river", " the river", "the  river\n\n runs", "didn't DIDN'T they'Ll I'M 'S's ''s '\u017f",
    "1 12 123 1234 12345 123456789", "a1b22c333d4444", "\r\n\r\n\t x\r\n", "   \n \n   y", "x   ", "\u00a0\u2028\u3000z\u0085",
    "M\u00fcllerin z\u00e4hlt", "Mu\u0308llerin", "\u0301\u0301a\u0301", "\u0420\u0435\u043a\u0430 \u0442\u0435\u0447\u0451\u0442", "\u78e8\u574a\u7684\u5973\u513f\u6570\u8239\u3002",
    "\u5ddd\u306f\u53e4\u3044", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947", "\U0001F469\u200D\U0001F680\U0001F600 \U0001F1E9\U0001F1EA",
    "\u0661\u0662\u0663 \u2167 \u00bd \u00b2x", "<|bos|>", "a<|bos|>b <|eos|> ", "<|bos|><|bos|", "<|bo<|bos|>", "_<|word|>_ <|word|> x<|word|>",
    "a \n<|left|> b", "a <|right|> \t b", " <|left|><|right|> <|left|>", "Norm norm", "for (int i = 0; i < n; ++i) {\n\treturn;\n}",
    "https://example.org/a_b?c=d", "a" * 50, " " * 50 + "x", "-=" * 30, "ab\u0000\u0001\u007f", "\ufffd\ufeff", "\uffff\U0010ffff",
    "\u10d0\u10d1 \u1e9e\u00df \u01c5\u02b0\u00aa\u2071", "\U000105d2\U00000307 \U00016d68", "\u216f\u24b6\u00b2\u2460", "x\u200cy\u200dz", "\u180e\u200b",
]

GPT2_LIKE = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

HERE = os.path.dirname(os.path.abspath(__file__))
PRE = pre_tokenizers


def train(pre_tokenizer, vocab_size=420, special=("<|bos|>", "<|eos|>"), byte_level=True, normalizer=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=list(special),
        initial_alphabet=PRE.ByteLevel.alphabet() if byte_level else [])
    tokenizer.train_from_iterator(TEXT.split("\n"), trainer)
    if byte_level:
        tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def with_bos(tokenizer, eos=False):
    single = "<|bos|> $A" + (" <|eos|>" if eos else "")
    ids = [(t, tokenizer.token_to_id(t)) for t in ("<|bos|>", "<|eos|>")]
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single=single, pair=single + " $B:1", special_tokens=ids)])
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return PRE.Split(pattern, behavior, invert)


def edited(tokenizer, edit):
    data = json.loads(tokenizer.to_str())
    edit(data)
    return Tokenizer.from_str(json.dumps(data))


def variants():
    llama3 = PRE.Sequence([split(Regex(LLAMA3)), PRE.ByteLevel(add_prefix_space=False, use_regex=False)])
    yield "llama3", with_bos(edited(train(llama3), lambda d: d["model"].update(ignore_merges=True)))

    # Whole words in the vocabulary that no merge makes, so that ignore_merges matters.
    def unmergeable(data):
        data["model"]["ignore_merges"] = True
        data["model"]["merges"] = data["model"]["merges"][: len(data["model"]["merges"]) // 2]
    yield "ignore_merges", with_bos(edited(train(llama3), unmergeable), eos=True)

    tokenizer = train(PRE.ByteLevel(add_prefix_space=False))
    tokenizer.add_tokens([
        AddedToken("<|word|>", single_word=True, normalized=False), AddedToken("<|left|>", lstrip=True, normalized=False),
        AddedToken("<|right|>", rstrip=True, normalized=False), AddedToken("Norm", normalized=True)])
    yield "gpt2_added", tokenizer
    yield "gpt2_prefix", train(PRE.ByteLevel(add_prefix_space=True))
    yield "qwen2", train(PRE.Sequence([split(Regex(QWEN2), "removed", True), PRE.ByteLevel(add_prefix_space=False, use_regex=False)]))
    yield "cased", train(PRE.Sequence([split(Regex(CASED)), PRE.ByteLevel(add_prefix_space=False, use_regex=False)]))
    yield "digits", train(PRE.Sequence([PRE.Digits(individual_digits=True), split(" ", "merged_with_next"), PRE.ByteLevel(add_prefix_space=False, use_regex=False)]))
    yield "literal", train(PRE.Sequence([split("a.", "merged_with_previous"), split(Regex(r"\p{N}{1,2}+|\s"), "contiguous"), PRE.ByteLevel(add_prefix_space=False, use_regex=False)]))

    # Without byte-level tokens: SentencePiece style with byte fallback.
    space = "\u2581"
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    tokenizer = train(None, vocab_size=620, special=["<unk>", "<|bos|>", "<|eos|>"] + bytes_, byte_level=False, unk_token="<unk>", fuse_unk=True, byte_fallback=True,
                      normalizer=normalizers.Sequence([normalizers.Prepend(space), normalizers.Replace(" ", space)]))

    def plain_bytes(data):
        data["added_tokens"] = data["added_tokens"][:3]
    tokenizer = edited(tokenizer, plain_bytes)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", pair="<|bos|> $A <|bos|> $B", special_tokens=[("<|bos|>", 1)])
    yield "byte_fallback", tokenizer
    tokenizer = train(PRE.Metaspace(prepend_scheme="first"), vocab_size=300, special=["<unk>", "<|bos|>", "<|eos|>"], byte_level=False, unk_token="<unk>")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    yield "metaspace", tokenizer
    tokenizer = train(PRE.Whitespace(), vocab_size=300, special=["<unk>"], byte_level=False, unk_token="<unk>", fuse_unk=True, end_of_word_suffix="</w>")
    tokenizer.decoder = decoders.BPEDecoder()
    yield "end_of_word", tokenizer


def main():
    with open(os.path.join(HERE, "training.txt"), "w") as file:
        file.write(TEXT + "\n")
    for name, tokenizer in variants():
        cases = []
        for text in CASES:
            ids = tokenizer.encode(text).ids
            case = {"text": text, "ids": ids, "ids_plain": tokenizer.encode(text, add_special_tokens=False).ids}
            if ids or name not in ("end_of_word",):  # the reference's BPEDecoder fails on an empty list
                case["decoded"] = tokenizer.decode(ids, skip_special_tokens=False)
                case["decoded_skip"] = tokenizer.decode(ids, skip_special_tokens=True)
            cases.append(case)
        with open(os.path.join(HERE, name + ".json"), "w") as file:
            json.dump({"tokenizer": json.loads(tokenizer.to_str()), "cases": cases}, file, separators=(",", ":"), sort_keys=True)
            file.write("\n")


main()
