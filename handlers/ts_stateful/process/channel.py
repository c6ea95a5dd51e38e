"""One connection between a worker and an engine, with a thread to read and a thread to write.

Owns the socket and its threads. Knows the framing of messages, not their meaning. A send never blocks its caller: what a
peer is slow to read waits here, bounded by what the engine generates.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from ts_stateful.process.messages import receive, send

__all__ = ["Channel"]

logger = logging.getLogger(__name__)


class Channel:
    """A connection that is read until it closes; `on_message` and, once, `on_close` are called from its reading thread."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        at_engine: bool,
        on_message: Callable[[Any], None],
        on_close: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._at_engine = at_engine
        self._on_message = on_message
        self._on_close = on_close
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._read, name="channel-read", daemon=True),
            threading.Thread(target=self._write, name="channel-write", daemon=True),
        ]

    def start(self) -> None:
        """Starts reading and writing."""
        for thread in self._threads:
            thread.start()

    def send(self, message: Any) -> None:
        """Queues a message; it is lost if the connection is."""
        self._outgoing.put(message)

    def flush(self, timeout_s: float) -> None:
        """Returns when everything that was sent before is on its way, or after `timeout_s`."""
        written = threading.Event()
        self._outgoing.put(written)
        written.wait(timeout_s)

    def close(self) -> None:
        """Closes the connection; the reading thread then calls `on_close`."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        try:
            while (message := receive(self._connection, at_engine=self._at_engine)) is not None:
                self._on_message(message)
        except OSError as error:
            logger.debug("connection lost: %s", error)
        except Exception:
            logger.exception("a message could not be taken; the connection is closed")
        finally:
            self._outgoing.put(None)
            self.close()
            self._on_close()

    def _write(self) -> None:
        try:
            while (message := self._outgoing.get()) is not None:
                if isinstance(message, threading.Event):
                    message.set()
                else:
                    send(self._connection, message)
        except OSError as error:
            logger.debug("connection lost: %s", error)
        except Exception:
            logger.exception("a message could not be sent; the connection is closed")
        finally:
            self.close()
            self._threads[0].join()
            self._connection.close()
