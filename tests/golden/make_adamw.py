"""Makes adamw.safetensors: three steps of torch.optim.AdamW in float64 with torch's gradient clipping, on 200 numbers
of which the blocks of 64 decay in turn (1, 0, 1, 0). The first and last gradients are above the clipping norm of 1,
the second is below. Inputs are f32 numbers, so that every backend starts from the same.

usage: make_adamw.py OUTDIR      (torch, safetensors, numpy)
"""
import os
import sys

import torch
from safetensors.torch import save_file

RATES = [3e-3, 1e-2, 2e-3]
NORMS = [7.5, 0.25, 40.0]
BLOCKS = [(0, 64), (64, 128), (128, 192), (192, 200)]


def main(folder):
    generator = torch.Generator().manual_seed(11)
    normal = lambda: torch.randn(200, generator=generator).float().double()
    start = normal()
    parts = [start[a:b].clone().requires_grad_() for a, b in BLOCKS]
    groups = [{'params': parts[0::2], 'weight_decay': 0.1}, {'params': parts[1::2], 'weight_decay': 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    out = {'parameter.0': start}
    for step, (rate, norm) in enumerate(zip(RATES, NORMS), 1):
        gradient = normal()
        gradient = (gradient * (norm / gradient.norm())).float().double()
        out[f'gradient.{step}'] = gradient
        for part, (a, b) in zip(parts, BLOCKS):
            part.grad = gradient[a:b].clone()
        total = torch.nn.utils.clip_grad_norm_(parts, 1.0)
        for group in optimizer.param_groups:
            group['lr'] = rate
        optimizer.step()
        out[f'norm.{step}'] = total.reshape(1)
        out[f'parameter.{step}'] = torch.cat([part.detach() for part in parts])
        for name, key in (('m', 'exp_avg'), ('v', 'exp_avg_sq')):
            out[f'{name}.{step}'] = torch.cat([optimizer.state[part][key] for part in parts])
    out['learning_rate'] = torch.tensor(RATES, dtype=torch.float64)
    save_file({name: t.detach().double().contiguous() for name, t in out.items()},
              os.path.join(folder, 'adamw.safetensors'), metadata={'torch': torch.__version__})


if __name__ == '__main__':
    main(sys.argv[1])
