"""One user: several conversations, of which one goes on at a time, as the script has it.

Owns the conversations and what may come of an act: a conversation that has run out of time ends, one with which something went
wrong is given up, and the user goes on with the others. What can be done in a conversation is in `acts`.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tests.e2e.speak import Speaker
from tests.soak.outages import Outages
from tests.soak.plan import DEADLINE_S, Budget, Plan
from tests.soak.raw import Raw
from tests.soak.script import Script
from tests.soak.talk import Answers, Opening, Talk, picture
from tests.soak.tally import Tally, Wrong
from ts_stateful.client import MAX_BODY_BYTES, ClientError, RetryPolicy, Server, Session, connect
from ts_stateful.protocol.errors import (
    SessionClosed,
    SessionExists,
    SessionExpired,
    SessionNotFound,
    StatefulError,
)
from ts_stateful.serving.server import LocalServer

__all__ = ["Act", "Shared", "User"]

_SMALL_BODY = 1500  # bytes: less than a picture
_TTL_S: Final = (2.0, 6.0)
_ROUNDING_S = 0.05  # between clocks of different processes
_REMEMBERED = 20


@dataclass
class Shared:
    """What all users have in common; `finished` are conversations that are over, `left` the ids of those left to expire."""

    server: LocalServer
    plan: Plan
    tally: Tally
    answers: Answers = field(default_factory=Answers)
    outages: Outages = field(default_factory=Outages)
    finished: list[Talk] = field(default_factory=list)
    left: set[str] = field(default_factory=set)


class User:
    """A user in one phase. A context manager: leaving it closes the connections, not the sessions."""

    def __init__(self, shared: Shared, number: int) -> None:
        phase = shared.tally.phase
        self.name = f"{phase}-{number}"
        self.shared = shared
        self.tally = shared.tally
        self.script = Script(random.Random(f"{shared.plan.seed} {self.name}"))
        self.talks: list[Talk] = []
        # Ids of sessions that are over: when they are, at the latest, and what they answer.
        self.gone: list[tuple[str, float, str]] = []
        self._speaker = Speaker(shared.server)
        self._speaker.http.timeout = DEADLINE_S
        self.raw = Raw(self._speaker, shared.outages, shared.tally)
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._speaker.http.close)
        self._grpc = self._connected(shared.server.grpc_url)
        self._http = self._connected(shared.server.http_url)
        self._small = self._connected(shared.server.http_url, _SMALL_BODY)
        self._num_opened = 0

    def run(self, budget: Budget, acts: dict[str, tuple[int, Act]]) -> None:
        """Acts until the budget is used up, then ends every conversation."""
        names = list(acts)
        weights = [weight for weight, _ in acts.values()]
        while budget.take():
            if not self.talks or (not self.is_full and self.script.chance(0.2)):
                self._do("open", self.open)
            else:
                talk = self.script.rng.choice(self.talks)
                name = self.script.rng.choices(names, weights)[0]
                self._do(name, partial(acts[name][1], self, talk), talk)
        for talk in list(self.talks):
            self._do("close", partial(self.close, talk), talk)

    @property
    def is_full(self) -> bool:
        """Whether there are as many conversations as there may be."""
        return len(self.talks) >= self.shared.plan.talks

    @property
    def codes_of_expired(self) -> set[str]:
        """What a session answers that has expired.

        Where that was while there was no engine, the next one sweeps its log away, and then nobody knows of it any more, but
        perhaps of a session that had its id before.
        """
        swept = {SessionNotFound.code, SessionClosed.code} if self.tally.total("kills") else set()
        return {SessionExpired.code, *swept}

    def open(self, session_id: str | None = None) -> None:
        """Begins a conversation: over one of the connections, under an id of somebody's choice, for a while or for long."""
        script, opening = self.script, self.script.opening()
        self._num_opened += 1
        name = f"{self.name}-{self._num_opened}"
        if session_id is None and script.chance(0.3):
            session_id = f"soak-{self.shared.plan.seed}-{name}"
        ttl_s = script.rng.uniform(*_TTL_S) if script.chance(0.15) else None
        server = script.rng.choices((self._grpc, self._http, self._small), (5, 5, 1))[0]
        began_at = time.monotonic()
        with self.tally.timed("open"):
            session = self._opened(server, opening, session_id, ttl_s)
        talk = Talk(
            name, session, opening, uploads=server is self._small and bool(opening.pictures)
        )
        if ttl_s is not None:
            talk.ends_at = began_at + ttl_s - _ROUNDING_S
            talk.ended_at = time.monotonic() + ttl_s + _ROUNDING_S
        self.talks.append(talk)

    def close(self, talk: Talk) -> None:
        """Ends a conversation."""
        with self.tally.timed("close"):
            talk.session.close()
        self.end(talk, "session_closed")

    def end(self, talk: Talk, code: str) -> None:
        """The conversation is over, or will be soon; what its id then answers is `code`."""
        self.talks.remove(talk)
        self.shared.finished.append(talk)
        if code == "session_expired":
            self.shared.left.add(talk.session_id)
        self.gone.append((talk.session_id, talk.ended_at or 0.0, code))
        del self.gone[:-_REMEMBERED]

    def attach(self, talk: Talk) -> None:
        """Takes a session up again behind a turn that the client library knows nothing of."""
        talk.session = self._http.attach(talk.session_id)

    def _opened(
        self, server: Server, opening: Opening, session_id: str | None, ttl_s: float | None
    ) -> Session:
        began_at = time.monotonic()
        try:
            return server.open(
                images=[picture(number) for number in opening.pictures],
                system=opening.system,
                ttl_s=ttl_s,
                session_id=session_id,
                metadata={"tenant": opening.tenant} if opening.tenant else {},
            )
        except SessionExists:
            # Asked again by the library, of whose first request the answer was lost: it cannot know whose the id is.
            if session_id is None or not self.shared.outages.touched(began_at):
                raise
            self.tally.count("errors asked for", "session_exists")
            return server.attach(session_id)

    def _do(self, name: str, act: Callable[[], None], talk: Talk | None = None) -> None:
        if talk is not None:
            talk.acts.append(name)
        try:
            if talk is not None and talk.ended_at is not None and time.monotonic() > talk.ended_at:
                talk.session.info()
                raise Wrong("the session goes on behind the end of its life")
            act()
        except (SessionExpired, SessionNotFound, SessionClosed) as error:
            may_be_over = talk is not None and time.monotonic() > (talk.ends_at or math.inf)
            if talk is not None and may_be_over and error.code in self.codes_of_expired:
                self.tally.count("errors asked for", error.code)
                self.end(talk, SessionExpired.code)
            else:
                self._failed(name, talk, error)
        except Exception as error:  # the others go on
            self._failed(name, talk, error)
        self.tally.count("acts", name)
        self.tally.count("acts of users", self.name)

    def _failed(self, name: str, talk: Talk | None, error: Exception) -> None:
        self.tally.fail(name, "" if talk is None else str(talk), error)
        if talk in self.talks:
            self.talks.remove(talk)
            with contextlib.suppress(ClientError, StatefulError):
                talk.session.close(timeout_s=5)

    def _connected(self, url: str, max_body_bytes: int = MAX_BODY_BYTES) -> Server:
        policy = RetryPolicy(max_retries=200, max_delay_s=1.0, random=_Counted(self))
        profile = self.shared.plan.profile if url.startswith("grpc") else None
        server = connect(
            url, timeout_s=DEADLINE_S, policy=policy, max_body_bytes=max_body_bytes, profile=profile
        )
        return self._stack.enter_context(server)

    def __enter__(self) -> User:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class _Counted(random.Random):
    """A user's source of chance, which counts the repeated requests of that user."""

    def __init__(self, user: User) -> None:
        super().__init__(user.name)
        self._tally = user.tally

    def random(self) -> float:
        """See `Random`; a client calls it only while it handles the error after which it repeats a request."""
        error = sys.exc_info()[1]
        assert error is not None
        self._tally.repeated(error)
        return super().random()


Act = Callable[[User, Talk], None]
