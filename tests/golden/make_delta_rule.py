"""Makes delta_rule_*.safetensors: the delta rule with its gates and key normalisation, evaluated by a plain
recurrence in float64 with PyTorch's autograd, stored as f32.

usage: make_delta_rule.py OUTDIR      (torch, safetensors)
"""
import hashlib
import math
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

# name, B, T, q/k heads, value heads, K, V, decay per channel, extreme gates, initial state
CASES = [
    ('gdn_64x64', 2, 193, 2, 4, 64, 64, False, False, True),
    ('gdn_t1', 2, 1, 2, 2, 32, 32, False, False, True),
    ('gdn_t63', 1, 63, 1, 2, 32, 32, False, False, False),
    ('gdn_t65_extreme', 1, 65, 2, 2, 32, 32, False, True, True),
    ('gdn_128x128', 1, 130, 1, 1, 128, 128, False, False, False),
    ('kda_32x64', 2, 193, 2, 2, 32, 64, True, False, True),
    ('kda_t1', 2, 1, 2, 2, 32, 32, True, False, True),
    ('kda_t64', 1, 64, 2, 2, 32, 64, True, False, False),
    ('kda_t129_extreme', 1, 129, 2, 2, 32, 64, True, True, True),
    ('kda_gva', 1, 100, 1, 2, 32, 32, True, False, True),
    ('kda_128x128', 1, 130, 1, 1, 128, 128, True, False, False),
]
# Large files are cut to their first sequence (and first q/k head): what is left does not depend on what is gone,
# except for the gradients of A_log and dt_bias, which are sums over sequences and are left out.
CUTS = {'gdn_64x64': 1, 'kda_32x64': 2}  # q/k heads that stay


def normalised(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def delta_rule(q, k, v, g, beta, scale, state):
    group = v.shape[2] // q.shape[2]
    q = q.repeat_interleave(group, 2) * scale
    k = k.repeat_interleave(group, 2)
    if g.dim() == 3:
        g = g[..., None].expand(*g.shape, q.shape[3])
    if state is None:
        state = q.new_zeros(q.shape[0], v.shape[2], q.shape[3], v.shape[3])
    o = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None]
        difference = v[:, t] - torch.einsum('bhk,bhkv->bhv', k[:, t], state)
        state = state + torch.einsum('bhk,bhv->bhkv', k[:, t], beta[:, t, :, None] * difference)
        o.append(torch.einsum('bhk,bhkv->bhv', q[:, t], state))
    return torch.stack(o, 1), state


def make(name, B, T, H, G, K, V, per_channel, extreme, with_state):
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:7], 16)
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator).float()
    q, k, v = normal(B, T, H, K), normal(B, T, H, K), normal(B, T, G, V)
    a = normal(B, T, G, K) if per_channel else normal(B, T, G)
    b = normal(B, T, G)
    A_log = torch.log(torch.rand(G, generator=generator) * 15.9 + 0.1).float()
    dt_bias = (torch.rand(G * K if per_channel else G, generator=generator) * 4 - 5).float()
    if extreme:
        a, A_log, b = a * 6, torch.full_like(A_log, math.log(16.0)), b * 8
    state = normal(B, G, K, V) * 0.5 if with_state else None
    do, d_final_state = normal(B, T, G, V), normal(B, G, K, V)

    inputs = dict(q=q, k=k, v=v, a=a, b=b, A_log=A_log, dt_bias=dt_bias)
    if with_state:
        inputs['initial_state'] = state
    x = {n: t.double().requires_grad_() for n, t in inputs.items()}
    if per_channel:
        g = -x['A_log'].exp()[:, None] * F.softplus(x['a'] + x['dt_bias'].view(G, K))
    else:
        g = -x['A_log'].exp() * F.softplus(x['a'] + x['dt_bias'])
    o, final_state = delta_rule(normalised(x['q']), normalised(x['k']), x['v'], g, torch.sigmoid(x['b']), K ** -0.5,
                                x.get('initial_state'))
    ((o * do).sum() + (final_state * d_final_state).sum()).backward()
    out = dict(inputs, do=do, d_final_state=d_final_state, o=o.detach(), final_state=final_state.detach())
    out.update({'grad.' + n: t.grad for n, t in x.items()})
    if name in CUTS:
        out = cut(out, CUTS[name], G // H)
    return {n: t.float().contiguous() for n, t in out.items()}


def cut(tensors, heads, group):
    kept = {}
    for name, t in tensors.items():
        base = name.removeprefix('grad.')
        if base in ('A_log', 'dt_bias'):
            if base == name:
                kept[name] = t[:heads * group] if base == 'A_log' else t[:t.numel() // len(tensors['A_log']) * heads * group]
        elif base in ('q', 'k'):
            kept[name] = t[:1, :, :heads]
        elif base in ('initial_state', 'final_state', 'd_final_state'):
            kept[name] = t[:1, :heads * group]
        else:
            kept[name] = t[:1, :, :heads * group]
    return kept


if __name__ == '__main__':
    for case in CASES:
        save_file(make(*case), os.path.join(sys.argv[1], f'delta_rule_{case[0]}.safetensors'))
