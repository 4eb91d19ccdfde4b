#!/bin/sh
# Installs what is missing, builds and runs the tests: tools/test.sh [--full]. With --full also the slow ones.
# Ends with "N passed, N failed". DEVICE=cuda builds for the GPU of this machine and runs its tests too.
set -eu
cd "$(dirname "$0")/.."
full=0
for argument in "$@"; do
  case "$argument" in
    --full) full=1 ;;
    *) echo "usage: tools/test.sh [--full]" >&2; exit 2 ;;
  esac
done

tools/setup.sh
preset=cpu-release
[ "${DEVICE:-cpu}" = cuda ] && preset=cuda-release
build=$(tools/build.sh "$preset" -DDELTATRAIN_WERROR=ON)

set -- -j "$(nproc)" --output-on-failure
[ "$full" -eq 1 ] || set -- "$@" -LE slow
result=$(mktemp)
trap 'rm -f "$result"' EXIT
status=0
ctest --test-dir "$build" "$@" --output-junit "$result.xml" || status=$?
# <testsuite ... tests="12" failures="0" ...>
count() { sed -n "s/.*<testsuite.*$1=\"\([0-9]*\)\".*/\1/p; s/^[[:space:]]*$1=\"\([0-9]*\)\".*/\1/p" "$result.xml" | head -n 1; }
total=$(count tests); failed=$(count failures); skipped=$(count skipped); disabled=$(count disabled)
rm -f "$result.xml"
passed=$((total - failed - skipped - disabled))
if [ "$full" -eq 1 ]; then
  fuzzed=0
  tests/fuzz/run.sh 60 || fuzzed=$?
  if [ "$fuzzed" -ne 0 ] && [ "$fuzzed" -ne 77 ]; then
    echo "fuzz: failed: see above, and build/fuzz/findings" >&2
    status=1 failed=$((failed + 1))
  fi
fi
[ "$skipped" -gt 0 ] && echo "$skipped tests were skipped: see above" >&2
[ "$passed" -gt 0 ] || status=1
echo "$passed passed, $failed failed"
exit "$status"
