"""The entry of `python -m ts_stateful.cli`, which is the same as `ts-stateful`."""

import sys

from ts_stateful.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
