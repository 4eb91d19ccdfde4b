#!/bin/sh
# Builds the fuzz targets with clang and runs each: tests/fuzz/run.sh [SECONDS]. Exit code 77 where clang or its
# libFuzzer is missing. Corpora stay in build/fuzz/corpus; a finding is left in build/fuzz/findings and ends
# the run with an error.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-60}

if ! printf '#include <stddef.h>\nint LLVMFuzzerTestOneInput(const unsigned char*d,size_t n){return d&&n?0:0;}\n' |
  clang -x c -fsanitize=fuzzer -o /dev/null - 2>/dev/null; then
  echo "fuzz: skipped: clang with libFuzzer is not here (Debian: clang, libclang-rt-14-dev)" >&2
  exit 77
fi
cmake --preset fuzz >&2
targets="pickle zip torch_file safetensors indexed_dataset hf_config tokenizer_json tokenizer_model arrow_ipc records run_log chrome_trace api_request chat_template rank_messages"
programs=fuzz_seeds
for target in $targets; do programs="$programs fuzz_$target"; done
# shellcheck disable=SC2086 # one word per program
cmake --build build/fuzz -j "$(nproc)" --target $programs >&2
build/fuzz/bin/fuzz_seeds . build/fuzz/seeds
mkdir -p build/fuzz/findings
# As many at a time as there are processors; what one printed is shown when it ends.
export seconds
# shellcheck disable=SC2086 # one line per target
printf '%s\n' $targets | xargs -P "$(nproc)" -I TARGET sh -c '
  mkdir -p build/fuzz/corpus/TARGET
  status=0
  build/fuzz/bin/fuzz_TARGET -max_total_time="$seconds" -timeout=60 -report_slow_units=60 \
    -rss_limit_mb=2048 -malloc_limit_mb=512 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix=build/fuzz/findings/TARGET- \
    build/fuzz/corpus/TARGET build/fuzz/seeds/TARGET >build/fuzz/TARGET.log 2>&1 || status=1
  echo "fuzz: TARGET, $seconds s" >&2
  if [ "$status" -eq 0 ]; then grep number_of_executed build/fuzz/TARGET.log >&2; else tail -n 40 build/fuzz/TARGET.log >&2; fi
  exit "$status"'
echo "fuzz: nothing found"
