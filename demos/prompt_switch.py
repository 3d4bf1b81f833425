"""One video, two prompts: the library in a few lines.

python demos/prompt_switch.py -o switch.mp4
"""

from __future__ import annotations

import argparse
from pathlib import Path

from streamgen import Engine
from streamgen.video_file import VideoFile


def main() -> None:
    """Make the video."""
    parser = argparse.ArgumentParser(description="One video, two prompts.")
    parser.add_argument("first", nargs="?", default="a red ball bounces on the grass")
    parser.add_argument("second", nargs="?", default="a blue star drifts over the sea at night")
    parser.add_argument("-o", "--output", type=Path, default=Path("prompt_switch.mp4"))
    parser.add_argument(
        "--chunks", type=int, default=12, help="chunks; the second half has the second prompt"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto")
    arguments = parser.parse_args()

    with (
        Engine("pocket", load_format=arguments.load_format) as engine,
        engine.open(arguments.first, seed=arguments.seed) as session,
        VideoFile(
            arguments.output, session.config.width, session.config.height, session.config.fps
        ) as video,
    ):
        for chunk in session:
            prompt = (arguments.first, arguments.second)[chunk.prompt_revision]
            print(f"chunk {chunk.index}: {len(chunk.frames)} frames of {prompt!r}")
            video.add(chunk.frames)
            if chunk.index + 1 == arguments.chunks // 2:
                receipt = session.set_prompt(arguments.second)
                print(f"accepted as prompt {receipt.prompt_revision}")
            if chunk.index + 1 == arguments.chunks:
                break
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
