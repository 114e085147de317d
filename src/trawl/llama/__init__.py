"""The only code that knows llama-server."""
