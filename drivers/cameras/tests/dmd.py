"""The program of a DMD's maker: ``dmd.py SOCKET COMMAND …`` passes a command on to the device and
prints its answer.
"""

import socket
import sys

with socket.socket(socket.AF_UNIX) as line:
    line.settimeout(20)
    line.connect(sys.argv[1])
    line.sendall("\0".join(sys.argv[2:]).encode())
    line.shutdown(socket.SHUT_WR)
    print(line.makefile().read())
