# Sourced by the scripts: finds uv or brings it from PyPI, and syncs the environment from uv.lock.

# Where uv is put when the machine has none; outside the checkout, so that clones share it.
TIDEGATE_CACHE="${TIDEGATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate}"

tidegate_uv() {
    command -v uv >/dev/null && return
    local tools="$TIDEGATE_CACHE/tools"
    if [ ! -x "$tools/bin/uv" ]; then
        echo "uv is not on PATH; installing it from PyPI into $tools" >&2
        python3 -m venv "$tools"
        "$tools/bin/python" -m pip install --quiet 'uv>=0.7'
    fi
    PATH="$tools/bin:$PATH"
    export PATH
}

tidegate_sync() {
    tidegate_uv
    uv sync --quiet --locked --all-extras
}
