"""The programs of `examples/programs` as loads: what sharing saves them, and how other servers do with the same ones.

===============  =====================================================================================================
``texts``        drawn texts, so that no run is warmed by an earlier one
``loads``        each program with its arguments, small and full
``player``       stands between programs and a backend: equal work for all, and a record of every call
``completions``  a backend: any server of OpenAI's completions
``ways``         how a load is run: in process, without a prefix cache, over HTTP by us and by peers
``report``       the tables
===============  =====================================================================================================
"""
