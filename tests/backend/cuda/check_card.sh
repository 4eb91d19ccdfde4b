#!/bin/bash
# What a card has to show beside speed: tests/backend/cuda/check_card.sh BIN OUT [--small]
# BIN: folder of programs of a build with DELTATRAIN_CUDA=ON and DELTATRAIN_TESTS=ON; one that is missing counts as failed.
# OUT: a folder that does not exist. Runs selftest in full, the tests that want a device, products past 2^31 elements,
# 65,536 pairs of sequence and head, short trainings on the project's own pages, and three steps of GDN-300M, whose first
# takes no more than three times as long as the others and whose memory is within 5 % of its plan (read through NVML).
# --small: without what takes minutes or tens of GiB. DEVICE=cpu: the script itself, on a machine without a card. Exit code 1
# where a check fails.
set -u
[ $# -ge 2 ] || { sed -n '2,8p' "$0" >&2; exit 2; }
bin=$(cd "$1" && pwd) && mkdir "$2" && out=$(cd "$2" && pwd) || exit 2
small=${3:-}
device=${DEVICE:-cuda}
program=$bin/deltatrain
cd "$(dirname "$0")/../../.." || exit 2
export DELTATRAIN_TEST_SOURCES=$PWD
passed=0 failed=0

check() { # name command...
  local name=$1 begin=$SECONDS
  shift
  if "$@" >"$out/$name.txt" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name: $(tail -n 3 "$out/$name.txt" | tr '\n' ' ')"
  fi
  echo "$name: $((SECONDS - begin)) s"
}

for precision in f32 bf16; do
  [ "$device" = cuda ] || [ "$precision" = f32 ] || continue
  for set in --full --uniform-rows; do
    [ "$small" != --small ] || [ "$set" != --full ] || set=
    # shellcheck disable=SC2086 # empty or one word
    check "selftest-$precision${set:+$set}" "$program" selftest --device "$device" --precision "$precision" $set
  done
done

# A test that was skipped for want of a device is none that passed; some are skipped because they are not for it.
tests_of() { # program filter
  local log
  log=$("$bin/$1" --gtest_filter="$2" 2>&1) || { echo "$log"; return 1; }
  echo "$log"
  grep -q '\[  PASSED  \] [1-9]' <<<"$log" && ! grep -qE 'no such device|no CUDA device' <<<"$log"
}
if [ "$device" = cuda ]; then
  check test_backend tests_of test_backend_cuda '*'
  check test_model tests_of test_model '*_on_cuda'
  check test_decode tests_of test_decode 'Devices/*'
  check test_eval tests_of test_eval '*OnCuda*'
  check test_serve tests_of test_serve '*OnAGpu*'
fi
huge=()
[ "$device" = cuda ] || huge=(--dry-run --no-cases)
[ "$small" != --small ] || [ "$device" != cuda ] || huge=(--no-huge --small)
check op_check "$bin/cuda_op_check" --no-timings "${huge[@]}"

tokenize() {
  mkdir "$out/text" && cp docs/*.md docs/*/*.md "$out/text" && (cd "$out/text" && for f in *.md; do mv "$f" "$f.txt"; done) &&
    "$program" tokenizer train --input "$out/text" --vocab-size 2048 --out "$out/tokenizer" &&
    "$program" prepare --input "$out/text" --tokenizer "$out/tokenizer" --out "$out/tokens"
}
check tokens tokenize

losses_fall() { # recipe length precision
  local run=$out/run-$1-$2-$3
  "$program" train --device "$device" --precision "$3" --recipe "recipes/smoke/$1.yaml" --set "data.train=$out/tokens" \
    --set "train.seq_length=$2" --set train.train_iters=20 --set train.global_batch_size=8 --set train.micro_batch_size=4 \
    --set schedule.lr_warmup_iters=2 --set optimizer.lr=1e-3 --set log.log_interval=1 --out "$run" &&
    python3 - "$run/metrics.jsonl" <<'P'
import json, sys
losses = [e["loss"] for e in map(json.loads, open(sys.argv[1])) if e["kind"] == "step"]
print(losses)
assert len(losses) == 20 and sum(losses[-3:]) < sum(losses[:3]) - 0.3, "losses do not fall"
P
}
for precision in f32 bf16; do
  [ "$device" = cuda ] || [ "$precision" = f32 ] || continue
  for recipe in gdn kda gdn_mla; do
    for length in 8 32 64; do check "train-$recipe-$length-$precision" losses_fall "$recipe" "$length" "$precision"; done
  done
done

first_step_is_like_others() {
  local size=(--recipe recipes/gdn/gdn_300m.yaml --set train.global_batch_size=64 --set train.micro_batch_size=32)
  [ "$device" = cuda ] || size=(--recipe recipes/smoke/gdn.yaml --set train.global_batch_size=4 --set train.micro_batch_size=2
    --set train.seq_length=64 --set schedule.lr_warmup_iters=1)
  "$program" train --device "$device" "${size[@]}" --set "data.train=$out/tokens" --set train.train_iters=3 \
    --set log.log_interval=1 --out "$out/run-first" && python3 - "$out/run-first/metrics.jsonl" "$device" <<'P'
import json, sys
entries = [json.loads(line) for line in open(sys.argv[1])]
seconds = [e["seconds"] for e in entries if e["kind"] == "step"]
planned = next(e["memory_bytes"] for e in entries if e["kind"] == "run")
held = [e["device_bytes"] for e in entries if e["kind"] == "resources" and "device_bytes" in e]
print("steps:", seconds, "planned:", planned, "held:", held)
assert len(seconds) == 3
if sys.argv[2] == "cuda":
    assert seconds[0] <= 3 * min(seconds[1:]), "the first step is slow"
    assert held and abs(max(held) / planned - 1) <= 0.05, "memory is not as planned"
P
}
if [ "$small" != --small ] || [ "$device" != cuda ]; then check first-step first_step_is_like_others; fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
