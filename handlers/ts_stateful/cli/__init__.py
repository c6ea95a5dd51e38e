"""The `ts-stateful` command: talk to a server, ask about it, check a configuration.

Owns the command line alone; what it does is done by the client and by `config_check`.
"""

from ts_stateful.cli.main import main

__all__ = ["main"]
