"""The spool: a file that preserves unacknowledged snapshots across a crash of the acquire node."""
