"""The page that asks for the token of the live page."""

from __future__ import annotations

import base64
import hashlib
import html

from starlette.responses import HTMLResponse

_STYLE = """
:root { color-scheme: dark; font: 16px/1.5 system-ui, sans-serif; color: #e6ebf0; background: #0a0d10; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; }
form { width: min(400px, 84vw); padding: 24px; background: #12171c; border: 1px solid #242d36; border-radius: 12px; }
h1 { margin: 0 0 12px; font-size: 18px; color: #5ad1c4; }
p { margin: 0 0 16px; }
label { display: block; color: #8c99a6; font-size: 14px; }
input, button { box-sizing: border-box; width: 100%; min-height: 44px; margin-top: 6px; padding: 6px 12px;
  font: inherit; color: inherit; background: #1b222a; border: 1px solid #37434e; border-radius: 8px; }
button { margin-top: 14px; font-weight: 600; cursor: pointer; }
:focus-visible { outline: 2px solid #5ad1c4; outline-offset: 2px; }
"""
_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>sci_stream: token</title><style>{_STYLE}</style></head>
<body><form action="/" method="get"><h1>sci_stream</h1><p role="alert">REFUSAL</p>
<label>Token<input type="password" name="token" autocomplete="current-password" required autofocus></label>
<button>Open</button></form></body></html>
"""
_POLICY = (
    "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    + "'"
)


def token_page(why: str) -> HTMLResponse:
    """Return a page that gives the reason and asks for the token."""
    text = html.escape(why[:1].upper() + why[1:] + ".")
    return HTMLResponse(_PAGE.replace("REFUSAL", text), status_code=403, headers={"Content-Security-Policy": _POLICY})
