#!/usr/bin/env python3
"""Checkpoints read out of the page cache, in turns with dd of the same files past it.

    checkpoint_reads.py PROGRAM [--recipe FILE] [--rounds N] [--work FOLDER] [--keep]

Makes a checkpoint of the recipe's model (300M GDN) in f32 with optimizer state by one step of training on the CPU, a Megatron
checkpoint with optimizer state and a Hugging Face folder of it: three times its size on the disk that FOLDER lies on, under which a
folder `checkpoint_reads` is made and removed again unless --keep. Then, in each round and for each form, all its files by
`dd iflag=direct bs=16M`, and `train` taking it over, both with the files thrown out of the page cache before. What counts is the time
that `train` logs, from opening the files to the last tensor in place, checksums verified, over the bytes of the files; the share is that
of dd's rate right before. Prints a Markdown table and the median share of each form. Run it on an idle machine.
"""
import argparse
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time

LINE = re.compile(r"read ([0-9.]+ \w+) in ([0-9.]+) s \(")


def make_data(prefix, tokens):
    """A token file of one document (docs/formats: Megatron's .bin and .idx)."""
    with open(prefix + ".bin", "wb") as file:
        file.write(struct.pack(f"<{tokens}i", *(i * 31 % 1000 for i in range(tokens))))
    with open(prefix + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2))
        file.write(struct.pack("<iqqq", tokens, 0, 0, 1))


def forget(files):
    os.sync()
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def dd_seconds(files):
    forget(files)
    start = time.monotonic()
    for path in files:
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=16M", "iflag=direct"], check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


def load_seconds(command, files):
    """Until the line that tells of the reading; what follows is not waited for."""
    forget(files)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    told = []
    for line in process.stderr:
        told.append(line)
        if match := LINE.search(line):
            process.send_signal(signal.SIGKILL)
            process.wait()
            return float(match.group(2))
    sys.exit("no reading in:\n" + "".join(told))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--recipe", default="recipes/gdn/gdn_300m.yaml")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--work", default="build")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    program = os.path.abspath(arguments.program)
    work = os.path.join(os.path.abspath(arguments.work), "checkpoint_reads")
    os.makedirs(work, exist_ok=True)

    def at(*names):
        return os.path.join(work, *names)

    make_data(at("tokens"), 4096)
    train = [program, "train", "--recipe", arguments.recipe, "--device", "cpu"]
    for value in [f"data.train={at('tokens')}", "data.tokenizer=", "train.precision=f32",
                  "train.seq_length=64", "train.micro_batch_size=1", "train.global_batch_size=1", "train.train_iters=1",
                  "train.eval_interval=0", "schedule.lr_warmup_iters=0"]:
        train += ["--set", value]

    def run(*command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")

    if not os.path.exists(at("ready")):
        run(*train, "--out", at("run"))
        run(program, "convert", "--from", at("run"), "--to", at("megatron"), "--format", "megatron")
        run(program, "convert", "--from", at("run"), "--to", at("hf"), "--format", "hf")
        open(at("ready"), "w").close()

    def files(folder, *endings):
        found = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
        return sorted(path for path in found if path.endswith(endings))

    forms = {
        "native, `--resume`": (files(at("run", "checkpoints"), ".safetensors"), ["--resume", "--out", at("run")]),
        "Megatron, `checkpoint.load`": (files(at("megatron"), ".pt"),
                                        ["--set", f"checkpoint.load={at('megatron')}", "--out", at("taken")]),
        "Hugging Face, `checkpoint.init_from`": (files(at("hf"), ".safetensors"),
                                                 ["--set", f"checkpoint.init_from={at('hf')}", "--out", at("taken")]),
    }
    shares = {form: [] for form in forms}
    print("| form | size | dd | read | share |\n|---|---|---|---|---|", flush=True)
    for _ in range(arguments.rounds):
        for form, (paths, options) in forms.items():
            size = sum(os.path.getsize(path) for path in paths)
            direct = size / dd_seconds(paths) / 1e9
            shutil.rmtree(at("taken"), ignore_errors=True)
            ours = size / load_seconds(train + options, paths) / 1e9
            shares[form].append(ours / direct)
            print(f"| {form} | {size / 1e9:.2f} GB | {direct:.2f} GB/s | {ours:.2f} GB/s | {ours / direct:.2f} |", flush=True)
    print()
    for form, values in shares.items():
        print(f"{form}: median {statistics.median(values):.2f} of dd's rate, {min(values):.2f} to {max(values):.2f}")
    if not arguments.keep:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
