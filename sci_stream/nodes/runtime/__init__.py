"""What every node process shares: signals, logging, health reporting, control and connection
security.
"""
