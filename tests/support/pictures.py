"""Pictures that tests show to models."""

from __future__ import annotations

import base64
import io
from typing import Any

import PIL.Image
import torch

__all__ = ["Picture", "encoded", "noise", "png", "png_base64"]

Picture = PIL.Image.Image


def noise(seed: int, width: int = 40, height: int = 56) -> PIL.Image.Image:
    """A picture of random pixels."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
    return PIL.Image.fromarray(pixels.numpy())


def encoded(picture: PIL.Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """A picture as the bytes of a file, with Pillow's options for that kind."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def png(picture: PIL.Image.Image) -> bytes:
    """A picture as the bytes of a PNG file."""
    return encoded(picture)


def png_base64(picture: PIL.Image.Image) -> str:
    """A picture as the protocol's `base64`."""
    return base64.b64encode(png(picture)).decode()
