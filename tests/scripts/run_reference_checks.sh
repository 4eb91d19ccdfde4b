#!/bin/sh
# Compares tokenizers, prepared data, orders, checkpoints, event files and scores with the libraries of others, on
# CI-sized data:
#
#   tests/scripts/run_reference_checks.sh PROGRAM [WORK]
#
# Checkpoints go through the distribution's PyTorch (python3-torch, about 50 MB, installed where root or sudo is there).
# Installs tokenizers, tiktoken, sentencepiece, datasets and pyarrow into a virtual environment under WORK (default
# build/reference), lm-evaluation-harness and transformers into another, and takes Megatron's data code and Llama 3's
# vocabulary out of their wheels. What can't be installed is said, and nothing of it counted. The current PyTorch,
# transformers and Flash Linear Attention: tests/reference/run_current_torch.sh. Ends with "N passed, N failed". The large
# comparison is tools/check_tokenizers.sh with the texts of tools/reference_texts.sh.
set -eu
cd "$(dirname "$0")/../.."
program=$1
work=$(mkdir -p "${2:-build/reference}" && cd "${2:-build/reference}" && pwd)
venv=$work/check_tokenizers/venv
ready=$work/check_tokenizers/ready-1
passed=0
failed=0

check() {  # LABEL COMMAND...
  label=$1
  shift
  echo "--- $label"
  result=0
  "$@" || result=$?
  case "$result" in
    0) passed=$((passed + 1)) ;;
    77) echo "$label: SKIPPED, see above" ;;
    *) failed=$((failed + 1)); echo "FAILED: $label" ;;
  esac
}

# The distribution's own interpreter, whichever python3 comes first in PATH.
torch_python=/usr/bin/python3
has_torch() { "$torch_python" -c 'import torch' 2>/dev/null; }
install_torch() {
  command -v apt-get >/dev/null || return 1
  as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null && as_root="sudo -n" || return 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086 # empty or two words
  timeout 300 $as_root apt-get install -y -q --no-install-recommends python3-torch ||
    { timeout 120 $as_root apt-get update -q && timeout 300 $as_root apt-get install -y -q --no-install-recommends python3-torch; }
}
if has_torch || { install_torch >"$work/torch.log" 2>&1 && has_torch; }; then
  check "checkpoints: PyTorch of the distribution" env OMP_WAIT_POLICY=passive "$torch_python" tests/reference/check_torch.py "$program" .
else
  tail -n 3 "$work/torch.log" >&2
  echo "checkpoints: SKIPPED, python3-torch cannot be installed here"
fi

if [ ! -e "$ready" ]; then
  mkdir -p "$work/check_tokenizers"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check numpy==2.4.6 tokenizers==0.23.3 \
    tiktoken==0.14.0 sentencepiece==0.2.3 datasets==5.2.0 pyarrow==26.0.1; } >"$work/install.log" 2>&1; then
    tail -n 3 "$work/install.log" >&2
    echo "tokenizers and data: SKIPPED, the libraries cannot be installed here"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
  fi
  touch "$ready"
fi

TMPDIR=$work
export TMPDIR
check "tokenizers" tools/check_tokenizers.sh "$program" --quick
rm -rf "$work/data"
for part in rows parquet files empty orders; do
  check "data: $part" "$venv/bin/python" tests/scripts/check_data.py --program "$program" --work "$work/data" --rounds 12 --only "$part"
done
rm -rf "$work/data"
check "eval: data sets in Parquet" "$venv/bin/python" tests/scripts/check_eval_data.py --program "$program" --work "$work/eval_data"
rm -rf "$work/eval_data"

# TensorBoard brings its own protobuf and numpy: an environment of its own.
board=$work/tensorboard
if [ ! -e "$board/ready-1" ]; then
  mkdir -p "$board"
  if { python3 -m venv "$board/venv" && "$board/venv/bin/pip" install -q --disable-pip-version-check tensorboard==2.21.0 \
    setuptools==65.5.0 numpy==2.4.6; } >"$board/install.log" 2>&1; then
    touch "$board/ready-1"
  else
    tail -n 3 "$board/install.log" >&2
    echo "reference checks: TensorBoard SKIPPED, it cannot be installed here"
  fi
fi
if [ -e "$board/ready-1" ]; then
  check "tensorboard" "$board/venv/bin/python" tests/scripts/check_tensorboard.py --program "$program" --work "$board/run"
fi
rm -rf "$board/run"

# The harness scores through `serve` what `eval` scores by itself.
harness=$work/harness/venv
if [ ! -e "$work/harness/ready-1" ]; then
  mkdir -p "$work/harness"
  if { python3 -m venv "$harness" && "$harness/bin/pip" install -q --disable-pip-version-check 'lm_eval[api]==0.4.13' \
    transformers==5.17.0; } >"$work/harness/install.log" 2>&1; then
    touch "$work/harness/ready-1"
  else
    tail -n 3 "$work/harness/install.log" >&2
    echo "reference checks: lm-evaluation-harness: SKIPPED, it cannot be installed here"
  fi
fi
if [ -e "$work/harness/ready-1" ]; then
  check "lm-evaluation-harness" "$venv/bin/python" tests/scripts/check_harness.py --program "$program" \
    --lm-eval "$harness/bin/lm_eval" --work "$work/harness/run"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
