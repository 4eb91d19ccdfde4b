"""Runs prepare on inputs that make memory grow where it is not bounded, and holds its peak against the bounds.

    python check_memory.py --program build/cpu-release/bin/deltatrain --tokenizer FOLDER [--work FOLDER] [--scale X]

`--scale 1` takes 15 GB of disk and some minutes, and writes files past 2^31 bytes; the bounds are the same for any scale. Needs
pyarrow for Parquet and Arrow, which are left out with a note where it is missing. Exits with 1 when a bound is not held.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

GIB = 1 << 30
MB = 1_000_000

# What a process counts as its peak includes that of the process which started it: so a small one does. Writes the peak
# in KiB.
LAUNCHER = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
with open(sys.argv[1], "w") as file:
    file.write(str(usage.ru_maxrss))
os._exit(os.waitstatus_to_exitcode(status) & 255)
"""


def run(program, tokenizer, sources, out, *more):
    """Peak of resident memory in bytes, seconds, what was printed, SHA-256 of the tokens."""
    shutil.rmtree(out, ignore_errors=True)
    started = time.monotonic()
    result = subprocess.run([sys.executable, "-c", LAUNCHER, out + ".peak", program, "prepare", "--tokenizer", tokenizer, "--out",
                             out + "/t", *more, "--input", *sources], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - started
    printed = result.stdout.decode()
    if result.returncode != 0:
        sys.exit(f"prepare {sources} {more}: exit code {result.returncode}")
    with open(out + ".peak") as file:
        peak = int(file.read()) * 1024
    check_index(out + "/t_text_document")
    digest = hashlib.sha256()
    with open(out + "/t_text_document.bin", "rb") as file:
        while part := file.read(1 << 24):
            digest.update(part)
    shutil.rmtree(out)
    return peak, seconds, printed, digest.hexdigest()


def check_index(prefix):
    """Pointers are sums of 64 bits: the last sequence ends where the tokens do."""
    size = os.path.getsize(prefix + ".bin")
    with open(prefix + ".idx", "rb") as file:
        magic, _, code, count, _ = struct.unpack("<9sQBQQ", file.read(34))
        item = {4: 4, 8: 2}[code]
        file.seek(34 + 4 * (count - 1))
        (length,) = struct.unpack("<i", file.read(4))
        file.seek(34 + 12 * count - 8)
        (pointer,) = struct.unpack("<q", file.read(8))
    if magic != b"MMIDIDX\0\0" or pointer + length * item != size:
        sys.exit(f"{prefix}: last pointer {pointer} and length {length} of {item} bytes, {size} bytes of tokens")


def unique_words(path, size, seed):
    """Lines of about 4000 letters, hardly a word of which comes twice."""
    rng = random.Random(seed)
    with open(path, "w") as file:
        written = 0
        while written < size:
            data = rng.randbytes(1 << 16).hex().translate(str.maketrans("0123456789", "ghijklmnop"))
            words = [data[i:i + 4 + i % 13] for i in range(0, len(data), 17)]
            for begin in range(0, len(words), 400):
                line = json.dumps({"text": " ".join(words[begin:begin + 400])})
                file.write(line + "\n")
                written += len(line) + 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--work", default=None)
    parser.add_argument("--scale", type=float, default=0.1)
    options = parser.parse_args()
    work = options.work or tempfile.mkdtemp()
    os.makedirs(work, exist_ok=True)
    failures = 0

    def at(name):
        return os.path.join(work, name)

    def prepare(sources, *more):
        return run(options.program, options.tokenizer, sources, at("out"), *more)

    def report(what, size, peak, bound, seconds):
        nonlocal failures
        verdict = "" if peak <= bound else " TOO MUCH"
        failures += peak > bound
        print(f"| {what} | {size / MB:.0f} MB | {peak / MB:.0f} MB | {bound / MB:.0f} MB{verdict} | {seconds:.0f} |", flush=True)

    print("| input | size | peak | bound | seconds |\n|---|---|---|---|---|")
    source = at("tiny.jsonl")
    count = int(50e6 * options.scale)
    with open(source, "w") as file:
        for begin in range(0, count, 100000):
            file.write('{"text":"a b"}\n' * min(100000, count - begin))
    peak, seconds, printed, _ = prepare([source], "--workers", "2")
    assert printed.split()[0] == str(count), printed
    report(f"{count / 1e6:.0f} million documents of a few tokens", os.path.getsize(source), peak, GIB, seconds)
    os.remove(source)

    peaks = []
    for size in (int(1e9 * options.scale), int(4e9 * options.scale)):
        unique_words(source, size, 1)
        peak, seconds, _, _ = prepare([source], "--workers", "2")
        peaks.append(peak)
        report("words that never come again", os.path.getsize(source), peak, GIB if len(peaks) == 1 else min(GIB, peaks[0] + 200 * MB), seconds)
        os.remove(source)

    text = " ".join(str(i * 7919 % 100003) for i in range(int(300e6 / 5.9)))
    with open(at("long.txt"), "w") as file:
        file.write(text)
    with open(source, "w") as file:
        file.write(json.dumps({"text": text}) + "\n")
    peak, seconds, _, lines = prepare([source])
    report("one line", os.path.getsize(source), peak, 4 * os.path.getsize(source), seconds)
    peak, seconds, _, plain = prepare([at("long.txt")])
    report("the same as a text file", os.path.getsize(at("long.txt")), peak, 4 * os.path.getsize(source), seconds)
    if lines != plain:
        sys.exit("the tokens of the line and of the text file differ")
    os.remove(source)
    os.remove(at("long.txt"))

    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        print("Parquet: SKIPPED, pyarrow is not installed")
        sys.exit(1 if failures else 0)
    source = at("wide.parquet")
    rng = random.Random(3)
    words = [rng.randbytes(rng.randint(1, 5)).hex() for _ in range(20000)]
    texts = [" ".join(rng.choices(words, k=700)) for _ in range(int(300000 * options.scale))]
    size = sum(map(len, texts))
    table = pyarrow.table({"text": texts})
    pyarrow.parquet.write_table(table, source, compression="zstd", row_group_size=len(texts))
    peak, seconds, _, one_group = prepare([source])
    report("Parquet of one row group", size, peak, GIB, seconds)
    pyarrow.parquet.write_table(table, source, compression="zstd", row_group_size=max(1, len(texts) // 64))
    peak, seconds, _, many = prepare([source], "--workers", "64")
    report("Parquet of 64 row groups, 64 workers", size, peak, GIB, seconds)
    if many != one_group:
        sys.exit("the tokens of one row group and of many differ")
    with pyarrow.ipc.new_stream(at("one.arrow"), table.schema) as writer:
        writer.write_table(table.combine_chunks())
    peak, seconds, _, batch = prepare([at("one.arrow")])
    report("Arrow of one record batch", size, peak, GIB, seconds)
    if batch != one_group:
        sys.exit("the tokens of Arrow and Parquet differ")
    # Fewer rows than are handed out at once, of a megabyte each.
    texts = [" ".join(texts[i : i + 250]) for i in range(0, len(texts), 250)]
    with pyarrow.ipc.new_stream(at("one.arrow"), table.schema) as writer:
        writer.write_table(pyarrow.table({"text": texts}).combine_chunks())
    peak, seconds, _, _ = prepare([at("one.arrow")])
    report("Arrow of one record batch of large documents", size, peak, GIB, seconds)
    os.remove(source)
    os.remove(at("one.arrow"))
    sys.exit(1 if failures else 0)


main()
