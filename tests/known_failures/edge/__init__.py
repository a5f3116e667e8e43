"""Situations at the edge: inputs that went wrong elsewhere, what comes out here, and the tests of it.

One module a kind, each with its heading and its situations; ten numbers are reserved for each kind:

    structure  F35  text never becomes structure        scores   F65  rewards read what people write
    tokens     F45  what ends an answer, and is drawn   offsets  F75  offsets have holes
    readers    F55  text, tables and messages           archive  F85  the archive in every engine
    assistants F95  assistants, agents and web pages    loops    F105 what other loops lost
"""
