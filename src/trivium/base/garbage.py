"""What a serving process has loaded is for good: the garbage collector need not look at it again and again.

A full collection looks at every object that is alive, some 10 ms for modules, tokenizer and application, and comes at
a moment that nobody chose: the tokens of that moment are late. So garbage is collected once when all is loaded, and
what is left is frozen.
"""

from __future__ import annotations

import gc


def freeze_what_is_loaded() -> None:
    """Collect, then take every object that is alive out of later collections.

    For processes that are ours alone; never in a caller's, whose objects would be frozen along.
    """
    gc.collect()
    gc.freeze()
