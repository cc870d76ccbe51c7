# Sourced by the scripts: a Python environment of its own, outside the project's, from a list of pinned
# versions (scripts/lib/locks/). Needs environment.sh.

# tidegate_isolated FOLDER LOCK [FINISH]: makes FOLDER an environment of exactly LOCK, then calls
# FINISH FOLDER. Quick when that has been done before. A mark holding LOCK's checksum is written last, so
# an interrupted or outdated environment is made anew; a file lock lets two callers at once share one.
tidegate_isolated() {
    local folder="$1" lock="$2" finish="${3:-true}" mark sum
    mark="$folder/.complete"
    sum="$(sha256sum <"$lock")"
    [ "$(cat "$mark" 2>/dev/null)" = "$sum" ] && return
    mkdir -p "$(dirname "$folder")"
    (
        flock 9
        [ "$(cat "$mark" 2>/dev/null)" = "$sum" ] && exit
        tidegate_uv
        echo "installing $(basename "$folder") into $folder" >&2
        rm -rf "$folder"
        uv venv --quiet --python '>=3.11,<3.15' "$folder"
        uv pip install --quiet --python "$folder/bin/python" --no-deps --compile-bytecode -r "$lock"
        "$finish" "$folder"
        echo "$sum" >"$mark"
    ) 9>"$folder.lock"
}
