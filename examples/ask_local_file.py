"""Find the pieces of a saved page that answer a question. Nothing is fetched."""

from pathlib import Path

from trawl import extract_relevant

page = Path(__file__).resolve().parent / "site" / "index.html"

result = extract_relevant(
    page.read_bytes(),
    "What does a bed in a room for four cost a club member?",
    url="https://kestrel-saddle.example/handbook",  # where it came from: links and anchors lead there
    max_tokens=300,
)
for piece in result.chunks:
    print(piece["heading"])
    print(piece["text"])
    print(piece["anchor"], end="\n\n")
