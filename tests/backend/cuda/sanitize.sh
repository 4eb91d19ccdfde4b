#!/bin/bash
# Every op of the card under NVIDIA's compute-sanitizer: tests/backend/cuda/sanitize.sh PROGRAM OUT [tool ...]
# Runs `PROGRAM selftest --device cuda --sanitize --op OP` for each op in bf16 and f32 under each tool (memcheck,
# racecheck, initcheck, synccheck; default: the first three), SANITIZE_JOBS (8) at a time, reports into OUT. Exit code 1
# where a report is not clean, a run did not end within SANITIZE_TIMEOUT (600) seconds, or selftest failed. OUT: a folder
# that does not exist. In bash, not sh, for its count of running jobs.
set -u
[ $# -ge 2 ] || { sed -n '2,6p' "$0" >&2; exit 2; }
program=$1 out=$2
shift 2
[ $# -gt 0 ] || set -- memcheck racecheck initcheck
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
ops=$("$program" selftest --op '?' 2>&1 | sed -n 's/.*expected one of \(.*\), got .*/\1/p' | tr -d ',')
[ -n "$ops" ] || { echo "$program: selftest names no ops" >&2; exit 2; }
mkdir "$out" || exit 2

check() { # tool precision op
  local report=$out/$1-$2-$3.txt
  timeout "${SANITIZE_TIMEOUT:-600}" "$sanitizer" --tool "$1" \
    "$program" selftest --device cuda --precision "$2" --sanitize --op "$3" >"$report" 2>&1
  echo "exit code $?" >>"$report"
}

for tool in "$@"; do
  for precision in bf16 f32; do
    for op in $ops; do
      while [ "$(jobs -rp | wc -l)" -ge "${SANITIZE_JOBS:-8}" ]; do sleep 0.2; done
      check "$tool" "$precision" "$op" &
    done
  done
done
wait

runs=0 bad=0
for report in "$out"/*.txt; do
  runs=$((runs + 1))
  if ! grep -qE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' "$report" || ! grep -qx 'exit code 0' "$report"; then
    bad=$((bad + 1))
    echo "$(basename "$report" .txt): $(grep -E 'SUMMARY|^exit code' "$report" | sed 's/=* *//' | tr '\n' ' ')"
  fi
done
echo "$runs runs, $bad not clean"
[ "$bad" -eq 0 ]
