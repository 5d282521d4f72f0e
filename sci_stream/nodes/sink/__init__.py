"""The sink node: keeps the ledger, records, displays and confirms results."""
