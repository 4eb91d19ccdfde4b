#!/bin/sh
# Installs what a build needs from the distribution (Debian 12, Ubuntu 24.04), and pyarrow into .venv, whose wheel
# carries the Arrow C++ that reads Parquet (DELTATRAIN_ARROW=OFF: not). Does nothing when all is there.
set -eu
cd "$(dirname "$0")/.."

packages="
  ccache
  cmake
  g++
  git
  iproute2
  libboost-dev
  libcairo2-dev
  libcli11-dev
  libdnnl-dev
  libfmt-dev
  libgmock-dev
  libgtest-dev
  libpcre2-dev
  libprotobuf-dev
  libsimdjson-dev
  libssl-dev
  libxxhash-dev
  libyaml-cpp-dev
  libzstd-dev
  make
  ninja-build
  nlohmann-json3-dev
  openmpi-bin
  protobuf-compiler
  python3-venv
  zlib1g-dev
"

missing=""
for package in $packages; do
  if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
    missing="$missing $package"
  fi
done

# A build without Parquet is whole, so that no registry is no reason to stop.
install_arrow() {
  [ "${DELTATRAIN_ARROW:-AUTO}" = OFF ] && return 0
  for library in .venv/lib/python3*/site-packages/pyarrow/libparquet.so.*; do
    [ -e "$library" ] && return 0
  done
  echo "setup: installing pyarrow into .venv" >&2
  python3 -m venv .venv >&2 && .venv/bin/pip install -q --disable-pip-version-check pyarrow==26.0.1 >&2 && return 0
  echo "setup: pyarrow cannot be installed: the program will be built without Parquet" >&2
}

if [ -z "$missing" ]; then
  install_arrow
  exit 0
fi

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
install_arrow
