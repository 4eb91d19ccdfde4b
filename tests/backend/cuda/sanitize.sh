#!/bin/bash
# Every op of the card under NVIDIA's compute-sanitizer: tests/backend/cuda/sanitize.sh PROGRAM OUT [tool ...]
# Runs `PROGRAM selftest --device cuda --sanitize --op OP` for each op in bf16 and f32, and products that take each row
# by itself (linear-rows), under each tool (default: memcheck, racecheck, initcheck, synccheck), SANITIZE_JOBS (8) at a time, reports into
# OUT. Exit code 1 where a report is not clean or missing, a run did not end within SANITIZE_TIMEOUT (600) seconds, or selftest
# failed or found nothing it could run; hazards within cuBLASLt's own kernels are told, and do not count. OUT: a folder that
# does not exist. In bash, not sh, for its count of running jobs.
set -u
[ $# -ge 2 ] || { sed -n '2,7p' "$0" >&2; exit 2; }
program=$1 out=$2
shift 2
print_limit=1000 # reports in full; what is beyond it is not looked at, and so not clean
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
ops=$("$program" selftest --op '?' 2>&1 | sed -n 's/.*expected one of \(.*\), got .*/\1/p' | tr -d ',')
[ -n "$ops" ] || { echo "$program: selftest names no ops" >&2; exit 2; }
mkdir "$out" || exit 2

check() { # tool precision op
  local report=$out/$1-$2-$3.txt options="" start=$SECONDS
  [ "$3" != linear-rows ] || options=--uniform-rows
  # shellcheck disable=SC2086 # empty or one word
  timeout -k 10 "${SANITIZE_TIMEOUT:-600}" "$sanitizer" --tool "$1" --print-limit "$print_limit" \
    "$program" selftest --device cuda --precision "$2" --sanitize --op "${3%-rows}" $options >"$report" 2>&1
  echo "exit code $?" >>"$report"
  echo "seconds: $((SECONDS - start))" >>"$report"
}

# Each tool's own line with nothing found, and no other that found something; nothing that the tool itself could not do; a
# table whose one row (op, tensors, failed, not supported, ...) has tensors that were run.
is_clean() { # report tool
  grep -qx 'exit code 0' "$1" &&
    ! grep -qiE 'internal sanitizer error|out of memory|could not be (instrumented|patched)' "$1" &&
    awk -F'|' '$3 + 0 > $5 + 0 { found = 1 } END { exit !found }' "$1" || return 1
  if [ "$2" = racecheck ]; then
    local found library
    found=$(sed -n 's/.*RACECHECK SUMMARY: \([0-9]*\) hazards\{0,1\} displayed.*/\1/p' "$1")
    library=$(library_hazards "$1")
    [ "$found" = "$library" ] && [ "$found" -lt "$print_limit" ]
  else
    grep -q 'ERROR SUMMARY: 0 errors' "$1" && ! grep 'SUMMARY:' "$1" | grep -qv 'SUMMARY: 0 errors'
  fi
}

# Hazards both of whose accesses are in kernels of cuBLASLt: racecheck, which does not follow how they wait, finds the same
# in programs of that library alone.
library_hazards() { # report
  awk '/Race reported between .* access at / { first = / access at nvjet_sm[0-9]+_/ }
    /^=+ +and .* access at / { count += first && / access at nvjet_sm[0-9]+_/; first = 0 }
    END { print count + 0 }' "$1"
}

expected=0
for tool in "$@"; do
  for precision in bf16 f32; do
    for op in $ops linear-rows; do
      expected=$((expected + 1))
      while [ "$(jobs -rp | wc -l)" -ge "${SANITIZE_JOBS:-8}" ]; do sleep 0.2; done
      check "$tool" "$precision" "$op" &
    done
  done
done
wait

runs=0 bad=0
for report in "$out"/*.txt; do
  runs=$((runs + 1))
  name=$(basename "$report" .txt)
  if ! is_clean "$report" "${name%%-*}"; then
    bad=$((bad + 1))
    echo "$name: $(grep -E 'SUMMARY|^exit code' "$report" | sed 's/=* *//' | tr '\n' ' ')"
  elif [ "$(library_hazards "$report")" -gt 0 ]; then
    echo "$name: $(library_hazards "$report") hazards in kernels of cuBLASLt alone"
  fi
done
echo "$runs runs of $expected, $bad not clean"
[ "$bad" -eq 0 ] && [ "$runs" -eq "$expected" ]
