"""Requests to other machines: proxies of the environment are used for public addresses alone."""

from __future__ import annotations

import ipaddress
import socket
import urllib.request
from urllib.parse import urlsplit

Handler = urllib.request.BaseHandler | type[urllib.request.BaseHandler]


def opener_for(
    url: str, *handlers: Handler, has_token: bool = False
) -> tuple[urllib.request.OpenerDirector, str]:
    """Return the opener of a URL with these handlers, and its proxy without the password.

    There is none to addresses of this machine and of private networks, which a proxy does not
    reach, nor for a request with a token, which a proxy could read.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = urllib.request.getproxies().get(parts.scheme, "")
    if not proxy or has_token or urllib.request.proxy_bypass(host) or _is_private(host):
        return urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers), ""
    return urllib.request.build_opener(*handlers), proxy.rpartition("@")[2]


def _is_private(host: str) -> bool:
    """Return whether all addresses of a host are of this machine or of a private network."""
    try:
        answers = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return "." not in host or host.endswith(".local")
    hosts = {str(place[0]).partition("%")[0] for *_, place in answers}
    return all(ipaddress.ip_address(one).is_private for one in hosts)
