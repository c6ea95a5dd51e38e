"""The images of a turn and the grammar of its reply, which it needs before it can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from concurrent.futures import Future
from functools import partial

from ts_stateful.engine.core import EngineCore
from ts_stateful.language.conversation.context import Context
from ts_stateful.language.conversation.turn import Sequence, TurnStatus
from ts_stateful.language.defects import turn_defect
from ts_stateful.language.encoders.encoder import MediaInput
from ts_stateful.language.encoders.loader import (
    KnownImages,
    Loaded,
    MediaFiles,
    MediaReader,
    urls_of,
)
from ts_stateful.language.grammar.compiler import (
    CallsOrForm,
    Compiled,
    GrammarCompiler,
    grammar_of_calls,
)
from ts_stateful.language.network.load import Model
from ts_stateful.language.turns.implicit_sessions import ImplicitSessions
from ts_stateful.protocol.chat import Chat
from ts_stateful.protocol.errors import InvalidRequest, StatefulError
from ts_stateful.protocol.requests import Media, Prompt
from ts_stateful.protocol.response_format import ResponseFormat

__all__ = ["Ready", "TurnInputs"]

Ready = Callable[[Sequence, StatefulError | None], None]


class TurnInputs:
    """Gets the inputs of one engine's turns, of which a turn that is done needs none any more."""

    def __init__(
        self,
        core: EngineCore[Context],
        model: Model,
        files: MediaFiles,
        grammars: GrammarCompiler,
        implicit: ImplicitSessions,
    ) -> None:
        self._files, self._queue = files, core.queue
        self._reader = MediaReader(model.encoder, core.shared) if model.encoder else None
        self._grammars = grammars
        self._model = model
        self._implicit = implicit

    def get(
        self, sequence: Sequence, images: Items[Media], files: Items[bytes], ready: Ready
    ) -> None:
        """Get what a turn needs, and pass it to `ready` with the error if something cannot be had."""
        if not images and not files:
            self._compile(sequence, ready)
            return
        assert self._reader is not None
        tenant, shown = sequence.session.tenant, KnownImages(images, self._known_images(sequence))

        def loaded(done: Future[list[MediaInput]]) -> None:
            self._queue.put(partial(self._loaded, sequence, ready, shown.outcome(done)))

        read = partial(self._reader.read, tenant=tenant)
        self._files.load(shown.unknown, files, read, tenant).add_done_callback(loaded)

    def _known_images(self, sequence: Sequence) -> Mapping[str, MediaInput]:
        if not isinstance(sequence.command, Chat):
            return {}
        if sequence.ephemeral:
            return self._implicit.images_of(sequence.session, sequence.command)
        return sequence.context.by_url

    def _loaded(self, sequence: Sequence, ready: Ready, loaded: Loaded) -> None:
        if sequence.status is TurnStatus.DONE:
            return
        if isinstance(loaded, StatefulError):
            ready(sequence, loaded)
            return
        sequence.images = loaded
        if isinstance(sequence.command, Chat):
            sequence.urls = urls_of(sequence.command.media, loaded)
        self._compile(sequence, ready)

    def _compile(self, sequence: Sequence, ready: Ready) -> None:
        try:
            asked = self._form_of(sequence.command)
            if asked is not None:
                self._grammars.compile(asked, partial(self._compiled, sequence, ready))
        except StatefulError as error:
            ready(sequence, error)
        except Exception as error:  # a thread may not start, a library may raise anything
            ready(sequence, turn_defect(error, "compiling a grammar"))
        else:
            if asked is None:
                ready(sequence, None)

    def _form_of(self, command: object) -> ResponseFormat | CallsOrForm | None:
        """Return the form of a reply, if it has one: calls of tools that are forced, or that which is asked for.

        A reply that may call tools may do so instead of having the form that is asked for.
        """
        if not isinstance(command, Prompt):
            return None
        form, template = command.response_format, self._model.text.reply_template
        if not isinstance(command, Chat) or template is None:
            return form
        is_forced = command.calls is not None
        if not is_forced and (form is None or not command.tools):
            return form
        added = self._model.tokenizer.added_tokens_decoder
        calls = grammar_of_calls(
            template,
            [tool for tool in command.tools if command.calls in (None, "", tool.name)],
            special={token.content for at, token in added.items() if self._grammars.is_special(at)},
            parallel=command.parallel and not command.calls,
        )
        if calls is None and is_forced:
            raise InvalidRequest(
                "this model's calls cannot be forced: its response template has none that are JSON between two marks;"
                " send `auto`",
                field="tool_choice",
            )
        return form if calls is None else CallsOrForm(calls, form)

    def _compiled(self, sequence: Sequence, ready: Ready, compiled: Compiled) -> None:
        if sequence.status is TurnStatus.DONE:
            return
        if isinstance(compiled, StatefulError):
            ready(sequence, compiled)
            return
        sequence.matcher = compiled
        ready(sequence, None)
