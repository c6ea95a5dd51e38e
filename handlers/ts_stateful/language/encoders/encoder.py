"""Encoders of the pictures or clips of a session, and the form in which a model gets their embeddings."""

from __future__ import annotations

import abc
import copy
import enum
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ts_stateful.language.fingerprint import weights_digest
from ts_stateful.language.kv.spans import Block
from ts_stateful.media.load import MediaFile

__all__ = ["Encoder", "LookAhead", "MediaInput", "Shown", "Tower"]

_STANDS = re.compile(b"\1{2,}")
DecodedT = TypeVar("DecodedT")


class LookAhead(enum.Enum):
    """The layers in which the tokens of an image see one another."""

    NONE = "none"
    WINDOWED = "windowed"
    ALL = "all"


@dataclass(eq=False)
class MediaInput:
    """An image or a clip of a session, or of all sessions that have the same one.

    Sessions call both images. `key` names its content (see `Encoder.key`). `ids` are the
    token ids that stand for it in the context. `tensors` is the processor's output, until `features` replace it: a tensor
    `(rows, hidden)` per feature map, the first for the tokens that stand for it. A media thread makes it. Afterwards only the
    engine's thread changes it, once.
    """

    key: str
    ids: list[int]
    # (1, 3): patches in time, height and width, for models with M-RoPE; or 1, 1 and tiles, for those of `VisionBeside`
    grid: Tensor | None
    tensors: dict[str, Tensor]
    features: tuple[Tensor, ...] | None = field(default=None)

    @property
    def num_bytes(self) -> int:
        """Bytes of its embeddings on the device; 0 before they are computed."""
        return sum(int(feature.nbytes) for feature in self.features or ())


class Shown(NamedTuple):
    """Tokens `start` to `stop` of a session with these images; `mask` has 1 for every id that stands for a part of one."""

    images: Sequence[MediaInput]
    mask: bytearray | None
    start: int
    stop: int


class Encoder(abc.ABC, Generic[DecodedT]):
    """The part of a model that reads media, of one kind by a tower, or of several by a tower each.

    Attributes:
        look_ahead: the layers in which the tokens of an image see one another.
        is_beside: True if layers attend to images beside the text, so that every token of a session needs all of them.
    """

    is_beside: ClassVar[bool] = False

    def __init__(self) -> None:
        self.look_ahead = LookAhead.NONE

    @property
    @abc.abstractmethod
    def towers(self) -> tuple[Tower[Any], ...]:
        """The towers, one for each kind of media."""

    @abc.abstractmethod
    def decode(self, file: MediaFile) -> DecodedT:
        """Decode a file. For any thread. Raises MediaError."""

    @abc.abstractmethod
    def key(self, decoded: DecodedT, *salts: str) -> str:
        """Return a name of the embeddings, from the content and `salts`. For any thread."""

    @abc.abstractmethod
    def prepare(self, decoded: DecodedT, key: str = "") -> MediaInput:
        """Run the processor on the CPU. For any thread."""

    @abc.abstractmethod
    def process(self, text: str, decoded: Sequence[DecodedT]) -> dict[str, Any]:
        """Return what the stock processor makes of a rendered chat and its media, as it is meant to be used."""

    @abc.abstractmethod
    def samples(self) -> list[list[DecodedT]]:
        """Return media of messages for the trial at load: different sizes, the larger ones smaller in the next list."""

    @property
    def tokens(self) -> frozenset[int]:
        """The ids of tokens that stand for parts of media."""
        return frozenset(tower.token_id for tower in self.towers)

    def tower_of(self, image: MediaInput) -> Tower[Any]:
        """Return the tower that reads media of this kind: its token is among the image's ids."""
        first, *others = self.towers
        return next((tower for tower in others if tower.token_id in image.ids), first)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of media, as requests name them."""
        return tuple(tower.kind for tower in self.towers)

    @property
    def num_encoded(self) -> int:
        """The runs of the towers."""
        return sum(tower.num_runs for tower in self.towers)

    @property
    def max_seconds(self) -> float:
        """The length of a clip that the model reads whole; 0 if it takes none."""
        return max(tower.most_seconds for tower in self.towers)

    def unseen(self, images: Sequence[MediaInput]) -> dict[MediaInput, int]:
        """Return the images without embeddings, and the bytes that each will take on the device."""
        return {
            image: self.num_tokens(image) * self.tower_of(image).token_bytes
            for image in images
            if image.features is None
        }

    def num_tokens(self, image: MediaInput) -> int:
        """Return the number of tokens that stand for parts of an image."""
        return image.ids.count(self.tower_of(image).token_id)

    def mask(self, ids: Sequence[int], images: Sequence[MediaInput]) -> bytearray:
        """Return 1 for every id that stands for a part of an image; a generated token of that kind gets 0."""
        mask = bytearray(len(ids))
        at = 0
        for image in images:
            token = self.tower_of(image).token_id
            marks = _core(image.ids, token)
            span = len(marks)
            while at <= len(ids) - span and (ids[at] != marks[0] or ids[at : at + span] != marks):
                at += 1
            for index in range(at, min(at + span, len(ids))):
                mask[index] = ids[index] == token
            at += span
        return mask

    def blocks(self, mask: bytearray) -> list[Block]:
        """Return the runs of image tokens that see one another; none if the model's see only backwards."""
        if self.look_ahead is LookAhead.NONE:
            return []
        only_windowed = self.look_ahead is LookAhead.WINDOWED
        return [Block(*match.span(), only_windowed) for match in _STANDS.finditer(mask)]

    @staticmethod
    def key_of(images: Sequence[MediaInput], mask: bytearray | None) -> tuple[str, ...] | None:
        """Return a name of the images on which all states of a session depend; None if they do not."""
        return None

    def inputs(self, parts: Sequence[Shown]) -> dict[str, Any]:
        """Return the arguments of `Forward` by which a model gets the images of these tokens, which go into one pass.

        Runs the tower for images without embeddings.
        """
        features, stands = list[list[Tensor]](), bytearray()
        for images, mask, start, stop in parts:
            assert mask is not None
            first = mask.count(1, 0, start)
            features += self._features_of(images, first, first + mask.count(1, start, stop))
            stands += mask[start:stop].ljust(stop - start, b"\0")
        most = max(map(len, features))
        padded = [[*some, *[torch.zeros_like(some[0])] * (most - len(some))] for some in features]
        return self._inputs(stands, [torch.cat(rows) for rows in zip(*padded, strict=True)])

    def _inputs(self, stands: bytearray, maps: list[Tensor]) -> dict[str, Any]:
        """Return the arguments for embeddings, `(tokens, hidden)` per feature map; `stands` has 1 for every token of them."""
        mask = torch.frombuffer(stands, dtype=torch.uint8).bool()
        return {"spliced": (mask.to(maps[0].device), maps)}

    def _features_of(
        self, images: Sequence[MediaInput], start: int, stop: int
    ) -> Iterator[list[Tensor]]:
        """Yield the features of each image that has some of the image tokens `start` to `stop`, counted over all."""
        at = 0
        for image in images:
            count = self.num_tokens(image)
            first, last = max(0, start - at), min(count, stop - at)
            at += count
            if first < last:
                yield [feature[first:last] for feature in self._encoded(image)]

    def _encoded(self, image: MediaInput) -> tuple[Tensor, ...]:
        if image.features is None:
            self.tower_of(image).encode(image)
        assert image.features is not None
        return image.features


class Tower(Encoder[DecodedT]):
    """The part of a model that reads media of one kind; it encodes one at a time.

    Attributes:
        token, token_id: what stands for a part of an image or clip in a text and in a context.
        token_bytes: the bytes of the embeddings of a token.
        num_runs: the runs of the tower.
    """

    kind: ClassVar[Literal["images", "audio"]]
    part: ClassVar[Literal["image", "audio"]]  # of a message, as chat templates name it
    most_seconds = 0.0  # of a clip
    _num_maps = 1  # tensors of features

    def __init__(self, network: PreTrainedModel, processor: Any, salts: tuple[str, ...]) -> None:
        super().__init__()
        # A copy for media threads, because two threads must not call one tokenizer at once.
        self._processor = copy.deepcopy(processor)
        self._lock = threading.Lock()
        self._identity = (
            processor.to_json_string(),
            weights_digest(network),
            str(network.dtype),
            *salts,
        )
        self._network = network
        width = network.config.get_text_config(decoder=True).hidden_size * self._num_maps
        self.token_bytes: int = width * network.dtype.itemsize
        self.token, self.token_id = self._find_token(network, processor)
        self.num_runs = 0

    @abc.abstractmethod
    def _find_token(self, network: PreTrainedModel, processor: Any) -> tuple[str, int]:
        """Return what stands for a part; raise ConfigError if the model does not say it."""

    @abc.abstractmethod
    def _features(self, image: MediaInput, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Return the embeddings `(rows, hidden)` per feature map, by the tower. `inputs` are on the device."""

    @property
    def towers(self) -> tuple[Tower[Any], ...]:
        """See `Encoder`."""
        return (self,)

    def encode(self, image: MediaInput) -> None:
        """Run the tower: replace `tensors` by `features`. After an error the image is unchanged."""
        device, dtype = self._network.device, self._network.dtype
        inputs = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None)
            for name, tensor in image.tensors.items()
        }
        features = self._features(image, inputs)
        self.num_runs += 1
        expected = self.num_tokens(image)
        if (found := self._count(features)) != expected:
            raise RuntimeError(f"{found} features of {self.kind} for {expected} tokens")
        image.features, image.tensors = features, {}

    def _count(self, features: tuple[Tensor, ...]) -> int:
        """Return the number of tokens that these features are of."""
        return features[0].shape[0]


def _core(ids: list[int], token: int) -> list[int]:
    """Return the ids of an image without those before and after it, which may be tokenized otherwise beside a text."""
    first, last = ids.index(token), ids[::-1].index(token)
    return ids[first : len(ids) - last]
