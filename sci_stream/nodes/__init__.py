"""The processes of the instrument: acquire, reconstruct, sink, and the supervisor that runs them on
one machine.
"""
