#!/bin/sh
# The main job on real text, from a clean checkout: tools/demo.sh [OUT]. Installs what is missing, builds, takes
# English prose out of the distribution's Linux documentation package, and prepares, trains, converts, verifies,
# generates and evaluates. Ends with a table of what was made. DEVICE=cuda uses this machine's GPU.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/demo}
device=${DEVICE:-cpu}
began=$(date +%s)

step() { printf '\n=== %s (%d s)\n' "$1" "$(($(date +%s) - began))" >&2; }
if [ -e "$out" ] && [ -n "$(ls -A "$out" 2>/dev/null)" ]; then
  echo "demo: $out: expected a new or empty folder, got one with files in it" >&2
  exit 2
fi
mkdir -p "$out"

step "install and build"
tools/setup.sh
preset=cpu-release
[ "$device" = cuda ] && preset=cuda-release
build=$(tools/build.sh "$preset" -DDELTATRAIN_TESTS=OFF)
deltatrain=$build/bin/deltatrain

step "text: prose of the Linux documentation"
package=""
for name in linux-doc-6.1 $(apt-cache depends linux-doc 2>/dev/null | sed -n 's/.*Depends: \(linux-doc[^ ]*\)/\1/p'); do
  if apt-cache show "$name" >/dev/null 2>&1; then package=$name; break; fi
done
[ -n "$package" ] || { echo "demo: no package with the Linux documentation; apt-get update?" >&2; exit 5; }
mkdir -p "$out/package" "$out/text/train" "$out/text/valid"
# Downloaded and unpacked by hand: minimal images leave documentation out when they install a package.
(cd "$out/package" && apt-get download -q "$package" >&2 && dpkg -x ./*.deb .)
find "$out/package" -path '*_sources*' -name '*.rst.txt' ! -path '*translations*' | LC_ALL=C sort > "$out/package/files"
number=0
while read -r file; do
  number=$((number + 1))
  part=train
  [ $((number % 20)) -eq 0 ] && part=valid
  awk -f tools/prose.awk "$file" > "$out/text/$part/$(printf %05d "$number").txt"
done < "$out/package/files"
find "$out/text" -empty -delete
rm -rf "$out/package"

step "tokenizer"
"$deltatrain" tokenizer train --input "$out/text/train" --vocab-size 2048 --out "$out/tokenizer"

step "tokens"
for part in train valid; do
  "$deltatrain" prepare --input "$out/text/$part" --tokenizer "$out/tokenizer" --out "$out/tokens/$part"
done

step "train"
"$deltatrain" train --recipe recipes/smoke/demo.yaml --device "$device" --out "$out/run" \
  --set data.train="$out/tokens/train" --set data.valid="$out/tokens/valid" --set data.tokenizer="$out/tokenizer"

step "convert, verify, plot"
"$deltatrain" convert --from "$out/run" --to "$out/hf" --format hf --dtype f32 --round-trip
"$deltatrain" verify "$out/hf" --against "$out/run" --device "$device"
"$deltatrain" plot "$out/run" --out "$out/loss.svg"

step "generate"
"$deltatrain" generate --model "$out/hf" --device "$device" --samples 8 --max-new-tokens 150 --temperature 0.7 \
  --top-p 0.9 --seed 1 > "$out/sample.txt"
head -c 1500 "$out/sample.txt"

step "evaluate: which of four endings is a held-out sentence's own"
mkdir -p "$out/datasets/cloze"
awk -v most=200 -f tools/cloze.awk "$out"/text/valid/*.txt > "$out/datasets/cloze/test.jsonl"
"$deltatrain" eval --model "$out/hf" --tasks cloze --data "$out/datasets" --out "$out/eval" --log-samples --json \
  > "$out/eval.json"
share() { sed -n "s/.*\"$1,none\": *\([0-9.]*\).*/\1/p" "$out/eval.json" | head -n 1; }
accuracy="$(share acc) with a standard error of $(share acc_stderr)"

step "compare with n-gram models of the same tokens"
vocabulary=$(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' "$out/hf/config.json")
"$build/bin/ngram_baseline" "$out/tokens/train" "$out/tokens/valid" "$vocabulary" > "$out/ngram.txt"
bigram=$(sed -n 's/^2 //p' "$out/ngram.txt")
trigram=$(sed -n 's/^3 //p' "$out/ngram.txt")
loss=$(sed -n 's/.*"kind":"validation".*"loss":\([0-9.]*\).*/\1/p' "$out/run/metrics.jsonl" | tail -n 1)

# Words of three letters or more in the samples, and those that the training text has too.
words() { tr -cs 'A-Za-z' '\n' | tr 'A-Z' 'a-z' | grep -E '^.{3,}$' | LC_ALL=C sort; }
cat "$out"/text/train/*.txt | words | uniq > "$out/words.txt"
words < "$out/sample.txt" > "$out/sample_words.txt"
total=$(wc -l < "$out/sample_words.txt")
known=$(LC_ALL=C join "$out/sample_words.txt" "$out/words.txt" | wc -l)
rm -f "$out/words.txt" "$out/sample_words.txt"

size() { du -sh "$1" | cut -f1; }
cat <<EOT

| what | where | size |
|---|---|---|
| tokenizer | $out/tokenizer | $(size "$out/tokenizer") |
| tokens | $out/tokens | $(size "$out/tokens") |
| run: recipe, metrics, log, checkpoints | $out/run | $(size "$out/run") |
| Hugging Face folder | $out/hf | $(size "$out/hf") |
| curve of the loss | $out/loss.svg | $(size "$out/loss.svg") |
| sample | $out/sample.txt | $(size "$out/sample.txt") |
| scores on $(wc -l < "$out/datasets/cloze/test.jsonl") cloze questions | $out/eval | $(size "$out/eval") |

| loss on held-out text, nats per token | |
|---|---|
| this model | $loss |
| Kneser-Ney bigram on the same tokens | $bigram |
| Kneser-Ney trigram | $trigram |

Share of cloze questions answered (guessing: 0.25): $accuracy.
$known of $total sampled words of three letters or more occur in the training text.
$(($(date +%s) - began)) seconds in all.
EOT

awk -v loss="$loss" -v bigram="$bigram" -v known="$known" -v total="$total" 'BEGIN {
  if (!(loss + 0 > 0 && loss + 0.10 <= bigram)) { print "demo: expected a loss 0.10 under the bigram model, got " loss > "/dev/stderr"; exit 4 }
  if (!(total > 0 && known >= 0.9 * total)) { print "demo: expected 90 % known words, got " known " of " total > "/dev/stderr"; exit 4 }
}'
