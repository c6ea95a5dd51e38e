#!/bin/sh
# The command `serve`, by which SageMaker starts a container. More arguments are options of `ts-stateful serve`.
exec ts-stateful serve "${SAGEMAKER_BASE_DIR:-/opt/ml}/model" --name model --host 0.0.0.0 \
    --http-port "${SAGEMAKER_BIND_TO_PORT:-8080}" "$@"
