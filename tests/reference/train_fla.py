"""Trains a Hugging Face folder in Flash Linear Attention as the program trains it: the same tokens in the same order, the
same schedule, clipping and AdamW, so that the losses can be held against each other step by step.

    deltatrain init --recipe R --set train.seed=S --out model --format hf
    train_fla.py train model tokens/train --steps 200 --batch 16 --warmup 20 --decay-iters 4768 --out fla.jsonl
    deltatrain train --recipe R --set data.order=sequential ... --out run
    train_fla.py compare fla.jsonl run/metrics.jsonl

Weights of products and embeddings are bf16, rounded after each update from f32 masters; all others are f32, as here. The
gradients that FLA gives for bf16 weights are bf16. With `time` instead of `train` it measures FLA's quickest way: all
weights but A_log and dt_bias bf16 without masters, torch's cross-entropy over full logits, AdamW fused:

    train_fla.py time model tokens/train --steps 5 --batch 128

Triton compiles for minutes before the first step, on one core: --helpers N compiles in N processes first. Without a GPU
(TRITON_INTERPRET=1) it runs in f32 on tiny models only.
"""
import argparse
import json
import math
import os
import struct
import subprocess
import sys
import time

import numpy
import torch

TIMED_ROWS = 32  # sequences at a time

DTYPES = {1: numpy.uint8, 2: numpy.int8, 3: numpy.int16, 4: numpy.int32, 5: numpy.int64, 8: numpy.uint16}


def tokens_of(prefix):
    """All tokens of a Megatron data set, end to end."""
    with open(prefix + ".idx", "rb") as file:
        assert file.read(9) == b"MMIDIDX\0\0", prefix
        version, dtype = struct.unpack("<QB", file.read(9))
        assert version == 1
    return numpy.memmap(prefix + ".bin", dtype=DTYPES[dtype], mode="r")


def samples_of(tokens, first, count, length, device):
    """Samples in the order of data.order=sequential: inputs and labels, one token apart; labels of one sample
    end where the next begins."""
    rows = [tokens[i * length:(i + 1) * length + 1] for i in range(first, first + count)]
    assert len(rows[-1]) == length + 1, "more steps than tokens"
    rows = torch.from_numpy(numpy.stack(rows).astype(numpy.int64)).to(device)
    return rows[:, :-1], rows[:, 1:]


def learning_rate(a, completed):
    """Warm-up from 0 and a cosine to a tenth, by steps completed before this one."""
    if completed <= a.warmup and a.warmup > 0:
        return a.lr * completed / a.warmup
    if completed > a.decay_iters or a.decay_iters <= a.warmup:
        return a.min_lr
    ratio = (completed - a.warmup) / (a.decay_iters - a.warmup)
    return a.min_lr + (a.lr - a.min_lr) * 0.5 * (1 + math.cos(math.pi * ratio))


def decays(name, parameter):
    """decay_groups: megatron."""
    return parameter.dim() >= 2 and not name.endswith(("bias", ".A_log"))


class Masters:
    """f32 copies of all parameters with AdamW on them; the model's own are rounded from them."""

    def __init__(self, a, model):
        self.a, self.working, self.copies = a, [], []
        groups = {True: [], False: []}
        for name, parameter in model.named_parameters():
            copy = parameter.detach().float().clone()
            self.working.append(parameter)
            self.copies.append(copy)
            groups[decays(name, parameter)].append(copy)
        # Hyperparameters of recipes/base/pretrain.yaml.
        self.optimizer = torch.optim.AdamW(
            [{"params": groups[True], "weight_decay": 0.01}, {"params": groups[False], "weight_decay": 0.0}],
            lr=a.lr, betas=(0.9, 0.95), eps=1e-8, fused=copy.is_cuda)

    def round_to_model(self):
        with torch.no_grad():
            torch._foreach_copy_(self.working, self.copies)

    def step(self, rate):
        """Returns the norm of the gradient before clipping."""
        for parameter, copy in zip(self.working, self.copies):
            copy.grad = parameter.grad.float()
            parameter.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self.copies, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.round_to_model()
        return norm


def load(a, device):
    import fla.models  # noqa: F401  registers the model types
    import transformers
    # The folders of this program ask for FLA's plain forms, which run anywhere; its own defaults are the fused ones.
    fused = device == "cuda" and not a.plain
    model = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32, fuse_norm=fused, fuse_swiglu=fused)
    model.config.use_cache = False
    model = model.to(device).train()
    assert model.lm_head.weight is model.model.embeddings.weight, "the head is not tied to the embedding"
    return model


def to_bf16(model, everything):
    """Weights of products and embeddings; `everything`: all but A_log and dt_bias."""
    for name, parameter in model.named_parameters():
        if name.endswith(("A_log", "dt_bias")):
            continue
        if everything or parameter.dim() == 2 or name.endswith("bias"):
            parameter.data = parameter.data.to(torch.bfloat16)


def accumulate(model, inputs, labels, micro_batch, exact_loss):
    """Gradients of the mean loss over the batch, and that loss."""
    total = 0
    for begin in range(0, len(inputs), micro_batch):
        rows = slice(begin, begin + micro_batch)
        logits = model(input_ids=inputs[rows]).logits.flatten(0, 1)
        if exact_loss:  # otherwise torch rounds the losses of bf16 logits to bf16
            logits = logits.float()
        loss = torch.nn.functional.cross_entropy(logits, labels[rows].reshape(-1)) * (len(inputs[rows]) / len(inputs))
        del logits
        loss.backward()
        total += loss.detach().float()
    return total


def train(a, device):
    model = load(a, device)
    masters = Masters(a, model)
    if device == "cuda":
        to_bf16(model, everything=False)
        masters.round_to_model()
    tokens = tokens_of(a.tokens)
    began = time.time()
    with open(a.out, "w", buffering=1) as out:
        for step in range(1, a.steps + 1):
            inputs, labels = samples_of(tokens, (step - 1) * a.batch, a.batch, a.length, device)
            rate = learning_rate(a, step - 1)
            start = time.time()
            loss = accumulate(model, inputs, labels, a.micro_batch or a.batch, exact_loss=True)
            norm = masters.step(rate)
            out.write(json.dumps({"kind": "step", "step": step, "loss": loss.item(), "grad_norm": norm.item(), "lr": rate,
                                  "seconds": round(time.time() - start, 4)}) + "\n")
            if step in (1, 2) or step % 50 == 0:
                print(f"step {step}: loss {loss.item():.5f}, {time.time() - began:.1f} s since the first", flush=True)


def measure(a, device):
    model = load(a, device)
    if device == "cuda":
        to_bf16(model, everything=True)
    tokens = tokens_of(a.tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.01, fused=device == "cuda")
    rates = []
    for step in range(a.steps + 1):
        inputs, labels = samples_of(tokens, step * a.batch, a.batch, a.length, device)
        synchronize(device)
        start = time.time()
        accumulate(model, inputs, labels, a.micro_batch or TIMED_ROWS, exact_loss=False)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize(device)
        rates.append(inputs.numel() / (time.time() - start))
        print(f"step {step + 1}: {rates[-1]:.0f} tokens/s", flush=True)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0
    rest = sorted(rates[1:])
    print(f"tokens/s after the first step: {rest[0]:.0f} to {rest[-1]:.0f}, median {rest[len(rest) // 2]:.0f}; {peak:.1f} GiB")


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def compile_part(a, device, index, count):
    """Compiles Triton's candidates, each of `count` processes beginning with others. Nothing is timed: choices made here are
    not kept."""
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    whole = Autotuner.prune_configs

    def rotated(self, kwargs):
        configs = list(whole(self, kwargs))
        begin = index * len(configs) // count
        return configs[begin:] + configs[:begin]

    def once(function, **_):
        function()
        return [0.0, 0.0, 0.0]

    Autotuner.prune_configs = rotated
    driver.active.get_benchmarker = lambda: once
    model = load(a, device)
    model.model.layers = model.model.layers[:1]
    # What `train` runs, and `time` with its micro-batch.
    for everything, rows in ((False, a.batch), (True, TIMED_ROWS)):
        to_bf16(model, everything)
        ids = torch.zeros(rows, a.length, dtype=torch.int64, device=device)
        # The head needs no kernel of FLA, but much memory.
        model.model(input_ids=ids).last_hidden_state.float().sum().backward()
        model.zero_grad(set_to_none=True)
        synchronize(device)


def without_gpu():
    """The interpreter has no clock for Triton's choices, and does not run the delta rule's kernels: FLA's plain loops do."""
    from triton.runtime.autotuner import Autotuner
    whole = Autotuner.__init__

    def initialize(self, fn, arg_names, configs, *others, **named):
        whole(self, fn, arg_names, configs[:1], *others, **named)

    Autotuner.__init__ = initialize  # before FLA declares its kernels
    import fla.layers.kda
    from fla.ops.kda.gate import naive_kda_gate
    from fla.ops.kda.naive import naive_recurrent_kda

    def chunk_kda(q, k, v, g, beta, A_log, dt_bias, **_):
        q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
        return naive_recurrent_kda(q, k, v, naive_kda_gate(g, A_log, dt_bias), beta.sigmoid())

    fla.layers.kda.chunk_kda = chunk_kda


def compile_in_processes(count):
    start = time.time()
    environment = dict(os.environ, FLA_CACHE_RESULTS="0")
    helpers = [subprocess.Popen([sys.executable, *sys.argv, "--helper", str(i)], env=environment) for i in range(count)]
    failed = sum(helper.wait() != 0 for helper in helpers)
    print(f"{count} processes compiled for {time.time() - start:.1f} s, {failed} failed", flush=True)


def losses_of(path):
    losses = {}
    with open(path) as file:
        for line in file:
            entry = json.loads(line)
            if entry.get("kind") == "step":
                losses[entry["step"]] = entry["loss"]
    return losses


def compare(first, second):
    a, b = losses_of(first), losses_of(second)
    steps = sorted(set(a) & set(b))
    late = [s for s in steps if s >= 20]
    if not late:
        sys.exit(f"{first}, {second}: expected 20 steps or more in common, got {len(steps)}")
    worst = max(late, key=lambda s: abs(a[s] - b[s]))
    mean = sum(abs(a[s] - b[s]) for s in late) / len(late)
    last = steps[-20:]
    signed = sum(a[s] - b[s] for s in last) / len(last)
    print(f"{first} - {second}: {len(steps)} steps; step 1 {a[1] - b[1]:+.2e}; from step 20 on largest "
          f"{abs(a[worst] - b[worst]):.5f} (step {worst}), mean size {mean:.5f}; last 20 steps {signed:+.5f}; "
          f"last losses {a[steps[-1]]:.4f} {b[steps[-1]]:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("train", "time"):
        p = commands.add_parser(command)
        p.add_argument("model", help="Hugging Face folder")
        p.add_argument("tokens", help="prefix of a Megatron data set")
        p.add_argument("--steps", type=int, default=200)
        p.add_argument("--batch", type=int, default=16, help="sequences a step")
        p.add_argument("--micro-batch", type=int, default=0, help="sequences at a time (train: the batch; time: 32)")
        p.add_argument("--length", type=int, default=2048)
        p.add_argument("--lr", type=float, default=2e-4)
        p.add_argument("--min-lr", type=float, default=2e-5)
        p.add_argument("--warmup", type=int, default=20)
        p.add_argument("--decay-iters", type=int, default=4768)
        p.add_argument("--out", default="fla.jsonl")
        p.add_argument("--plain", action="store_true", help="norms and SwiGLU by torch, not by FLA's fused kernels")
        p.add_argument("--helpers", type=int, default=0, help="processes that compile first, each with 10 GiB of the GPU")
        p.add_argument("--helper", type=int, default=-1, help=argparse.SUPPRESS)
    p = commands.add_parser("compare")
    p.add_argument("first")
    p.add_argument("second")
    a = parser.parse_args()
    if a.command == "compare":
        return compare(a.first, a.second)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        without_gpu()
    if a.helper >= 0:
        return compile_part(a, device, a.helper, a.helpers)
    if a.helpers > 0:
        compile_in_processes(a.helpers)
    (train if a.command == "train" else measure)(a, device)


if __name__ == "__main__":
    main()
