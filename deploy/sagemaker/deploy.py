"""Makes, watches and deletes a SageMaker endpoint.

Owns the calls of SageMaker's API and their order. A model, an endpoint configuration and an endpoint bear the same name. The
image comes from build_and_push.sh, the role from role.yaml, the model from `archive.sh --format no-archive`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

import boto3
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

__all__ = ["Call", "Endpoint", "Failed", "calls_to_make", "main", "parser"]

_POLL_S = 15.0
# Driver 580 with CUDA 13, which torch's wheels want; instances have older ones if nothing is said.
_GPU_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"
_GPU_FAMILIES = ("ml.g", "ml.p")
_BEING_MADE = {"Creating", "Updating", "SystemUpdating", "RollingBack"}

_EPILOG = """\
from a model to an answer:
  ./archive.sh --model llava-hf/llava-1.5-7b-hf --name llava --format no-archive
  aws s3 sync --delete build/llava s3://BUCKET/llava/
  IMAGE=$(deploy/sagemaker/build_and_push.sh)
  aws cloudformation deploy --template-file deploy/sagemaker/role.yaml --stack-name ts-stateful-role \\
      --capabilities CAPABILITY_IAM --parameter-overrides ModelBucket=BUCKET ModelPrefix=llava/
  python deploy/sagemaker/deploy.py up demo --image "$IMAGE" --role ROLE_ARN --model-data s3://BUCKET/llava/
  python deploy/sagemaker/deploy.py status demo
  python deploy/sagemaker/deploy.py down demo

Credentials and region are those of the AWS CLI. An endpoint costs money until `down`.
"""


class Failed(RuntimeError):
    """The endpoint did not come up; the message says what SageMaker says and where its log is."""


class Call(NamedTuple):
    """An operation of SageMaker's API, as boto3 names it, and its parameters."""

    operation: str
    parameters: dict[str, Any]


def calls_to_make(options: argparse.Namespace) -> list[Call]:
    """The calls that make an endpoint, in their order."""
    name = options.endpoint
    variant = {
        "VariantName": "AllTraffic",
        "ModelName": name,
        "InstanceType": options.instance_type,
        "InitialInstanceCount": options.instances,
        "ModelDataDownloadTimeoutInSeconds": options.download_timeout,
        "ContainerStartupHealthCheckTimeoutInSeconds": options.startup_timeout,
    }
    ami = options.ami
    if ami is None and options.instance_type.startswith(_GPU_FAMILIES):
        ami = _GPU_AMI
    if ami:
        variant["InferenceAmiVersion"] = ami
    source = {"S3Uri": options.model_data, "S3DataType": "S3Prefix", "CompressionType": "None"}
    container = {
        "Image": options.image,
        "ModelDataSource": {"S3DataSource": source},
        "Environment": {"TS_STATEFUL_ENDPOINT_NAME": name, **dict(options.env)},
    }
    model = {"ModelName": name, "ExecutionRoleArn": options.role, "PrimaryContainer": container}
    config = {"EndpointConfigName": name, "ProductionVariants": [variant]}
    return [
        Call("create_model", model),
        Call("create_endpoint_config", config),
        Call("create_endpoint", {"EndpointName": name, "EndpointConfigName": name}),
    ]


class Endpoint:
    """An endpoint by its name. `sagemaker` and `runtime` are clients of boto3; `clock` in seconds."""

    def __init__(
        self,
        name: str,
        sagemaker: Any,
        runtime: Any,
        *,
        out: TextIO,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._name = name
        self._sagemaker = sagemaker
        self._runtime = runtime
        self._out = out
        self._clock = clock
        self._sleep = sleep
        self._since = clock()

    def up(self, calls: Sequence[Call], *, load_timeout_s: float) -> None:
        """Makes it and returns when the model answers, at most `load_timeout_s` after the endpoint is in service.

        Raises:
            Failed: SageMaker gave up, or the model does not answer.
        """
        for operation, parameters in calls:
            getattr(self._sagemaker, operation)(**parameters)
            self._say(operation)
        made = (each for each in self._changes() if each["EndpointStatus"] not in _BEING_MADE)
        description = next(made, {"EndpointStatus": "gone"})
        if description["EndpointStatus"] != "InService":
            raise self._failure(description.get("FailureReason", "deleted meanwhile"))
        self._wait_for_model(load_timeout_s)

    def status(self) -> None:
        """Prints what SageMaker says of it, as JSON."""
        description = self._sagemaker.describe_endpoint(EndpointName=self._name)
        description.pop("ResponseMetadata", None)
        self._out.write(json.dumps(description, indent=2, default=str) + "\n")

    def down(self) -> None:
        """Deletes the endpoint, its configuration and its model; what is not there is none of its concern."""
        if self._delete("delete_endpoint", "EndpointName"):
            for _ in self._changes():
                pass
        self._delete("delete_endpoint_config", "EndpointConfigName")
        self._delete("delete_model", "ModelName")

    def _failure(self, reason: object) -> Failed:
        return Failed(f"{self._name}: {reason}\nlog group: /aws/sagemaker/Endpoints/{self._name}")

    def _say(self, what: str) -> None:
        self._out.write(f"{self._clock() - self._since:5.0f} s  {what}\n")
        self._out.flush()

    def _changes(self) -> Iterator[dict[str, Any]]:
        """Descriptions of the endpoint as often as they are asked for, until it is gone; tells when its status changes."""
        told = None
        while True:
            try:
                description = self._sagemaker.describe_endpoint(EndpointName=self._name)
            except ClientError as error:
                if not _is_missing(error):
                    raise
                self._say("gone")
                return
            if description["EndpointStatus"] != told:
                told = description["EndpointStatus"]
                self._say(told)
            yield description
            self._sleep(_POLL_S)

    def _delete(self, operation: str, key: str) -> bool:
        """Whether there was one to delete."""
        try:
            getattr(self._sagemaker, operation)(**{key: self._name})
        except ClientError as error:
            if not _is_missing(error):
                raise
            return False
        self._say(operation)
        return True

    def _wait_for_model(self, timeout_s: float) -> None:
        # TorchServe is healthy before its model is loaded: requests wait, and may run out of SageMaker's time, or boto3's.
        deadline = self._clock() + timeout_s
        while True:
            try:
                answer = self._runtime.invoke_endpoint(
                    EndpointName=self._name,
                    ContentType="application/json",
                    Body=b'{"type": "hello"}',
                )
            except (ClientError, HTTPClientError) as error:
                if self._clock() > deadline:
                    raise self._failure(f"the model does not answer: {error}") from error
                self._sleep(_POLL_S)
            else:
                self._say(f"answers: {answer['Body'].read().decode()}")
                return


def _is_missing(error: ClientError) -> bool:
    details = error.response["Error"]  # SageMaker has no code of its own for what does not exist
    return details["Code"] == "ValidationException" and "Could not find" in details["Message"]


def main(
    arguments: Sequence[str] | None = None,
    *,
    client: Callable[..., Any] = boto3.client,
    out: TextIO = sys.stdout,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Runs a command; 1 if AWS refuses or the endpoint does not come up."""
    options = parser().parse_args(arguments)
    if options.command == "up" and options.dry_run:
        for operation, parameters in calls_to_make(options):
            out.write(f"{operation} {json.dumps(parameters, indent=2)}\n")
        return 0
    try:
        endpoint = Endpoint(
            options.endpoint,
            client("sagemaker", region_name=options.region),
            client("sagemaker-runtime", region_name=options.region),
            out=out,
            sleep=sleep,
        )
        if options.command == "up":
            endpoint.up(calls_to_make(options), load_timeout_s=options.startup_timeout)
        elif options.command == "status":
            endpoint.status()
        else:
            endpoint.down()
    except (BotoCoreError, ClientError, Failed) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped waiting; `down {options.endpoint}` deletes what was made\n")
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="deploy.py",
        description="Make, watch and delete a SageMaker endpoint.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="make an endpoint, and wait until its model answers")
    for command in (
        up,
        commands.add_parser("status", help="what SageMaker says of it"),
        commands.add_parser("down", help="delete the endpoint, its configuration and its model"),
    ):
        command.add_argument("endpoint", help="name of the endpoint")
        command.add_argument("--region", help="default: that of the AWS CLI")
    _add_up(up)
    return top


def _add_up(up: argparse.ArgumentParser) -> None:
    up.add_argument("--image", required=True, help="what build_and_push.sh printed")
    up.add_argument("--role", required=True, metavar="ARN", help="the output of role.yaml's stack")
    up.add_argument(
        "--model-data",
        required=True,
        type=_s3_folder,
        metavar="S3_URI",
        help="the folder of the model, uncompressed: s3://bucket/folder/",
    )
    up.add_argument("--instance-type", default="ml.g5.xlarge", help="default: %(default)s")
    up.add_argument("--instances", type=int, default=1, help="default: %(default)s")
    up.add_argument(
        "--env",
        action="append",
        default=[],
        type=_variable,
        metavar="NAME=VALUE",
        help="a variable of the container; may be repeated",
    )
    up.add_argument(
        "--ami",
        metavar="NAME",
        help=f"the instances' InferenceAmiVersion (default, where there is a GPU: {_GPU_AMI})",
    )
    for flag, what in (("--download-timeout", "fetch the model"), ("--startup-timeout", "start")):
        up.add_argument(
            flag,
            type=int,
            default=1800,
            metavar="SECONDS",
            help=f"how long an instance may take to {what} (default: %(default)s)",
        )
    up.add_argument("--dry-run", action="store_true", help="print the calls, and make none")


def _s3_folder(text: str) -> str:
    if not text.startswith("s3://"):
        raise argparse.ArgumentTypeError(f"not an address like s3://bucket/folder/: {text}")
    return text.rstrip("/") + "/"  # else every key that begins like it would belong to it


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"not NAME=VALUE: {text}")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
