"""Loads whose prompts share beginnings: what they look like, how they are drawn, and the least work that they are.

====================  ==============================================================================================
``shapes``            each load's sizes, as a record
``draw``              a record, a seed and a list of token ids make a load: sessions of turns, whose prompts grow
``recorded``          the same from conversations that were recorded
``optimum``           how few prompt tokens a load can cost
``blocks``            how many it costs a cache of whole blocks, simulated
====================  ==============================================================================================
"""
