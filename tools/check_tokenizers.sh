#!/bin/sh
# Compares `deltatrain tokenizer` with tokenizers, tiktoken and sentencepiece, id by id.
#
#   tools/check_tokenizers.sh PROGRAM [--text FILE ...]
#
# Installs the libraries into a virtual environment under TMPDIR, takes Llama 3's tokenizer.model out of the
# package llama-models, trains a SentencePiece model and byte-level vocabularies on the texts (or on the golden training text),
# and runs tools/check_tokenizers.py on each. With --text FILE ... those files are compared too.
set -eu

program=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
work=${TMPDIR:-/tmp}/check_tokenizers
mkdir -p "$work"
if [ ! -x "$work/venv/bin/python" ]; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install -q tokenizers==0.23.3 tiktoken==0.14.0 sentencepiece==0.2.3
fi
python=$work/venv/bin/python

if [ ! -f "$work/llama3/tokenizer.model" ]; then
  "$work/venv/bin/pip" download -q --no-deps llama-models==0.3.0 -d "$work"
  mkdir -p "$work/llama3"
  "$python" -c "
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, open(sys.argv[2], 'wb') as file:
    file.write(wheel.read('llama_models/llama3/tokenizer.model'))" "$work"/llama_models-*.whl "$work/llama3/tokenizer.model"
fi

"$python" "$here/make_check_tokenizers.py" "$program" "$work" "$here/../tests/golden/text/training.txt" "$@"

failed=0
compare() {
  "$python" "$here/check_tokenizers.py" "$program" "$@" || failed=1
}
compare "$work/llama3/tokenizer.model" --reference tiktoken "$@"
for model in "$work"/sentencepiece/*.model; do
  compare "$model" --reference sentencepiece --no-code-points "$@"
done
for folder in "$work"/made/*; do
  compare "$folder" "$@"
done
exit $failed
