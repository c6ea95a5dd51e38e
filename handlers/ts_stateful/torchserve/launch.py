"""`python -m ts_stateful.torchserve.launch ARGUMENTS`: TorchServe's own command, which ends at the end of its standard input.

So it ends with the process that has the other end of that pipe, however that one ends. Java and the workers, which are in the
same process group, are killed. Engines see that, commit what they have, and exit.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading

__all__: list[str] = []


def _end_group(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    pipe = os.dup(0)  # which Java does not inherit
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_end_group, args=(pipe,), daemon=True).start()
    runpy.run_module("ts.model_server", run_name="__main__", alter_sys=True)
