"""transformers with Flash Linear Attention against the program: python check_transformers.py PROGRAM [SOURCE_FOLDER [RECIPE ...]]

Loads folders that the program writes with from_pretrained(output_loading_info=True): no key may be missing, unexpected or
mismatched, and every value has to be the one written. Reads the files with safetensors' own reader too. With a recipe also
the folder that `init` makes of it. Ends with exit code 77 (skipped) where the packages can't be imported.

Hybrids are written with multi-head latent attention, which the published FLA doesn't have in these models: they are read
with safetensors alone.
"""
import os, subprocess, sys, tempfile

try:
    import torch
    import safetensors.torch
    import transformers
    import fla  # noqa: F401  registers the model types
    import fla.models  # noqa: F401
except Exception as error:  # triton raises what it likes
    print(f"skipped: {type(error).__name__}: {error}")
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
ROOT = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else os.getcwd()


def run(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)


def check(folder, label):
    tensors = safetensors.torch.load_file(os.path.join(folder, "model.safetensors"))
    dtype = next(iter(tensors.values())).dtype
    with safetensors.safe_open(os.path.join(folder, "model.safetensors"), framework="pt") as file:
        assert file.metadata() == {"format": "pt"}, file.metadata()
    if label.startswith("tiny_hybrid"):
        print(f"{label}: {len(tensors)} tensors read by safetensors")
        return
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=dtype)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(kind), (label, kind, info[kind])
    state = model.state_dict()
    for name, tensor in tensors.items():
        assert torch.equal(state[name], tensor), (label, name)
    extra = set(state) - set(tensors) - {"lm_head.weight"}
    assert not extra, (label, extra)
    if model.config.tie_word_embeddings:
        assert model.get_output_embeddings().weight.data_ptr() == model.get_input_embeddings().weight.data_ptr(), label
    print(f"{label}: {type(model).__name__}, {len(tensors)} tensors, no key missing, unexpected or mismatched, all equal")


with tempfile.TemporaryDirectory() as folder:
    for model in ("tiny_gdn", "tiny_kda", "tiny_hybrid"):
        for dtype in ("f32", "bf16"):
            out = os.path.join(folder, f"{model}-{dtype}")
            run("convert", "--from", os.path.join(ROOT, "tests", "golden", model), "--to", out, "--format", "hf", "--dtype", dtype)
            check(out, f"{model} {dtype}")
    for recipe in sys.argv[3:]:
        out = os.path.join(folder, "recipe")
        run("init", "--recipe", recipe, "--like", "fla", "--out", out)
        check(out, recipe)
        subprocess.run(["rm", "-r", out], check=True)
print(f"transformers {transformers.__version__}, fla {fla.__version__}, torch {torch.__version__}")
