#!/bin/sh
# check_static.sh PROGRAM: whether PROGRAM, alone in an empty folder and without an environment, asks for no library but
# the C library's and does its work: help, a tokenizer, token files, training on the CPU.
set -eu
program=$(readlink -f "$1")
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

needed=$(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ -n "$needed" ] || { echo "check_static: $program: expected a dynamic program, got no NEEDED entry"; exit 1; }
status=0
for library in $needed; do
  case "$library" in
    libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-x86-64.so.2 | ld-linux-aarch64.so.1) ;;
    *) echo "check_static: $program: expected nothing but the C library, got $library"; status=1 ;;
  esac
done
[ $status -eq 0 ] || exit 1

mkdir "$folder/text"
cp "$program" "$folder/deltatrain"
cp "$root/docs/tour.md" "$folder/text/tour.txt"
printf '{"text": "%s"}\n' "A line of JSON with \\u00e9 and \\\"quotes\\\"." > "$folder/text/lines.jsonl"
cd "$folder"
# Beside other work threads that wait by spinning would take minutes.
run() {
  env -i OMP_WAIT_POLICY=passive ./deltatrain "$@" > log 2>&1 || { echo "check_static: deltatrain $*: exit code $?"; cat log; exit 1; }
}
run --help
grep -q serve log || { echo "check_static: --help: expected the list of commands"; cat log; exit 1; }
run tokenizer train --input text --vocab-size 512 --out tokenizer
run prepare --input text --tokenizer tokenizer --out tokens
run train --recipe "$root/recipes/smoke/kda.yaml" --set data.train=tokens --set data.tokenizer=tokenizer \
  --set model.vocab_size=512 --set train.train_iters=3 --set schedule.lr_warmup_iters=1 --set train.seq_length=64 --out run
steps=$(grep -c '"kind":"step"' run/metrics.jsonl) || true
[ "$steps" -eq 3 ] || { echo "check_static: metrics.jsonl: expected 3 steps, got $steps"; exit 1; }
echo "check_static: $(echo "$needed" | tr '\n' ' ')and $(($(wc -c < "$program") / 1048576)) MiB; 3 steps trained"
