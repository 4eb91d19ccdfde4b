"""Event files of `train`, read by TensorBoard itself, against metrics.jsonl of the same run.

A short run, stopped and resumed once, on text made here. TensorBoard's loader checks every checksum; its data server is
asked for the same scalars over HTTP.
"""

import argparse
import json
import math
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import numpy
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator


def run(program, *arguments):
    subprocess.run([program, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def train(program, work):
    words = ["kernel", "driver", "page", "lock", "thread", "reads", "writes", "holds", "the", "a"]
    text = work / "text"
    text.mkdir(parents=True)
    for i in range(8):
        picks = [words[(i * 7 + k * k + k // 3) % len(words)] for k in range(2000)]
        (text / f"{i}.txt").write_text(" ".join(picks) + ".\n")
    run(program, "tokenizer", "train", "--input", text, "--vocab-size", 300, "--out", work / "tokenizer")
    run(program, "prepare", "--input", text, "--tokenizer", work / "tokenizer", "--out", work / "tokens")
    common = ["train", "--recipe", "recipes/smoke/gdn.yaml", "--out", work / "run"]
    sets = {"data.train": work / "tokens", "data.valid": work / "tokens", "model.vocab_size": 512,
            "model.hidden_size": 64, "model.num_hidden_layers": 2, "train.seq_length": 64, "train.eval_iters": 1,
            "schedule.lr_warmup_iters": 4, "schedule.lr_decay_iters": 40, "train.eval_interval": 5,
            "checkpoint.save_interval": 5}
    options = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    run(program, *common, *options, "--set", "train.train_iters=10")
    run(program, *common, *options, "--set", "train.train_iters=20", "--resume")


def expected(work):
    values = {}
    for line in (work / "run/metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["kind"] == "step":
            for tag, key in [("train/loss", "loss"), ("train/grad_norm", "grad_norm"), ("train/lr", "lr"),
                             ("throughput/tokens_per_second", "tokens_per_second"), ("seconds/step", "seconds")]:
                values.setdefault(tag, {})[entry["step"]] = entry[key]
            for part, seconds in entry["parts"].items():
                values.setdefault("seconds/" + part, {})[entry["step"]] = seconds
        elif entry["kind"] == "validation":
            values.setdefault("validation/loss", {})[entry["step"]] = entry["loss"]
    return values


def compare(name, found, wanted):
    """Every value as a float of 32 bits; returns the number of differences."""
    bad = 0
    for tag, by_step in wanted.items():
        got = found(tag)
        if sorted(got) != sorted(by_step):
            print(f"{name}: {tag}: steps {sorted(got)}, expected {sorted(by_step)}")
            bad += 1
            continue
        for step, value in by_step.items():
            if numpy.float32(got[step]) != numpy.float32(value):
                print(f"{name}: {tag}, step {step}: {got[step]}, expected {value}")
                bad += 1
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    options = parser.parse_args()
    work = options.work
    shutil.rmtree(work, ignore_errors=True)
    train(options.program, work)
    wanted = expected(work)
    assert len(wanted) >= 8 and len(wanted["train/loss"]) == 20, wanted.keys()
    assert all(math.isfinite(v) for by_step in wanted.values() for v in by_step.values())

    accumulator = EventAccumulator(str(work / "run/tensorboard"), size_guidance={SCALARS: 0})
    accumulator.Reload()
    bad = compare("loader", lambda tag: {e.step: e.value for e in accumulator.Scalars(tag)}, wanted)

    port = 6900 + (time.time_ns() // 1000) % 900
    server = subprocess.Popen([sys.executable, "-m", "tensorboard.main", "--logdir", str(work), "--port", str(port),
                               "--host", "127.0.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        base = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?run=run%2Ftensorboard&tag="
        deadline = time.time() + 90

        def served(tag):
            """Scalars of a tag; waits for all of them, since the server loads while it answers."""
            while True:
                try:
                    with urllib.request.urlopen(base + urllib.parse.quote(tag, safe=""), timeout=10) as answer:
                        values = {step: value for _, step, value in json.load(answer)}
                        if len(values) == len(wanted[tag]) or time.time() > deadline:
                            return values
                except OSError as error:
                    if time.time() > deadline:
                        print(f"server: {tag}: {error}")
                        return {}
                time.sleep(1)

        bad += compare("server", served, wanted)
    finally:
        server.terminate()
        server.wait()
    print(f"{sum(map(len, wanted.values()))} scalars of {len(wanted)} tags, {bad} differences")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
