"""deploy/sagemaker/deploy.py against botocore's stub, which checks parameters and answers by SageMaker's API model."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError
from botocore.response import StreamingBody
from botocore.stub import Stubber

from deploy.sagemaker import deploy
from tests.support.clock import FakeClock

UP = ["up", "demo", "--image", "1234.dkr.ecr.us-east-1.amazonaws.com/ts:1", "--role"]
UP += ["arn:aws:iam::123456789012:role/endpoint", "--model-data", "s3://bucket/chat"]
ARN = "arn:aws:sagemaker:us-east-1:123456789012:endpoint/demo"


class Service:
    """Clients of SageMaker with prepared answers, and no network."""

    def __init__(self) -> None:
        self.clients = {
            name: boto3.client(
                name, region_name="us-east-1", aws_access_key_id="any", aws_secret_access_key="any"
            )
            for name in ("sagemaker", "sagemaker-runtime")
        }
        self.sagemaker, self.runtime = map(Stubber, self.clients.values())
        self.out = io.StringIO()

    def run(self, *arguments: str) -> int:
        """Run the command without waiting."""
        return deploy.main(
            arguments,
            client=lambda name, **_: self.clients[name],
            out=self.out,
            clock=FakeClock(),
        )

    def creates(self, instance_type: str = "ml.g5.xlarge") -> None:
        """Expect and answer the calls that make the endpoint."""
        options = [*UP, "--instance-type", instance_type]
        for operation, parameters in deploy.calls_to_make(deploy.parser().parse_args(options)):
            arn = "".join(part.title() for part in operation.split("_")[1:]) + "Arn"
            self.sagemaker.add_response(operation, {arn: ARN}, parameters)

    def describes(self, *statuses: str, **fields: str) -> None:
        """Answer with these statuses, one after the other."""
        now = datetime.now(timezone.utc)
        for status in statuses:
            description = {"EndpointName": "demo", "EndpointArn": ARN, "EndpointStatus": status}
            times = {"CreationTime": now, "LastModifiedTime": now}
            self.sagemaker.add_response("describe_endpoint", {**description, **times, **fields})

    def misses(self, operation: str) -> None:
        """Answer that the resource does not exist."""
        message = f"Could not find {operation} of demo."
        self.sagemaker.add_client_error(operation, "ValidationException", message)

    def answers(self) -> None:
        """Answer the `hello` of the model."""
        body = b'{"profile": "continuous"}'
        response: dict[str, Any] = {"Body": StreamingBody(io.BytesIO(body), len(body))}
        expected = {
            "EndpointName": "demo",
            "ContentType": "application/json",
            "Body": b'{"type": "hello"}',
        }
        self.runtime.add_response("invoke_endpoint", response, expected)


@pytest.fixture
def service() -> Iterator[Service]:
    """Return a service, and check that all prepared answers were used."""
    service = Service()
    with service.sagemaker, service.runtime:
        yield service
        service.sagemaker.assert_no_pending_responses()
        service.runtime.assert_no_pending_responses()
    for client in service.clients.values():
        client.close()


def test_up_makes_everything_and_waits_until_the_model_answers(service: Service) -> None:
    """An endpoint in service may still load its model; requests then time out."""
    service.creates()
    service.describes("Creating", "Creating", "InService")
    service.runtime.add_client_error("invoke_endpoint", "ModelError", "timed out")
    service.answers()
    silent = [ReadTimeoutError(endpoint_url="https://runtime"), None]

    def wait(**_: object) -> None:
        if error := silent.pop() if silent else None:
            raise error

    service.clients["sagemaker-runtime"].meta.events.register("provide-client-params", wait)
    assert service.run(*UP) == 0
    assert silent == []
    printed = [line.split("s  ", 1)[1] for line in service.out.getvalue().splitlines()]
    assert printed[:3] == ["create_model", "create_endpoint_config", "create_endpoint"]
    assert printed[3:] == ["Creating", "InService", 'answers: {"profile": "continuous"}']


def test_up_reports_why_an_endpoint_failed(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names its log group."""
    service.creates()
    service.describes("Creating")
    service.describes("Failed", FailureReason="The container did not pass the ping health check.")
    assert service.run(*UP) == 1
    error = capsys.readouterr().err
    assert "did not pass the ping" in error
    assert "/aws/sagemaker/Endpoints/demo" in error


def test_up_gives_up_on_a_model_that_never_answers(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits as long as an instance may take to start."""
    service.creates()
    service.describes("InService")
    for _ in range(3):
        service.runtime.add_client_error("invoke_endpoint", "ModelError", "timed out")
    sagemaker, runtime = service.clients.values()
    endpoint = deploy.Endpoint("demo", sagemaker, runtime, service.out, FakeClock())
    with pytest.raises(deploy.Failed, match="does not answer"):
        endpoint.up(deploy.calls_to_make(deploy.parser().parse_args(UP)), load_timeout_s=20)
    assert capsys.readouterr().err == ""


def test_up_prints_a_refusal_of_aws(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a line, not a traceback."""
    message = "Cannot create already existing model"
    service.sagemaker.add_client_error("create_model", "ValidationException", message)
    assert service.run(*UP) == 1
    assert message in capsys.readouterr().err


def test_down_deletes_in_the_order_in_which_it_can_be_done(service: Service) -> None:
    """The endpoint comes first, and the rest after its deletion."""
    service.sagemaker.add_response("delete_endpoint", {}, {"EndpointName": "demo"})
    service.describes("Deleting", "Deleting")
    service.misses("describe_endpoint")
    expected = {"EndpointConfigName": "demo"}
    service.sagemaker.add_response("delete_endpoint_config", {}, expected)
    service.sagemaker.add_response("delete_model", {}, {"ModelName": "demo"})
    assert service.run("down", "demo") == 0
    assert [line.split()[-1] for line in service.out.getvalue().splitlines()] == [
        "delete_endpoint",
        "Deleting",
        "deleted",
        "delete_endpoint_config",
        "delete_model",
    ]


def test_down_cleans_up_after_half_an_up(service: Service) -> None:
    """Missing resources are skipped."""
    service.misses("delete_endpoint")
    service.misses("delete_endpoint_config")
    service.sagemaker.add_response("delete_model", {}, {"ModelName": "demo"})
    assert service.run("down", "demo") == 0


def test_down_stops_where_it_may_not_delete(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other errors than a missing resource end the command."""
    service.sagemaker.add_client_error("delete_endpoint", "AccessDeniedException", "not yours")
    assert service.run("down", "demo") == 1
    assert "not yours" in capsys.readouterr().err


def test_status_is_the_description_of_sagemaker(service: Service) -> None:
    """It is JSON."""
    service.describes("InService")
    assert service.run("status", "demo") == 0
    assert '"EndpointStatus": "InService"' in service.out.getvalue()


def test_a_dry_run_makes_no_call(service: Service) -> None:
    """It prints all calls; the folder of the model ends with a slash, so no other folder matches."""
    assert service.run(*UP, "--dry-run", "--env", "TS_MAX_REQUEST_SIZE=7000000") == 0
    shown = service.out.getvalue()
    assert shown.index("create_model") < shown.index("create_endpoint_config")
    assert '"S3Uri": "s3://bucket/chat/"' in shown
    assert '"TS_MAX_REQUEST_SIZE": "7000000"' in shown
    assert '"TS_STATEFUL_ENDPOINT_NAME": "demo"' in shown


@pytest.mark.parametrize(
    ("arguments", "ami"),
    [
        (["--instance-type", "ml.g6.xlarge"], "al2023-ami-sagemaker-inference-gpu-4-1"),
        (["--instance-type", "ml.g6.xlarge", "--ami", ""], None),
        (["--instance-type", "ml.c7i.xlarge"], None),
        (["--instance-type", "ml.c7i.xlarge", "--ami", "other"], "other"),
    ],
)
def test_instances_with_a_gpu_get_a_driver_that_is_new_enough(
    arguments: list[str], ami: str | None
) -> None:
    """`--ami` chooses another one."""
    calls = deploy.calls_to_make(deploy.parser().parse_args([*UP, *arguments]))
    (variant,) = calls[1].parameters["ProductionVariants"]
    assert variant.get("InferenceAmiVersion") == ami


@pytest.mark.parametrize("arguments", [["--model-data", "bucket/chat"], ["--env", "NAME"]])
def test_malformed_options_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 2, and the message names the option's value."""
    with pytest.raises(SystemExit) as exit_:
        deploy.main([*UP, *arguments])
    assert exit_.value.code == 2
    assert arguments[1] in capsys.readouterr().err
