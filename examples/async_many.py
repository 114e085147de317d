"""Ask two questions at once. One engine serves any number of calls; its connections and its browser are shared."""

import asyncio
from urllib.parse import urlsplit

from serve import serve_example

from trawl import AsyncEngine

QUESTIONS = ["On which radio channel does the rescue post listen?", "When does the last bus leave on Sundays?"]


async def main(url: str) -> None:
    # The page is on this machine, which no page may reach unless it is allowed by name.
    async with AsyncEngine(allow_private=[urlsplit(url).netloc]) as engine:
        calls = [engine.fetch_relevant(url, question, k=1) for question in QUESTIONS]
        for question, result in zip(QUESTIONS, await asyncio.gather(*calls), strict=True):
            print(question)
            for piece in result.chunks:
                print(piece["text"], end="\n\n")


if __name__ == "__main__":
    with serve_example() as url:
        asyncio.run(main(url))
