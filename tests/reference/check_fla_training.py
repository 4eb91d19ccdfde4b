"""Training steps of the program against those of Flash Linear Attention: python check_fla_training.py PROGRAM [SOURCE_FOLDER]

The golden KDA model, four steps in f32 on a CPU by both, with warm-up, cosine, clipping and decay in play; losses, norms and
learning rates have to agree. FLA's side is train_fla.py, whose runs on a GPU this checks in all but the kernels of the delta
rule. Takes two minutes: Triton interprets the other kernels. Exit code 77 (skipped) where the packages can't be imported.
"""
import json, os, struct, subprocess, sys, tempfile

os.environ["TRITON_INTERPRET"] = "1"
try:
    import fla.models  # noqa: F401
    import numpy
except Exception as error:  # triton raises what it likes
    print(f"skipped: {type(error).__name__}: {error}")
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
ROOT = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else os.getcwd()
MODEL = os.path.join(ROOT, "tests", "golden", "tiny_kda")
LOSS, NORM = 1e-5, 1e-4  # verify::kTrainedLossF32, kTrainedNormF32
STEPS, BATCH, LENGTH = 4, 2, 64


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])


def steps_of(path):
    entries = (json.loads(line) for line in open(path))
    return [(e["loss"], e["grad_norm"], e["lr"]) for e in entries if e["kind"] == "step"]


with tempfile.TemporaryDirectory() as folder:
    tokens = numpy.random.default_rng(3).integers(0, 512, STEPS * BATCH * LENGTH + 1, dtype=numpy.int32)
    prefix = os.path.join(folder, "tokens")
    tokens.tofile(prefix + ".bin")
    with open(prefix + ".idx", "wb") as file:  # one document of all tokens
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 4, 1, 2, len(tokens), 0, 0, 1))
    settings = {"data.train": prefix, "data.order": "sequential", "model.vocab_size": 512, "model.hidden_size": 64,
                "model.intermediate_size": 128, "model.num_heads": 4, "model.num_v_heads": 4, "model.head_dim": 16,
                "model.expand_v": 2, "checkpoint.init_from": MODEL, "train.train_iters": STEPS, "train.seq_length": LENGTH,
                "train.global_batch_size": BATCH, "train.micro_batch_size": 1, "optimizer.lr": 2e-3,
                "optimizer.min_lr": 2e-4, "schedule.lr_warmup_iters": 2, "schedule.lr_decay_iters": 6}
    recipe = os.path.join(ROOT, "recipes", "smoke", "kda.yaml")
    run(PROGRAM, "train", "--recipe", recipe, "--out", os.path.join(folder, "run"),
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")))
    run(sys.executable, os.path.join(ROOT, "tests", "reference", "train_fla.py"), "train", MODEL, prefix, "--steps", STEPS,
        "--batch", BATCH, "--length", LENGTH, "--lr", 2e-3, "--min-lr", 2e-4, "--warmup", 2, "--decay-iters", 6,
        "--out", os.path.join(folder, "fla.jsonl"))
    ours, theirs = steps_of(os.path.join(folder, "run", "metrics.jsonl")), steps_of(os.path.join(folder, "fla.jsonl"))
    assert len(ours) == len(theirs) == STEPS, (len(ours), len(theirs))
    for step, (a, b) in enumerate(zip(ours, theirs), 1):
        assert abs(a[0] - b[0]) <= LOSS * b[0], (step, "loss", a[0], b[0])
        assert abs(a[1] - b[1]) <= NORM * b[1], (step, "norm", a[1], b[1])
        assert abs(a[2] - b[2]) <= 1e-12, (step, "learning rate", a[2], b[2])
    worst = max(abs(a[0] - b[0]) / b[0] for a, b in zip(ours, theirs))
    print(f"{STEPS} steps of both: losses {ours[0][0]:.4f} to {ours[-1][0]:.4f}, at most {worst:.1e} apart")
