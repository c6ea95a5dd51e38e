"""A command that makes, watches and deletes a SageMaker endpoint.

The model, the endpoint configuration and the endpoint have the same name. The image comes from build_and_push.sh, the role from
role.yaml, and the model from `archive.sh --format no-archive`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

import boto3
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from ts_stateful.clock import SYSTEM_CLOCK, Clock

__all__ = ["ApiCall", "Endpoint", "Failed", "calls_to_make", "main", "parser"]

_POLL_S = 15.0
# Driver 580 with CUDA 13, which torch's wheels need. The default of instances is older.
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
  .venv/bin/python deploy/sagemaker/deploy.py up demo --image "$IMAGE" --role ROLE_ARN --model-data s3://BUCKET/llava/
  .venv/bin/python deploy/sagemaker/deploy.py status demo
  .venv/bin/python deploy/sagemaker/deploy.py down demo

build_and_push.sh --front asgi makes an image without TorchServe and Java; every other step is the same.
Credentials and region are those of the AWS CLI. An endpoint costs money until `down` has deleted it.

exit status: 0 done, 1 failed (the reason is on standard error), 2 wrong usage.
"""


class Failed(RuntimeError):
    """An endpoint that did not start. The message has SageMaker's reason and the name of the log group."""


class ApiCall(NamedTuple):
    """An operation of SageMaker's API, by its name in boto3, and its parameters."""

    operation: str
    parameters: dict[str, Any]


def calls_to_make(options: argparse.Namespace) -> list[ApiCall]:
    """Return the calls that make an endpoint, in order."""
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
        ApiCall("create_model", model),
        ApiCall("create_endpoint_config", config),
        ApiCall("create_endpoint", {"EndpointName": name, "EndpointConfigName": name}),
    ]


class Endpoint:
    """An endpoint by its name. `sagemaker` and `runtime` are clients of boto3."""

    def __init__(
        self,
        name: str,
        sagemaker: Any,
        runtime: Any,
        out: TextIO,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._name = name
        self._sagemaker = sagemaker
        self._runtime = runtime
        self._out = out
        self._clock = clock
        self._since = clock.monotonic()

    def up(self, calls: Sequence[ApiCall], *, load_timeout_s: float) -> None:
        """Make the endpoint and wait for the model's answer, at most `load_timeout_s` after it is in service.

        Raises:
            Failed: SageMaker could not start the endpoint, or the model does not answer.
        """
        for operation, parameters in calls:
            getattr(self._sagemaker, operation)(**parameters)
            self._print(operation)
        made = (each for each in self._changes() if each["EndpointStatus"] not in _BEING_MADE)
        description = next(made, {"EndpointStatus": "deleted"})
        if description["EndpointStatus"] != "InService":
            raise self._failure(description.get("FailureReason", "it was deleted meanwhile"))
        self._wait_for_model(load_timeout_s)

    def status(self) -> None:
        """Print SageMaker's description as JSON."""
        description = self._sagemaker.describe_endpoint(EndpointName=self._name)
        description.pop("ResponseMetadata", None)
        self._out.write(json.dumps(description, indent=2, default=str) + "\n")

    def down(self) -> None:
        """Delete the endpoint, its configuration and its model, as far as they exist."""
        if self._delete("delete_endpoint", "EndpointName"):
            for _ in self._changes():
                pass
        self._delete("delete_endpoint_config", "EndpointConfigName")
        self._delete("delete_model", "ModelName")

    def _failure(self, reason: object) -> Failed:
        return Failed(f"{self._name}: {reason}\nlog group: /aws/sagemaker/Endpoints/{self._name}")

    def _print(self, what: str) -> None:
        self._out.write(f"{self._clock.monotonic() - self._since:5.0f} s  {what}\n")
        self._out.flush()

    def _changes(self) -> Iterator[dict[str, Any]]:
        """Poll the endpoint until it is deleted. Yield each description, and print changes of its status."""
        printed = None
        while True:
            try:
                description = self._sagemaker.describe_endpoint(EndpointName=self._name)
            except ClientError as error:
                if not _is_missing(error):
                    raise
                self._print("deleted")
                return
            if description["EndpointStatus"] != printed:
                printed = description["EndpointStatus"]
                self._print(printed)
            yield description
            self._clock.sleep(_POLL_S)

    def _delete(self, operation: str, key: str) -> bool:
        """Delete one resource. Return False if it does not exist."""
        try:
            getattr(self._sagemaker, operation)(**{key: self._name})
        except ClientError as error:
            if not _is_missing(error):
                raise
            return False
        self._print(operation)
        return True

    def _wait_for_model(self, timeout_s: float) -> None:
        # TorchServe is healthy before its model is loaded. Requests wait until then, and may exceed the timeout of SageMaker or
        # boto3.
        deadline = self._clock.monotonic() + timeout_s
        while True:
            try:
                answer = self._runtime.invoke_endpoint(
                    EndpointName=self._name,
                    ContentType="application/json",
                    Body=b'{"type": "hello"}',
                )
            except (ClientError, HTTPClientError) as error:
                if self._clock.monotonic() > deadline:
                    raise self._failure(f"the model does not answer: {error}") from error
                self._clock.sleep(_POLL_S)
            else:
                self._print(f"answers: {answer['Body'].read().decode()}")
                return


def _is_missing(error: ClientError) -> bool:
    details = error.response["Error"]  # SageMaker has no error code for a missing resource
    return details["Code"] == "ValidationException" and "Could not find" in details["Message"]


def main(
    arguments: Sequence[str] | None = None,
    *,
    client: Callable[..., Any] = boto3.client,
    out: TextIO = sys.stdout,
    clock: Clock = SYSTEM_CLOCK,
) -> int:
    """Run a command. Return 1 if AWS refuses it or the endpoint does not start."""
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
            out,
            clock,
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
        sys.stderr.write(
            f"stopped waiting; the endpoint continues to start; `down {options.endpoint}` deletes it\n"
        )
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """Build the command line."""
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
        commands.add_parser("status", help="print SageMaker's description of the endpoint"),
        commands.add_parser("down", help="delete the endpoint, its configuration and its model"),
    ):
        command.add_argument("endpoint", help="name of the endpoint")
        command.add_argument("--region", help="default: that of the AWS CLI")
    _add_up(up)
    return top


def _add_up(up: argparse.ArgumentParser) -> None:
    up.add_argument("--image", required=True, help="the address that build_and_push.sh printed")
    up.add_argument("--role", required=True, metavar="ARN", help="the output of role.yaml's stack")
    up.add_argument(
        "--model-data",
        required=True,
        type=_s3_folder,
        metavar="S3_URI",
        help="the uncompressed folder of the model: s3://bucket/folder/",
    )
    up.add_argument("--instance-type", default="ml.g5.xlarge", help="default: %(default)s")
    up.add_argument("--instances", type=int, default=1, help="default: %(default)s")
    up.add_argument(
        "--env",
        action="append",
        default=[],
        type=_variable,
        metavar="NAME=VALUE",
        help="an environment variable of the container; may be repeated",
    )
    up.add_argument(
        "--ami",
        metavar="NAME",
        help=f"InferenceAmiVersion of the instances (default for GPUs: {_GPU_AMI})",
    )
    for flag, what in (("--download-timeout", "fetch the model"), ("--startup-timeout", "start")):
        up.add_argument(
            flag,
            type=int,
            default=1800,
            metavar="SECONDS",
            help=f"longest time for an instance to {what} (default: %(default)s)",
        )
    up.add_argument("--dry-run", action="store_true", help="print the calls, but make none")


def _s3_folder(text: str) -> str:
    if not text.startswith("s3://"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a folder in S3; write s3://bucket/folder/"
        )
    return (
        text.rstrip("/") + "/"
    )  # without the slash, other keys with this prefix would belong to the folder


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not a variable; write NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
