"""Books that ask long after they told: the answer is one token that stands once, anywhere before.

A chapter of 128 tokens tells first who keeps which thing, 16 facts of one token each (``annalamp``) in random order,
and then asks 48 times (``anna lamp``). The answers alone are learnt and scored. Before 12 of the questions the fact
is told again: these are ``near``, and a window of 2 tokens is enough. Of the others those are ``far`` whose fact
stands 40 tokens back or more: a window reaches them only through the answers that it sees by chance.

What bounded readers can reach, as perplexity of the answers (:func:`tasks.lm.task.LM.baselines` computes them):
without attention 16, every thing as likely as any other; with a window of ``w`` tokens 1 where the fact, or the same
question, stands within ``w``, else 16; with all of the chapter 1. A state must hold 16 facts of 4 bits.
"""

from __future__ import annotations

import random

from tasks.corpus.synthetic import CHAPTERS, NAMES, THINGS

NEAR, OTHERS = 12, 36

LEVELS = {"near": range(5), "far": range(41, 10_000)}
"""Tokens from an answer back to where it was told last."""


def generate_book(number: int) -> str:
    """Book ``number``, always the same."""
    rng = random.Random(f"book {number}")
    return "".join(_chapter(rng) for _ in range(CHAPTERS))


def _chapter(rng: random.Random) -> str:
    keeps = {name: rng.choice(THINGS) for name in rng.sample(NAMES, len(NAMES))}
    facts = " ".join(name + thing for name, thing in keeps.items())
    questions = []
    for told_again in rng.sample([True] * NEAR + [False] * OTHERS, NEAR + OTHERS):
        name = rng.choice(NAMES)
        fact = f"{name}{keeps[name]} " if told_again else ""
        questions.append(f"{fact}{name} {keeps[name]}")
    return f"Kept {facts}\nAsked {' '.join(questions)}\n"
