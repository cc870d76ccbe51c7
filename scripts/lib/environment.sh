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

# tidegate_no_arguments "$@": for a script that takes none. --help prints what stands at its head, and
# ends it; anything else is refused. To be called in the repository's root.
tidegate_no_arguments() {
    local script="scripts/${0##*/}"
    [ "$#" -gt 0 ] || return 0
    case "$1" in
        -h | --help)
            echo "usage: $script"
            sed -n '2,${/^#/!q; s/^# \{0,1\}//p}' "$script"
            exit 0
            ;;
        *)
            echo "$script takes no arguments; --help says what it does" >&2
            exit 2
            ;;
    esac
}
