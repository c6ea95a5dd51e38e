"""The threads that compute the passes of an engine."""

from __future__ import annotations

import threading

import torch

from ts_stateful.config.control_groups import ControlGroups

__all__ = ["set_threads"]

_SMALL_MODEL = 10_000_000  # parameters


def set_threads(
    count: int, num_parameters: int, num_ranks: int = 1, groups: ControlGroups | None = None
) -> None:
    """Set the threads of a forward pass: for a small model, a second one costs more than it saves. Ranks share the cores.

    The CPU limit of `groups` bounds them too: in each pass the others would wait for a thread whose time is used up.

    Passes are computed by the calling thread. Each other thread, of those that start later, computes alone: with a second team
    of threads, there are more of them than cores, and then OpenMP lets them sleep between any two parts of a pass, which took
    twice as long.
    """
    num_threads = torch.get_num_threads()  # from here on, this thread keeps its own number
    share = max(1, int(min(num_threads, (groups or ControlGroups()).cpus())) // num_ranks)
    torch.set_num_threads(count or (1 if num_parameters < _SMALL_MODEL else share))
    others = threading.Thread(target=torch.set_num_threads, args=(1,))
    others.start()
    others.join()
