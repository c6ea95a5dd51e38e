"""The ids that requests get."""

from __future__ import annotations

import os
import re

from ts_stateful.frontend.request_ids import new_request_id


def test_ids_are_hexadecimal_and_never_the_same() -> None:
    """Also beyond those that are made at once."""
    ids = [new_request_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)


def test_a_forked_process_gives_other_ids() -> None:
    """Those that were made before the fork are its parent's."""
    new_request_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, "".join(new_request_id() for _ in range(100)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    found = os.read(reader, 100 * 32).decode()
    theirs = {found[at : at + 32] for at in range(0, len(found), 32)}
    os.close(reader)
    os.close(writer)
    assert len(theirs) == 100
    assert not theirs & {new_request_id() for _ in range(100)}
