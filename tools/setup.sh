#!/bin/sh
# Installs what a build needs from the distribution (Debian 12, Ubuntu 24.04). Does nothing when all is there.
set -eu

packages="
  ccache
  cmake
  g++
  git
  libbenchmark-dev
  libcli11-dev
  libdnnl-dev
  libfmt-dev
  libgmock-dev
  libgtest-dev
  libpcre2-dev
  libsimdjson-dev
  libspdlog-dev
  libssl-dev
  libxxhash-dev
  libyaml-cpp-dev
  libzstd-dev
  make
  ninja-build
  nlohmann-json3-dev
  zlib1g-dev
"

missing=""
for package in $packages; do
  if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
    missing="$missing $package"
  fi
done
[ -z "$missing" ] && exit 0

run=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: these packages are missing, and installing them needs root:$missing" >&2
    exit 5
  fi
  run="sudo"
fi
echo "setup: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
$run apt-get update -qq >&2
# shellcheck disable=SC2086 # one word per package
$run apt-get install -y -qq --no-install-recommends $missing >&2
