"""What a round sends, and how loud its noise is: public constants, and a clip that is released."""

from __future__ import annotations

import math

from privfed.report.page.blocks import Block, Chapter, Facts, Paragraph
from privfed.report.page.drawing import Axes, Line, lines_picture
from privfed.report.page.run_facts import PageFacts
from privfed.run.forecast import RoundForecast
from privfed.words import number, size_of


def messages_chapter(facts: PageFacts) -> Chapter:
    """Signal against noise, the clip, and bytes."""
    exchange = facts.exchange
    if exchange is None:
        why = "Parts that the configuration names are not at hand, so this cannot be worked out."
        return Chapter("messages", "Noise and messages", [Paragraph(why)])
    blocks: list[Block] = [Facts({**_noise(exchange), **_clip(facts), **_traffic(facts, exchange)})]
    points = [(line["round"], line["clip"]) for line in facts.rounds if line.get("clip")]
    axes = Axes("round", "clip", from_zero=True)
    if picture := lines_picture("clip", "The released clip by round", axes, [Line("clip", points)]):
        blocks.append(picture)
    return Chapter("messages", "Noise and messages", blocks)


def _noise(exchange: RoundForecast) -> dict[str, str]:
    """How loud the average update may be, beside the noise on it."""
    if exchange.signal is None or exchange.noise is None:
        return {"noise": "none is added"}
    ratio = exchange.signal / exchange.noise if exchange.noise else math.inf
    return {
        "signal to noise": f"{number(float(f'{ratio:.2g}'))} : 1",
        "signal": f"an average of norm {exchange.signal:g} at most",
        "noise": f"of norm {exchange.noise:.2g} on it",
    }


def _clip(facts: PageFacts) -> dict[str, str]:
    plan = facts.plan
    if plan is None or not plan.mechanism.private:
        return {}
    first = " at first; it follows clients' norms" if plan.mechanism.adaptive else ""
    return {"clip": f"{plan.config.mechanism.clip:g}{first}"}


def _traffic(facts: PageFacts, exchange: RoundForecast) -> dict[str, str]:
    parties, down, up = exchange.parties, exchange.down, exchange.up
    party = "site" if facts.config and facts.config.by_sites else "client"
    return {
        "expected cohort": f"{exchange.cohort:g} clients",
        f"a {party} is sent": f"{size_of(down / parties)} a round",
        f"a {party} sends": f"{size_of(up / parties)} a round",
        "all together": f"{size_of(down)} down, {size_of(up)} up a round",
        **_staying(facts),
    }


def _staying(facts: PageFacts) -> dict[str, str]:
    """What clients keep, where they do."""
    if not (facts.config and facts.config.keeping):
        return {}
    what = "what each client keeps from round to round is never sent, and no ε covers it once shown"
    return {"stays with clients": f"{facts.config.keeping}: {what}"}
