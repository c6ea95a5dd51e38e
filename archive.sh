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
if [ "${*: -1}" = --model ]; then
    echo "archive.sh: --model needs a value" >&2
    exit 2
fi
arguments=()
for argument in "$@"; do
    [ "$argument" = --model ] || arguments+=("$argument")
done
# A --config of the caller comes later, and counts.
PYTHONPATH=$here/handlers${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m ts_stateful.cli pack \
    --config "$here/model-config.yaml" --output "$here/build" ${arguments[@]+"${arguments[@]}"}
