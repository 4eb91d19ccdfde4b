"""Whole models in bf16 against double: check_bf16_models.py PROGRAM [SOURCE_FOLDER] [--device cuda] [--seeds 5]

The three tiny configurations with initial weights (deviation 0.02, rounded to bf16) and random tokens. The reference is
`dump --device reference`, which itself has to agree with tests/golden/make_variants.py, another program in float64. Against
it stand
- a run of that other program that rounds to bf16 what a bf16 run stores between operators, and its gradient on the way back,
  and computes everything else in float64: what the storage alone costs;
- with `--device cuda` the program in bf16.
Errors are norms of differences by the norm of the reference; bounds: logits 0.03, gradients 0.06, those of A_log and dt_bias
0.15, cosines 0.998. Exit code 1 where the program is beyond one, or the two references differ; 77 (skipped) where a
package can't be imported. The last bound is narrower than that of A_log and dt_bias, whose error of 0.15 may be a cosine of
0.989: some rounded runs of KDA miss it, and so may the program.
"""
import argparse, json, os, subprocess, sys, tempfile

try:
    import numpy as np
    import torch
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("source", nargs="?", default=".")
parser.add_argument("--device", choices=["cuda"])
parser.add_argument("--seeds", type=int, default=5)
options = parser.parse_args()
GOLDEN = os.path.join(os.path.abspath(options.source), "tests", "golden")
sys.path.insert(0, GOLDEN)
sys.dont_write_bytecode = True
import make_variants  # noqa: E402

GATES = ("A_log", "dt_bias")
LOGITS, GRADIENT, GATE_GRADIENT, COSINE = 0.03, 0.06, 0.15, 0.998
SAME = 1e-5  # of the two references: what dumps keep of doubles, and gradients that nearly cancel


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.to(torch.bfloat16).to(x.dtype)

    @staticmethod
    def backward(_, gradient):
        return gradient.to(torch.bfloat16).to(gradient.dtype)


def drawn(name, shape, random):
    if name.endswith("A_log"):
        values = np.log(random.uniform(1, 16, shape))
    elif name.endswith("dt_bias"):
        step = np.exp(random.uniform(np.log(0.001), np.log(0.1), shape))
        values = step + np.log(-np.expm1(-step))
    elif len(shape) == 1:
        values = np.zeros(shape) if name.endswith("bias") else np.ones(shape)
    else:
        values = random.normal(0, 0.02, shape)
    return torch.tensor(values).to(torch.bfloat16).float().numpy()


def evaluated(config, weights, ids, stored):
    make_variants.stored = stored
    w = {name: torch.tensor(values, dtype=torch.float64, requires_grad=True) for name, values in weights.items()}
    logits, loss = make_variants.evaluate(config, w, torch.tensor(ids))
    loss.backward()
    return {"logits": logits.detach().numpy(), **{"grad." + name: values.grad.numpy() for name, values in w.items()}}


def dumped(folder, device, precision):
    out = os.path.join(folder, device + ".safetensors")
    command = [options.program, "dump", "--model", folder, "--input", os.path.join(folder, "ids.json"), "--out", out,
               "--gradients", "--device", device, "--precision", precision]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr[-2000:])
    return load_file(out)


def compared(got, want):
    """Name, error and cosine of the logits and of every gradient."""
    assert {k for k in got if k.startswith("grad.")} == {k for k in want if k.startswith("grad.")}
    for name in sorted(want):
        if name == "logits" or name.startswith("grad."):
            a, b = np.ravel(got[name]).astype(np.float64), np.ravel(want[name]).astype(np.float64)
            assert a.shape == b.shape, name
            size = np.linalg.norm(b)
            yield name.replace("grad.model.", ""), np.linalg.norm(a - b) / size, a @ b / np.linalg.norm(a) / size


def report(label, rows):
    """Prints a line; whether all is within bounds."""
    gates = [row for row in rows if row[0].endswith(GATES)]
    others = [row for row in rows if not row[0].endswith(GATES) and row[0] != "logits"]
    logits = next(row for row in rows if row[0] == "logits")
    worst, gate = max(others, key=lambda row: row[1]), max(gates, key=lambda row: row[1])
    lowest = min(rows, key=lambda row: row[2])
    print(f"{label:32} logits {logits[1]:.4f}, gradients {worst[1]:.4f} {worst[0]}, gates {gate[1]:.4f} {gate[0]}, "
          f"lowest cosine {lowest[2]:.4f} {lowest[0]}{' (below)' if lowest[2] < COSINE else ''}", flush=True)
    return (logits[1] <= LOGITS and worst[1] <= GRADIENT and gate[1] <= GATE_GRADIENT and
            lowest[2] >= COSINE)


good, low = True, {}
for name in ("tiny_gdn", "tiny_kda", "tiny_hybrid"):
    config = json.load(open(os.path.join(GOLDEN, name, "config.json")))
    shapes = {k: v.shape for k, v in make_variants.load(name + "/model*.safetensors").items()}
    for seed in range(1, options.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            random = np.random.default_rng(seed)
            weights = {k: drawn(k, shapes[k], random) for k in sorted(shapes)}
            ids = random.integers(0, config["vocab_size"], (2, 200)).tolist()
            save_file(weights, os.path.join(folder, "model.safetensors"))
            json.dump(config, open(os.path.join(folder, "config.json"), "w"))
            json.dump(ids, open(os.path.join(folder, "ids.json"), "w"))
            reference = dumped(folder, "reference", "f64")
            for tensor, error, _ in compared(evaluated(config, weights, ids, lambda x: x), reference):
                if not error <= SAME:
                    print(f"{name} seed {seed}: {tensor}: the references differ by {error:.1e}, expected {SAME:.0e} at most")
                    good = False
            runs = {"rounded storage": evaluated(config, weights, ids, Rounded.apply)}
            if options.device:
                runs[options.device] = dumped(folder, options.device, "bf16")
            for label, run in runs.items():
                rows = list(compared(run, reference))
                low.setdefault(label, []).append(min(row[2] for row in rows))
                within = report(f"{name} seed {seed}, {label}", rows)
                if label == options.device:
                    good = good and within
for label, cosines in low.items():
    print(f"{label}: lowest cosine {min(cosines):.4f}; below {COSINE} in {sum(c < COSINE for c in cosines)} of {len(cosines)} models")
sys.exit(0 if good else 1)
