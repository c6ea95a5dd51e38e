#!/usr/bin/env bash
# Packs a model of this checkout into an archive for TorchServe: `ts-stateful pack` with the configuration that is here.
# `--model X` is its MODEL. PYTHON names the interpreter (default: .venv/bin/python). See --help.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-$here/.venv/bin/python}
if ! command -v "$python" >/dev/null; then
    echo "archive.sh: no $python: run 'make setup' first, or set PYTHON" >&2
    exit 2
fi
arguments=()
while [ $# -gt 0 ]; do
    case $1 in
        --model) model=${2-} && shift ;;
        --model=*) model=${1#*=} ;;
        *)
            arguments+=("$1")
            shift
            continue
            ;;
    esac
    case $model in
        '' | -*)
            echo "archive.sh: --model needs a value" >&2
            exit 2
            ;;
    esac
    arguments+=("$model")
    shift
done
# A --config of the caller comes later, and counts.
PYTHONPATH=$here/handlers${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m ts_stateful.cli pack \
    --config "$here/model-config.yaml" --output "$here/build" ${arguments[@]+"${arguments[@]}"}
