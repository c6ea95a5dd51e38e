"""The search for a program of attacks that another client of the server notices."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.e2e.speak import DIALOGUE, HEADER, SCENE_BASE64
from tests.fuzz.attacks import Ports
from tests.fuzz.programs import PROGRAMS, Program, programs, smaller, written
from tests.fuzz.search import FINDINGS, Finding, run

__all__ = ["DEADLINE_S", "Broken", "Siege"]

DEADLINE_S = 10.0
"""For another client's answer after an attack: five seconds, and five in which the server replaces a worker."""
_CALM_S = (
    60.0  # until the server is as it was: sessions of attackers expire, a lost worker is replaced
)
_MAX_RUNS = 40  # of programs that are smaller than the one that was found
_PAUSE_S = 0.1
_OPEN = {"type": "open", "images": [{"base64": SCENE_BASE64}]}


class Broken(AssertionError):
    """The server does not do for other clients what it must."""


class Witness:
    """A client whose session must go on: its next question is answered rightly.

    A context manager: entering opens the session, leaving closes it.
    """

    def __init__(self, url: str) -> None:
        self._url = f"{url}/predictions/chat"
        self._http = httpx.Client(trust_env=False)
        self._headers: dict[str, str] = {}
        self._turn = 0

    def __enter__(self) -> Witness:
        self._headers = {HEADER: self._answer(_OPEN, {}, _CALM_S)["session_id"]}
        self.goes_on(_CALM_S)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Broken):  # a session that stays open expires
            self._answer({"type": "close"}, self._headers, DEADLINE_S)
        self._http.close()

    def goes_on(self, deadline_s: float) -> None:
        """Have a new client greet the server, and ask the next question of the dialogue.

        Raises:
            Broken: one of them has no answer in time, or a wrong one.
        """
        self._answer({"type": "hello"}, {}, deadline_s)
        question, right = DIALOGUE[self._turn]
        self._turn += 1
        # The number makes the turn idempotent: a request that was lost may be sent again.
        asked = {"prompt": question, "turn": self._turn}
        text = self._answer(asked, self._headers, deadline_s)["text"]
        if text != right:
            raise Broken(f"{question!r} was answered {text!r}, not {right!r}")

    def _answer(
        self, document: dict[str, Any], headers: dict[str, str], deadline_s: float
    ) -> dict[str, Any]:
        """Return the answer to a request, which is sent again where it is lost or may be repeated."""
        deadline, last = time.monotonic() + deadline_s, "nothing"
        patience_s = 1.0  # with one request, which may be lost
        while (rest_s := deadline - time.monotonic()) > 0:
            try:
                response = self._http.post(
                    self._url, json=document, headers=headers, timeout=min(rest_s, patience_s)
                )
                answer = dict(response.json())
            except (httpx.HTTPError, TypeError, ValueError) as lost:
                last, patience_s = f"{type(lost).__name__}: {lost}", 2 * patience_s
                continue
            if response.status_code == 200:
                return answer
            last, error = f"{response.status_code} {answer}", answer.get("error", {})
            if "code" in error and not error.get("retryable"):
                raise Broken(f"{str(document)[:200]} was refused: {last}")
            time.sleep(min(_PAUSE_S, rest_s))  # one of TorchServe's own errors, or one that passes
        raise Broken(
            f"no answer to {str(document)[:200]} within {deadline_s:.0f} s; at last {last}"
        )


class Siege:
    """Attacks on one server that serves examples/shapes as `chat`; after each of them another client must be served.

    Args:
        url: of its HTTP API.
        grpc_url: of its gRPC API.
        deadline_s: seconds in which another client is answered after an attack.
    """

    def __init__(self, url: str, grpc_url: str, deadline_s: float = DEADLINE_S) -> None:
        http, rpc = urlsplit(url), urlsplit(grpc_url)
        self._url = url
        self._ports = Ports(
            (http.hostname or "", http.port or 80), (rpc.hostname or "", rpc.port or 7070)
        )
        self._deadline_s = deadline_s
        self.num_attacks = 0
        self.slowest_s = 0.0

    def run(self, program: Program) -> None:
        """Run a program while another client talks.

        Raises:
            Broken: an attack of it has harmed that client.
        """
        with Witness(self._url) as witness, contextlib.ExitStack() as stack:
            for attack in program:
                left: list[socket.socket] = []
                attack.run(self._ports, left)
                for connection in left:
                    stack.enter_context(connection)
                self.num_attacks += 1
                began_at = time.monotonic()
                witness.goes_on(self._deadline_s)
                self.slowest_s = max(self.slowest_s, time.monotonic() - began_at)

    def search(
        self,
        *,
        examples: int,
        seed: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
        folder: Path = FINDINGS,
    ) -> Finding | None:
        """Run generated programs until one harms others, or the time is over; without a seed, they are the same each time."""
        found: list[Finding] = []

        def attempt(program: Program) -> None:
            if not found and not is_over():
                found.extend(filter(None, [self.tried(program, folder)]))

        run(attempt, programs(), seed=seed, examples=examples, shrinks=False)
        return found[0] if found else None

    def tried(self, program: Program, folder: Path = FINDINGS) -> Finding | None:
        """Run a program; if it harms others, keep the smallest one that does."""
        before = self.num_attacks
        if (broken := self._broken(program)) is None:
            return None
        smallest, num_runs, search_again = program[: self.num_attacks - before], 0, True
        while search_again:
            search_again = False
            for less in smaller(smallest):
                num_runs += 1
                if num_runs > _MAX_RUNS or not self._is_calm():
                    break
                if reason := self._broken(less):
                    smallest, broken, search_again = less, reason, True
                    break
        text = written(smallest)
        return Finding.keep(PROGRAMS, text, f"{text.decode()[:2000]}{broken}", folder)

    def _broken(self, program: Program) -> Broken | None:
        try:
            self.run(program)
        except Broken as broken:
            return broken
        return None

    def _is_calm(self) -> bool:
        """Wait until another client is served; return False if it is not."""
        with contextlib.suppress(Broken), Witness(self._url):
            return True
        return False
