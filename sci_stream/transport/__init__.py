"""Everything that touches ZeroMQ: sockets, the dispatch of snapshots, the links to the sink, taps;
in `http`, HTTP.

The rules of delivery are in `sci_stream.delivery`, the messages in `sci_stream.wire`; here they
meet a network. Every object is driven from one thread by its node's poll loop: it never blocks and
never sleeps.
"""
