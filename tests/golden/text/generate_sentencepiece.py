#!/usr/bin/env python3
"""Writes small SentencePiece models and the ids that the reference library gives for the cases of generate.py.

    pip install sentencepiece==0.2.3; python tests/golden/text/generate_sentencepiece.py

Each sentencepiece/NAME.json holds the [{"text", "ids"}] of sentencepiece/NAME.model, which is trained on training.txt.
"""
import ast
import io
import json
import os

import sentencepiece

HERE = os.path.dirname(os.path.abspath(__file__))
SPACE = "\u2581"
KINDS = {
    "llama": dict(byte_fallback=True, remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True),
    "user_defined": dict(user_defined_symbols=["<sep>", SPACE * 2, "\n"], remove_extra_whitespaces=True),
    "no_prefix": dict(byte_fallback=True, remove_extra_whitespaces=False, add_dummy_prefix=False, split_by_whitespace=False),
}


def cases():
    """CASES of generate.py, which needs another library to be run."""
    with open(os.path.join(HERE, "generate.py")) as file:
        for statement in ast.parse(file.read()).body:
            if isinstance(statement, ast.Assign) and statement.targets[0].id == "CASES":
                return eval(compile(ast.Expression(statement.value), "generate.py", "eval"))  # has products of strings


def main():
    with open(os.path.join(HERE, "training.txt")) as file:
        lines = file.read().splitlines()
    os.makedirs(os.path.join(HERE, "sentencepiece"), exist_ok=True)
    for name, options in KINDS.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=620, hard_vocab_limit=False,
            normalization_rule_name="identity", minloglevel=2, **options)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        texts = cases() + ["a<sep>b <sep>  c\n\nd"]
        pairs = [{"text": text, "ids": processor.encode(text)} for text in texts]
        # Control symbols are letters for this library, but their ids for `tokenizers`, which is followed there.
        pairs.append({"text": "a <s>b</s>", "ids": processor.encode("a ") + [1] + processor.encode("b") + [2]})
        with open(os.path.join(HERE, "sentencepiece", name + ".model"), "wb") as file:
            file.write(model.getvalue())
        with open(os.path.join(HERE, "sentencepiece", name + ".json"), "w") as file:
            json.dump(pairs, file, separators=(",", ":"))
            file.write("\n")


main()
