#!/bin/sh
# Compares checkpoints, Hugging Face folders and training steps with the current PyTorch, transformers, safetensors and
# Flash Linear Attention, on a CPU, and whole models in double with PyTorch's:
#
#   tests/reference/run_current_torch.sh PROGRAM [RECIPE ...]
#
# Installs them into a virtual environment, build/reference/torch or what TORCH_VENV names (several GB with the CUDA libraries
# that the wheels of PyTorch want; no GPU is needed), which is why CI runs the distribution's PyTorch instead. With recipes also
# the folders that `init` makes of them. Exit code 77 where the libraries can't be installed.
set -eu
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { echo "usage: tests/reference/run_current_torch.sh PROGRAM [RECIPE ...]" >&2; exit 2; }
program=$1
shift
venv=${TORCH_VENV:-build/reference/torch}
if ! "$venv/bin/python" -c 'import torch, transformers, safetensors' 2>/dev/null; then
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check torch==2.15.0 numpy==2.4.6 \
    safetensors==0.8.0 transformers==5.17.0 flash-linear-attention==0.6.0; }; then
    echo "SKIPPED: the libraries cannot be installed here" >&2
    exit 77
  fi
fi
# Flash Linear Attention names its kernels when it is loaded; without a GPU Triton interprets them.
export OMP_WAIT_POLICY=passive TRITON_INTERPRET=1
"$venv/bin/python" tests/reference/check_torch.py "$program" .
"$venv/bin/python" tests/reference/check_transformers.py "$program" . "$@"
"$venv/bin/python" tests/reference/check_fla_training.py "$program" .
"$venv/bin/python" tests/reference/check_bf16_models.py "$program" .
