"""Request bodies and checked replies of the OpenAI-style API and what llama-server adds to it. Pure: no sockets here."""
