"""Who gets which snapshot, and what became of each: the rules of delivery, free of sockets, clocks and threads.

`dispatch` decides which reconstruct node gets what, `outbox` remembers what is not yet safe, `seqset` and `ledger`
account for every sequence number, `reorder` puts results in order again. Time comes in as an argument.
"""
