"""A connection between a worker and an engine, with one thread that reads and one that writes."""

from __future__ import annotations

import contextlib
import errno
import logging
import queue
import socket
import threading
from collections.abc import Iterable
from typing import Any, Protocol

from ts_stateful.process.blocks import BlockReader
from ts_stateful.process.messages import MessageTooLong, frame, receive
from ts_stateful.protocol.errors import InternalError, InvalidRequest
from ts_stateful.protocol.events import Event, Submit

__all__ = ["Channel", "ChannelOwner"]

logger = logging.getLogger(__name__)

_MAX_TOGETHER = 128  # messages of one call of the system
_SHORT_BYTES = 1 << 14  # longer ones are not copied to be joined


class ChannelOwner(Protocol):
    """The object that handles a channel's messages, in the channel's threads."""

    def on_message(self, channel: Channel, message: Any) -> None:
        """Handle a message from the peer, or the answer to one that is too long to be sent."""

    def on_close(self, channel: Channel) -> None:
        """Handle the end of the connection; called once."""


class Channel:
    """A connection that is read until it closes.

    Messages that the peer is slow to read wait here. Their number is bounded by what the engine generates.
    """

    def __init__(self, connection: socket.socket, owner: ChannelOwner, *, at_engine: bool) -> None:
        self._connection = connection
        self._owner = owner
        self._at_engine = at_engine
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._num_waiting = 0  # messages that the writing thread has not written to the end
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="channel-read", daemon=True)
        self._writer = threading.Thread(target=self._write, name="channel-write", daemon=True)

    def start(self) -> None:
        """Start reading and writing. Raises OSError if there is no thread for it; the connection is then closed."""
        try:
            self._reader.start()
        except RuntimeError as error:
            self._connection.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    def send(self, message: Any) -> None:
        """Queue a message and return at once. It is lost if the connection breaks."""
        with self._lock:
            self._enqueue(message)

    def send_together(self, messages: Iterable[Any]) -> None:
        """Send messages without another thread if the peer has read all others; what it is slow to read is queued."""
        try:
            data = b"".join(map(self._frame, messages))
        except Exception:  # the boundary of a message; both sides are notified
            logger.exception("cannot send a message; closing the connection")
            self.close()
            return
        with self._lock:
            sent = 0 if self._num_waiting else self._send_now(data)
            if sent < len(data):
                self._enqueue(data[sent:])

    def flush(self, timeout_s: float) -> None:
        """Return when all earlier messages are written, or after `timeout_s`."""
        written = threading.Event()
        self.send(written)
        written.wait(timeout_s)

    def close(self) -> None:
        """Close the connection; the reading thread then calls the owner's `on_close`."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _enqueue(self, message: Any) -> None:
        self._num_waiting += 1
        self._outgoing.put(message)

    def _send_now(self, data: bytes) -> int:
        """Write what the connection takes at once, and return its length. A broken connection takes all."""
        try:
            return self._connection.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # the reading thread will see it
            return len(data)

    def _read(self) -> None:
        blocks = BlockReader(self._connection)
        try:
            self._writer.start()
            while (message := receive(blocks, at_engine=self._at_engine)) is not None:
                self._owner.on_message(self, message)
        except MessageTooLong as error:
            logger.error("closing the connection: %s", error)
        except OSError as error:
            logger.debug("connection lost: %s", error)
        except Exception:  # the boundary of the reading thread
            logger.exception("cannot handle a message; closing the connection")
        finally:
            self._outgoing.put(None)
            self.close()
            if self._writer.ident is None:  # there was no thread for it
                self._connection.close()
            self._owner.on_close(self)

    def _write(self) -> None:
        try:
            is_open = True
            while is_open:
                messages = self._take()
                if messages[-1] is None:
                    messages.pop()
                    is_open = False
                self._write_together(messages)
                with self._lock:
                    self._num_waiting -= len(messages)
        except OSError as error:
            logger.debug("connection lost: %s", error)
        except Exception:  # the boundary of the writing thread
            logger.exception("cannot send a message; closing the connection")
        finally:
            self.close()
            self._reader.join()
            self._connection.close()

    def _take(self) -> list[Any]:
        """Wait for a message, and take those that follow it already; the last one is None if there will be no more."""
        taken = [self._outgoing.get()]
        while taken[-1] is not None and len(taken) < _MAX_TOGETHER and not self._outgoing.empty():
            taken.append(self._outgoing.get())  # no other thread takes any
        return taken

    def _write_together(self, messages: Iterable[Any]) -> None:
        """Write short messages at once: the peer then reads them at once, and a model steps their sequences in one pass."""
        short: list[bytes] = []
        flushes: list[threading.Event] = []
        for message in messages:
            if isinstance(message, threading.Event):
                flushes.append(message)
                continue
            data = message if isinstance(message, bytes) else self._frame(message)
            if len(data) <= _SHORT_BYTES:
                short.append(data)
                continue
            self._connection.sendall(b"".join(short))
            self._connection.sendall(data)
            short.clear()
        self._connection.sendall(b"".join(short))
        for flushed in flushes:
            flushed.set()

    def _frame(self, message: Any) -> bytes:
        """Return a message as it is sent. One that is too long costs its request, and no other: the connection stays."""
        try:
            return frame(message)
        except MessageTooLong as error:
            logger.error("not sent: %s", error)
            if isinstance(message, Submit):
                refusal = InvalidRequest(f"the request cannot be sent to its engine: {error}")
                self._owner.on_message(self, Event.refusal(message.request_id, refusal))
            elif isinstance(message, Event):
                failure = InternalError(f"the answer cannot be sent: {error}")
                return frame(Event.refusal(message.request_id, failure))
            return b""
