"""The sampling contract once more, token by token in plain Python floats: slow, obvious, the judge of the real one.

Written from the text in `trivium.sampling.pipeline` and from nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trivium.sampling.batch import SampleRow

MASK_32 = 0xFFFFFFFF


def philox_block(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        even, odd = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(odd >> 32) ^ c[1] ^ k[0], odd & MASK_32, (even >> 32) ^ c[3] ^ k[1], even & MASK_32]
        k = [(k[0] + 0x9E3779B9) & MASK_32, (k[1] + 0xBB67AE85) & MASK_32]
    return c


def uniform(seed: int, choice: int, position: int, draw: int = 0) -> float:
    a, b, _, _ = philox_block((position, draw, choice, 0), (seed & MASK_32, seed >> 32))
    return ((a >> 5) * 2**26 + (b >> 6)) * 2.0**-53


def weight_of(x: float) -> float:
    if x < -708.0:
        return 0.0
    n = round(x * 1.4426950408889634)
    r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10
    p = (1 / math.factorial(12)) * r
    for k in range(11, 0, -1):
        p = (p + 1 / math.factorial(k)) * r
    return math.ldexp(p + 1.0, n)


def left_to_right(values: Sequence[float]) -> float:
    total = values[0]
    for value in values[1:]:
        total += value
    return total


def edited_logits(logits: Sequence[float], row: SampleRow, allowed: set[int] | None) -> dict[int, float]:
    params = row.params
    y = list(logits)
    for token, bias in params.logit_bias.items():
        y[token] += bias
    output = list(row.tokens[row.prompt_len : row.position])
    for spelling in row.bad_word_ids:
        rest = list(spelling[:-1])
        if len(rest) <= len(output) and output[len(output) - len(rest) :] == rest:
            y[spelling[-1]] = -math.inf
    for token in row.held_back_ids:
        y[token] = -math.inf
    if params.repetition_penalty != 1.0:
        for token in set(row.tokens[: row.position]):
            y[token] = y[token] / params.repetition_penalty if y[token] > 0 else y[token] * params.repetition_penalty
    if params.presence_penalty or params.frequency_penalty:
        for token in set(output):
            y[token] = (y[token] - params.frequency_penalty * output.count(token)) - params.presence_penalty
    return {t: v for t, v in enumerate(y) if v > -math.inf and (allowed is None or t in allowed)}


def kept_weights(y: dict[int, float], row: SampleRow) -> dict[int, float]:
    """Weights, ids ascending, of the tokens that may be drawn."""
    params = row.params
    greatest = max(y.values())
    w = {t: weight_of((v - greatest) / params.temperature) for t, v in y.items()}
    d = {t: (v - greatest) / params.temperature for t, v in y.items()}
    ranked = sorted(y, key=lambda t: (-y[t], t))
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    if params.top_p < 1.0:
        ranked = until(ranked, w, params.top_p * left_to_right([w[t] for t in sorted(ranked)]))
    if params.min_p > 0.0:
        ranked = [t for t in ranked if w[t] >= params.min_p]
    if params.typical_p < 1.0:
        ids = sorted(ranked)
        total = left_to_right([w[t] for t in ids])
        log_probs = {t: d[t] - math.log(total) for t in ids}
        entropy = -left_to_right([(w[t] / total) * log_probs[t] if w[t] > 0 else 0.0 for t in ids])
        by_surprise = sorted(ids, key=lambda t: (abs(log_probs[t] + entropy), t))
        ranked = until(by_surprise, w, params.typical_p * total)
    return {t: w[t] for t in sorted(ranked)}


def until(order: Sequence[int], weights: dict[int, float], goal: float) -> list[int]:
    kept: list[int] = []
    before = 0.0
    for token in order:
        if kept and not before < goal:
            break
        kept.append(token)
        before = before + weights[token] if len(kept) > 1 else weights[token]
    return kept


def draw_token(logits: Sequence[float], row: SampleRow, allowed: set[int] | None = None) -> int:
    y = edited_logits(logits, row, allowed)
    if row.params.temperature < 1e-5:
        return min(y, key=lambda t: (-y[t], t))
    weights = kept_weights(y, row)
    total = left_to_right(list(weights.values()))
    goal = uniform(row.params.seed or 0, row.choice, row.position) * total
    running = 0.0
    for token, weight in weights.items():
        running = running + weight if running else weight
        if running > goal:
            return token
    return max(t for t, weight in weights.items() if weight > 0)


def raw_logprob(logits: Sequence[float], token: int) -> float:
    greatest = max(logits)
    total = math.fsum(math.exp(v - greatest) for v in logits)
    return logits[token] - greatest - math.log(total)
