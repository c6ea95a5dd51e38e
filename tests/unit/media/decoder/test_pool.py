"""Decoders that are killed, replaced and shared, and the bound on pixels."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from tests.support.decoders import idle_pids
from tests.support.pictures import noise, png
from ts_stateful.config.schema import MediaConfig
from ts_stateful.media.decoder.frames import IMAGE, Audible, Reply, Status
from ts_stateful.media.decoder.pool import DecoderPool, Lease, PixelBudget
from ts_stateful.media.decoder.process import DecoderNotStarted, DecoderProcess
from ts_stateful.protocol.errors import MediaInvalid, MediaTooLarge

PICTURE = noise(1)


class MortalPool(DecoderPool):
    """A pool that kills its decoders in the middle of an image, `num_kills` times. `killed` counts them."""

    num_kills = 0
    killed = 0

    def take(self, *, fresh: bool = False) -> DecoderProcess:
        process = super().take(fresh=fresh)
        if self.killed < self.num_kills:
            self.killed += 1
            decode = process.decode_image

            def dies(max_pixels: int) -> Image.Image | Status:
                os.kill(process.pid, signal.SIGKILL)
                return decode(max_pixels)

            process.decode_image = dies  # type: ignore[method-assign]
        return process


@pytest.fixture
def pool() -> Iterator[MortalPool]:
    """Decoders for images of at most 10,000 pixels."""
    pool = MortalPool(MediaConfig(max_pixels=10_000))
    yield pool
    pool.close()


def decode(pool: DecoderPool, data: bytes = png(PICTURE)) -> Image.Image:
    with Lease(pool) as lease:
        return lease.decode_image(data, "images[0]")


def test_a_decoder_is_kept_for_the_next_image(pool: MortalPool) -> None:
    """The first one starts before any image comes."""
    pool.warm_up()
    pids = idle_pids(pool)
    assert len(pids) == 1
    for _ in range(3):
        assert decode(pool).tobytes() == PICTURE.tobytes()
        with pytest.raises(MediaInvalid, match="damaged"):
            decode(pool, b"no image")
    assert idle_pids(pool) == pids


def test_an_image_whose_decoder_was_killed_is_decoded_again(pool: MortalPool) -> None:
    """By the next one; nobody notices."""
    pool.num_kills = 1
    assert decode(pool).tobytes() == PICTURE.tobytes()
    assert pool.budget.free == 10_000
    assert len(idle_pids(pool)) == 1


def test_an_image_that_kills_its_decoders_is_refused(pool: MortalPool) -> None:
    """After the second one, while the images of others are decoded; the next image finds a decoder."""
    pool.num_kills = 2
    with pytest.raises(MediaInvalid, match="crashed") as caught:
        decode(pool)
    assert caught.value.field == "images[0]"
    assert pool.killed == 2
    assert pool.budget.free == 10_000
    assert decode(pool).tobytes() == PICTURE.tobytes()


def test_others_do_not_notice_a_decoder_that_dies(pool: MortalPool) -> None:
    """Each image has a decoder of its own."""
    pool.num_kills = 3
    with ThreadPoolExecutor(4) as threads:
        pictures = [threads.submit(decode, pool) for _ in range(12)]
        failed = [each for each in pictures if each.exception() is not None]
    assert len(failed) <= 1  # two attempts of the same image may have met two of the kills
    for each in pictures:
        if each not in failed:
            assert each.result().tobytes() == PICTURE.tobytes()
    assert pool.budget.free == 10_000


def test_decoders_that_died_while_idle_are_replaced(pool: MortalPool) -> None:
    """All of them, as if the kernel had taken them for their memory."""
    for process in [pool.take() for _ in range(3)]:
        process.open(png(PICTURE))
        os.kill(process.pid, signal.SIGKILL)
        pool.give_back(process)
    for _ in range(3):
        assert decode(pool).tobytes() == PICTURE.tobytes()


def test_a_decoder_that_hangs_is_replaced() -> None:
    """Its image is refused; it is not tried again, as it would take as long."""
    pool = DecoderPool(MediaConfig(decode_timeout_sec=0.2))
    try:
        decode(pool)
        os.kill(idle_pids(pool)[0], signal.SIGSTOP)
        with pytest.raises(MediaInvalid, match=r"within 0\.2 s"):
            decode(pool)
        assert idle_pids(pool) == ()
        assert decode(pool).tobytes() == PICTURE.tobytes()
    finally:
        pool.close()


class StillbornPool(DecoderPool):
    """A pool whose decoders are killed before they have started."""

    def take(self, *, fresh: bool = False) -> DecoderProcess:
        process = super().take(fresh=fresh)
        os.kill(process.pid, signal.SIGKILL)
        return process


def test_decoders_that_do_not_start_are_no_fault_of_the_image() -> None:
    """Only the operator can repair that."""
    pool = StillbornPool(MediaConfig())
    with pytest.raises(DecoderNotStarted, match="status -9 at its start"):
        decode(pool)
    assert idle_pids(pool) == ()


class LyingPool(DecoderPool):
    """A pool whose decoders announce more pixels than allowed."""

    def take(self, *, fresh: bool = False) -> DecoderProcess:
        process = super().take(fresh=fresh)

        def lies(data: bytes, wanted: Audible = IMAGE) -> Reply:
            return Reply(Status.OK, 65_535, 65_535)

        process.open = lies  # type: ignore[method-assign]
        return process


def test_a_decoder_that_lies_is_killed() -> None:
    """What it announces is checked before memory is set aside."""
    pool = LyingPool(MediaConfig())
    with pytest.raises(MediaInvalid, match="crashed"):
        decode(pool)
    assert idle_pids(pool) == ()
    pool.close()


def test_too_many_bytes_never_reach_a_decoder() -> None:
    """They are refused without one."""
    pool = DecoderPool(MediaConfig(max_bytes=10))
    with pytest.raises(MediaTooLarge):
        decode(pool)
    assert idle_pids(pool) == ()


def test_pixels_are_counted_until_their_image_is_used(pool: MortalPool) -> None:
    """The lease returns them; an image that fits waits for those before it."""
    with Lease(pool) as lease:
        lease.decode_image(png(PICTURE), "")
        assert pool.budget.free == 10_000 - PICTURE.width * PICTURE.height
    assert pool.budget.free == 10_000


def test_the_sum_of_pixels_is_bounded(pool: MortalPool) -> None:
    """Eight of the largest images at once are decoded one after the other."""
    data, held, most = png(noise(1, 100, 100)), [0], [0]
    lock = threading.Lock()

    def use() -> None:
        with Lease(pool) as lease:
            size = lease.decode_image(data, "").size
            with lock:
                held[0] += size[0] * size[1]
                most[0] = max(most[0], held[0])
            with lock:
                held[0] -= size[0] * size[1]

    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(use) for _ in range(8)]:
            each.result()
    assert most == [10_000]


def test_pixels_are_given_in_order() -> None:
    """A large image is not overtaken for ever by small ones."""
    budget, order = PixelBudget(10), []
    budget.acquire(10)
    large_waits = threading.Event()

    def large() -> None:
        large_waits.set()
        budget.acquire(10)
        order.append("large")
        budget.release(10)

    def small() -> None:
        budget.acquire(1)
        order.append("small")
        budget.release(1)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(large)
        while not budget.waiting:
            large_waits.wait()
        second = threads.submit(small)
        while len(budget.waiting) < 2:
            large_waits.wait()
        budget.release(10)
        first.result()
        second.result()
    assert order == ["large", "small"]
    assert budget.free == 10
