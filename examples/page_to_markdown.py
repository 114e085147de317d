"""Turn the main content of a page into Markdown, without menus, teasers and footers."""

from pathlib import Path

from trawl import html_to_markdown

page = Path(__file__).resolve().parent / "site" / "index.html"

print(html_to_markdown(page.read_text("utf-8"), url="https://kestrel-saddle.example/handbook"))
