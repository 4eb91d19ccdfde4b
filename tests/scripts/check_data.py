"""Compares prepare and the data orders with the reference libraries themselves, on random small data sets.

    python check_data.py --program build/cpu-release/bin/deltatrain [--work FOLDER] [--rounds N]

Needs numpy and tokenizers (and datasets for the last part, left out with a note when it is missing); fetches the
megatron-core wheel with pip into the work folder. Exits with 1 at the first difference.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

import numpy

import megatron_reference


def run(*arguments, expect=0):
    result = subprocess.run(arguments, capture_output=True, text=True)
    if result.returncode != expect:
        sys.exit(f"{' '.join(arguments)}\nexit code {result.returncode}, expected {expect}\n{result.stderr}")
    return result.stdout


def same(what, got, want):
    if got != want:
        sys.exit(f"{what}:\n got  {got}\n want {want}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


# Order: files of random lengths, split and blended in random ways.


def check_orders(program, megatron, work, rounds):
    rng = random.Random(1)
    compared = 0
    for number in range(rounds):
        prefixes = []
        for i in range(rng.choice([1, 1, 2, 3, 9])):
            prefix = os.path.join(work, f"order_{number}_{i}")
            documents = []
            for d in range(rng.randint(10, 60)):  # an empty part of a split keeps Megatron busy for ever
                start = 1000 * (100 * i + d)
                documents.append(list(range(start, start + rng.choice([1, 2, 3, 7, 20, rng.randint(1, 90)]))))
            megatron_reference.write(megatron, prefix, documents, 1 << 20)
            prefixes.append(prefix)
        weights = rng.random() < 0.5
        blend = prefixes
        if weights and len(prefixes) > 1:
            blend = [word for prefix in prefixes for word in (str(round(rng.uniform(0.1, 5), 2)), prefix)]
        elif len(prefixes) == 2:
            continue  # two words would be read as a weight and a prefix by Megatron
        split = rng.choice([None, "70,30,0", "8,1,1"])
        seq_length = rng.randint(2, 7)
        samples = rng.choice([1, 5, 17, 60, 200])
        seed = rng.randint(0, 99999)
        try:
            dataset = megatron_reference.datasets(megatron, blend, seq_length, seed, [samples, 1, 1], split,
                                                  tempfile.mkdtemp(dir=work))[0]
        except (AssertionError, IndexError, ValueError, ZeroDivisionError):
            continue  # too small for Megatron as well
        arguments = [program, "prepare", "--out", " ".join(blend), "--show-order", str(len(dataset)), "--seed", str(seed),
                     "--seq-length", str(seq_length), "--num-samples", str(samples)]
        if split is not None:
            arguments += ["--split", split]
        lines = run(*arguments).splitlines()[1:]
        got = [[int(word) for word in line.split("\t")[2].split()] for line in lines]
        want = [megatron_reference.tokens(dataset, k)[1][:seq_length].tolist() for k in range(len(dataset))]
        same(f"order {blend} split {split} T {seq_length} samples {samples} seed {seed}", got, want)
        compared += len(want)
    print(f"orders: {compared} samples of {rounds} random data sets equal Megatron's")


# Files: documents of random text through a tokenizer, to the byte.


def make_tokenizer(folder, texts, vocab_size, fillers):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<|bos|>", "<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    tokenizer.add_tokens([f"<filler {i}>" for i in range(fillers)])
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump({"bos_token": "<|bos|>", "eos_token": "<|end|>"}, file)
    return tokenizer


def random_text(rng):
    words = ["the", "of", "water", "\u00e9t\u00e9", "na\u00efve", "\u4e2d\u6587", "\U0001f44d", "12345", "it's", "\n", "\t", "  "]
    return " ".join(rng.choice(words) for _ in range(rng.randint(1, 200)))


def check_files(program, megatron, work):
    rng = random.Random(2)
    texts = [random_text(rng) for _ in range(700)]
    files = [os.path.join(work, name) for name in ("a.jsonl", "b.jsonl")]
    for name, part in zip(files, (texts[:500], texts[500:])):
        with open(name, "w") as file:
            for i, text in enumerate(part):
                file.write(json.dumps({"id": i, "text": text, "more": [1, {"text": "no"}]}, ensure_ascii=i % 2 == 0) + "\n")
    for label, fillers in (("16 bits", 0), ("32 bits", 66000)):
        folder = os.path.join(work, "tokenizer_" + label.split()[0])
        tokenizer = make_tokenizer(folder, texts, 400, fillers)
        count = tokenizer.get_vocab_size()
        documents = [tokenizer.encode(text).ids + [1] for text in texts]
        for partitions in (1, 4):
            out = os.path.join(work, f"files_{label.split()[0]}_{partitions}")
            run(program, "prepare", "--input", *files, "--tokenizer", folder, "--out", out, "--partitions", str(partitions),
                "--workers", "3")
            reference = out + "_reference"
            if partitions == 1:
                megatron_reference.write(megatron, reference, documents, count)
            else:
                builder = megatron.IndexedDatasetBuilder(reference + ".bin", dtype=megatron.DType.optimal_dtype(count))
                for i in range(partitions):
                    part = f"{reference}_{i}"
                    megatron_reference.write(megatron, part, documents[i::partitions], count)
                    for end in (".bin", ".idx"):
                        same(f"partition {i}{end}", read(f"{out}_{i}_text_document{end}"), read(part + end))
                    builder.add_index(part)
                builder.finalize(reference + ".idx")
            for end in (".bin", ".idx"):
                same(f"{label}, {partitions} partitions, {end}", read(out + "_text_document" + end), read(reference + end))
    print(f"files: {len(texts)} documents in 16 and 32 bits, 1 and 4 partitions equal Megatron's to the byte")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--work", default=None)
    parser.add_argument("--megatron", default=None, help="folder of an unpacked megatron-core wheel")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    work = options.work or tempfile.mkdtemp()
    os.makedirs(work, exist_ok=True)
    numpy.seterr(all="ignore")
    megatron = megatron_reference.load(options.megatron or megatron_reference.fetch(work))
    check_orders(options.program, megatron, work, options.rounds)
    check_files(options.program, megatron, work)


main()
