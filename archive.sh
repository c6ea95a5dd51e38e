#!/usr/bin/env bash
# Packs the handler, its configuration and (where it is a folder) the model into an archive for TorchServe.
set -euo pipefail

usage() {
    cat <<'USAGE'
Usage: ./archive.sh [options]

  --model FOLDER|HUB_ID  the model: a folder is packed into the archive, a hub id is written
                         into its configuration (default: what the configuration says)
  --files FOLDER         what is in it is packed too: the program and the weights of a model
                         with recurrent state
  --name NAME            name of the archive (default: chat)
  --config FILE          configuration to pack (default: model-config.yaml)
  --profile PROFILE      continuous, sequence or async (default: what the configuration says)
  --format FORMAT        default: a .mar file; no-archive: a folder, for SageMaker or a large model
  --output FOLDER        where the archive goes (default: build)
  --version VERSION      version of the model (default: 1.0)
  --help                 this text

PYTHON names the interpreter with torch-model-archiver (default: .venv/bin/python).
USAGE
}

fail() {
    echo "archive.sh: $*" >&2
    exit 2
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
model="" files="" name=chat config=$here/model-config.yaml profile="" format=default output=$here/build version=1.0
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --model | --files | --name | --config | --profile | --format | --output | --version)
            [ $# -ge 2 ] || fail "$1 needs a value"
            printf -v "${1#--}" %s "$2"
            shift 2 ;;
        *) usage >&2; fail "unknown option: $1" ;;
    esac
done
[[ $name =~ ^[A-Za-z0-9][A-Za-z0-9_.-]*$ ]] || fail "not a model name: $name"
[[ $format == default || $format == no-archive ]] || fail "--format is default or no-archive, not $format"
[ -f "$config" ] || fail "no such configuration: $config"
python=${PYTHON:-$here/.venv/bin/python}
command -v "$python" >/dev/null || fail "no $python: run 'make setup' first, or set PYTHON"

# The archiver ships whatever lies beside the code and erases $TMPDIR/<name>: it sees a clean copy and a private TMPDIR only.
# Both are beside the output, because a model may not fit into /tmp.
mkdir -p "$output"
output=$(cd "$output" && pwd)
work=$(mktemp -d "$output/.archive.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/code" "$work/tmp" "$work/out"

(cd "$here/handlers" && find ts_stateful \( -name '*.py' -o -name '*.cpp' -o -name '*.h' -o -name '*.class' -o -name '*.java' -o -name py.typed \) -print0 | LC_ALL=C sort -z) |
    while IFS= read -r -d '' file; do
        mkdir -p "$work/code/$(dirname "$file")"
        cp "$here/handlers/$file" "$work/code/$file"
    done

edits=()
if [ -n "$profile" ]; then edits+=(--profile "$profile"); fi
if [ -d "$model" ]; then
    [ -f "$model/config.json" ] || fail "$model has no config.json: not a model's folder"
    ln -s "$(cd "$model" && pwd)" "$work/code/model" # the archiver follows it
    edits+=(--model model --checkpoint "$model")
elif [[ $model =~ ^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*$ ]]; then
    edits+=(--model "$model")
elif [ -n "$model" ]; then
    fail "$model is neither a folder nor a hub id like owner/name"
fi
edit() {
    PYTHONPATH=$work/code PYTHONDONTWRITEBYTECODE=1 "$python" -m ts_stateful.config.edit "$config" "$@"
}
edit ${edits[@]+"${edits[@]}"} >"$work/model-config.yaml"
handler=$(edit --handler 2>/dev/null)
if [ -n "$files" ]; then
    [ -d "$files" ] || fail "no such folder: $files"
    (cd "$files" && find . -type f ! -path '*/__pycache__/*' ! -name '.*' -print0) |
        while IFS= read -r -d '' file; do
            [ ! -e "$work/code/${file#./}" ] || fail "$files: ${file#./} is a name of the package's own"
            mkdir -p "$work/code/$(dirname "$file")"
            cp "$files/$file" "$work/code/$file"
        done
fi

# Stored, not deflated: weights do not compress.
[ "$format" = default ] && archive_format=zip-store || archive_format=$format
TMPDIR=$work/tmp "$python" -c 'from model_archiver.model_packaging import generate_model_archive as main; main()' --model-name "$name" --version "$version" \
    --handler "$here/handlers/$handler" --extra-files "$work/code" --config-file "$work/model-config.yaml" \
    --archive-format "$archive_format" --export-path "$work/out" --force

if [ "$format" = no-archive ]; then
    result=$output/$name
    # The archiver leaves stale files in an older folder; but never remove one that is no archive.
    [ ! -e "$result" ] || [ -f "$result/MAR-INF/MANIFEST.json" ] || fail "$result exists and is no model archive"
    rm -rf "$result"
    mv "$work/out/$name" "$result"
else
    result=$output/$name.mar
    mv -f "$work/out/$name.mar" "$result"
fi
echo "$result"
