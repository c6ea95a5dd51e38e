"""The `ts-stateful` command: talk to a server, examine and repair it, plan and check a configuration."""

import os

# TorchServe drops the connection on which a client asks for the profile. gRPC would log that to the terminal. It reads this
# variable at import.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

try:
    from ts_stateful.cli.main import main
except KeyboardInterrupt:
    raise SystemExit(130) from None

__all__ = ["main"]
