"""Makes torch_rng.json: what PyTorch's CPU generator gives for seed 42, as SHA-256 of the little-endian bytes with the
first and last values. With --check, compares the file beside it instead of writing.

usage: make_torch_rng.py [--check]      (torch, numpy; a CPU with AVX2 or AVX-512: without, torch draws other normals)
"""
import hashlib
import json
import os
import sys

import torch

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'torch_rng.json')


def summary(values, digest, first, last):
    return {digest: hashlib.sha256(values.numpy().tobytes()).hexdigest(), 'first': values[:first].tolist(),
            'last': values[-last:].tolist()}


def seeded(draw):
    torch.manual_seed(42)
    return draw()


def make():
    result = {}
    for n in (1, 5, 15, 16, 17, 31, 100, 1000, 100003):
        for name, draw in (('normal', lambda: torch.empty(n).normal_(0, 0.02)),
                           ('uniform_1_16', lambda: torch.empty(n).uniform_(1, 16)),
                           ('rand', lambda: torch.rand(n))):
            result[f'{name}_{n}'] = summary(seeded(draw), 'sha256', 4, 2)
    parts = (lambda: torch.empty(7).normal_(), lambda: torch.rand(3), lambda: torch.empty(20).normal_(),
             lambda: torch.empty(1).normal_(), lambda: torch.rand(1))
    result['mixed_sequence'] = seeded(lambda: [part().tolist() for part in parts])
    for n in (1, 10, 1000, 100000):
        result[f'randperm_{n}'] = summary(seeded(lambda: torch.randperm(n)), 'sha256_int64', 10, 3)
    result['torch'] = torch.__version__
    result['cpu_capability'] = torch.backends.cpu.get_cpu_capability()
    return result


if __name__ == '__main__':
    made = make()
    if sys.argv[1:] == ['--check']:
        with open(PATH) as file:
            stored = json.load(file)
        different = [name for name in stored if name not in ('torch', 'cpu_capability') and stored[name] != made[name]]
        print(f"{len(stored)} entries, stored with torch {stored['torch']}, now {made['torch']}; different: {different}")
        sys.exit(1 if different else 0)
    with open(PATH, 'w') as file:
        json.dump(made, file, indent=1)
