"""The `ts-stateful` command: talk to a server, ask about it, plan and check a configuration, serve a local endpoint.

Owns the command line alone; what it does is done by the client, by `plan`, by `config_check` and by `sagemaker_local`.
"""

import os

# TorchServe drops the connection on which a client finds out the profile, and gRPC, which reads this when it is imported, would
# log that to the terminal.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from ts_stateful.cli.main import main

__all__ = ["main"]
