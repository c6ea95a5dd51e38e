"""A session server without a model: it follows the wire protocol, with known replies and faults on demand."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ts_stateful.protocol.errors import (
    InvalidRequest,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    StatefulError,
    TurnGap,
)
from ts_stateful.protocol.requests import parse_request
from ts_stateful.protocol.session_ids import resolve_session_id
from ts_stateful.protocol.strict_json import parse_json

# Separators that Python takes for ends of lines, and characters of two UTF-16 units and of several code points.
SPECIAL = "a\u2028b\x85 \U0001d518\U0001d52b \U0001f469\u200d\U0001f52c e\u0301"
STEP = 3  # characters that one step generates


def reply_to(prompt: str) -> str:
    """Return the reply of the fake model."""
    return f"You said {prompt!r}: {SPECIAL}."


@dataclass(frozen=True)
class Fault:
    """A fault of one request of a type.

    `error` replaces the answer. Otherwise the connection breaks after `events` documents; with `stalls` it falls silent, with
    `ends` it ends as a good one does. With `lost` the request is applied before.
    """

    error: StatefulError | None = None
    events: int = 0
    lost: bool = False
    stalls: bool = False
    ends: bool = False
    status: int | None = None  # of an answer that is not of this protocol
    body: bytes = b""


@dataclass
class Turn:
    """One turn: `num_chars` of its text are generated; it is committed if it has a `finish_reason`."""

    number: int
    prompt: str
    text: str
    num_chars: int = 0
    finish_reason: str | None = None

    def step(self) -> str:
        """Generate a little more; return the new piece."""
        piece = self.text[self.num_chars : self.num_chars + STEP]
        self.num_chars += len(piece)
        if self.num_chars == len(self.text) and self.finish_reason is None:
            self.finish_reason = "stop"
        return piece

    def end(self, after: int) -> dict[str, Any]:
        """Return the last event, with the text after `after`."""
        return {
            "text": self.text[: self.num_chars][after:],
            "turn": self.number,
            "finish_reason": self.finish_reason,
            "usage": {
                "prompt_tokens": 10 * self.number,
                "completion_tokens": self.num_chars,
                "prompt_tokens_details": {"cached_tokens": 10 * (self.number - 1)},
            },
            "timing": {"first_token_ms": 1.5, "total_ms": 3.0},
        }


@dataclass
class FakeSessions:
    """The sessions. `requests` has every document that arrived, `violations` the broken rules."""

    profile: str = "continuous"
    quiet: int = 0  # `continue`s that find nothing new, before each that does
    unregistered: int = 0  # requests for which there is no model
    overtakes: bool = False  # whether answers come before the error of a wrong call
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    sessions: dict[str, list[Turn]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))
    lock: threading.RLock = field(default_factory=threading.RLock)
    uploads: dict[tuple[str, str], dict[int, bytes]] = field(default_factory=dict)
    texts: deque[str] = field(default_factory=deque)  # of the next replies
    _silence: int = 0

    def fail(self, kind: str, *faults: Fault) -> None:
        """Give these faults to the next requests of a type, one each."""
        self.faults[kind].extend(faults)

    def fault_for(self, kind: str) -> Fault | None:
        """Take the fault of a request."""
        with self.lock:
            return self.faults[kind].popleft() if self.faults[kind] else None

    def is_unregistered(self) -> bool:
        """Return True if there is no model for a request."""
        with self.lock:
            missing = self.unregistered > 0
            self.unregistered -= missing
            return missing

    def kinds(self) -> list[str]:
        """Return the types of the requests that arrived, in order."""
        return [str(request["type"]) for request in self.requests]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the requests of a type, in order."""
        return [request for request in self.requests if request["type"] == kind]

    def read(self, body: bytes, header: str | None = None) -> dict[str, Any]:
        """Parse the document in a body, checked as the server checks it."""
        document = parse_json(body)
        parse_request(document)
        document.setdefault("type", "prompt")
        document["session_id"] = resolve_session_id(header, document.get("session_id"))
        with self.lock:
            self.requests.append(document)
        return document

    def answers(self, request: dict[str, Any], *, pull: bool) -> Iterator[dict[str, Any]]:
        """Yield the documents of the answer; for a streamed prompt one by one, while it generates."""
        if request["type"] == "prompt" and not pull:
            yield from self._pushed(request)
            return
        with self.lock:
            yield getattr(self, f"_{request['type']}")(request)

    def _turns(self, request: dict[str, Any]) -> list[Turn]:
        session_id = request["session_id"]
        if session_id in self.closed:
            raise SessionClosed(f"session {session_id} was closed")
        if session_id not in self.sessions:
            raise SessionNotFound(f"no session {session_id}")
        return self.sessions[session_id]

    def _turn(self, request: dict[str, Any]) -> Turn:
        turns = self._turns(request)
        number = request.get("turn") or len(turns) + 1
        if number > len(turns) + 1:
            raise TurnGap(f"turn {number} was asked for, but turn {len(turns) + 1} is next")
        for index, image in enumerate(request.get("images", ())):
            if "upload" in image and not self._is_whole(request["session_id"], image["upload"]):
                raise InvalidRequest("no such upload", field=f"images[{index}].upload")
        if number == len(turns) + 1:
            text = self.texts.popleft() if self.texts else reply_to(request["prompt"])
            turns.append(Turn(number, request["prompt"], text))
        return turns[number - 1]

    def _pushed(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        sent = 0
        with self.lock:
            turn = self._turn(request)
            replayed = {"replayed": True} if turn.finish_reason else {}
        while turn.finish_reason is None:
            with self.lock:
                turn.step()
                piece = turn.text[sent : turn.num_chars]
            if request.get("stream") and turn.finish_reason is None:
                sent += len(piece)
                yield {"text": piece}
        yield {**turn.end(sent), "session_id": request["session_id"], **replayed}

    def _prompt(self, request: dict[str, Any]) -> dict[str, Any]:
        turn = self._turn(request)
        if turn.finish_reason is not None:
            return {**turn.end(0), "next": turn.num_chars, "more": False, "replayed": True}
        return {
            "text": turn.text[: turn.num_chars],
            "session_id": request["session_id"],
            "turn": turn.number,
            "next": turn.num_chars,
            "more": True,
        }

    def _continue(self, request: dict[str, Any]) -> dict[str, Any]:
        turns, number, after = self._turns(request), request["turn"], request.get("after", 0)
        if number > len(turns):
            raise TurnGap(f"there is no turn {number} of this session", field="turn")
        turn = turns[number - 1]
        if self._silence < self.quiet and turn.finish_reason is None:
            self._silence += 1
            return {"text": "", "next": turn.num_chars, "more": True}
        self._silence = 0
        turn.step()
        if turn.finish_reason is not None:
            return {**turn.end(after), "next": turn.num_chars, "more": False}
        return {"text": turn.text[after : turn.num_chars], "next": turn.num_chars, "more": True}

    def _open(self, request: dict[str, Any]) -> dict[str, Any]:
        session_id = request["session_id"] or "made-by-the-server"
        if session_id in self.sessions:
            raise SessionExists(f"session {session_id} is open")
        self.sessions[session_id] = []
        return {
            "session_id": session_id,
            "expires_at": "2030-01-01T00:00:00Z",
            "usage": {"prompt_tokens": 7},
        }

    def _fork(self, request: dict[str, Any]) -> dict[str, Any]:
        turns, session_id = self._committed(request, "at_turn"), request["new_session_id"]
        if session_id in self.sessions:
            raise SessionExists(f"session {session_id} is open", field="new_session_id")
        self.sessions[session_id] = turns
        return {
            "session_id": session_id,
            "expires_at": "2030-01-01T00:00:00Z",
            "usage": {"prompt_tokens": 7 + 10 * len(turns)},
            "forked_from": request["session_id"],
            "turn": len(turns),
        }

    def _rewind(self, request: dict[str, Any]) -> dict[str, Any]:
        turns = self._turns(request)
        if any(turn.finish_reason is None for turn in turns):
            raise TurnGap("a turn is in progress")
        turns[:] = self._committed(request, "to_turn")
        return {
            "session_id": request["session_id"],
            "turn": len(turns),
            "tokens": 7 + 10 * len(turns),
        }

    def _committed(self, request: dict[str, Any], field: str) -> list[Turn]:
        turns = [turn for turn in self._turns(request) if turn.finish_reason is not None]
        count = request.get(field, len(turns))
        if count > len(turns):
            raise TurnGap(f"there is no turn {count}", field=field)
        return turns[:count]

    def _upload(self, request: dict[str, Any]) -> dict[str, Any]:
        self._turns(request)
        session_id, sha256 = request["session_id"], request["sha256"]
        request.setdefault("part", 0)
        request.setdefault("parts", 1)
        parts = self.uploads.setdefault((session_id, sha256), {})
        parts[request["part"]] = base64.b64decode(request["base64"])
        missing = [number for number in range(request["parts"]) if number not in parts]
        return {
            "session_id": session_id,
            "sha256": sha256,
            "received": len(parts),
            "missing": missing,
            "complete": not missing,
        }

    def _is_whole(self, session_id: str, sha256: str) -> bool:
        parts = self.uploads.get((session_id, sha256), {})
        whole = b"".join(parts[number] for number in sorted(parts))
        return hashlib.sha256(whole).hexdigest() == sha256

    def _cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        running = [turn for turn in self._turns(request) if turn.finish_reason is None]
        for turn in running[:1]:
            turn.text, turn.finish_reason = turn.text[: turn.num_chars], "cancelled"
        number = running[0].number if running else None
        return {"session_id": request["session_id"], "cancelled": bool(running), "turn": number}

    def _close(self, request: dict[str, Any]) -> dict[str, Any]:
        self._turns(request)
        self.closed.add(request["session_id"])
        return {"session_id": request["session_id"], "closed": True}

    def _info(self, request: dict[str, Any]) -> dict[str, Any]:
        turns = self._turns(request)
        return {
            "session_id": request["session_id"],
            "age_s": 2.5,
            "idle_s": 0.5,
            "expires_at": "2030-01-01T00:00:00Z",
            "turns": sum(turn.finish_reason is not None for turn in turns),
            "tokens": 7 + 10 * len(turns),
            "cached_tokens": 7,
            "images": 1,
            "residency": "device",
            "device_bytes": 1024,
            "host_bytes": 0,
            "running": any(turn.finish_reason is None for turn in turns),
            "waiting": 0,
        }

    def _hello(self, request: dict[str, Any]) -> dict[str, Any]:
        limits = {"max_sessions": 8, "idle_s": 600, "lifetime_s": 3600, "queued_prompts": 8}
        limits |= {"context_tokens": 1000, "images": 2, "image_bytes": 100, "image_pixels": 10000}
        return {
            "server": "torchserve-stateful",
            "version": "0.0",
            "profile": self.profile,
            "model": "fake",
            "limits": limits,
        }
