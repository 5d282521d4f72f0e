"""The rules of delivery, without sockets, clocks or threads; time is an argument.

`dispatch_queue` assigns snapshots to reconstruct nodes, `outbox` keeps messages until they are
acknowledged, `ledger` and `interval_set` account for every sequence number, `reorder_buffer`
restores the order of results.
"""
