"""The same conversations once more, one after the other, while nobody else speaks.

Owns which of them and how far: an answer that follows from nothing but chance ends it. What is said is compared by `Answers`.
"""

from __future__ import annotations

import random

from tests.soak.talk import Past, Talk, picture
from tests.soak.user import Shared
from ts_stateful.client import Server

__all__ = ["replay", "some_of"]


def some_of(talks: list[Talk], count: int, seed: str) -> list[Talk]:
    """So many of those in which something was said, whatever the order in which they have ended."""
    spoken = sorted(
        (talk for talk in talks if talk.past), key=lambda talk: (talk.name, talk.session_id)
    )
    return random.Random(seed).sample(spoken, min(count, len(spoken)))


def replay(shared: Shared, talk: Talk, server: Server) -> None:
    """Holds a conversation again.

    Raises:
        Wrong: an answer differs.
    """
    opening = talk.opening
    again = Talk(talk.name, talk.session, opening)
    images = [picture(number) for number in opening.pictures]
    with server.open(images=images, system=opening.system) as session:
        for past in talk.past:
            said = past.said
            # How much of a cancelled turn there is depends on the moment; and with it all that follows.
            if not said.is_reproducible or past.finish_reason == "cancelled":
                return
            state = again.state()
            pictures = [picture(number) for number in said.pictures]
            reply = session.prompt(said.prompt, images=pictures, **dict(said.options))
            text = reply.result()
            assert reply.usage is not None
            reason, tokens = str(reply.finish_reason), reply.usage.completion_tokens
            shared.tally.count("turns", "replayed")
            shared.answers.check(state, Past(said, text, reason, tokens))
            again.past.append(past)
