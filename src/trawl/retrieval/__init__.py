"""From chunks and a question to the few chunks that answer it. Pure: vectors arrive as arrays."""
