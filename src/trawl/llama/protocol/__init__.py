"""Request bodies and checked replies of the OpenAI-style API and of llama-server. Pure: no sockets here."""
