"""trawl as an MCP server: one tool, `fetch_page`, over standard input and output."""
