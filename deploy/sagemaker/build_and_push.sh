#!/usr/bin/env bash
# Builds the image of a SageMaker endpoint and pushes it to Amazon ECR. Its last line of output is the image's address.
set -euo pipefail

usage() {
    cat <<'USAGE'
Usage: deploy/sagemaker/build_and_push.sh [options]

  --region REGION        of the repository and of the base image (default: that of the AWS CLI)
  --repository NAME      in Amazon ECR, made if it is not there (default: torchserve-stateful)
  --tag TAG              of the image (default: the version of the package)
  --front FRONT          torchserve, or asgi for an image without TorchServe and Java
                         (default: torchserve)
  --base IMAGE           to build on, instead of SageMaker's PyTorch inference container;
                         python:3.12-slim, for instance, is smaller and is still being patched
  --help                 this text

Needs docker with BuildKit, the AWS CLI and credentials that may push to Amazon ECR.
USAGE
}

fail() {
    echo "build_and_push.sh: $*" >&2
    exit 2
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
region="" repository=torchserve-stateful tag="" base="" front=torchserve
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --region | --repository | --tag | --base | --front)
            [ $# -ge 2 ] || fail "$1 needs a value"
            printf -v "${1#--}" %s "$2"
            shift 2 ;;
        *) usage >&2; fail "unknown option: $1" ;;
    esac
done
case $front in
    torchserve) dockerfile=$here/Dockerfile ;;
    asgi) dockerfile=$here/Dockerfile.asgi ;;
    *) fail "--front is torchserve or asgi, not $front" ;;
esac
for command in aws docker; do
    command -v "$command" >/dev/null || fail "needs the command $command"
done
[ -n "$region" ] || region=${AWS_REGION:-${AWS_DEFAULT_REGION:-$(aws configure get region || true)}}
[ -n "$region" ] || fail "no --region, and the AWS CLI has none"
[ -n "$tag" ] || tag=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/handlers/ts_stateful/version.py")
# AWS's own images, of its Deep Learning Containers; pulled from the same region.
[ -n "$base" ] || base=763104351884.dkr.ecr.$region.amazonaws.com/$(sed -n 's|^ARG BASE=[^/]*/||p' "$dockerfile")

account=$(aws sts get-caller-identity --query Account --output text)
registry=$account.dkr.ecr.$region.amazonaws.com
image=$registry/$repository:$tag

login() { # to a registry, in its own region
    local region=${1#*.dkr.ecr.}
    aws ecr get-login-password --region "${region%%.*}" | docker login --username AWS --password-stdin "$1"
}

# Everything but the address goes to standard error.
{
    aws ecr describe-repositories --region "$region" --repository-names "$repository" >/dev/null 2>&1 ||
        aws ecr create-repository --region "$region" --repository-name "$repository" \
            --image-scanning-configuration scanOnPush=true
    login "$registry"
    case $base in *.dkr.ecr.*.amazonaws.com/*) login "${base%%/*}" ;; esac
    # SageMaker takes no image index, which an attestation of provenance would make of the image.
    DOCKER_BUILDKIT=1 docker build --platform linux/amd64 --provenance=false \
        --build-arg "BASE=$base" --file "$dockerfile" --tag "$image" "$root"
    docker push "$image"
} >&2
echo "$image"
