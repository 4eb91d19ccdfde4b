#!/bin/sh
# Compares `deltatrain tokenizer` with tokenizers, tiktoken and sentencepiece, id by id.
#
#   tools/check_tokenizers.sh PROGRAM [--texts FOLDER [--only VOCABULARY:LIBRARY]] [--quick]
#
# Installs the libraries into a virtual environment under TMPDIR, takes Llama 3's tokenizer.model out of the
# package llama-models, trains a SentencePiece model and byte-level vocabularies, and runs tools/check_tokenizers.py
# on each: every code point in several surroundings, hostile and random strings. With --texts the vocabularies are
# trained on FOLDER/sample.txt and all .txt files of FOLDER (tools/reference_texts.sh makes them) are compared too,
# by the vocabularies of the three families; what became of each file is kept in FOLDER/results.jsonl, so that a run that
# was stopped goes on with the next file. --only compares the texts alone, by one vocabulary: llama3:tiktoken,
# llama3:tokenizers, gpt2:tokenizers, sentencepiece:tokenizers or sentencepiece:sentencepiece. --quick: fewer
# vocabularies, code points for one only.
set -eu

program=$1
shift
texts=""
quick=0
only=""
while [ $# -gt 0 ]; do
  case "$1" in
    --texts) texts=$2; shift ;;
    --only) only=$2; shift ;;
    --quick) quick=1 ;;
    *) echo "usage: tools/check_tokenizers.sh PROGRAM [--texts FOLDER [--only VOCABULARY:LIBRARY]] [--quick]" >&2; exit 2 ;;
  esac
  shift
done
if [ -n "$only" ] && [ -z "$texts" ]; then
  echo "check_tokenizers: --only is about the texts of --texts" >&2
  exit 2
fi
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

set --
[ -n "$texts" ] && set -- --text "$texts/sample.txt"
# Made once for the same texts: training draws its sentences at random.
made_of=$(cat "$here/make_check_tokenizers.py" "$here/../tests/golden/text/training.txt" ${texts:+"$texts/sample.txt"} | sha256sum)
if [ "$(cat "$work/made_of" 2>/dev/null)" != "$made_of" ]; then
  rm -f "$work/made_of"
  "$python" "$here/make_check_tokenizers.py" "$program" "$work" "$here/../tests/golden/text/training.txt" "$@"
  echo "$made_of" > "$work/made_of"
fi

failed=0
compare() {
  "$python" "$here/check_tokenizers.py" "$program" "$@" || failed=1
}
compare_texts() {  # VOCABULARY:LIBRARY
  case "$1" in
    llama3:tiktoken) tokenizer=$work/llama3/tokenizer.model ;;
    sentencepiece:sentencepiece) tokenizer=$work/sentencepiece/llama.model ;;
    sentencepiece:tokenizers) tokenizer=$work/made/sp_prepend ;;
    llama3:tokenizers | gpt2:tokenizers) tokenizer=$work/made/${1%%:*} ;;
    *) echo "check_tokenizers: no vocabulary and library $1" >&2; exit 2 ;;
  esac
  compare "$tokenizer" --reference "${1#*:}" --only-text --results "$texts/results.jsonl" --text "$texts"/*.txt
}
if [ -n "$only" ]; then
  compare_texts "$only"
  exit $failed
fi
# The word that the merges alone would take apart, and the ids of Llama 3's published vocabulary.
for tokenizer in "$work/llama3/tokenizer.model" "$work/made/llama3"; do
  ids=$(printf ' Vi\341\273\207t' | "$program" tokenizer encode --tokenizer "$tokenizer" --no-special-tokens)
  hello=$(printf 'Hello' | "$program" tokenizer encode --tokenizer "$tokenizer")
  if [ "$ids" != 101798 ] || [ "$hello" != "128000 9906" ]; then
    echo "$tokenizer: got $ids and $hello, expected 101798 and 128000 9906"
    failed=1
  fi
done
if [ "$quick" -eq 1 ]; then
  compare "$work/llama3/tokenizer.model" --reference tiktoken --no-code-points --random 5000
  compare "$work/sentencepiece/llama.model" --reference sentencepiece --no-code-points --random 5000
  compare "$work/made/llama3"
  for name in gpt2 qwen2 nfc sp_prepend; do compare "$work/made/$name" --no-code-points --random 5000; done
  exit $failed
fi
compare "$work/llama3/tokenizer.model" --reference tiktoken --random 100000
for model in "$work"/sentencepiece/*.model; do
  compare "$model" --reference sentencepiece --no-code-points
done
for folder in "$work"/made/*; do
  case "${folder##*/}" in
    llama3 | gpt2 | sp_prepend) compare "$folder" --random 100000 ;;
    *) compare "$folder" ;;
  esac
done
if [ -n "$texts" ]; then
  for pair in llama3:tiktoken llama3:tokenizers gpt2:tokenizers sentencepiece:tokenizers sentencepiece:sentencepiece; do
    compare_texts "$pair"
  done
fi
exit $failed
