"""Train the text model: `python -m benchmarks.text_model.train --text bible.txt --out FOLDER`."""

from __future__ import annotations

import argparse
import itertools
import math
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.text_model.lessons import NEW, REPEATING, Dialogue, Verse, dialogue, parse, split
from benchmarks.text_model.network import build_network, build_tokenizer

_RATE: Final = 6e-4
_WARM_UP: Final = 60  # steps
_TOKENS: Final = 3072  # of a step
_OTHER: Final = 0.1  # weight of a token that is no reply's


class Batch(NamedTuple):
    """Ids and weights, (rows, tokens); kinds by row."""

    ids: Tensor
    weights: Tensor
    kinds: list[str]


class School:
    """Writes batches of dialogues, as the template does."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, verses: list[Verse], rng: random.Random
    ) -> None:
        self._verses, self._rng = verses, rng
        self._encode = tokenizer._tokenizer.encode
        self._begin = tokenizer.bos_token_id
        names = ("<|user|>", "<|assistant|>", "<|end|>")
        self._user, self._assistant, self._end = tokenizer.convert_tokens_to_ids(names)

    def batch(self, longest: int, share_new: float) -> Batch:
        """Return dialogues of up to `longest` tokens."""
        rows: list[list[tuple[int, float]]] = []
        kinds: list[str] = []
        while len(rows) < max(2, _TOKENS // longest):
            group = NEW if self._rng.random() < share_new else REPEATING
            kind, talk = dialogue(self._rng, group, self._verses)
            row = self._write(talk)
            if len(row) <= longest:
                rows.append(row)
                kinds.append(kind)
        width = max(map(len, rows))
        padded = [row + [(0, 0.0)] * (width - len(row)) for row in rows]
        ids = torch.tensor([[one for one, _ in row] for row in padded])
        weights = torch.tensor([[weight for _, weight in row] for row in padded])
        return Batch(ids, weights, kinds)

    def _write(self, talk: Dialogue) -> list[tuple[int, float]]:
        row = [(self._begin, 0.0)]
        for prompt, reply in talk:
            row += [(self._user, 0.0), *((one, _OTHER) for one in self._encode(prompt).ids)]
            row += [(self._end, 0.0), (self._assistant, 0.0)]
            row += [(one, 1.0) for one in [*self._encode(reply).ids, self._end]]
        return row


class Score:
    """Right tokens of replies, by kind."""

    def __init__(self) -> None:
        self._right: Counter[str] = Counter()
        self._total: Counter[str] = Counter()

    def add(self, kinds: list[str], right: Tensor, counted: Tensor) -> None:
        """Count tokens: (rows, tokens) each."""
        for kind, hits, all_ in zip(kinds, (right & counted).sum(1), counted.sum(1), strict=True):
            self._right[kind] += int(hits)
            self._total[kind] += int(all_)

    def __str__(self) -> str:
        return ", ".join(
            f"{kind} {self._right[kind] / self._total[kind]:.1%}" for kind in sorted(self._total)
        )


def loss_of(network: LlamaForCausalLM, batch: Batch, score: Score) -> Tensor:
    """Return the loss of a batch, and count."""
    hidden = network.model(input_ids=batch.ids, use_cache=False)[0][:, :-1]
    targets, weights = batch.ids[:, 1:], batch.weights[:, 1:]
    taken = weights > 0
    logits = network.lm_head(hidden[taken])
    right = torch.zeros_like(taken)
    right[taken] = logits.argmax(-1) == targets[taken]
    score.add(batch.kinds, right, weights == 1)
    losses = functional.cross_entropy(logits, targets[taken], reduction="none")
    return (losses * weights[taken]).sum() / weights.sum()


def train(options: argparse.Namespace) -> None:
    """Train for some minutes, and save each minute."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    learned, held_out = split(parse(options.text.read_text().splitlines()))
    tokenizer = build_tokenizer(verse.text for verse in learned)
    network = build_network(tokenizer)
    school = School(tokenizer, learned, random.Random(options.seed))
    trial = School(tokenizer, held_out, random.Random(options.seed))
    began, saved, score = time.monotonic(), 0.0, Score()
    optimizer = torch.optim.AdamW(network.parameters(), _RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in itertools.count(1):
        passed = time.monotonic() - began
        part = passed / (60 * options.minutes)
        if part >= 1:
            break
        batch = school.batch(128 if part < 0.3 else 384, 0.15)
        optimizer.param_groups[0]["lr"] = _rate(step, part)
        loss = loss_of(network, batch, score)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            _say(f"{step} steps, {passed:.0f} s, loss {loss.item():.3f}: {score}")
            score = Score()
        if passed - saved > 60:
            saved = passed
            save(network, tokenizer, options.out)
            examine(network, trial)
    save(network, tokenizer, options.out)
    examine(network, trial)


def _rate(step: int, part: float) -> float:
    """Return the learning rate of a step, when a part of the time has passed."""
    return _RATE * min(1, step / _WARM_UP) * (0.02 + 0.98 * math.cos(part * math.pi / 2))


def examine(network: LlamaForCausalLM, trial: School) -> None:
    """Print the share of right tokens in held-out dialogues."""
    score = Score()
    with torch.no_grad():
        for _ in range(6):
            loss_of(network, trial.batch(384, 0.15), score)
    _say(f"held out: {score}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def save(network: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model in half precision beside its place, and move it there."""
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    half = {name: weight.half() for name, weight in network.state_dict().items()}
    half.pop("lm_head.weight")  # the embeddings again
    network.save_pretrained(fresh, state_dict=half)
    tokenizer.save_pretrained(fresh)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def main() -> None:
    """Take the command line and train."""
    parser = argparse.ArgumentParser(description="Train the text model of the benchmark.")
    parser.add_argument("--text", type=Path, required=True, help="what `bible -f` writes")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write or replace")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
