"""Trivium beside engines that a user could pick instead: same machine, model, prompts and lengths, in turns.

::

    python -m benchmarks.peers install llama-cpp openvino vllm
    python -m benchmarks.peers run --peers llama-cpp,openvino,vllm --rounds 5

`points` says what is measured, `engines/` how each engine is installed and driven, `turns` runs one measurement of one
engine, `rounds` interleaves them, `summary` and `report` turn the raw lines into tables. Linux only: what others took
of the machine is read from /proc.
"""
