"""Edits of single logits, in float64, in the order of the sampling contract.

Each function changes `logits` [V] in place and touches only the tokens it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.sampling.batch import SampleRow

    Logits = NDArray[np.float64]


def add_bias(logits: Logits, row: SampleRow) -> None:
    """Add `logit_bias` of each token."""
    bias = row.params.logit_bias
    logits[np.fromiter(bias.keys(), np.int64, len(bias))] += np.fromiter(bias.values(), np.float64, len(bias))


def ban_words(logits: Logits, row: SampleRow) -> None:
    """Forbid the last token of each spelling whose other tokens end the output."""
    for spelling in row.bad_word_ids:
        start = row.position - (len(spelling) - 1)
        if spelling and start >= row.prompt_len and list(row.tokens[start : row.position]) == list(spelling[:-1]):
            logits[spelling[-1]] = -np.inf


def hold_back(logits: Logits, row: SampleRow) -> None:
    """Forbid the end tokens that `min_tokens` holds back."""
    logits[list(row.held_back_ids)] = -np.inf


def penalise(logits: Logits, row: SampleRow) -> None:
    """Apply repetition over prompt and output, then frequency, then presence over the output alone."""
    params = row.params
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.array(row.tokens[: row.position], np.int64))
        values = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty or params.presence_penalty:
        output = np.array(row.tokens[row.prompt_len : row.position], np.int64)
        seen, counts = np.unique(output, return_counts=True)
        logits[seen] = logits[seen] - params.frequency_penalty * counts - params.presence_penalty
