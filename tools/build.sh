#!/bin/sh
# Configures and builds a preset: tools/build.sh PRESET [cmake options ...]. Prints the build folder's path.
set -eu
cd "$(dirname "$0")/.."
preset=${1:-cpu-release}
[ $# -gt 0 ] && shift
launcher=""
if command -v ccache >/dev/null; then
  launcher="-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
  CCACHE_BASEDIR=$(pwd)
  export CCACHE_BASEDIR CCACHE_NOHASHDIR=1
fi
# shellcheck disable=SC2086 # empty or one word
cmake --preset "$preset" -DDELTATRAIN_UNITY=ON $launcher "$@" >&2
cmake --build "build/$preset" -j "$(nproc)" >&2
echo "build/$preset"
