#!/usr/bin/env python3
"""Text to ids and to token files beside the reference tokenizers, on the same core and the same documents.

    tokenizer_speed.py PROGRAM LLAMA3 MODEL TEXT [--megabytes N] [--rounds N] [--work FOLDER]

LLAMA3 is a folder with Llama 3's tokenizer.json and MODEL its tokenizer.model, for tiktoken: tools/check_tokenizers.sh
leaves both under TMPDIR/check_tokenizers (made/llama3 and llama3/tokenizer.model). TEXT is a text file, such as
english.txt of tools/reference_texts.sh. Needs tokenizers, tiktoken and pyarrow.

All contenders take their turn in each round, each with the vocabulary loaded before; the best round of each counts.
Rates are per second of processor time of the threads that encode, so that other work on the machine disturbs them less;
the wall's is given for scaling. `prepare` goes from reading a file to token files with their digests, less what it
takes for a single short document (loading the vocabulary, and Arrow C++ for Parquet), of both the best of all rounds:
loading takes a third of the whole, and its time varies. Of hostile texts the references
get the first 20,000 characters of each document, since longer runs take them minutes.
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
MILLION = 1 << 20

# What a process counts as its peak of memory includes that of the process which started it: so a small one does. Writes
# seconds of processor time and the peak in KiB.
LAUNCHER = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
with open(sys.argv[1], "w") as file:
    file.write(f"{usage.ru_utime + usage.ru_stime} {usage.ru_maxrss}")
os._exit(os.waitstatus_to_exitcode(status) & 255)
"""


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


def hostile(rng):
    """Runs of one character, words without end, random letters and code points: a megabyte each."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {
        "a million times a": "a" * MILLION,
        "a million blanks": " " * MILLION,
        "a million times ^": "^" * MILLION,
        "a million line feeds": "\n" * MILLION,
        "ab over and over": "ab" * (MILLION // 2),
        "base64": base64.b64encode(rng.randbytes(MILLION * 3 // 4)).decode(),
        "random letters in one word": "".join(rng.choices(letters, k=MILLION)),
        "random words": " ".join("".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(MILLION // 8)),
        "random code points": "".join(chr(rng.randrange(0x20, 0xD800)) for _ in range(MILLION // 3)),
        "combining marks": "e\u0301" * (MILLION // 3),
        "digits": " 1" * (MILLION // 2),
        "white space": "".join(rng.choices(" \t\n\u00a0\u3000", k=MILLION // 2)),
        "one Han character": "\u4e2d" * (MILLION // 3),
    }


def write_lines(path, documents):
    with open(path, "w") as file:
        for text in documents:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def ours(program, tokenizer, source, threads):
    """`tokenizer bench`: bytes, tokens, seconds of processor time, seconds."""
    printed = subprocess.run([program, "tokenizer", "bench", "--tokenizer", tokenizer, "--input", source, "--threads", str(threads),
                              "--repeats", "1", "--max-bytes", "4GB", "--json"], check=True, capture_output=True).stdout
    result = json.loads(printed)
    return result["bytes"], result["tokens"], result["cpu_seconds"], result["wall_seconds"]


def prepare(program, tokenizer, source, out, workers):
    """Tokens, seconds of processor time, seconds, largest memory in MB."""
    shutil.rmtree(out, ignore_errors=True)
    started = time.monotonic()
    result = subprocess.run([sys.executable, "-c", LAUNCHER, out + ".usage", program, "prepare", "--input", source, "--tokenizer", tokenizer,
                             "--out", out + "/t", "--workers", str(workers), "--empty", "keep"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL)
    wall = time.monotonic() - started
    if result.returncode != 0:
        sys.exit(f"prepare failed on {source}")
    with open(out + ".usage") as file:
        cpu, peak_kib = map(float, file.read().split())
    shutil.rmtree(out)
    return int(result.stdout.split()[2]), cpu, wall, peak_kib * 1024 / 1e6


def reference(encode, documents):
    """Tokens, seconds of processor time, seconds."""
    count = 0
    wall = time.monotonic()
    started = resource.getrusage(resource.RUSAGE_SELF)
    for begin in range(0, len(documents), 256):
        count += encode(documents[begin:begin + 256])
    ended = resource.getrusage(resource.RUSAGE_SELF)
    return count, ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime, time.monotonic() - wall


class Table:
    """The best of each contender, by processor time per byte."""

    def __init__(self):
        self.rows = {}

    def add(self, what, text, size, tokens, cpu, wall, memory=None):
        old = self.rows.get((what, text))
        if old is None or cpu / size < old["cpu"] / old["size"]:
            self.rows[what, text] = dict(size=size, tokens=tokens, cpu=cpu, wall=wall, memory=memory)

    def rate(self, what, text, of="size"):
        row = self.rows[what, text]
        return row[of] / row["cpu"]

    def show(self):
        print("| what | text | MB/s of a core | M tokens/s of a core | MB/s by the wall | peak MB |\n|---|---|---|---|---|---|")
        for (what, text), row in self.rows.items():
            memory = "" if row["memory"] is None else f"{row['memory']:.0f}"
            print(f"| {what} | {text} | {row['size'] / row['cpu'] / 1e6:.1f} | {row['tokens'] / row['cpu'] / 1e6:.2f} | "
                  f"{row['size'] / row['wall'] / 1e6:.1f} | {memory} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("llama3")
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--reference-megabytes", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--work", default="/tmp/tokenizer_speed")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.makedirs(options.work, exist_ok=True)
    import pyarrow
    import pyarrow.parquet
    import tiktoken
    from tokenizers import Tokenizer, __version__ as tokenizers_version

    hf = Tokenizer.from_file(options.llama3 + "/tokenizer.json")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in open(options.model, "rb"))}
    tik = tiktoken.Encoding("llama3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    encoders = {
        f"tokenizers {tokenizers_version}": lambda part: sum(len(e) for e in hf.encode_batch_fast(part, add_special_tokens=False)),
        f"tiktoken {tiktoken.__version__}": lambda part: sum(len(tik.encode_ordinary(text)) for text in part),
    }

    def at(name):
        return os.path.join(options.work, name)

    def size_of(documents):
        return sum(len(text.encode()) for text in documents)

    documents = english(options.text, options.megabytes * 1_000_000)
    write_lines(at("english.jsonl"), documents)
    pyarrow.parquet.write_table(pyarrow.table({"text": documents}), at("english.parquet"), compression="zstd", row_group_size=1000)
    few, taken = [], 0
    for text in documents:
        few.append(text)
        taken += len(text)
        if taken > options.reference_megabytes * 1_000_000:
            break
    kinds = hostile(random.Random(5))
    for i, text in enumerate(kinds.values()):
        write_lines(at(f"hostile_{i}.jsonl"), [text] * 8)
    write_lines(at("one.jsonl"), ["one"])
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one"]}), at("one.parquet"))

    size, few_size = size_of(documents), size_of(few)
    table = Table()
    loads, prepared = {}, {}
    for _ in range(options.rounds):
        for threads in options.threads:
            _, tokens, cpu, wall = ours(options.program, options.llama3, at("english.jsonl"), threads)
            table.add(f"deltatrain, {threads} thread{'s' * (threads > 1)}", "English", size, tokens, cpu, wall)
        for label, encode in encoders.items():
            table.add(label, "English", few_size, *reference(encode, few))
        for form in ("jsonl", "parquet"):
            loads.setdefault(form, []).append(prepare(options.program, options.llama3, at(f"one.{form}"), at("out"), 1))
            for workers in options.threads:
                prepared.setdefault((form, workers), []).append(prepare(options.program, options.llama3, at(f"english.{form}"), at("out"), workers))
        for i, (kind, text) in enumerate(kinds.items()):
            kind_size, tokens, cpu, wall = ours(options.program, options.llama3, at(f"hostile_{i}.jsonl"), 1)
            table.add("deltatrain, 1 thread", kind, kind_size, tokens, cpu, wall)
            short = [text[:20000]] * 2
            for label, encode in encoders.items():
                table.add(label, kind, size_of(short), *reference(encode, short))
    for (form, workers), runs in prepared.items():
        load_cpu, load_wall = (min(load[i] for load in loads[form]) for i in (1, 2))
        tokens, cpu = min(runs, key=lambda run: run[1])[:2]
        memory = max(run[3] for run in runs)
        wall = min(run[2] for run in runs)
        table.add(f"prepare, {form}, {workers} worker{'s' * (workers > 1)}", "English", size, tokens, cpu - load_cpu, wall - load_wall, memory)
    table.show()
    one = "deltatrain, 1 thread"
    for label in encoders:
        print(f"English: {table.rate(one, 'English') / table.rate(label, 'English'):.1f} times {label}")
    for kind in kinds:
        print(f"{kind}: {table.rate(one, kind, 'tokens') / table.rate(one, 'English', 'tokens'):.2f} of the rate of English in "
              f"tokens, {table.rate(one, kind) / table.rate(one, 'English'):.2f} in bytes; "
              + "; ".join(f"{table.rate(one, kind) / table.rate(label, kind):.1f} times {label}, "
                          f"{table.rate(one, kind) / table.rate(label, 'English'):.1f} times it on English" for label in encoders))
    for form in ("jsonl", "parquet"):
        print(f"prepare from {form}: {table.rate(f'prepare, {form}, 1 worker', 'English') / table.rate(one, 'English'):.2f} of the tokenizer's rate")
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; {options.rounds} rounds, the best of each")


main()
