#!/usr/bin/env python3
"""Text to token files beside the reference tokenizers, on the same core and the same documents.

    tokenizer_speed.py PROGRAM LLAMA3 TEXT [--megabytes N] [--work FOLDER]

LLAMA3 is a folder with tokenizer.json, or Llama 3's tokenizer.model beside one: tools/check_tokenizers.sh leaves both
under TMPDIR/check_tokenizers (made/llama3 and llama3/tokenizer.model). TEXT is a text file, such as english.txt of
tools/reference_texts.sh. Needs tokenizers, tiktoken and pyarrow.

Ours is `prepare`, from reading a file to token files with their digests, less what it takes for a single short
document (loading the vocabulary); the references only encode strings that are in memory, on one thread. Rates are
per second of processor time, so that other work on the machine disturbs them less; the wall's are given for scaling.
"""
import argparse
import base64
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time

PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def english(path, size):
    """Paragraphs put together to documents of about 4000 characters."""
    documents, part, length, total = [], [], 0, 0
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if len(line.strip()) < 40:
                continue
            part.append(line)
            length += len(line)
            if length > 4000:
                documents.append("".join(part))
                total += length
                part, length = [], 0
                if total >= size:
                    break
    return documents


def hostile(size):
    """Runs of one character, words without end, random letters and code points: a megabyte each."""
    rng = random.Random(5)
    million = 1 << 20
    kinds = [lambda: "a" * million, lambda: " " * million, lambda: "^" * million, lambda: "\n" * million, lambda: "ab" * (million // 2),
             lambda: base64.b64encode(rng.randbytes(million * 3 // 4)).decode(),
             lambda: "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=million)),
             lambda: "".join(chr(rng.randrange(0x20, 0xD800)) for _ in range(million // 3)),
             lambda: "e\u0301" * (million // 3), lambda: " 1" * (million // 2),
             lambda: "".join(rng.choices(" \t\n\u00a0\u3000", k=million // 2)), lambda: "\u4e2d" * (million // 3)]
    documents = []
    while sum(map(len, documents)) < size:
        documents += [kind() for kind in kinds]
    return documents


def prepare(program, tokenizer, source, out, workers):
    """Processor seconds, wall seconds, largest memory in MB, tokens."""
    shutil.rmtree(out, ignore_errors=True)
    started = time.monotonic()
    process = subprocess.Popen([program, "prepare", "--input", source, "--tokenizer", tokenizer, "--out", out + "/t", "--workers", str(workers),
                                "--empty", "keep"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    printed = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - started
    process.returncode = status
    if status != 0:
        sys.exit(f"prepare failed on {source}")
    return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, int(printed.split()[2])


def reference(encode, documents):
    started = resource.getrusage(resource.RUSAGE_SELF)
    count = 0
    for begin in range(0, len(documents), 256):
        count += sum(map(len, encode(documents[begin:begin + 256])))
    ended = resource.getrusage(resource.RUSAGE_SELF)
    return count / (ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("llama3")
    parser.add_argument("text")
    parser.add_argument("--model", help="Llama 3's tokenizer.model, for tiktoken")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--reference-megabytes", type=int, default=10)
    parser.add_argument("--work", default="/tmp/tokenizer_speed")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.makedirs(options.work, exist_ok=True)
    import pyarrow
    import pyarrow.parquet
    import tiktoken
    from tokenizers import Tokenizer

    hf = Tokenizer.from_file(options.llama3 + "/tokenizer.json")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in open(options.model, "rb"))}
    tik = tiktoken.Encoding("llama3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    encoders = {
        f"tokenizers {__import__('tokenizers').__version__}": lambda part: [e.ids for e in hf.encode_batch_fast(part, add_special_tokens=False)],
        f"tiktoken {tiktoken.__version__}": lambda part: tik.encode_ordinary_batch(part, num_threads=1),
    }
    sets = {"English": english(options.text, options.megabytes * 1_000_000), "hostile": hostile(options.megabytes * 250_000)}

    def at(name):
        return os.path.join(options.work, name)

    with open(at("one.jsonl"), "w") as file:
        file.write('{"text": "one"}\n')
    load = prepare(options.program, options.llama3, at("one.jsonl"), at("out"), 1)
    rows = []
    rates = {}
    for name, documents in sets.items():
        size = sum(len(text.encode()) for text in documents)
        with open(at(name + ".jsonl"), "w") as file:
            for text in documents:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        pyarrow.parquet.write_table(pyarrow.table({"text": documents}), at(name + ".parquet"), compression="zstd", row_group_size=1000)
        for form in ("jsonl", "parquet"):
            for workers in (1, 2):
                cpu, wall, memory, tokens = prepare(options.program, options.llama3, at(f"{name}.{form}"), at("out"), workers)
                rate = tokens / (cpu - load[0])
                rates[name, form, workers] = rate
                rows.append([f"prepare, {form}, {workers} worker{'s' * (workers > 1)}", name, rate, size * rate / tokens / 1e6,
                             tokens / (wall - load[1]), memory])
        few, taken = [], 0
        for text in documents:
            few.append(text[:20000] if name == "hostile" else text)  # longer runs take the references minutes
            taken += len(few[-1])
            if taken > options.reference_megabytes * 1_000_000:
                break
        few_bytes = sum(len(text.encode()) for text in few)
        for label, encode in encoders.items():
            rate = reference(encode, few)
            rates[name, label] = rate
            count = sum(map(len, encode(few[:256])))
            rows.append([label, name, rate, rate * sum(len(t.encode()) for t in few[:256]) / count / 1e6, None, None])
    print("| what | text | M tokens/s of a core | MB/s of a core | M tokens/s by the wall | peak MB |\n|---|---|---|---|---|---|")
    for label, name, rate, mb, wall, memory in rows:
        print(f"| {label} | {name} | {rate / 1e6:.2f} | {mb:.1f} | {'' if wall is None else f'{wall / 1e6:.2f}'} | {'' if memory is None else f'{memory:.0f}'} |")
    ours = rates["English", "jsonl", 1]
    for label in encoders:
        print(f"English: {ours / rates['English', label]:.1f} times {label}")
    print(f"Parquet: {rates['English', 'parquet', 1] / ours:.2f} of the rate of JSON lines")
    print(f"load {load[0]:.2f} s of processor time, {load[1]:.2f} s; machine: {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


main()
