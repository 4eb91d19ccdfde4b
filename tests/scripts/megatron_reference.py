"""Megatron-core's own data-set code, for comparison. Needs numpy and an unpacked megatron-core wheel.

The modules of the wheel run as they are; what they import besides numpy (torch, the tokenizers, logging) is
replaced by the few names that the data-set code touches, so that no torch is needed.
"""

import importlib
import os
import subprocess
import sys
import types
import zipfile

import numpy


def fetch(folder, version="0.16.1"):
    """Downloads the wheel with pip (it has compiled helpers for this Python) and unpacks it."""
    target = os.path.join(folder, "megatron_core_" + version)
    if not os.path.isdir(target):
        os.makedirs(folder, exist_ok=True)
        subprocess.check_call([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder,
                               "megatron-core==" + version])
        wheel = next(name for name in sorted(os.listdir(folder)) if name.startswith("megatron_core-" + version))
        zipfile.ZipFile(os.path.join(folder, wheel)).extractall(target)
    return target


def _module(name, **names):
    module = types.ModuleType(name)
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


class _Tensor:
    pass


class _Dataset:
    def __class_getitem__(cls, item):
        return cls


def load(wheel_folder):
    """Returns a namespace with IndexedDatasetBuilder, IndexedDataset, GPTDataset, BlendedDataset and the rest."""
    distributed = _module("torch.distributed", is_initialized=lambda: False, is_available=lambda: False,
                          get_rank=lambda: 0)
    data = _module("torch.utils.data", Dataset=_Dataset)
    utils = _module("torch.utils", data=data)
    cuda = _module("torch.cuda", device_count=lambda: 1)
    _module("torch", Tensor=_Tensor, utils=utils, distributed=distributed, cuda=cuda, float=float, dtype=object)

    for name in ("megatron", "megatron.core"):
        _module(name).__path__ = [os.path.join(wheel_folder, *name.split("."))]
    quiet = lambda *args, **kwargs: None
    _module("megatron.core.utils", log_single_rank=quiet, get_rank_safe=lambda: 0)
    _module("megatron.core.tokenizers", MegatronTokenizerBase=object)

    def names(module):
        return vars(importlib.import_module("megatron.core.datasets." + module))

    merged = {}
    for module in ("indexed_dataset", "utils", "gpt_dataset", "blended_dataset", "blended_megatron_dataset_config",
                   "blended_megatron_dataset_builder"):
        merged.update(names(module))
    return types.SimpleNamespace(**merged)


class Tokenizer:
    """What GPTDatasetConfig asks of a tokenizer."""

    unique_identifiers = {"class": "reference"}
    pad = -1
    eod = -2
    vocab_size = 1 << 30


def write(megatron, prefix, documents, vocab_size):
    """Documents (lists of ids, each one sequence) as Megatron's preprocessing writes them."""
    builder = megatron.IndexedDatasetBuilder(prefix + ".bin", dtype=megatron.DType.optimal_dtype(vocab_size))
    for ids in documents:
        builder.add_document(ids, [len(ids)])
    builder.finalize(prefix + ".idx")


def datasets(megatron, blend, sequence_length, seed, sizes, split=None, folder=None):
    """The train, valid and test data sets that BlendedMegatronDatasetBuilder makes."""
    config = dict(random_seed=seed, sequence_length=sequence_length, path_to_cache=folder, tokenizer=Tokenizer(),
                  reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
                  create_attention_mask=False, mid_level_dataset_surplus=0.005)
    if split is None:
        config.update(blend_per_split=[megatron.get_blend_from_list(blend), None, None])
    else:
        config.update(blend=megatron.get_blend_from_list(blend), split=split)
    config = megatron.GPTDatasetConfig(**config)
    return megatron.BlendedMegatronDatasetBuilder(megatron.GPTDataset, sizes, lambda: True, config).build()


def tokens(dataset, index):
    """The ids of a sample, seq_length + 1 of them, and the data set of a blend it comes from."""
    if hasattr(dataset, "datasets"):
        source = int(dataset.dataset_index[index])
        return source, tokens(dataset.datasets[source], int(dataset.dataset_sample_index[index]))[1]
    return 0, numpy.asarray(dataset._query_document_sample_shuffle_indices(index)[0])
