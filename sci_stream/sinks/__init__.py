"""Where results go: recordings, the live preview, pictures for a screen."""
