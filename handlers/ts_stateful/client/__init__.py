"""The client: sessions over gRPC, HTTP or SageMaker's runtime API, with one interface. It needs no torch.

from ts_stateful.client import connect

with connect("grpc://127.0.0.1:7070") as server, server.open(images=["scene.png"]) as session:
    reply = session.prompt("What color is the circle?")
    for piece in reply:
        print(piece, end="", flush=True)
    print(reply.finish_reason, reply.usage)
"""

from ts_stateful.client.documents import MAX_BODY_BYTES
from ts_stateful.client.errors import (
    ClientError,
    ConnectionClosed,
    DeadlineExceeded,
    ProtocolError,
    RequestTooLarge,
    ServerRefused,
    ServerUnreachable,
    StreamStalled,
)
from ts_stateful.client.images import ImageSource
from ts_stateful.client.reply import Reply
from ts_stateful.client.retry import RetryPolicy
from ts_stateful.client.server import Server, connect
from ts_stateful.client.session import PromptOptions, Session
from ts_stateful.client.steps import StepReply, Steps
from ts_stateful.client.sticky import StickySessions

__all__ = [
    "MAX_BODY_BYTES",
    "ClientError",
    "ConnectionClosed",
    "DeadlineExceeded",
    "ImageSource",
    "PromptOptions",
    "ProtocolError",
    "Reply",
    "RequestTooLarge",
    "RetryPolicy",
    "Server",
    "ServerRefused",
    "ServerUnreachable",
    "Session",
    "StepReply",
    "Steps",
    "StickySessions",
    "StreamStalled",
    "connect",
]
