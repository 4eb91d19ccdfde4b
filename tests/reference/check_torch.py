"""PyTorch against the program, both ways: python check_torch.py PROGRAM [SOURCE_FOLDER]

torch.load takes the files that the program writes, and the program takes files that torch writes, laid out as
Megatron does: optimizer in groups beside the masters, or flat in distrib_optim.pt; weights whole, as views of all
kinds, in either container. Ends with exit code 77 (skipped)
where torch can't be imported, with 1 at the first difference.
"""
import argparse, collections, io, json, os, struct, subprocess, sys, tempfile, types

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
ROOT = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else os.getcwd()
GOLDEN = os.path.join(ROOT, "tests", "golden")
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}


def run(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def read_safetensors(*paths):
    """The format in ten lines, so that no other package has to be there."""
    tensors = {}
    for path in paths:
        data = open(path, "rb").read()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            raw = torch.frombuffer(bytearray(data[begin:end] or b"\0" * 8), dtype=torch.uint8)[: end - begin]
            tensors[name] = raw.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def golden(model):
    folder = os.path.join(GOLDEN, model)
    return read_safetensors(*(os.path.join(folder, f) for f in sorted(os.listdir(folder))
                              if f.startswith("model") and f.endswith(".safetensors")))


def config_of(model):
    return json.load(open(os.path.join(GOLDEN, model, "config.json")))


def load(path, weights_only):
    try:
        return torch.load(path, weights_only=weights_only, map_location="cpu")
    except TypeError:  # torch before 1.13 has no such argument
        return torch.load(path, map_location="cpu")


def neighbours(rows):
    """Rotary rows from halves, as FLA has them, to pairs of neighbours."""
    return torch.stack([rows[: len(rows) // 2], rows[len(rows) // 2 :]], 1).reshape(rows.shape)


def attention_of(f, m, te, a):
    """Latent attention; the second norms of Transformer Engine are parameters of the native form alone."""
    nope, rope, heads = a["qk_nope_head_dim"], a["qk_rope_head_dim"], a["num_heads"]
    up = f("attn.q_proj.2.weight").reshape(heads, nope + rope, -1)
    up = torch.cat([torch.cat([head[:nope], neighbours(head[nope:])]) for head in up])
    s = m + "self_attention."
    out = collections.OrderedDict()
    out[m + "input_layernorm.weight"] = f("attn_norm.weight")
    out[s + "linear_proj.weight"] = f("attn.o_proj.weight")
    out[s + "linear_q_down_proj.weight"] = f("attn.q_proj.0.weight")
    if te:
        out[s + "linear_q_up_proj.layer_norm_weight"] = f("attn.q_second_norm.weight")
    out[s + "linear_q_up_proj.weight"] = up
    out[s + "linear_kv_down_proj.weight"] = torch.cat([f("attn.kv_proj.0.weight"), neighbours(f("attn.k_rope.weight"))])
    if te:
        out[s + "linear_kv_up_proj.layer_norm_weight"] = f("attn.kv_second_norm.weight")
    out[s + "linear_kv_up_proj.weight"] = f("attn.kv_proj.2.weight")
    out[s + "q_layernorm.weight"] = f("attn.q_proj.1.weight")
    out[s + "kv_layernorm.weight"] = f("attn.kv_proj.1.weight")
    return out


def megatron_of(hf, model, te):
    """The published layout, written down a second time: Megatron name -> tensor of Hugging Face tensors."""
    attention = config_of(model).get("attn")
    kda = model == "tiny_kda"
    blocks = 1 + max(int(name.split(".")[2]) for name in hf if name.startswith("model.layers."))
    out = collections.OrderedDict()
    out["embedding.word_embeddings.weight"] = hf["model.embeddings.weight"]

    def mlp_of(f, p):
        out[p + ("mlp.linear_fc1.layer_norm_weight" if te else "pre_mlp_layernorm.weight")] = f("mlp_norm.weight")
        out[p + "mlp.linear_fc1.weight"] = torch.cat([f("mlp.gate_proj.weight"), f("mlp.up_proj.weight")])
        out[p + "mlp.linear_fc2.weight"] = f("mlp.down_proj.weight")

    for b in range(blocks):
        f = lambda name: hf[f"model.layers.{b}.{name}"]
        m, p = f"decoder.layers.{2 * b}.", f"decoder.layers.{2 * b + 1}."
        if attention and b in attention["layers"]:
            out.update(attention_of(f, m, te, attention))
            mlp_of(f, p)
            continue
        gates = ["f_proj.0", "g_proj.0", "b_proj"] if kda else ["g_proj", "b_proj", "a_proj"]
        own = ["A_log", "dt_bias"] if kda else ["dt_bias", "A_log"]
        for name in own:
            value = f("attn." + name)
            out[m + "mixer." + name] = value.reshape(1, 1, -1, 1) if kda and name == "A_log" else value
        if te:
            out[m + "mixer.in_proj.layer_norm_weight"] = f("attn_norm.weight")
        out[m + "mixer.in_proj.weight"] = torch.cat([f(f"attn.{x}.weight") for x in ["q_proj", "k_proj", "v_proj"] + gates])
        out[m + "mixer.conv1d.weight"] = torch.cat([f(f"attn.{x}_conv1d.weight") for x in "qkv"])
        if kda and te:
            out[m + "mixer.gate_norm.weight"] = torch.ones_like(f("attn_norm.weight"))
        if kda:
            out[m + "mixer.f_b_proj.weight"] = f("attn.f_proj.1.weight")
            out[m + "mixer.g_b_proj.weight"] = f("attn.g_proj.1.weight")
            out[m + "mixer.g_b_proj.bias"] = f("attn.g_proj.1.bias")
        out[m + "mixer.out_norm.weight"] = f("attn.o_norm.weight")
        out[m + "mixer.out_proj.weight"] = f("attn.o_proj.weight")
        if not te:
            out[m + "norm.weight"] = f("attn_norm.weight")
        mlp_of(f, p)
    out["decoder.final_norm.weight"] = hf["model.norm.weight"]
    return out


def args_of(model):
    c = config_of(model)
    a = c.get("attn")
    latent = {"multi_latent_attention": a is not None}
    if a:
        latent.update(q_lora_rank=a["q_lora_rank"], kv_lora_rank=a["kv_lora_rank"], qk_head_dim=a["qk_nope_head_dim"],
                      qk_pos_emb_head_dim=a["qk_rope_head_dim"], v_head_dim=a["v_head_dim"], rotary_base=a["rope_theta"])
    return argparse.Namespace(
        **latent,
        num_layers=2 * c["num_hidden_layers"], hidden_size=c["hidden_size"], ffn_hidden_size=c["intermediate_size"],
        num_attention_heads=(a or c)["num_heads"], linear_num_key_heads=c["num_heads"], linear_num_value_heads=c.get("num_v_heads") or c["num_heads"],
        linear_key_head_dim=c["head_dim"], linear_value_head_dim=int(c["head_dim"] * c["expand_v"]),
        linear_conv_kernel_dim=c["conv_size"], layernorm_epsilon=c["norm_eps"], normalization="RMSNorm",
        add_bias_linear=False, swiglu=True, vocab_size=c["vocab_size"], untie_embeddings_and_output_weights=False,
        consumed_train_samples=4096, global_batch_size=64, params_dtype=torch.bfloat16, some_list=[1, "a"], nothing=None)


def check_ours(folder):
    for model in ("tiny_gdn", "tiny_kda", "tiny_hybrid"):
        want = golden(model)
        for spec in ("no-te",) if model == "tiny_hybrid" else ("no-te", "te"):
            for mode in ("none", "namespace"):
                out = os.path.join(folder, f"{model}-{spec}-{mode}")
                run("convert", "--from", os.path.join(GOLDEN, model), "--to", out, "--format", "megatron", "--spec", spec,
                    "--megatron-args", mode, "--round-trip")
                path = os.path.join(out, "iter_0000000", "mp_rank_00", "model_optim_rng.pt")
                trees = [load(path, False)] + ([load(path, True)] if mode == "none" else [])
                table = megatron_of(want, model, spec == "te")
                for tree in trees:
                    assert list(tree["model"]) == list(table), set(tree["model"]) ^ set(table)
                    for name, tensor in table.items():
                        got = tree["model"][name]
                        rows = tensor.shape[0]
                        assert torch.equal(got[:rows] if "embedding" in name else got, tensor), name
                if mode == "namespace":
                    check_generators(trees[0])
        print(f"{model}: torch.load takes every spec, with weights_only where there are no args; every tensor equal")


def check_generators(tree):
    import random
    state = tree["rng_state"][0]
    seed = getattr(tree["args"], "seed", 0)
    random.setstate(state["random_rng_state"])
    got = random.random()
    random.seed(seed)
    assert got == random.random()
    torch.set_rng_state(state["torch_rng_state"])
    got = torch.rand(5), torch.randn(20)
    torch.manual_seed(seed)
    assert got[0].equal(torch.rand(5)) and got[1].equal(torch.randn(20))
    try:
        import numpy
    except ImportError:
        return
    numpy.random.set_state(state["np_rng_state"])
    got = numpy.random.rand(5)
    numpy.random.seed(seed)
    assert (got == numpy.random.rand(5)).all()


def training_tree(model, te):
    """A checkpoint as Megatron saves it after some steps: bf16 weights, f32 masters, FusedAdam's groups."""
    torch.manual_seed(7)
    source = golden(model)
    if te:
        for name in [n for n in source if n.endswith(("attn.q_proj.1.weight", "attn.kv_proj.1.weight"))]:
            source[name.replace("_proj.1", "_second_norm")] = 1 + 0.1 * torch.randn(source[name].shape)
    masters = {name: value.float() for name, value in megatron_of(source, model, te).items()}
    weights = collections.OrderedDict((name, value.bfloat16()) for name, value in masters.items())
    moments = {name: (torch.randn_like(value), torch.rand_like(value)) for name, value in masters.items()}
    groups = [[n for n in masters if masters[n].dim() != 1], [n for n in masters if masters[n].dim() == 1]]
    common = {"lr": 1e-4, "bias_correction": True, "betas": (0.9, 0.95), "eps": 1e-8, "lr_mult": 1.0, "is_expert_parallel": False,
              "is_decoupled_lr": False, "step": 63}
    names = groups[0] + groups[1]
    model_state = collections.OrderedDict()
    for name, value in weights.items():
        model_state[name] = value
        if name.endswith("in_proj.weight"):
            model_state[name.replace("weight", "_extra_state")] = None
        if name.endswith("linear_fc1.weight"):
            model_state[name.replace("weight", "_extra_state")] = io.BytesIO(b"scales")
        if name.endswith("linear_fc2.weight"):
            model_state[name.replace("weight", "_extra_state")] = torch.arange(9, dtype=torch.uint8)
    model_state._metadata = collections.OrderedDict([("", {"version": 1})])
    tree = {"args": args_of(model), "checkpoint_version": 3.0, "iteration": 64, "model": model_state,
            "opt_param_scheduler": {"max_lr": 2e-4, "num_steps": 4096, "lr_decay_style": "cosine"},
            "num_floating_point_operations_so_far": 1e20}
    param_groups = [dict(common, weight_decay=0.01 * mult, wd_mult=mult, params=[names.index(n) for n in group])
                    for group, mult in zip(groups, (1.0, 0.0))]
    return tree, masters, weights, moments, groups, names, param_groups


def check_state(folder, name, masters, moments):
    """Converts to the native form and compares it in terms of Megatron's tensors."""
    native = os.path.join(folder, name + "-native")
    run("convert", "--from", os.path.join(folder, name), "--to", native, "--format", "native", "--round-trip")
    at = os.path.join(native, "iter_0000064")
    model = name.split("-")[0]
    te = name.endswith("-te")
    got = read_safetensors(os.path.join(at, "model.safetensors"))
    back = megatron_of(got, model, te)
    state = read_safetensors(os.path.join(at, "optimizer.safetensors"))
    for i, suffix in enumerate((".exp_avg", ".exp_avg_sq")):
        part = {key[: -len(suffix)]: value for key, value in state.items() if key.endswith(suffix)}
        for key, value in megatron_of(part, model, te).items():
            if not key.endswith("gate_norm.weight"):
                assert torch.equal(value, moments[key][i]), key + suffix
    for key, value in back.items():
        assert torch.equal(value, masters[key]), key
    counters = json.load(open(os.path.join(at, "state.json")))
    assert counters["step"] == 64 and counters["consumed_samples"] == 4096, counters["step"]
    assert counters["extra"]["completed_steps"] == 63, counters["extra"]


def write_tokens(prefix, documents):
    """Megatron's indexed data set, of 16-bit tokens."""
    open(prefix + ".bin", "wb").write(b"".join(struct.pack(f"<{len(d)}H", *d) for d in documents))
    starts = [2 * sum(map(len, documents[:i])) for i in range(len(documents))]
    n = len(documents)
    open(prefix + ".idx", "wb").write(
        b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, n, n + 1) + struct.pack(f"<{n}i", *map(len, documents))
        + struct.pack(f"<{n}q", *starts) + struct.pack(f"<{n + 1}q", *range(n + 1)))


def check_trained(folder):
    """What `train` saves in Megatron's form: groups, masters, moments and counters, in Megatron's numbering."""
    write_tokens(os.path.join(folder, "tokens"), [[(7 * i * i + 3 * d + i) % 61 for i in range(200)] for d in range(20)])
    reads_floats = hasattr(torch._weights_only_unpickler, "BINFLOAT")  # 1.13 with weights_only does not
    for recipe, spec in (("gdn", "te"), ("kda", "no-te"), ("gdn_mla", "no-te")):
        for mode in ("none", "namespace"):
            out = os.path.join(folder, f"run-{recipe}-{mode}")
            settings = {"data.train": os.path.join(folder, "tokens"), "model.vocab_size": 61, "train.train_iters": 4,
                        "train.seq_length": 32, "train.global_batch_size": 4, "train.micro_batch_size": 2, "schedule.lr_warmup_iters": 1,
                        "checkpoint.format": "megatron", "checkpoint.megatron_spec": spec, "checkpoint.megatron_args": mode}
            run("train", "--recipe", os.path.join(ROOT, "recipes", "smoke", recipe + ".yaml"), "--out", out,
                *(f"--set={key}={value}" for key, value in settings.items()))
            path = os.path.join(out, "checkpoints", "iter_0000004", "mp_rank_00", "model_optim_rng.pt")
            tree = load(path, weights_only=mode == "none" and reads_floats)
            assert tree["iteration"] == 4 and tree["opt_param_scheduler"]["num_steps"] == 16
            if mode == "namespace":
                assert tree["args"].consumed_train_samples == 16 and tree["args"].params_dtype == torch.bfloat16
            model, optimizer = tree["model"], tree["optimizer"]
            number = 0
            groups = zip((lambda t: t.dim() != 1, lambda t: t.dim() == 1), optimizer["optimizer"]["param_groups"],
                         optimizer["fp32_from_fp16_params"])
            for belongs, group, masters in groups:
                names = [name for name in model if belongs(model[name])]
                assert group["params"] == list(range(number, number + len(names))) and len(masters) == len(names)
                assert group["step"] == 4
                for name, master in zip(names, masters):
                    state = optimizer["optimizer"]["state"][number]
                    number += 1
                    assert master.dtype == torch.float32 and torch.equal(master.bfloat16(), model[name]), name
                    assert state["exp_avg"].shape == state["exp_avg_sq"].shape == master.shape, name
                    if not name.endswith("gate_norm.weight"):
                        assert state["exp_avg"].abs().sum() > 0 and (state["exp_avg_sq"] >= 0).all(), name
            assert number == len(optimizer["optimizer"]["state"]) == len(model)
    print("checkpoints that train saves hold masters, moments and counters as Megatron numbers them")


def views_of(weights):
    """The same values as views: vectors as parts of one storage, matrices turned, kernels out of wider ones."""
    vectors = torch.cat([value.flatten() for value in weights.values() if value.dim() == 1])
    out = collections.OrderedDict()
    start = 0
    for number, (name, value) in enumerate(weights.items()):
        if value.dim() == 1:
            out[name] = vectors[start : start + len(value)]
            start += len(value)
        elif value.dim() == 2 and number % 2 == 0:
            out[name] = value.t().contiguous().t()
        elif value.dim() == 2:
            out[name] = torch.nn.Parameter(torch.cat([torch.zeros_like(value[:2]), value])[2:])
        else:
            wide = torch.zeros(*value.shape[:-1], 2 * value.shape[-1] + 1, dtype=value.dtype)
            wide[..., 1::2] = value
            out[name] = wide[..., 1::2]
    return out


def check_containers(folder):
    for model, te in (("tiny_gdn", True), ("tiny_kda", False), ("tiny_hybrid", True)):
        tree, masters, weights, _, _, _, _ = training_tree(model, te)
        tree.pop("opt_param_scheduler")
        for kind, zipped in (("zip", True), ("legacy", False)):
            name = f"{model}-{kind}-views-{'te' if te else 'no_te'}"
            rank = os.path.join(folder, name, "iter_0000064", "mp_rank_00")
            os.makedirs(rank)
            open(os.path.join(folder, name, "latest_checkpointed_iteration.txt"), "w").write("64")
            views = views_of(weights)
            views.update((key, value) for key, value in tree["model"].items() if key.endswith("_extra_state"))
            torch.save(dict(tree, model=views), os.path.join(rank, "model_optim_rng.pt"), _use_new_zipfile_serialization=zipped)
            out = os.path.join(folder, name + "-native")
            run("convert", "--from", os.path.join(folder, name), "--to", out, "--format", "native", "--round-trip")
            back = megatron_of(read_safetensors(os.path.join(out, "iter_0000064", "model.safetensors")), model, te)
            for key, value in weights.items():
                assert key.endswith("gate_norm.weight") or torch.equal(back[key], value), (name, key)
    print("views, shared storages and Parameters in both containers are read; every value equal")


def check_theirs(folder):
    for model, te in (("tiny_gdn", False), ("tiny_gdn", True), ("tiny_kda", False), ("tiny_kda", True), ("tiny_hybrid", False),
                      ("tiny_hybrid", True)):
        tree, masters, weights, moments, groups, names, param_groups = training_tree(model, te)
        name = f"{model}-{'te' if te else 'no_te'}"
        rank = os.path.join(folder, name, "iter_0000064", "mp_rank_00")
        os.makedirs(rank)
        open(os.path.join(folder, name, "latest_checkpointed_iteration.txt"), "w").write("64")
        grouped = dict(tree)
        grouped["optimizer"] = {
            "optimizer": {"state": {i: {"exp_avg": moments[n][0], "exp_avg_sq": moments[n][1]} for i, n in enumerate(names)},
                          "param_groups": param_groups},
            "fp32_from_fp16_params": [[masters[n] for n in group] for group in groups]}
        torch.save(grouped, os.path.join(rank, "model_optim_rng.pt"))
        check_state(folder, name, masters, moments)

        # The distributed optimizer: parameters last to first, each at a multiple of 64 elements.
        name = f"{model}-zero-{'te' if te else 'no_te'}"
        rank = os.path.join(folder, name, "iter_0000064", "mp_rank_00")
        os.makedirs(rank)
        open(os.path.join(folder, name, "latest_checkpointed_iteration.txt"), "w").write("64\n")
        flat = [[], [], []]
        length = 0
        for n in reversed(list(masters)):
            start = (length + 63) // 64 * 64
            for parts, value in zip(flat, (masters[n], *moments[n])):
                parts += [torch.zeros(start - length), value.flatten()]
            length = start + masters[n].numel()
        sharded = dict(tree)
        sharded["optimizer"] = {"optimizer": {"param_groups": [{k: v for k, v in g.items() if k != "params"} for g in param_groups]}}
        torch.save(sharded, os.path.join(rank, "model_optim_rng.pt"))
        key = (torch.bfloat16, torch.float32)
        parts = dict(zip(("param", "exp_avg", "exp_avg_sq"), (torch.cat(p) for p in flat)), numel_unpadded=length)
        torch.save({"buckets_coalesced": True, 0: {key: parts}}, os.path.join(rank, "distrib_optim.pt"))
        check_state(folder, name, masters, moments)

        if model == "tiny_hybrid" and te:  # has no Hugging Face form
            continue
        # The weights alone, as bf16, in a Hugging Face folder.
        hf = os.path.join(folder, name + "-hf")
        run("convert", "--from", os.path.join(folder, name), "--to", hf, "--format", "hf", "--round-trip")
        back = megatron_of(read_safetensors(os.path.join(hf, "model.safetensors")), model, te)
        for n, value in weights.items():
            assert n.endswith("gate_norm.weight") or torch.equal(back[n], value), n
    print("checkpoints that torch writes, with the optimizer in groups and in distrib_optim.pt, are read; every value equal")


with tempfile.TemporaryDirectory() as folder:
    check_ours(folder)
    check_theirs(folder)
    check_containers(folder)
    check_trained(folder)
print(f"torch {torch.__version__}: all equal")
