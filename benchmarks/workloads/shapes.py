"""The loads, as records: how many prompts, what they have in common, how long they and their answers are.

All lengths are in tokens. A record says how long prompts get, so that engines can be given room for them; `draw` makes
the prompts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Groups of prompts that begin with the same instructions and ask different questions.

    ::

        group 0   [instructions 0 ........][question]      per_group times
        group 1   [instructions 1 ........][question]      per_group times
    """

    groups: int
    per_group: int
    system_len: int
    question_len: int
    output_len: int

    @property
    def num_requests(self) -> int:
        """Prompts in all."""
        return self.groups * self.per_group

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return self.system_len + self.question_len

    @property
    def longest_output(self) -> int:
        """Tokens of the longest answer."""
        return self.output_len


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTurn:
    """Chats under common instructions, each of which grows by an answer and a message a turn.

    ::

        turn 0   [instructions][message]
        turn 1   [instructions][message][answer][message]
        turn 2   [instructions][message][answer][message][answer][message]
    """

    chats: int
    turns: int
    system_len: int
    message_len: int
    output_len: int
    own_answers: bool = True
    """Whether an engine's own answers are fed back, tokenized from their text and brought to their length in tokens;
    otherwise drawn ones of that length."""

    @property
    def num_requests(self) -> int:
        """Prompts in all."""
        return self.chats * self.turns

    @property
    def longest_prompt(self) -> int:
        """Tokens of the last turn's prompt."""
        return self.system_len + self.turns * self.message_len + (self.turns - 1) * self.output_len

    @property
    def longest_output(self) -> int:
        """Tokens of the longest answer."""
        return self.output_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Rag:
    """Questions over retrieved documents: a topic's documents come first, always in one order, then the asker's own.

    ::

        [instructions][doc 2][doc 5][doc 9][own ...........][question]
                      | of a pool, shared by  | this request
                      | all of one topic      | alone

    Some requests repeat another one to the last token. Lengths of documents are drawn, and the shared part is never a
    whole number of pages of 16.
    """

    requests: int = 100
    topics: int = 8
    """Different choices of documents from the pool."""
    pool: int = 12
    """Documents."""
    documents: int = 3
    """Documents of the pool in one prompt."""
    document_len: int = 300
    """Mean; drawn between two thirds and four thirds of it."""
    shared: float = 0.6
    """Share of a prompt's document tokens that come from the pool."""
    repeats: int = 8
    """Requests that repeat another one."""
    system_len: int = 703
    question_len: int = 32
    output_len: int = 16

    @property
    def num_requests(self) -> int:
        """Prompts in all."""
        return self.requests

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt there may be."""
        longest_shared = self.documents * (self.document_len * 4 // 3 + 1) + 1
        return self.system_len + round(longest_shared / self.shared) + self.question_len

    @property
    def longest_output(self) -> int:
        """Tokens of the longest answer."""
        return self.output_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """Streams that run, and long prompts beside them; nothing is shared.

    Both are closed loops: as soon as one of its kind has ended, the next one begins.
    """

    streams: int
    """Streams in all."""
    longs: int
    """Long prompts in all."""
    longs_open: int
    """Long prompts that are open at a time."""
    stream_len: int = 64
    stream_output_len: int = 128
    shortest_long: int = 1536
    longest_long: int = 3072
    long_output_len: int = 16

    @property
    def num_requests(self) -> int:
        """Prompts in all."""
        return self.streams + self.longs

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return self.longest_long

    @property
    def longest_output(self) -> int:
        """Tokens of the longest answer."""
        return max(self.stream_output_len, self.long_output_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Conversations that people had, with the answers that were recorded, cut to a context."""

    chats: int
    context_len: int
    """Most tokens of a prompt; longer conversations end before it, and long messages are cut."""
    longest_message: int
    """Most tokens of a message."""
    output_len: int
    """Tokens to generate per turn, whatever the recorded answer's length."""
    turns: int
    """Most turns of a conversation."""

    @property
    def num_requests(self) -> int:
        """Prompts in all, at most."""
        return self.chats * self.turns

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt there may be."""
        return self.context_len

    @property
    def longest_output(self) -> int:
        """Tokens of the longest answer."""
        return self.output_len


Shape = SharedPrefix | MultiTurn | Rag | Mixed | Recorded
