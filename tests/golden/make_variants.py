"""Makes variants.safetensors: small models with the less common settings of a config, evaluated in float64 by a
token recurrence with PyTorch's automatic differentiation. Before it writes, it evaluates the tiny_* models next to
it with the same code and compares with their expected logits and gradients, which another program made.

usage: make_variants.py     (torch, numpy, safetensors; writes beside itself)
"""
import glob
import hashlib
import json
import os

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = {'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 2, 'vocab_size': 48, 'conv_size': 4,
        'norm_eps': 1e-6, 'tie_word_embeddings': True, 'max_position_embeddings': 64, 'use_short_conv': True,
        'allow_neg_eigval': False, 'attn': None, 'bos_token_id': 1, 'eos_token_id': 2}
GDN = dict(BASE, model_type='gated_deltanet', architectures=['GatedDeltaNetForCausalLM'], num_heads=2,
           num_v_heads=4, head_dim=8, expand_v=1.0, use_gate=True)
KDA = dict(BASE, model_type='kda', architectures=['KDAForCausalLM'], num_heads=2, num_v_heads=2, head_dim=8,
           expand_v=2.0)
MLA = {'layers': [1], 'num_heads': 2, 'q_lora_rank': 12, 'kv_lora_rank': 10, 'qk_nope_head_dim': 8,
       'qk_rope_head_dim': 4, 'v_head_dim': 6, 'rope_theta': 10000.0, 'norm_eps': 1e-5, 'type': 'mla'}
VARIANTS = {
    'gdn_neg_eigval': dict(GDN, allow_neg_eigval=True),
    'gdn_no_gate': dict(GDN, use_gate=False),
    'kda_neg_eigval': dict(KDA, allow_neg_eigval=True),
    'kda_lower_bound': dict(KDA, lower_bound=-3.5),
    'kda_safe_gate': dict(KDA, lower_bound=-5.0, safe_gate=True),
    'kda_grouped': dict(KDA, num_v_heads=4, expand_v=1.0),
    'gdn_mla_no_q_rank': dict(GDN, attn=dict(MLA, q_lora_rank=None)),
    'kda_mla': dict(KDA, attn=MLA),
    'gdn_mla_double_norms': dict(GDN, attn=dict(MLA, double_norms=True)),
    'gdn_untied': dict(GDN, tie_word_embeddings=False),
}


def stored(x):
    """What a run in a narrower type keeps in memory between operators. Here: the number as it is;
    ../reference/check_bf16_models.py puts rounding in its place."""
    return x


def rms_norm(x, weight, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def short_conv(x_btc, weight_c1w):
    width = weight_c1w.shape[-1]
    padded = F.pad(x_btc, (0, 0, width - 1, 0))
    taps = [padded[:, j:j + x_btc.shape[1]] * weight_c1w[:, 0, j] for j in range(width)]
    return F.silu(sum(taps))


def unit(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def delta(config, w, prefix, x):
    kda = config['model_type'] == 'kda'
    H, K = config['num_heads'], config['head_dim']
    G = config.get('num_v_heads') or H
    V = int(K * config['expand_v'])
    B, T, _ = x.shape
    linear = lambda name, y: stored(y @ w[prefix + name + '.weight'].T)
    q, k, v = (short_conv(linear(n + '_proj', x), w[prefix + n + '_conv1d.weight']) for n in 'qkv')
    q = stored(unit(q.view(B, T, H, K))).repeat_interleave(G // H, 2) * K ** -0.5
    k = stored(unit(k.view(B, T, H, K))).repeat_interleave(G // H, 2)
    v = stored(v).view(B, T, G, V)
    beta = torch.sigmoid(linear('b_proj', x)) * (2.0 if config['allow_neg_eigval'] else 1.0)
    a_log = w[prefix + 'A_log']
    if kda:
        raw = (linear('f_proj.1', linear('f_proj.0', x)) + w[prefix + 'dt_bias']).view(B, T, G, K)
        rate = a_log.exp()[:, None]
        bound = config.get('lower_bound')
        log_decay = -rate * F.softplus(raw) if bound is None else bound * torch.sigmoid(rate * raw)
    else:
        log_decay = (-a_log.exp() * F.softplus(linear('a_proj', x) + w[prefix + 'dt_bias']))[..., None].expand(-1, -1, -1, K)
    state = x.new_zeros(B, G, K, V)
    rows = []
    for t in range(T):
        state = state * log_decay[:, t].exp()[..., None]
        change = beta[:, t, :, None] * (v[:, t] - torch.einsum('bgk,bgkv->bgv', k[:, t], state))
        state = state + torch.einsum('bgk,bgv->bgkv', k[:, t], change)
        rows.append(torch.einsum('bgk,bgkv->bgv', q[:, t], state))
    o = rms_norm(stored(torch.stack(rows, 1)), w[prefix + 'o_norm.weight'], config['norm_eps'])
    if kda:
        z = stored(linear('g_proj.1', linear('g_proj.0', x)) + w[prefix + 'g_proj.1.bias'])
        o = o * torch.sigmoid(z).view(B, T, G, V)
    elif config['use_gate']:
        o = o * F.silu(linear('g_proj', x)).view(B, T, G, V)
    return linear('o_proj', stored(o).reshape(B, T, G * V))


def rotate(x_bthd, theta):
    half = x_bthd.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x_bthd.shape[1], dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
    first, second = x_bthd[..., :half], x_bthd[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def latent_attention(a, w, prefix, x):
    B, T, _ = x.shape
    n, dn, dr, dv = a['num_heads'], a['qk_nope_head_dim'], a['qk_rope_head_dim'], a['v_head_dim']
    linear = lambda name, y: stored(y @ w[prefix + name + '.weight'].T)

    def norm(y, first, second):
        y = stored(rms_norm(y, w[prefix + first + '.weight'], a['norm_eps']))
        return stored(rms_norm(y, w[prefix + second + '.weight'], a['norm_eps'])) if a.get('double_norms') else y

    if a['q_lora_rank']:
        q = linear('q_proj.2', norm(linear('q_proj.0', x), 'q_proj.1', 'q_second_norm'))
    else:
        q = linear('q_proj', x)
    q = q.view(B, T, n, dn + dr)
    kv = linear('kv_proj.2', norm(linear('kv_proj.0', x), 'kv_proj.1', 'kv_second_norm'))
    kv = kv.view(B, T, n, dn + dv)
    key = rotate(linear('k_rope', x).view(B, T, 1, dr), a['rope_theta']).expand(-1, -1, n, -1)
    q = stored(torch.cat([q[..., :dn], rotate(q[..., dn:], a['rope_theta'])], -1))
    k = stored(torch.cat([kv[..., :dn], key], -1))
    score = torch.einsum('bihd,bjhd->bhij', q, k) * (dn + dr) ** -0.5
    score = score.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float('-inf'))
    o = stored(torch.einsum('bhij,bjhd->bihd', score.softmax(-1), kv[..., dn:]))
    return linear('o_proj', o.reshape(B, T, n * dv))


def evaluate(config, w, ids):
    """Logits of every position and the mean loss of the next tokens."""
    x = stored(w['model.embeddings.weight'][ids])
    for i in range(config['num_hidden_layers']):
        block = f'model.layers.{i}.'
        h = stored(rms_norm(x, w[block + 'attn_norm.weight'], config['norm_eps']))
        a = config['attn']
        mixed = latent_attention(a, w, block + 'attn.', h) if a and i in a['layers'] else delta(config, w, block + 'attn.', h)
        x = stored(x + mixed)
        h = stored(rms_norm(x, w[block + 'mlp_norm.weight'], config['norm_eps']))
        gate, up = (stored(h @ w[block + f'mlp.{n}_proj.weight'].T) for n in ('gate', 'up'))
        x = stored(x + stored(stored(F.silu(gate) * up) @ w[block + 'mlp.down_proj.weight'].T))
    head = w['model.embeddings.weight'] if config['tie_word_embeddings'] else w['lm_head.weight']
    logits = stored(stored(rms_norm(x, w['model.norm.weight'], config['norm_eps'])) @ head.T)
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
    return logits, loss


def load(pattern):
    tensors = {}
    for path in sorted(glob.glob(os.path.join(HERE, pattern))):
        with safe_open(path, 'np') as f:
            tensors.update({name: f.get_tensor(name) for name in f.keys()})
    return tensors


def error(got, want):
    want = torch.tensor(want, dtype=torch.float64)
    return ((got.detach() - want).norm() / want.norm()).item()


def check_tiny(name):
    config = json.load(open(os.path.join(HERE, name, 'config.json')))
    w = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in load(name + '/model*.safetensors').items()}
    expected = load(name + '/expected_outputs.safetensors')
    logits, loss = evaluate(config, w, torch.tensor(expected['input_ids'], dtype=torch.int64))
    loss.backward()
    gradients = load(name + '/expected_gradients_*.safetensors')
    worst = max(error(w[k[len('grad.'):]].grad, v) for k, v in gradients.items())
    print(f'{name}: logits {error(logits[0], np.squeeze(expected["logits"])):.1e}, loss '
          f'{abs(loss.item() / float(np.squeeze(expected["loss"])) - 1):.1e}, worst gradient {worst:.1e}')
    assert worst < 2e-7 and error(logits[0], np.squeeze(expected['logits'])) < 2e-7


def shapes(config):
    D, I, W = config['hidden_size'], config['intermediate_size'], config['conv_size']
    kda, H, K = config['model_type'] == 'kda', config['num_heads'], config['head_dim']
    G, V = config['num_v_heads'], int(K * config['expand_v'])
    out = {'model.embeddings.weight': (config['vocab_size'], D), 'model.norm.weight': (D,)}
    if not config['tie_word_embeddings']:
        out['lm_head.weight'] = (config['vocab_size'], D)
    for i in range(config['num_hidden_layers']):
        b = f'model.layers.{i}.'
        out.update({b + 'attn_norm.weight': (D,), b + 'mlp_norm.weight': (D,), b + 'mlp.gate_proj.weight': (I, D),
                    b + 'mlp.up_proj.weight': (I, D), b + 'mlp.down_proj.weight': (D, I)})
        b += 'attn.'
        a = config['attn']
        if a and i in a['layers']:
            n, dq, r = a['num_heads'], a['qk_nope_head_dim'] + a['qk_rope_head_dim'], a['q_lora_rank']
            if a.get('double_norms'):
                out.update({b + 'q_second_norm.weight': (r,), b + 'kv_second_norm.weight': (a['kv_lora_rank'],)})
            if r:
                out.update({b + 'q_proj.0.weight': (r, D), b + 'q_proj.1.weight': (r,), b + 'q_proj.2.weight': (n * dq, r)})
            else:
                out[b + 'q_proj.weight'] = (n * dq, D)
            out.update({b + 'kv_proj.0.weight': (a['kv_lora_rank'], D), b + 'kv_proj.1.weight': (a['kv_lora_rank'],),
                        b + 'kv_proj.2.weight': (n * (a['qk_nope_head_dim'] + a['v_head_dim']), a['kv_lora_rank']),
                        b + 'k_rope.weight': (a['qk_rope_head_dim'], D), b + 'o_proj.weight': (D, n * a['v_head_dim'])})
            continue
        out.update({b + 'q_proj.weight': (H * K, D), b + 'k_proj.weight': (H * K, D), b + 'v_proj.weight': (G * V, D),
                    b + 'q_conv1d.weight': (H * K, 1, W), b + 'k_conv1d.weight': (H * K, 1, W),
                    b + 'v_conv1d.weight': (G * V, 1, W), b + 'b_proj.weight': (G, D), b + 'A_log': (G,),
                    b + 'o_norm.weight': (V,), b + 'o_proj.weight': (D, G * V)})
        if kda:
            out.update({b + 'f_proj.0.weight': (V, D), b + 'f_proj.1.weight': (G * K, V), b + 'dt_bias': (G * K,),
                        b + 'g_proj.0.weight': (V, D), b + 'g_proj.1.weight': (G * V, V), b + 'g_proj.1.bias': (G * V,)})
        else:
            out.update({b + 'a_proj.weight': (G, D), b + 'dt_bias': (G,)})
            if config['use_gate']:
                out[b + 'g_proj.weight'] = (G * V, D)
    return out


def draw(name, shape, generator):
    noise = torch.randn(*shape, generator=generator)
    if 'norm.weight' in name or name.endswith(('q_proj.1.weight', 'kv_proj.1.weight')):
        return 1 + 0.1 * noise
    if name.endswith(('A_log', 'dt_bias', 'bias')):
        return 0.5 * noise
    if 'conv1d' in name:
        return 0.5 * noise
    return noise * (0.3 if 'embeddings' in name or 'lm_head' in name else shape[-1] ** -0.5)


def make(name, config):
    generator = torch.Generator().manual_seed(int(hashlib.sha256(name.encode()).hexdigest()[:7], 16))
    w = {k: draw(k, s, generator).float().double().requires_grad_() for k, s in shapes(config).items()}
    ids = torch.randint(0, config['vocab_size'], (1, 37), generator=generator)
    logits, loss = evaluate(config, w, ids)
    loss.backward()
    single = lambda x: x.detach().float().numpy()
    out = {'input_ids': ids.int().numpy(), 'logits': single(logits[0]), 'loss': single(loss)[None]}
    for k, v in w.items():
        out[k] = single(v)
        out['grad.' + k] = single(v.grad)
    folder = os.path.join(HERE, 'variants')
    os.makedirs(folder, exist_ok=True)
    save_file(out, os.path.join(folder, name + '.safetensors'), {'config': json.dumps(config)})
    print(f'{name}: loss {loss.item():.6f}')


if __name__ == '__main__':
    for tiny in ('tiny_gdn', 'tiny_kda', 'tiny_hybrid'):
        check_tiny(tiny)
    for variant, variant_config in VARIANTS.items():
        make(variant, variant_config)
