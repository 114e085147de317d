"""trawl."""
