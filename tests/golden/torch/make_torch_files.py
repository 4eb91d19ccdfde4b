"""Makes the files of torch.save in this folder (PyTorch, NumPy):

    python make_torch_files.py FOLDER

current.pt and legacy.pt hold the same tree in both containers, with what Megatron's checkpoints hold: a
Namespace with enums and dtypes, an OrderedDict with metadata, bf16, shared storages, strided and offset views, a
Parameter, generator states, None and BytesIO under _extra_state names. hostile_*.pt name functions that a
reader must not call.
"""
import argparse, collections, enum, io, os, random, sys, types
import numpy as np
import torch

out = sys.argv[1]

# Stand-ins for classes that only Megatron's own files name.
enums = types.ModuleType("megatron.core.transformer.enums")
for package in ("megatron", "megatron.core", "megatron.core.transformer"):
    sys.modules[package] = types.ModuleType(package)
sys.modules[enums.__name__] = enums
class AttnBackend(enum.Enum):
    flash = 1
    auto = 5
AttnBackend.__module__ = enums.__name__
enums.AttnBackend = AttnBackend


def tree():
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    weights = collections.OrderedDict()
    weights["plain"] = torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4
    weights["bf16"] = torch.tensor([1.0, -2.5, 3.140625], dtype=torch.bfloat16)
    weights["half"] = torch.tensor([0.5, 65504.0], dtype=torch.float16)
    weights["double"] = torch.tensor([[0.1]], dtype=torch.float64)
    weights["transposed"] = base.t()
    weights["part"] = base[1:3, 2:5]
    weights["shared"] = base
    weights["expanded"] = torch.tensor([7.0]).expand(3, 2)
    weights["scalar"] = torch.tensor(1.5)
    weights["empty"] = torch.zeros(0, 4)
    weights["parameter"] = torch.nn.Parameter(torch.tensor([9.0, 8.0]))
    weights["layers.0._extra_state"] = None
    weights["layers.1._extra_state"] = io.BytesIO(b"state")
    weights["layers.2._extra_state"] = torch.tensor([1, 2, 255], dtype=torch.uint8)
    weights._metadata = collections.OrderedDict([("", {"version": 1})])
    args = argparse.Namespace(num_layers=24, lr=2e-4, big=1 << 70, negative=-5, swiglu=True, name="gdn", nothing=None,
                              params_dtype=torch.bfloat16, attention_backend=AttnBackend.auto,
                              betas=(0.9, 0.95), data_path=["a", "b"], nested={"a": {"b": 1}})
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    return {
        "args": args, "checkpoint_version": 3.0, "iteration": 4768, "model": weights,
        "optimizer": {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"params": [0, 1], "lr": 1e-4}]}},
        "rng_state": [{"random_rng_state": random.getstate(), "np_rng_state": np.random.get_state(),
                       "torch_rng_state": torch.get_rng_state(), "rng_tracker_states": {}}],
        "size": torch.Size([2, 3]), "device": torch.device("cpu"), "set": {1},
        "ids": torch.tensor([-1, 1 << 40]), "ints": torch.tensor([[7], [8]], dtype=torch.int32),
    }


torch.save(tree(), os.path.join(out, "current.pt"))
torch.save(tree(), os.path.join(out, "legacy.pt"), _use_new_zipfile_serialization=False)


class Call:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments
    def __reduce__(self):
        return self.reduced


for name, call in {"system": Call(os.system, "touch deltatrain-was-here"), "eval": Call(eval, "1"),
                   "getattr": Call(getattr, 1, "real"), "open": Call(io.open, "deltatrain-was-here", "w")}.items():
    torch.save({"model": {"w": torch.ones(1)}, "x": call}, os.path.join(out, f"hostile_{name}.pt"))
